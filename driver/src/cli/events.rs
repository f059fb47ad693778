//! `oci-rs events`: starts and ends of tasks.
//!
//! The records of tasks tell them: no plugin has to run, and none has to write anything for this. A task that ends and
//! is removed at once has only the event of its removal.

use std::{collections::BTreeMap, rc::Rc, time::SystemTime};

use runtime::{ContainerState, TaskWatch, plan::ContainerId};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use serde_json::json;

use super::{
    arguments::EventsArguments,
    failure::Failure,
    format,
    output::Output,
    tasks::{Place, Task, short_name, state_text},
};
use crate::plan::TaskNotes;

/// What happened to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Happening {
    Start,
    /// Its end: exit code, signal, out of memory.
    Exit(i32, i32, bool),
    /// It has ended, and there is no record of its end.
    Lost,
    /// Its container was removed.
    Remove,
}

/// An event of a task.
struct Event {
    at: SystemTime,
    happening: Happening,
    text: String,
    notes: TaskNotes,
    container: ContainerId,
}

/// A task as it was seen last.
struct Seen {
    notes: TaskNotes,
    state: ContainerState,
}

/// Runs the command.
pub fn run(arguments: &EventsArguments) -> Result<(), Failure> {
    let output = Output { json: arguments.node.json };
    let places = Place::all(&arguments.node)?;
    // The watch begins before the records are read, so that no change is missed.
    let mut watches: Vec<(Rc<Place>, TaskWatch)> = Vec::new();
    if arguments.follow {
        for place in &places {
            watches.push((place.clone(), place.observer.watch().map_err(Failure::of)?));
        }
    }
    let mut seen = BTreeMap::new();
    let mut known = Vec::new();
    for task in Task::all(&arguments.node)? {
        known.extend(observe(&mut seen, task.view.id.clone(), Some(task), arguments));
    }
    known.sort_by_key(|event| event.at);
    report(&known, &output)?;
    if !arguments.follow {
        return Ok(());
    }
    loop {
        wait(&watches)?;
        for (place, watch) in &mut watches {
            for id in watch.changed().map_err(Failure::of)?.into_iter().filter(|id| place.includes(id.as_str())) {
                let task = place.observer.container(&id).map(|view| Task::new(place, view));
                report(&observe(&mut seen, id, task, arguments), &output)?;
            }
        }
    }
}

/// Compares a task with its last state; the events since then.
fn observe(
    seen: &mut BTreeMap<ContainerId, Seen>,
    id: ContainerId,
    task: Option<Task>,
    arguments: &EventsArguments,
) -> Vec<Event> {
    let before = seen.remove(&id);
    let passes = task.as_ref().is_none_or(|task| task.passes(&arguments.filter));
    // A task that was seen has passed the filters.
    if !passes && before.is_none() {
        return Vec::new();
    }
    let happenings = happenings(before.as_ref().map(|seen| &seen.state), task.as_ref().map(|task| &task.view.state));
    let state = task.as_ref().map(|task| task.view.state.clone());
    let notes = task.map(|task| task.notes).or(before.map(|seen| seen.notes)).unwrap_or_default();
    let events = happenings.into_iter().map(|happening| Event {
        at: time(&happening, state.as_ref()),
        text: text(&happening, state.as_ref()),
        happening,
        notes: notes.clone(),
        container: id.clone(),
    });
    let events = events.collect();
    if let Some(state) = state {
        seen.insert(id, Seen { notes, state });
    }
    events
}

/// What happened between two states; `None` is no container.
fn happenings(before: Option<&ContainerState>, now: Option<&ContainerState>) -> Vec<Happening> {
    use ContainerState::{Exited, Lost, Running};
    let ran = matches!(before, Some(Running { .. } | Exited(_) | Lost));
    let ended = matches!(before, Some(Exited(_) | Lost));
    let mut happened = Vec::new();
    if matches!(now, Some(Running { .. } | Exited(_))) && !ran {
        happened.push(Happening::Start);
    }
    match now {
        Some(Exited(exit)) if !ended => {
            happened.push(Happening::Exit(exit.exit_code, exit.signal, exit.oom_killed));
        }
        Some(Lost) if matches!(before, Some(Running { .. })) => happened.push(Happening::Lost),
        None if before.is_some() => happened.push(Happening::Remove),
        _ => {}
    }
    happened
}

