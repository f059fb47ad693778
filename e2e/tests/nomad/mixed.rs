//! Groups with tasks of several drivers, a group without a network, and constraints on the driver's node attributes.

use std::fs;

use e2e::{Failure, Job, Outcome};

use crate::{Case, Env, Needs::SharedAgent};

pub const CASES: &[Case] = &[
    ("mixed_drivers_share_a_group", SharedAgent, share_a_group),
    ("mixed_group_without_a_network", SharedAgent, without_a_network),
    ("mixed_constraint_on_the_driver_is_respected", SharedAgent, constraint_is_respected),
];

fn share_a_group(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("mixed").var("image", &env.registry.image()))?;
    for (task, output) in [("fetch", "from the node\n"), ("read", "from the node\n lo eth0")] {
        let task = alloc.task(task);
        assert_eq!(task.wait_exit()?.code, 0, "{}: {:?}", task.name(), task.events()?);
        task.wait_log("stdout", |log| log == output.as_bytes())?;
    }
    Ok(())
}

fn without_a_network(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("alone").var("image", &env.registry.image()))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log == b" lo\n")?;
    let namespace = fs::read_to_string(alloc.shared_directory().join("data/alone"))?;
    assert_ne!(namespace.trim(), fs::read_link("/proc/thread-self/ns/net")?.to_string_lossy());
    Ok(())
}

fn constraint_is_respected(env: &Env) -> Outcome {
    let job = Job::new("mixed").var("image", &env.registry.image()).var("version", ">= 1000.0.0");
    let Err(Failure(refusal)) = env.agent.register(&job, "constrained") else {
        return Err(Failure("a job for another version of the driver was placed".to_owned()));
    };
    assert!(refusal.contains("attr.driver.oci-rs.version"), "{refusal}");
    Ok(())
}
