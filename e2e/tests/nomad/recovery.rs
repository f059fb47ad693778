//! Agent, plugin or monitor are killed or stopped. Tasks keep running, and their exit status is not lost.

use std::{fs, time::Duration};

use e2e::{Alloc, Failure, Outcome, process, watch};
use rustix::process::Signal;

use crate::{
    Case, Env,
    Needs::OwnAgent,
    batch::script,
    lifecycle,
    service::{PAGE, page, web},
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

/// A script that exits with 5 when the file /alloc/data/go exists.
const UNTIL_TOLD: &str = "echo waiting; while [ ! -e /alloc/data/go ]; do sleep 0.1; done; echo told; exit 5";

fn kill_agent_and_plugin(env: &Env) -> Outcome {
    let plugin = env.agent.plugin_pid()?;
    env.agent.kill()?;
    kill(plugin)
}

/// Kills a process and waits until it has ended.
pub fn kill(pid: i32) -> Outcome {
    process::signal(pid, Signal::KILL);
    if process::wait_gone(pid, Duration::from_secs(10))? { Ok(()) } else { Err(Failure(format!("{pid} does not die"))) }
}

/// Checks that a task is not affected while the agent is down and restarted.
fn survives(env: &Env, go_away: impl FnOnce() -> Outcome) -> Outcome {
    let alloc = web(env)?;
    // Nomad stores a bridge network's state only once a minute and at its stop. A client that is killed earlier does
    // not find its network again and kills the task, with any driver.
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

/// Checks that the task has the same process and no restart, and that exec, logs and network work.
fn unharmed(env: &Env, alloc: &Alloc, init: &process::Process) -> Outcome {
    alloc.wait_running()?;
    assert_eq!(page(alloc)?, PAGE);
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
        // Nomad notices the plugin's end itself. The first call afterwards may still use the dead plugin.
        alloc.wait_log("stdout", |log| log.starts_with(b"serving"))?;
        unharmed(env, &alloc, &init)?;
    }
    Ok(())
}

/// A task that ends while agent or plugin do not run keeps its exit code.
fn ends_unwatched(env: &Env, go_away: impl FnOnce() -> Outcome) -> Outcome {
    let alloc = env.agent.run(&script(env, UNTIL_TOLD))?;
    alloc.wait_log("stdout", |log| log == b"waiting\n")?;
    let init = alloc.init()?;
    go_away()?;
    fs::write(alloc.shared_directory().join("data/go"), "")?;
    assert!(process::wait_gone(init.pid, Duration::from_secs(20))?, "the task did not end");
    env.agent.launch()?;
    assert_eq!(alloc.wait_exit()?.code, 5, "{:?}", alloc.events()?);
    assert_eq!(alloc.restarts()?, 0);
    alloc.wait_log("stdout", |log| log == b"waiting\ntold\n")?;
    Ok(())
}

/// A task without its monitor keeps running and can be stopped, and its end is reported.
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

/// Nomad starts a new log collector only with the task or the agent. Until then, the task keeps running, and dropped
/// bytes are counted. Without agent and plugin, the monitor drains the log.
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
    let data = alloc.shared_directory().join("data");
    fs::write(data.join("go"), "")?;
    watch::until(&data, "the task to write on", lifecycle::LIMIT, || data.join("written").exists().then_some(()))?;
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

/// Whether a process has an open file whose path contains this text.
fn has_open(pid: i32, text: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.flat_map(|one| fs::read_link(one.path())).any(|path| path.to_string_lossy().contains(text))
}

/// A stop after an agent restart uses the task's own stop signal and timeout.
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