/// When it happened, as far as records tell it.
fn time(happening: &Happening, state: Option<&ContainerState>) -> SystemTime {
    match (happening, state) {
        (Happening::Start, Some(ContainerState::Running { started_at, .. })) => *started_at,
        (Happening::Start, Some(ContainerState::Exited(exit))) => exit.started_at,
        (Happening::Exit(..), Some(ContainerState::Exited(exit))) => exit.finished_at,
        _ => SystemTime::now(),
    }
}

fn text(happening: &Happening, state: Option<&ContainerState>) -> String {
    match happening {
        Happening::Start => "started".to_owned(),
        Happening::Exit(..) => state.map(state_text).unwrap_or_default(),
        Happening::Lost => "lost: it ended without a record".to_owned(),
        Happening::Remove => "removed".to_owned(),
    }
}

fn name(happening: &Happening) -> &'static str {
    match happening {
        Happening::Start => "start",
        Happening::Exit(..) => "exit",
        Happening::Lost => "lost",
        Happening::Remove => "remove",
    }
}

/// Blocks until a watch has something to report.
fn wait(watches: &[(Rc<Place>, TaskWatch)]) -> Result<(), Failure> {
    let mut descriptors: Vec<PollFd> = Vec::new();
    for (_, watch) in watches {
        descriptors.push(PollFd::from_borrowed_fd(watch.descriptor(), PollFlags::IN));
    }
    match poll(&mut descriptors, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::of(error)),
    }
}

/// One line for each event, or one JSON object in a line.
fn report(events: &[Event], output: &Output) -> Result<(), Failure> {
    for Event { at, happening, text, notes, container } in events {
        let time = format::rfc3339(*at);
        if !output.json {
            let TaskNotes { job, group, image, .. } = notes;
            let line = format!("{time} {} {text} (job {job}, group {group}, image {image})", short_name(notes));
            output.line(line)?;
            continue;
        }
        let (code, signal, oom_killed) = match happening {
            Happening::Exit(code, signal, oom) => (Some(code), Some(signal), Some(oom)),
            _ => (None, None, None),
        };
        let line = json!({
            "time": time, "event": name(happening), "container": container.as_str(),
            "allocation": notes.alloc, "namespace": notes.namespace, "job": notes.job, "group": notes.group,
            "task": notes.task, "image": notes.image,
            "exit_code": code, "signal": signal, "oom_killed": oom_killed,
        });
        output.compact(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use runtime::{ContainerState, ExitRecord};

    use super::{Happening, happenings};

    #[test]
    fn each_change_is_told_once() {
        let now = SystemTime::now();
        let running = ContainerState::Running { pid: 1, monitor: None, started_at: now };
        let exited = ContainerState::Exited(ExitRecord {
            exit_code: 3,
            signal: 0,
            oom_killed: false,
            out_of_memory: None,
            forks_refused: 0,
            started_at: now,
            finished_at: now,
        });
        let (starting, lost, removing) = (ContainerState::Starting, ContainerState::Lost, ContainerState::Removing);
        let exit = Happening::Exit(3, 0, false);
        for (before, after, expected) in [
            (None, Some(&starting), vec![]),
            (None, Some(&running), vec![Happening::Start]),
            (Some(&starting), Some(&running), vec![Happening::Start]),
            (Some(&running), Some(&running), vec![]),
            (Some(&running), Some(&exited), vec![exit.clone()]),
            (Some(&starting), Some(&exited), vec![Happening::Start, exit.clone()]),
            (None, Some(&exited), vec![Happening::Start, exit]),
            (Some(&exited), Some(&exited), vec![]),
            (Some(&running), Some(&lost), vec![Happening::Lost]),
            (None, Some(&lost), vec![]),
            (Some(&exited), Some(&removing), vec![]),
            (Some(&removing), None, vec![Happening::Remove]),
            (Some(&exited), None, vec![Happening::Remove]),
            (None, None, vec![]),
        ] {
            assert_eq!(happenings(before, after), expected, "{before:?} {after:?}");
        }
    }
}
