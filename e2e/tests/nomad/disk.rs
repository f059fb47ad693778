//! Ephemeral disks: sticky on the same node, migrated to another node.

use std::fs;

use e2e::{Job, Outcome, SecondClient};

use crate::{Case, Env, Needs::OwnAgent, templates::wait_file};

pub const CASES: &[Case] = &[("disk_is_sticky_and_migrates", OwnAgent, is_sticky_and_migrates)];

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
