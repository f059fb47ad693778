//! Agent, plugin and monitor die or stop; tasks go on, and their end is not lost.

use std::{fs, time::Duration};

use e2e::{Alloc, Failure, Outcome, process, watch};
use rustix::process::Signal;

use crate::{
    Case, Env,
    Needs::OwnAgent,
    batch::script,
    lives,
    service::{page, web},
};

pub const CASES: &[Case] = &[
    ("recovery_agent_killed", OwnAgent, |env| survives(env, || env.agent.kill())),
    ("recovery_agent_stopped", OwnAgent, |env| survives(env, || env.agent.stop())),
    ("recovery_agent_and_plugin_killed", OwnAgent, |env| survives(env, || kill_agent_and_plugin(env))),
    ("recovery_plugin_killed", OwnAgent, plugin_killed),
    ("recovery_end_while_agent_was_stopped", OwnAgent, |env| ends_unwatched(env, || env.agent.stop())),
    ("recovery_end_while_agent_and_plugin_were_dead", OwnAgent, |env| {
        ends_unwatched(env, || kill_agent_and_plugin(env))
    }),
    ("recovery_monitor_killed", OwnAgent, monitor_killed),
    ("recovery_logmon_killed", OwnAgent, |env| logmon_killed(env, false)),
    ("recovery_agent_plugin_and_logmon_killed", OwnAgent, |env| logmon_killed(env, true)),
    ("recovery_stop_after_restart", OwnAgent, stop_after_restart),
];

/// A script that ends with 5 as soon as someone makes /alloc/data/go.
const UNTIL_TOLD: &str = "echo waiting; while [ ! -e /alloc/data/go ]; do sleep 0.1; done; echo told; exit 5";

fn kill_agent_and_plugin(env: &Env) -> Outcome {
    let plugin = env.agent.plugin_pid()?;
    env.agent.kill()?;
    kill(plugin)
}

/// Kills a process and waits for its end.
pub fn kill(pid: i32) -> Outcome {
    process::signal(pid, Signal::KILL);
    if process::wait_gone(pid, Duration::from_secs(10))? { Ok(()) } else { Err(Failure(format!("{pid} does not die"))) }
}

/// The task must not notice that the agent goes away and comes back.
fn survives(env: &Env, go_away: impl FnOnce() -> Outcome) -> Outcome {
    let alloc = web(env)?;
    // Nomad writes a bridge network's state down only once a minute and when it stops: a client that is killed before that
    // finds its own network no more and kills the task, whatever its driver does.
    env.agent.stop()?;
    env.agent.launch()?;
    let init = alloc.init()?;
    let address = alloc.address("http")?;
    go_away()?;
    assert_eq!(alloc.init()?, init, "without an agent");
    e2e::api::fetch(&format!("http://{address}/"))?;
    env.agent.launch()?;
    unharmed(env, &alloc, &init)?;
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log.ends_with(b"stopping\n"))?;
    Ok(())
}

/// Same process, no restart, and everything that a user does with a task works.
fn unharmed(env: &Env, alloc: &Alloc, init: &process::Process) -> Outcome {
    alloc.wait_running()?;
    assert_eq!(page(alloc)?, "<h1>Hello from oci-rs</h1>\n");
    let output = alloc.exec(&["/bin/sh", "-c", "exit 9"])?;
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    let output = env.agent.nomad(&["alloc", "signal", "-s", "SIGUSR1", &alloc.id])?;
    assert!(output.status.success(), "{output:?}");
    alloc.wait_log("stdout", |log| log.ends_with(b"got SIGUSR1\n"))?;
    assert_eq!(alloc.init()?, *init);
    assert_eq!(alloc.restarts()?, 0, "{:?}", alloc.events()?);
    let events = alloc.events()?;
    assert!(!events.iter().any(|event| event.contains("Failed Restoring")), "{events:?}");
    Ok(())
}

fn plugin_killed(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let init = alloc.init()?;
    for _ in 0..3 {
        let plugin = env.agent.plugin_pid()?;
        kill(plugin)?;
        assert_ne!(env.agent.plugin_pid()?, plugin);
        // Nomad notices by itself; the first call after that may still meet the dead one.
        alloc.wait_log("stdout", |log| log.starts_with(b"serving"))?;
        unharmed(env, &alloc, &init)?;
    }
    Ok(())
}

