//! Commands for a node without a running agent: `doctor --fix` removes leftovers, and `rollback` removes the tasks of
//! the driver with the name docker. Neither touches another task that runs.

use std::{fs, path::Path, process::Stdio, time::Duration};

use e2e::{Failure, Job, Outcome, process, watch};
use serde_json::Value;

use crate::{
    Case, Env,
    Needs::OwnAgent,
    batch::script,
    commands::json,
    lifecycle::{self, LIMIT},
    service::{PAGE, page, patiently},
};

pub const CASES: &[Case] = &[("stopped_node_is_repaired_and_rolled_back", OwnAgent, repaired_and_rolled_back)];

/// A web server that notes that it was asked to stop.
const WEB: &str = "trap 'echo asked >>/alloc/data/end; exit 0' TERM; httpd -p 8080 -h /www; touch /alloc/data/up; \
                   while :; do sleep 0.1; done";

/// Runs `doctor --json`. Its exit code depends on the whole machine.
fn doctor(env: &Env, more: &[&str]) -> Outcome<Value> {
    let output = env.agent.operator(&[&["doctor", "--json"], more].concat()).output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What the doctor says of leftovers, of both names.
fn leftovers(report: &Value) -> String {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings.filter(|finding| finding["check"] == "leftovers").map(Value::to_string).collect()
}

/// Kills a pull when it has written a part of its layer.
fn killed_pull(env: &Env) -> Outcome {
    const LAYER: u64 = 400_000;
    env.registry.push_layers("test/killed:1", (1, LAYER))?;
    let stall = env.registry.stall(LAYER / 2)?;
    let mut pull = env.agent.operator(&["pull", &stall.reference("test/killed:1")]);
    let mut pull = pull.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    // A watch sees the directory and its subdirectories, and the parts are in the directory of the process.
    let staging = env.agent.path().join("data/images/staging");
    let staged = || {
        let processes = fs::read_dir(&staging).ok()?.flatten();
        let mut parts = processes.filter_map(|process| fs::read_dir(process.path()).ok()?.next());
        parts.next().map(drop)
    };
    let waited = watch::until(&staging, "the pull", LIMIT, staged);
    pull.kill()?;
    pull.wait()?;
    waited
}

fn repaired_and_rolled_back(env: &Env) -> Outcome {
    let ended = env.agent.run(&script(env, "while [ ! -e /alloc/data/go ]; do sleep 0.1; done; exit 5"))?;
    let web = format!("command = \"/bin/sh\"\nargs = [\"-c\", \"{WEB}\"]");
    let docker = env.agent.run(&Job::new("web").driver("docker").var("image", &env.registry.image()).config(&web))?;
    let kept = lifecycle::start_one(env, lifecycle::job(env, "service"))?;
    for alloc in [&ended, &docker] {
        alloc.wait_running()?;
    }
    let data = docker.shared_directory().join("data");
    watch::until(&data, "the server", LIMIT, || data.join("up").exists().then_some(()))?;
    let (kept_init, docker_init, gone) = (kept.init()?, docker.init()?, ended.init()?);

    env.agent.stop()?;
    fs::write(ended.shared_directory().join("data/go"), "")?;
    assert!(process::wait_gone(gone.pid, Duration::from_secs(20))?, "the task did not end");
    let allocation = env.agent.path().join("client/alloc").join(&ended.id);
    let aside = allocation.with_extension("aside");
    fs::rename(&allocation, &aside)?;
    killed_pull(env)?;

    let found = leftovers(&doctor(env, &[])?);
    assert!(found.contains("1 ended tasks that no agent will ask for again"), "{found}");
    assert!(found.contains("1 pulls that were killed and left parts of layers"), "{found}");
    assert!(found.contains(&ended.id) && !found.contains(&kept.id) && !found.contains(&docker.id), "{found}");
    let report = doctor(env, &["--fix"])?;
    let removed = report["removed"].as_array().cloned().unwrap_or_default();
    let [task, parts] = &removed[..] else { return Err(Failure(report.to_string())) };
    assert!(task.to_string().contains(&format!("ended task {}", ended.id)), "{task}");
    assert!(parts.to_string().contains("parts of layers /"), "{parts}");
    assert!(!leftovers(&report).contains("\"warning\""), "{report}");
    let path = env.agent.path();
    for (directory, left) in [("state/tasks", 2), ("data/containers", 2), ("data/images/leases", 2)] {
        assert_eq!(fs::read_dir(path.join(directory))?.count(), left, "{directory}");
    }
    assert_eq!((kept.init()?, docker.init()?), (kept_init.clone(), docker_init.clone()));

    let config = env.agent.path().join("client.hcl").display().to_string();
    let report = json(env, &["rollback", "--config", &config])?;
    let containers = report["containers"].as_array().cloned().unwrap_or_default();
    assert!(containers.len() == 1 && containers[0].to_string().contains(&docker.id), "{report}");
    assert_eq!(report["groups"], Value::from(vec![docker.id.clone()]), "{report}");
    assert_eq!(fs::read_to_string(data.join("end"))?, "asked\n");
    assert!(docker.init().is_err() && !Path::new("/run/netns").join(&docker.id).exists());
    assert_eq!(kept.init()?, kept_init);

    // The next driver of the name starts the task again, on its port. Here that is the plugin: no dockerd is needed.
    fs::rename(&aside, &allocation)?;
    env.agent.launch()?;
    assert_eq!(patiently(|| page(&docker))?, PAGE);
    assert_ne!(docker.init()?, docker_init);
    kept.wait_running()?;
    lifecycle::wait_exec(&kept)?;
    assert_eq!(kept.init()?, kept_init);
    match ended.wait_exit()?.code {
        5 => Ok(()),
        code => Err(Failure(format!("{code}: {:?}", ended.events()?))),
    }
}
