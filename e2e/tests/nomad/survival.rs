//! Many tasks, and agents and plugins that die again and again: no task is lost, none runs twice, every end is told truly.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use e2e::{Alloc, Outcome, process, watch};

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent},
    lives,
    recovery::kill,
};

pub const CASES: &[Case] = &[
    ("survival_of_fifty_allocations", OwnAgent, fifty_allocations),
    ("survival_agent_killed_again_and_again", OwnAgent, agent_killed),
    ("survival_plugin_killed_while_tasks_start", SharedAgent, plugin_killed),
    ("survival_plugin_replaced", OwnAgent, plugin_replaced),
];

const LIMIT: Duration = Duration::from_secs(120);

fn fifty_allocations(env: &Env) -> Outcome {
    let allocs = lives::start(env, lives::job(env, "service"), 50)?;
    assert_eq!(lives::inits(&allocs)?.len(), 50);
    for alloc in &allocs {
        wait_logged(alloc, "alive, edition first\n")?;
    }
    allocs[0].wait_log("stdout", |log| log == b"alive, edition first\n")?;
    lives::stop(&allocs)?;
    allocs.iter().try_for_each(|alloc| lives::expect(alloc, &["start", "end 15"]))
}

/// Waits for the file that Nomad shows as the task's log. Asking for so many through Nomad would take longer than all the rest.
fn wait_logged(alloc: &Alloc, text: &str) -> Outcome {
    let logs = alloc.shared_directory().join("logs");
    let file = logs.join("life.stdout.0");
    watch::until(&logs, "the log", LIMIT, || fs::read_to_string(&file).is_ok_and(|log| log == text).then_some(()))
}

fn agent_killed(env: &Env) -> Outcome {
    const ROUNDS: usize = 4;
    let services = lives::start(env, lives::job(env, "service"), 2)?;
    let batch = lives::start(env, lives::job(env, "batch"), ROUNDS)?;
    let mut inits = lives::inits(services.iter().chain(&batch))?;
    for (round, code) in (0..ROUNDS).zip(3..) {
        let plugin = env.agent.plugin_pid()?;
        env.agent.kill()?;
        // The next agent finds the plugin, or has to start another.
        if round % 2 == 1 {
            kill(plugin)?;
        }
        let (ending, others) = (&batch[round], &batch[round + 1..]);
        lives::tell(ending, code)?;
        inits.remove(&ending.id);
        env.agent.launch()?;
        assert_eq!(ending.wait_exit()?.code, code, "round {round}: {:?}", ending.events()?);
        let alive = || services.iter().chain(others);
        alive().try_for_each(lives::wait_exec)?;
        assert_eq!(lives::inits(alive())?, inits, "round {round}");
    }
    lives::stop(&services)?;
    services.iter().try_for_each(|alloc| lives::expect(alloc, &["start", "end 15"]))?;
    batch.iter().zip(3..).try_for_each(|(alloc, code)| lives::expect(alloc, &["start", &format!("end {code}")]))
}

/// In each round the plugin is killed as soon as a start has got so far that it has written this into the task's directory.
const REACHED: [&str; 5] = ["", "plan.json", "monitor.json", "bundle/config.json", "container.json"];

fn plugin_killed(env: &Env) -> Outcome {
    const EACH: usize = 3;
    let directories = env.agent.path().join("state/tasks");
    let mut allocs = lives::start(env, lives::job(env, "service"), 2)?;
    let mut inits = lives::inits(&allocs)?;
    for (round, reached) in REACHED.into_iter().enumerate() {
        let plugin = env.agent.plugin_pid()?;
        let before = how_many(&directories, reached);
        let job = format!("killed-{round}");
        // After a kill Nomad believes for a moment that the node has no driver, and places nothing there.
        env.agent.submit(&lives::job(env, "service").number("count", EACH.try_into()?), &job)?;
        watch::until(&directories, "a start", LIMIT, || (how_many(&directories, reached) > before).then_some(()))?;
        kill(plugin)?;
        let new = env.agent.placed(&job, EACH)?;
        for alloc in &new {
            alloc.wait_running()?;
            lives::wait_book(alloc, 1)?;
        }
        assert_ne!(env.agent.plugin_pid()?, plugin);
        allocs.extend(new);
        allocs.iter().try_for_each(lives::wait_exec)?;
        let now = lives::inits(&allocs)?;
        let went_on: Vec<_> = now.iter().filter(|(alloc, _)| inits.contains_key(*alloc)).collect();
        assert_eq!(went_on, inits.iter().collect::<Vec<_>>(), "round {round}");
        assert_eq!(how_many(&directories, ""), allocs.len(), "a directory for each task and no other");
        inits = now;
    }
    lives::stop(&allocs)?;
    for alloc in &allocs {
        let lines = lives::book(alloc);
        // Its plugin died before Nomad had a handle, so its container was killed and Nomad asked for another.
        let cut = lines.len() == 3 && lines.starts_with(&["start".to_owned(), "start".to_owned()]);
        assert!(cut || lines == ["start", "end 15"], "{}: {lines:?}", alloc.id);
        assert_eq!(alloc.exit_codes()?, [15], "{}: {:?}", alloc.id, alloc.events()?);
        assert_eq!(alloc.restarts()?, 0, "{}: {:?}", alloc.id, alloc.events()?);
    }
    allocs[..2].iter().try_for_each(|alloc| lives::expect(alloc, &["start", "end 15"]))
}

/// How many tasks' directories hold `file`.
fn how_many(directories: &Path, file: &str) -> usize {
    let tasks = fs::read_dir(directories).into_iter().flatten().flatten();
    tasks.filter(|task| task.path().join(file).exists()).count()
}

/// An upgrade: another file takes the plugin's place while the old one runs, later the agent stops and starts.
fn plugin_replaced(env: &Env) -> Outcome {
    let mut allocs = lives::start(env, lives::job(env, "service"), 2)?;
    let ending = lives::start_one(env, lives::job(env, "batch"))?;
    let new_file = env.agent.path().join("oci-rs.new");
    fs::copy(env.agent.driver(), &new_file)?;
    fs::rename(&new_file, env.agent.driver())?;
    // The old one still runs, from a file that has no name any more.
    assert!(process::running(&env.agent.driver()).is_empty());
    allocs.push(lives::start_one(env, lives::job(env, "service"))?);
    allocs.iter().try_for_each(lives::wait_exec)?;
    let inits = lives::inits(&allocs)?;

    env.agent.stop()?;
    lives::tell(&ending, 7)?;
    env.agent.launch()?;
    let plugin = env.agent.plugin_pid()?;
    assert_eq!(fs::metadata(format!("/proc/{plugin}/exe"))?.ino(), fs::metadata(env.agent.driver())?.ino());
    assert_eq!(ending.wait_exit()?.code, 7, "{:?}", ending.events()?);
    allocs.iter().try_for_each(lives::wait_exec)?;
    assert_eq!(lives::inits(&allocs)?, inits);
    allocs.push(lives::start_one(env, lives::job(env, "service"))?);
    lives::stop(&allocs)?;
    lives::expect(&ending, &["start", "end 7"])?;
    allocs.iter().try_for_each(|alloc| lives::expect(alloc, &["start", "end 15"]))
}
