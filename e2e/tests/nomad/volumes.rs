//! Dynamic host volumes: `nomad volume create` makes a volume, jobs mount it, and it outlives task, job and agent.

use std::{ffi::CStr, fs, path::PathBuf};

use e2e::{Agent, Alloc, Failure, Job, Outcome};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};

use crate::{Case, Env, Needs::OwnAgent};

pub const CASES: &[Case] = &[("volume_outlives_task_agent_and_job", OwnAgent, outlives_task_agent_and_job)];

/// A mount that is removed when the value is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // An error means that the mount is gone already.
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// Runs `nomad` with these arguments. It must succeed.
fn nomad(agent: &Agent, words: &[&str]) -> Outcome<String> {
    let output = agent.nomad(words)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure(format!("nomad {words:?}: {output:?}")))
}

/// Makes a volume by Nomad's plugin `mkdir`. Returns its id and its directory.
fn create(agent: &Agent, name: &str) -> Outcome<(String, PathBuf)> {
    let file = agent.path().join(format!("{name}.volume.hcl"));
    let capability = "capability {\n  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n";
    fs::write(&file, format!("name = \"{name}\"\ntype = \"host\"\nplugin_id = \"mkdir\"\n{capability}"))?;
    nomad(agent, &["volume", "create", &file.to_string_lossy()])?;
    let volumes = agent.api().get("/v1/volumes?type=host")?;
    let id = volumes.as_array().into_iter().flatten().find(|volume| volume["Name"] == name);
    let id = id.and_then(|volume| volume["ID"].as_str()).ok_or_else(|| Failure(format!("no {name} in {volumes}")))?;
    let volume = agent.api().get(&format!("/v1/volume/host/{id}"))?;
    let directory = volume["HostPath"].as_str().ok_or_else(|| Failure(format!("no directory in {volume}")))?;
    Ok((id.to_owned(), directory.into()))
}

/// Runs a script in the task and returns its output.
fn sh(alloc: &Alloc, script: &str) -> Outcome<String> {
    let output = alloc.exec(&["/bin/sh", "-c", script])?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until the tasks of all allocations together have started this many times.
fn wait_starts(alloc: &Alloc, directory: &std::path::Path, starts: usize) -> Outcome {
    let started = || fs::read_to_string(directory.join("starts")).unwrap_or_default().lines().count();
    e2e::watch::until(directory, &format!("start {starts}"), std::time::Duration::from_secs(60), || {
        (started() >= starts).then_some(())
    })?;
    alloc.wait_running()
}

fn outlives_task_agent_and_job(env: &Env) -> Outcome {
    let (id, directory) = create(env.agent, "kept")?;
    // systemd makes `/` a shared mount. This test does the same for the volume's directory.
    mount_bind(&directory, &directory)?;
    let shared = Mounted(directory.clone());
    mount_change(&directory, MountPropagationFlags::SHARED)?;

    let job = Job::new("volume").var("image", &env.registry.image()).var("volume", "kept");
    let alloc = env.agent.run(&job)?;
    wait_starts(&alloc, &directory, 1)?;
    let written = sh(&alloc, "echo kept > /data/file && cat /readonly/file; echo x > /readonly/file || echo refused")?;
    assert_eq!(written, "kept\nrefused\n");
    assert_eq!(fs::read_to_string(directory.join("file"))?, "kept\n");

    // A later mount of the host is visible only where the job asks for propagation.
    fs::create_dir(directory.join("late"))?;
    mount("tmpfs", directory.join("late"), "tmpfs", MountFlags::empty(), None::<&CStr>)?;
    let late = Mounted(directory.join("late"));
    fs::write(directory.join("late/file"), "late\n")?;
    let look = "cat /following/late/file; ls /data/late /readonly/late";
    assert_eq!(sh(&alloc, look)?, "late\n/data/late:\n\n/readonly/late:\n");
    drop(late);
    assert_eq!(sh(&alloc, "ls /following/late")?, "");

    // An agent restart does not affect the task. Then the task is restarted.
    let init = alloc.init()?;
    env.agent.stop()?;
    env.agent.launch()?;
    alloc.wait_running()?;
    assert_eq!(alloc.init()?, init);
    assert_eq!(sh(&alloc, "cat /data/file /following/file")?, "kept\nkept\n");
    nomad(env.agent, &["alloc", "restart", &alloc.id])?;
    wait_starts(&alloc, &directory, 2)?;
    assert_ne!(alloc.init()?, init);
    assert_eq!(sh(&alloc, "cat /readonly/file; echo x > /readonly/file || echo refused")?, "kept\nrefused\n");
    alloc.stop()?;

    // Another job can use the volume. It can be deleted when no job uses it.
    let next = env.agent.run(&job)?;
    wait_starts(&next, &directory, 3)?;
    assert_eq!(sh(&next, "cat /data/file")?, "kept\n");
    next.stop()?;
    drop(shared);
    nomad(env.agent, &["volume", "delete", "-type", "host", &id])?;
    assert!(!directory.exists(), "{} is left", directory.display());
    Ok(())
}
