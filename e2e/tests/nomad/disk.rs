//! The allocation's directories: sticky and migrated ephemeral disks, and the log directory.

use std::fs;

use e2e::{Job, Outcome, SecondClient};

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent},
    templates::wait_file,
};

pub const CASES: &[Case] = &[
    ("disk_is_sticky_and_migrates", OwnAgent, is_sticky_and_migrates),
    ("disk_logs_are_written_and_shipped", SharedAgent, logs_are_written_and_shipped),
];

const JOB: &str = "disk";

fn is_sticky_and_migrates(env: &Env) -> Outcome {
    let second = SecondClient::start(env.agent)?;
    let mut expected = String::new();
    for (index, (edition, node)) in
        [("first", "client"), ("second", "client"), ("third", "second")].into_iter().enumerate()
    {
        let job = Job::new("disk").var("image", &env.registry.image()).var("node", node).var("edition", edition);
        env.agent.register(&job, JOB)?;
        let alloc = env.agent.placed(JOB, index + 1)?.swap_remove(index);
        alloc.wait_running()?;
        expected.push_str(edition);
        expected.push('\n');
        if node == "client" {
            wait_file(&alloc, "editions", &expected)?;
        } else {
            let file = second.allocations().join(&alloc.id).join("alloc/data/editions");
            let arrived = || fs::read_to_string(&file).is_ok_and(|content| content == expected);
            alloc.wait("the data of the other node", |_| arrived().then_some(()))?;
        }
    }
    env.agent.purge()?;
    second.close()
}

/// A task writes a log of its own and to its output, until Nomad rotates the output's file. A second task, which runs
/// before the files exist, reads all of it in `/alloc/logs`.
fn logs_are_written_and_shipped(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("logs").var("image", &env.registry.image()))?;
    alloc.task("ship").wait_log("stdout", |log| log == b"own\n2097152\n")?;
    let writer = alloc.task("write");
    assert_eq!(writer.wait_exit()?.code, 0, "{:?}", writer.events()?);
    let listed = env.agent.nomad(&["alloc", "fs", &alloc.id, "alloc/logs/tasks/app.log"])?;
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "own\n", "{listed:?}");
    let listed = env.agent.nomad(&["alloc", "fs", &alloc.id, "alloc/logs/tasks"])?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("app.log") && listed.contains("write.stdout.1"), "{listed}");
    Ok(())
}