/// The exit code of a task that ended while nobody watched must be the true one.
fn ends_unwatched(env: &Env, go_away: impl FnOnce() -> Outcome) -> Outcome {
    let alloc = env.agent.run(&script(env, UNTIL_TOLD))?;
    alloc.wait_log("stdout", |log| log == b"waiting\n")?;
    let init = alloc.init()?;
    go_away()?;
    fs::write(env.agent.path().join("client/alloc").join(&alloc.id).join("alloc/data/go"), "")?;
    assert!(process::wait_gone(init.pid, Duration::from_secs(20))?, "the task did not end");
    env.agent.launch()?;
    assert_eq!(alloc.wait_exit()?.code, 5, "{:?}", alloc.events()?);
    assert_eq!(alloc.restarts()?, 0);
    alloc.wait_log("stdout", |log| log == b"waiting\ntold\n")?;
    Ok(())
}

/// Without its monitor a task goes on and can be stopped, and its end is noticed.
fn monitor_killed(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let init = alloc.init()?;
    let directory = env.agent.path().join("state/tasks").display().to_string();
    let monitors = process::find(|process| process.command.contains(&directory) && process.command.contains("monitor"));
    let [monitor] = monitors.as_slice() else {
        return Err(Failure(format!("expected one monitor: {monitors:?}")));
    };
    kill(monitor.pid)?;
    unharmed(env, &alloc, &init)?;
    alloc.stop()?;
    assert!(process::wait_gone(init.pid, Duration::from_secs(5))?);
    Ok(())
}

/// Nomad starts another log collector only with the task or the agent: until then the task goes on, and what it wrote too much of
/// is counted. With agent and plugin dead too, the monitor is who sees to that.
fn logmon_killed(env: &Env, and_all_above: bool) -> Outcome {
    let wait = |file: &str| format!("while [ ! -e /alloc/data/{file} ]; do sleep 0.1; done");
    let job = script(
        env,
        &format!(
            "echo one; {}; head -c 1000000 /dev/zero; touch /alloc/data/written; {}; echo last; exit 6",
            wait("go"),
            wait("end")
        ),
    );
    let alloc = env.agent.run(&job)?;
    alloc.wait_log("stdout", |log| log == b"one\n")?;
    let init = alloc.init()?;
    let logmons = process::find(|process| process.command.contains("logmon") && has_open(process.pid, &alloc.id));
    let [logmon] = logmons.as_slice() else {
        return Err(Failure(format!("expected one logmon: {logmons:?}")));
    };
    kill(logmon.pid)?;
    if and_all_above {
        kill_agent_and_plugin(env)?;
    }
    let data = env.agent.path().join("client/alloc").join(&alloc.id).join("alloc/data");
    fs::write(data.join("go"), "")?;
    watch::until(&data, "the task to write on", lives::LIMIT, || data.join("written").exists().then_some(()))?;
    if !and_all_above {
        env.agent.stop()?;
    }
    assert_eq!(alloc.init()?, init, "the task runs");
    env.agent.launch()?;
    alloc.wait_running()?;
    let told = |event: &String| event.contains("bytes of standard output were lost");
    alloc.wait("the loss to be told", |_| alloc.events().ok()?.iter().any(told).then_some(()))?;
    fs::write(data.join("end"), "")?;
    assert_eq!(alloc.wait_exit()?.code, 6, "{:?}", alloc.events()?);
    assert_eq!(alloc.restarts()?, 0);
    alloc.wait_log("stdout", |log| log.ends_with(b"last\n"))?;
    Ok(())
}

/// Whether a process has a file open whose path holds this text.
fn has_open(pid: i32, text: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.flat_map(|one| fs::read_link(one.path())).any(|path| path.to_string_lossy().contains(text))
}

/// Stopping after a restart must use the task's own signal and wait, as if nothing had happened.
fn stop_after_restart(env: &Env) -> Outcome {
    let alloc = web(env)?;
    env.agent.stop()?;
    env.agent.launch()?;
    alloc.wait_running()?;
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log.ends_with(b"stopping\n"))?;
    Ok(())
}
