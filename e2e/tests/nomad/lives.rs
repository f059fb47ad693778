//! Tasks that keep the book of their lives (`e2e/image/bin/live`). The book, the kernel and Nomad have to agree on it.

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

/// A job of such tasks; `kind` is Nomad's type of it.
pub fn job(env: &Env, kind: &str) -> Job {
    Job::new("life").var("image", &env.registry.image()).var("kind", kind)
}

/// Runs `count` of them and waits until all are there.
pub fn start<'a>(env: &Env<'a>, job: Job, count: usize) -> Outcome<Vec<Alloc<'a>>> {
    let allocs = env.agent.run_many(&job.number("count", count.try_into()?), count)?;
    for alloc in &allocs {
        alloc.wait_running()?;
        wait_book(alloc, 1)?;
    }
    Ok(allocs)
}

/// Runs one.
pub fn start_one<'a>(env: &Env<'a>, job: Job) -> Outcome<Alloc<'a>> {
    Ok(start(env, job, 1)?.swap_remove(0))
}

/// What the book says.
pub fn book(alloc: &Alloc) -> Vec<String> {
    let text = fs::read_to_string(alloc.shared_directory().join("data/lives")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the book has so many lines.
pub fn wait_book(alloc: &Alloc, lines: usize) -> Outcome {
    let data = alloc.shared_directory().join("data");
    watch::until(&data, &format!("{lines} lines in the book"), LIMIT, || (book(alloc).len() >= lines).then_some(()))
}

/// Lets the task end with `code` and waits until it is gone, with or without an agent.
pub fn tell(alloc: &Alloc, code: i64) -> Outcome {
    let init = alloc.init()?;
    // Open at both ends, so that opening does not wait for the task, and what is written waits for it.
    let mut go = OpenOptions::new().read(true).write(true).open(alloc.shared_directory().join("data/go"))?;
    writeln!(go, "{code}")?;
    if process::wait_gone(init.pid, LIMIT)? { Ok(()) } else { Err(Failure("the task did not end".to_owned())) }
}

/// The containers' first processes by allocation: exactly one for each.
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

/// Waits until a command runs in the task: the agent knows the task and has its plugin.
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
        // Nomad tells nobody when it has found its plugin or its task again.
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

/// Exactly these lives; Nomad knows of as many ends, with the same codes, and no container is left.
pub fn expect(alloc: &Alloc, lines: &[&str]) -> Outcome {
    let events = alloc.events()?;
    assert_eq!(book(alloc), lines, "{}: {events:?}", alloc.id);
    let codes: Vec<i64> = lines.iter().filter_map(|line| line.strip_prefix("end ")?.parse().ok()).collect();
    assert_eq!(alloc.exit_codes()?, codes, "{}: {events:?}", alloc.id);
    let starts = events.iter().filter(|event| event.starts_with("Started:")).count();
    let known = lines.iter().filter(|line| **line == "start").count();
    // Nomad keeps the last ten events.
    assert!(starts == known || events.len() == 10 && starts < known, "{}: {events:?}", alloc.id);
    Ok(())
}
