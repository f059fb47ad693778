//! The memory of an idle task: its monitor, and the process that serves all tasks.

use std::{collections::BTreeMap, fs};

use fixtures::process;
use kit::task::Task;

use crate::{
    images,
    ours::Contenders,
    report::{median, note, or_say, say},
    start::Field,
    workdir::WorkDirectory,
};

const IDLE: [&str; 2] = ["sleep", "100000"];
const MANY: usize = 20;

/// Sums of `smaps_rollup`, in KiB.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Memory {
    resident: f64,
    proportional: f64,
    anonymous: f64,
    private: f64,
}

impl Memory {
    fn of(pid: i32) -> Self {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let fields: BTreeMap<&str, f64> = text
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.split_once(':')?;
                Some((name, rest.split_whitespace().next()?.parse().ok()?))
            })
            .collect();
        let at = |name: &str| fields.get(name).copied().unwrap_or(0.0);
        Self {
            resident: at("Rss"),
            proportional: at("Pss"),
            anonymous: at("Anonymous"),
            private: at("Private_Clean") + at("Private_Dirty"),
        }
    }

    fn sum(pids: &[i32]) -> Self {
        pids.iter().map(|pid| Self::of(*pid)).fold(Self::default(), |a, b| Self {
            resident: a.resident + b.resident,
            proportional: a.proportional + b.proportional,
            anonymous: a.anonymous + b.anonymous,
            private: a.private + b.private,
        })
    }

    /// The median process.
    fn middle(pids: &[i32]) -> Self {
        let all: Vec<Self> = pids.iter().map(|pid| Self::of(*pid)).collect();
        let of = |field: fn(&Self) -> f64| median(&all.iter().map(field).collect::<Vec<_>>()).unwrap_or(0.0);
        Self {
            resident: of(|m| m.resident),
            proportional: of(|m| m.proportional),
            anonymous: of(|m| m.anonymous),
            private: of(|m| m.private),
        }
    }
}

/// The scope of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One for each task.
    Each,
    /// One for all tasks.
    All,
}

/// One kind of process, measured with one task and with many tasks.
struct Row {
    name: String,
    kind: Kind,
    tasks: usize,
    memory: Memory,
}

/// Measures the table.
pub async fn measure(workdir: &WorkDirectory, contenders: &Contenders) {
    note("memory");
    // The name `memory` is that of the directory in memory.
    let data = workdir.fresh("idle");
    let Some((_registry, image)) = images::small() else { return };
    let mut field = Field::assemble(workdir, contenders, &data, &image).await;
    let mut tasks: Vec<Vec<Task>> = field.ours.iter().map(|_| Vec::new()).collect();
    let (mut containers, mut pods) = (Vec::new(), 0);
    let mut rows = Vec::new();
    for count in [1, MANY] {
        for (ours, tasks) in field.ours.iter_mut().zip(&mut tasks) {
            while tasks.len() < count {
                let task = ours.task(&image, &IDLE).await;
                ours.plugin.started(&task).await;
                tasks.push(task);
            }
        }
        if let Some(docker) = &field.docker {
            while containers.len() < count {
                let Some(id) = or_say(docker.keep(&image, &IDLE)) else { break };
                containers.push(id);
            }
        }
        if let Some(podman) = &field.podman {
            while pods < count && or_say(podman.keep(&format!("idle{pods}"), &image, &IDLE)).is_some() {
                pods += 1;
            }
        }
        // A program that started a task first frees the memory of the start.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        rows.extend(look(&field, count));
    }
    table(&rows);
    for (ours, tasks) in field.ours.iter().zip(&tasks) {
        for task in tasks {
            ours.remove(task).await;
        }
    }
    if let Some(docker) = &field.docker {
        for id in &containers {
            or_say(docker.remove(id));
        }
    }
    field.finish().await;
}

fn look(field: &Field, tasks: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for ours in &field.ours {
        let plugin = ours.plugin.process.pid();
        let monitors: Vec<i32> = process::children(plugin).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(monitors.len(), tasks, "one monitor for each task");
        let mut add =
            |kind, what, memory| rows.push(Row { name: format!("{}, {what}", ours.name), kind, tasks, memory });
        add(Kind::Each, "one monitor", Memory::middle(&monitors));
        add(Kind::All, "plugin", Memory::of(plugin));
    }
    let mut add = |kind, name: &str, memory| rows.push(Row { name: name.to_owned(), kind, tasks, memory });
    if let Some(docker) = &field.docker {
        add(Kind::Each, "docker, one containerd-shim", Memory::middle(&docker.shims()));
        add(Kind::All, "dockerd + containerd", Memory::sum(&docker.daemons()));
    }
    if let Some(podman) = &field.podman {
        add(Kind::Each, "podman, one conmon", Memory::middle(&podman.monitors()));
    }
    // A program that did not run has no memory.
    rows.retain(|row| row.memory.resident > 0.0);
    rows
}

fn table(rows: &[Row]) {
    say("\n### memory, KiB\n\n| | tasks | RSS | PSS | anonymous | private | private, ratio to ours \
         |\n|---|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        let same = |other: &&Row| other.kind == row.kind && other.tasks == row.tasks;
        let ours = rows.iter().find(same).map_or(f64::NAN, |ours| ours.memory.private);
        let Memory { resident, proportional, anonymous, private } = row.memory;
        let ratio = private / ours;
        say(&format!(
            "| {} | {} | {resident:.0} | {proportional:.0} | {anonymous:.0} | {private:.0} | {ratio:.2} |",
            row.name, row.tasks
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollups_are_read() {
        let text = "00-ff ---p 00000000 00:00 0   [rollup]\nRss:      12 kB\nPss:   5 kB\nPrivate_Clean:  2 kB\n\
                    Private_Dirty:  3 kB\nAnonymous:  4 kB\n";
        let expected = Memory { resident: 12.0, proportional: 5.0, anonymous: 4.0, private: 5.0 };
        assert_eq!(Memory::parse(text), expected);
        assert_eq!(Memory::parse(""), Memory::default());
    }
}
