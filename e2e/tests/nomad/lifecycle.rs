//! Tasks that record their starts and ends (`e2e/image/bin/lifecycle`). The record, the kernel and Nomad must agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::Write,
    thread,
    time::{Duration, Instant},
};

use e2e::{
    Alloc, Failure, Job, Outcome,
    process::{self, Process},
    watch,
};

use crate::Env;

pub const LIMIT: Duration = Duration::from_secs(120);

/// A job of such tasks; `kind` is Nomad's job type.
pub fn job(env: &Env, kind: &str) -> Job {
    Job::new("lifecycle").var("image", &env.registry.image()).var("kind", kind)
}

/// Starts `count` tasks and waits until all of them run.
pub fn start<'a>(env: &Env<'a>, job: Job, count: usize) -> Outcome<Vec<Alloc<'a>>> {
    let allocs = env.agent.run_many(&job.number("count", count.try_into()?), count)?;
    for alloc in &allocs {
        alloc.wait_running()?;
        wait_lines(alloc, 1)?;
    }
    Ok(allocs)
}

/// Starts one task.
pub fn start_one<'a>(env: &Env<'a>, job: Job) -> Outcome<Alloc<'a>> {
    Ok(start(env, job, 1)?.swap_remove(0))
}

/// The lines of the record.
pub fn lines(alloc: &Alloc) -> Vec<String> {
    let text = fs::read_to_string(alloc.shared_directory().join("data/lifecycle")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the record has at least `count` lines.
pub fn wait_lines(alloc: &Alloc, count: usize) -> Outcome {
    let data = alloc.shared_directory().join("data");
    watch::until(&data, &format!("{count} lines in the record"), LIMIT, || (lines(alloc).len() >= count).then_some(()))
}

/// Lets the task exit with `code` and waits until it has ended, with or without an agent.
pub fn tell(alloc: &Alloc, code: i64) -> Outcome {
    let init = alloc.init()?;
    // Opened for reading and writing, so that neither the open nor the write waits for the task.
    let mut go = OpenOptions::new().read(true).write(true).open(alloc.shared_directory().join("data/go"))?;
    writeln!(go, "{code}")?;
    if process::wait_gone(init.pid, LIMIT)? { Ok(()) } else { Err(Failure("the task did not end".to_owned())) }
}

/// The first process of each allocation's container. Each allocation must have exactly one container.
pub fn inits<'a>(allocs: impl IntoIterator<Item = &'a Alloc<'a>>) -> Outcome<BTreeMap<String, Process>> {
    let all = process::containers();
    let mut found = BTreeMap::new();
    for Alloc { id, .. } in allocs {
        let of_this: Vec<&Process> = all.iter().filter(|(alloc, _)| alloc == id).map(|(_, init)| init).collect();
        let [init] = of_this.as_slice() else {
            return Err(Failure(format!("expected one container of {id}, found {of_this:?}")));
        };
        found.insert(id.clone(), (*init).clone());
    }
    Ok(found)
}

/// Waits until a command runs in the task. The agent then knows the task and has its plugin.
pub fn wait_exec(alloc: &Alloc) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    loop {
        let output = alloc.exec(&["/bin/sh", "-c", "exit 9"])?;
        if output.status.code() == Some(9) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failure(format!("no command runs in {}: {output:?}", alloc.id)));
        }
        // Nomad sends no notification when it has reattached, so this polls.
        thread::sleep(Duration::from_millis(100));
    }
}

/// Stops the allocations' jobs and waits until their tasks have ended.
pub fn stop(allocs: &[Alloc]) -> Outcome {
    let mut asked = BTreeSet::new();
    for alloc in allocs.iter().filter(|alloc| asked.insert(&alloc.job)) {
        alloc.ask_to_stop()?;
    }
    allocs.iter().try_for_each(|alloc| alloc.wait_over().map(drop))
}

/// Checks the record: exactly these lines, and Nomad's events have the same exit codes.
pub fn expect(alloc: &Alloc, lines: &[&str]) -> Outcome {
    let events = alloc.events()?;
    assert_eq!(self::lines(alloc), lines, "{}: {events:?}", alloc.id);
    let codes: Vec<i64> = lines.iter().filter_map(|line| line.strip_prefix("end ")?.parse().ok()).collect();
    assert_eq!(alloc.exit_codes()?, codes, "{}: {events:?}", alloc.id);
    let starts = events.iter().filter(|event| event.starts_with("Started:")).count();
    let known = lines.iter().filter(|line| **line == "start").count();
    // Nomad keeps the last ten events.
    assert!(starts == known || events.len() == 10 && starts < known, "{}: {events:?}", alloc.id);
    Ok(())
}
