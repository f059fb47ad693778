//! Reserved cores: a task gets its own cores, and Nomad moves the cpuset of all other tasks.

use std::{fs, io, path::Path};

use e2e::{Alloc, Job, Outcome};

use crate::{Case, Env, Needs::Alone};

pub const CASES: &[Case] = &[("cores_are_reserved_and_cpusets_move", Alone, are_reserved)];

/// The cores on which a new process of the task may run.
fn allowed(alloc: &Alloc) -> Outcome<String> {
    Ok(alloc.sh("grep Cpus_allowed_list /proc/self/status | cut -f 2")?.trim().to_owned())
}

/// The cores on which the task's first process may run.
fn allowed_first(alloc: &Alloc) -> Outcome<String> {
    Ok(alloc.sh("grep Cpus_allowed_list /proc/1/status | cut -f 2")?.trim().to_owned())
}

/// All agents of a machine share one cpuset directory and move each other's tasks, so this case runs alone.
fn are_reserved(env: &Env) -> Outcome {
    let start = |cores: i64| -> Outcome<Alloc> {
        let alloc = env.agent.run(&Job::new("cores").var("image", &env.registry.image()).number("cores", cores))?;
        alloc.wait_running()?;
        Ok(alloc)
    };
    let sharing = start(0)?;
    let all = allowed(&sharing)?;
    let reserving = start(1)?;
    let reserved = allowed(&reserving)?;
    assert!(reserved.parse::<usize>().is_ok(), "one core: {reserved:?} of {all:?}");
    assert_eq!(allowed_first(&reserving)?, reserved);
    let rest = allowed(&sharing)?;
    assert!(rest != all && !rest.split([',', '-']).any(|core| core == reserved), "{rest:?} of {all:?}");
    assert_eq!(allowed_first(&sharing)?, rest, "the running task is moved, too");

    // A restarted agent and its plugin keep the division.
    env.agent.stop()?;
    env.agent.launch()?;
    for alloc in [&sharing, &reserving] {
        alloc.wait_running()?;
        crate::lifecycle::wait_exec(alloc)?;
    }
    assert_eq!((allowed(&reserving)?, allowed(&sharing)?), (reserved, rest));

    reserving.stop()?;
    assert_eq!((allowed(&sharing)?, allowed_first(&sharing)?), (all.clone(), all));
    remove_nomads_cgroup(&reserving)?;
    sharing.stop()
}

/// With cgroup v2, Nomad leaves an empty cgroup of each task with reserved cores that it restores: it makes one more
/// where the other tasks are (`Restore` in client/allocrunner/alloc_runner.go), and removes only its own one.
fn remove_nomads_cgroup(alloc: &Alloc) -> Outcome {
    let name = format!("{}.cores.scope", alloc.id);
    match fs::remove_dir(Path::new("/sys/fs/cgroup/nomad.slice/share.slice").join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
