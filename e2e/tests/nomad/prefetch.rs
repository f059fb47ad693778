//! Images that are here before their allocations: the block `prefetch` with Nomad's event stream, access control and a
//! token of few rights.

use std::{
    fs,
    path::{Path, PathBuf},
};

use e2e::{Alloc, Outcome, watch};
use serde_json::{Value, json};

use crate::{Case, Env, Needs::Prefetching, batch::expect_event, lifecycle::LIMIT};

pub const CASES: &[Case] = &[("prefetch_is_here_before_the_allocation", Prefetching, here_before)];

const JOB: &str = "prefetch";

/// A service with one task.
fn job(image: &str, count: u64) -> Value {
    let restart = json!({ "Attempts": 0, "Mode": "fail" });
    let config = json!({ "image": image, "command": "sleep", "args": ["1000"] });
    let update = json!({ "MaxParallel": 1, "MinHealthyTime": 0, "HealthCheck": "task_states" });
    let resources = json!({ "CPU": 50, "MemoryMB": 16 });
    let task = json!({
        "Name": "task", "Driver": "oci-rs", "Config": config, "Resources": resources, "KillTimeout": 1_000_000_000,
        "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
    });
    let group = json!({
        "Name": "group", "Count": count, "RestartPolicy": restart, "Update": update, "Tasks": [task],
        "EphemeralDisk": { "SizeMB": 10 },
    });
    json!({ "ID": JOB, "Name": JOB, "Type": "service", "Datacenters": ["dc*"], "TaskGroups": [group] })
}

fn register(env: &Env, image: &str, count: u64) -> Outcome {
    env.agent.api().put("/v1/jobs", &json!({ "Job": job(image, count) })).map(drop)
}

/// Waits until the node has an image.
fn wait_image(env: &Env, image: &str) -> Outcome {
    let records = env.agent.path().join("data/images");
    let found = || names(&records.join("images")).iter().any(|name| name == image).then_some(());
    watch::until(&records, image, LIMIT, found)
}

/// The names of the images in a directory of records.
fn names(records: &Path) -> Vec<String> {
    let entries = fs::read_dir(records).into_iter().flatten().flatten();
    let record = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok();
    entries.filter_map(|entry| Some(record(entry.path())?["reference"].as_str()?.to_owned())).collect()
}

/// Without its registry, a task starts only if the image is here.
fn here_before(env: &Env) -> Outcome {
    let [first, second] = ["test/prefetch:1", "test/prefetch:2"].map(|name| env.registry.reference(name));
    env.registry.push("test/prefetch:1")?;
    env.registry.push("test/prefetch:2")?;

    // A job without an allocation, then scaled.
    register(env, &first, 0)?;
    wait_image(env, &first)?;
    env.registry.down();
    let started = scaled(env, &first);
    // The driver is killed while it cannot reach the registry of the next image.
    let killed = started.and_then(|alloc| {
        register(env, &second, 0)?;
        alloc.wait_over()?;
        env.agent.kill_plugins()
    });
    env.registry.up()?;
    killed?;
    // The next process of the driver lists the jobs.
    wait_image(env, &second)?;
    env.registry.down();
    let updated = scaled(env, &second);
    env.registry.up()?;
    updated.map(drop)
}

/// Scales the job to one allocation, which runs.
fn scaled<'a>(env: &'a Env, image: &str) -> Outcome<Alloc<'a>> {
    let before = env.agent.placed(JOB, 0)?.len();
    register(env, image, 1)?;
    let alloc = env.agent.placed(JOB, before + 1)?.swap_remove(before);
    alloc.wait_running()?;
    expect_event(&alloc, "Image is on this node: sha256:")?;
    Ok(alloc)
}
