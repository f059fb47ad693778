//! Many tasks and repeated kills of agents and plugins: no task is lost, no task runs twice, every exit status is
//! correct.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use e2e::{Alloc, Outcome, process, watch};

use crate::{Case, Env, Needs::OwnAgent, lifecycle, recovery::kill};

pub const CASES: &[Case] = &[
    ("survival_of_fifty_allocations", OwnAgent, fifty_allocations),
    ("survival_agent_killed_again_and_again", OwnAgent, agent_killed),
    ("survival_plugin_killed_while_tasks_start", OwnAgent, plugin_killed),
    ("survival_plugin_replaced", OwnAgent, plugin_replaced),
];

const LIMIT: Duration = Duration::from_secs(120);

fn fifty_allocations(env: &Env) -> Outcome {
    let allocs = lifecycle::start(env, lifecycle::job(env, "service"), 50)?;
    assert_eq!(lifecycle::inits(&allocs)?.len(), 50);
    for alloc in &allocs {
        wait_logged(alloc, "alive, edition first\n")?;
    }
    allocs[0].wait_log("stdout", |log| log == b"alive, edition first\n")?;
    lifecycle::stop(&allocs)?;
    allocs.iter().try_for_each(|alloc| lifecycle::expect(alloc, &["start", "end 15"]))
}

/// Waits for the task's log file in the allocation's directory. Reading many logs through Nomad's API is too slow.
fn wait_logged(alloc: &Alloc, text: &str) -> Outcome {
    let logs = alloc.shared_directory().join("logs");
    let file = logs.join("lifecycle.stdout.0");
    watch::until(&logs, "the log", LIMIT, || fs::read_to_string(&file).is_ok_and(|log| log == text).then_some(()))
}

fn agent_killed(env: &Env) -> Outcome {
    const ROUNDS: usize = 4;
    let services = lifecycle::start(env, lifecycle::job(env, "service"), 2)?;
    let batch = lifecycle::start(env, lifecycle::job(env, "batch"), ROUNDS)?;
    let mut inits = lifecycle::inits(services.iter().chain(&batch))?;
    for (round, code) in (0..ROUNDS).zip(3..) {
        let plugin = env.agent.plugin_pid()?;
        env.agent.kill()?;
        // The next agent finds the plugin, or starts a new one.
        if round % 2 == 1 {
            kill(plugin)?;
        }
        let (ending, others) = (&batch[round], &batch[round + 1..]);
        lifecycle::tell(ending, code)?;
        inits.remove(&ending.id);
        env.agent.launch()?;
        assert_eq!(ending.wait_exit()?.code, code, "round {round}: {:?}", ending.events()?);
        let alive = || services.iter().chain(others);
        alive().try_for_each(lifecycle::wait_exec)?;
        assert_eq!(lifecycle::inits(alive())?, inits, "round {round}");
    }
    lifecycle::stop(&services)?;
    services.iter().try_for_each(|alloc| lifecycle::expect(alloc, &["start", "end 15"]))?;
    batch.iter().zip(3..).try_for_each(|(alloc, code)| lifecycle::expect(alloc, &["start", &format!("end {code}")]))
}

/// In each round, the plugin is killed when a start has written this file into the task's directory.
const REACHED: [&str; 5] = ["", "plan.json", "monitor.json", "bundle/config.json", "container.json"];

fn plugin_killed(env: &Env) -> Outcome {
    const EACH: usize = 3;
    let directories = env.agent.path().join("state/tasks");
    let mut allocs = lifecycle::start(env, lifecycle::job(env, "service"), 2)?;
    let mut inits = lifecycle::inits(&allocs)?;
    for (round, reached) in REACHED.into_iter().enumerate() {
        let plugin = env.agent.plugin_pid()?;
        let before = how_many(&directories, reached);
        let job = format!("killed-{round}");
        // After a kill, Nomad places no task until it sees the driver again.
        env.agent.submit(&lifecycle::job(env, "service").number("count", EACH.try_into()?), &job)?;
        watch::until(&directories, "a start", LIMIT, || (how_many(&directories, reached) > before).then_some(()))?;
        kill(plugin)?;
        let new = env.agent.placed(&job, EACH)?;
        for alloc in &new {
            alloc.wait_running()?;
            lifecycle::wait_lines(alloc, 1)?;
        }
        assert_ne!(env.agent.plugin_pid()?, plugin);
        allocs.extend(new);
        allocs.iter().try_for_each(lifecycle::wait_exec)?;
        let now = lifecycle::inits(&allocs)?;
        let went_on: Vec<_> = now.iter().filter(|(alloc, _)| inits.contains_key(*alloc)).collect();
        assert_eq!(went_on, inits.iter().collect::<Vec<_>>(), "round {round}");
        assert_eq!(how_many(&directories, ""), allocs.len(), "a directory for each task and no other");
        inits = now;
    }
    lifecycle::stop(&allocs)?;
    for alloc in &allocs {
        let lines = lifecycle::lines(alloc);
        // The plugin was killed before Nomad had a handle. The container was killed, and Nomad started another one.
        let cut = lines.len() == 3 && lines.starts_with(&["start".to_owned(), "start".to_owned()]);
        assert!(cut || lines == ["start", "end 15"], "{}: {lines:?}", alloc.id);
        assert_eq!(alloc.exit_codes()?, [15], "{}: {:?}", alloc.id, alloc.events()?);
        assert_eq!(alloc.restarts()?, 0, "{}: {:?}", alloc.id, alloc.events()?);
    }
    allocs[..2].iter().try_for_each(|alloc| lifecycle::expect(alloc, &["start", "end 15"]))
}

/// The number of tasks whose directory contains `file`.
fn how_many(directories: &Path, file: &str) -> usize {
    let tasks = fs::read_dir(directories).into_iter().flatten().flatten();
    tasks.filter(|task| task.path().join(file).exists()).count()
}

/// An upgrade: the plugin's file is replaced while the plugin runs. Later the agent is restarted.
fn plugin_replaced(env: &Env) -> Outcome {
    let mut allocs = lifecycle::start(env, lifecycle::job(env, "service"), 2)?;
    let ending = lifecycle::start_one(env, lifecycle::job(env, "batch"))?;
    let new_file = env.agent.path().join("oci-rs.new");
    fs::copy(env.agent.driver(), &new_file)?;
    fs::rename(&new_file, env.agent.driver())?;
    // The old plugin still runs, from an unlinked file.
    assert!(process::running(&env.agent.driver()).is_empty());
    allocs.push(lifecycle::start_one(env, lifecycle::job(env, "service"))?);
    allocs.iter().try_for_each(lifecycle::wait_exec)?;
    let inits = lifecycle::inits(&allocs)?;

    env.agent.stop()?;
    lifecycle::tell(&ending, 7)?;
    env.agent.launch()?;
    let plugin = env.agent.plugin_pid()?;
    assert_eq!(fs::metadata(format!("/proc/{plugin}/exe"))?.ino(), fs::metadata(env.agent.driver())?.ino());
    assert_eq!(ending.wait_exit()?.code, 7, "{:?}", ending.events()?);
    allocs.iter().try_for_each(lifecycle::wait_exec)?;
    assert_eq!(lifecycle::inits(&allocs)?, inits);
    allocs.push(lifecycle::start_one(env, lifecycle::job(env, "service"))?);
    lifecycle::stop(&allocs)?;
    lifecycle::expect(&ending, &["start", "end 7"])?;
    allocs.iter().try_for_each(|alloc| lifecycle::expect(alloc, &["start", "end 15"]))
}
