//! What a task costs in memory while it does nothing: its monitor, and the process that serves all tasks.

use std::{collections::BTreeMap, fs};

use kit::leak;

use crate::{
    arena::Arena,
    images,
    report::{median, note, or_say, say},
    start::Field,
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

/// A kind of process, measured with one task and with many.
struct Row {
    name: &'static str,
    ours: &'static str,
    tasks: usize,
    memory: Memory,
}

/// Measures the table.
pub async fn measure(arena: &Arena) {
    note("memory");
    let data = arena.fresh("memory");
    let Some((_registry, image)) = images::small() else { return };
    let mut field = Field::assemble(arena, &data, &image).await;
    let (mut tasks, mut containers, mut pods) = (Vec::new(), Vec::new(), 0);
    let mut rows = Vec::new();
    for count in [1, MANY] {
        while tasks.len() < count {
            let task = field.ours.task(&image, &IDLE).await;
            field.ours.plugin.started(&task).await;
            tasks.push(task);
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
        // Whoever started something lets go of what that took.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        rows.extend(look(&field, count));
    }
    table(&rows);
    for task in &tasks {
        field.ours.remove(task).await;
    }
    if let Some(docker) = &field.docker {
        for id in &containers {
            or_say(docker.remove(id));
        }
    }
    field.ours.finish().await;
}

fn look(field: &Field, tasks: usize) -> Vec<Row> {
    let plugin = field.ours.plugin.process.pid();
    let monitors: Vec<i32> = leak::children(plugin).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(monitors.len(), tasks, "one monitor for each task");
    let each = "oci-rs, one monitor";
    let all = "oci-rs plugin";
    let mut rows = vec![
        Row { name: each, ours: each, tasks, memory: Memory::middle(&monitors) },
        Row { name: all, ours: all, tasks, memory: Memory::of(plugin) },
    ];
    if let Some(docker) = &field.docker {
        rows.push(Row {
            name: "docker, one containerd-shim",
            ours: each,
            tasks,
            memory: Memory::middle(&docker.shims()),
        });
        rows.push(Row { name: "dockerd + containerd", ours: all, tasks, memory: Memory::sum(&docker.daemons()) });
    }
    if let Some(podman) = &field.podman {
        rows.push(Row { name: "podman, one conmon", ours: each, tasks, memory: Memory::middle(&podman.monitors()) });
    }
    // Who did not run holds nothing.
    rows.retain(|row| row.memory.resident > 0.0);
    rows
}

fn table(rows: &[Row]) {
    say(
        "\n### memory, KiB\n\n| | tasks | RSS | PSS | anonymous | private | private, ratio to ours |\n|---|---:|---:|---:|---:|---:|---:|",
    );
    for row in rows {
        let same = |other: &&Row| other.name == row.ours && other.tasks == row.tasks;
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
