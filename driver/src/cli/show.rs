//! Values as people read them. Pure but for [`Output`].

use std::{
    fmt::Display,
    io::{self, Write},
    time::{Duration, SystemTime},
};

use image_store::LeaseOwner;
use serde_json::Value;

/// Standard output, for people or for programs.
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// A value for programs.
    pub fn value(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{value:#}")
    }

    /// A line for people.
    pub fn line(&self, line: impl Display) -> io::Result<()> {
        writeln!(io::stdout(), "{line}")
    }

    /// Lines whose columns stand below each other.
    pub fn table(&self, rows: &[Vec<String>]) -> io::Result<()> {
        aligned(rows).iter().try_for_each(|row| self.line(row))
    }
}

fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `4.2 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `5m ago`: the largest unit alone is enough to find one's way.
pub fn ago(then: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(then).unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86_400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// A moment in RFC 3339, to the second.
pub fn moment(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Seconds since 1970 as a moment.
pub fn since_epoch(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// `sha256:0123456789ab`.
pub fn short(digest: &str) -> &str {
    digest.get(.."sha256:".len() + 12).unwrap_or(digest)
}

/// The owner of a lease. Containers of tasks are named `<allocation>.<task>.<random>` as long as nothing in that is unusual.
pub fn owner(owner: &LeaseOwner) -> String {
    match owner {
        LeaseOwner::Operator { process, .. } => format!("a command of an operator (process {process})"),
        LeaseOwner::DebugImage { .. } => format!("container {owner}"),
        LeaseOwner::Task { container } => match container.split('.').collect::<Vec<_>>()[..] {
            [alloc, task, _] if alloc.len() == 36 => format!("task {task:?} of allocation {alloc}"),
            _ => format!("container {container}"),
        },
    }
}

/// Several owners in one line.
pub fn owners(owners: &[LeaseOwner]) -> String {
    owners.iter().map(owner).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [["A", "LONG", "C"], ["aaa", "é", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), ["A    LONG  C", "aaa  é"]);
    }

    #[test]
    fn values_for_people() {
        assert_eq!(
            [size(0), size(1023), size(4_404_019), size(u64::MAX)],
            ["0 B", "1023 B", "4.2 MiB", "16777216.0 TiB"]
        );
        let now = since_epoch(1_000_000);
        let then = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(
            [then(0), then(59), then(60), then(7200), then(86_400 * 3)],
            ["0s ago", "59s ago", "1m ago", "2h ago", "3d ago"]
        );
        assert_eq!(ago(now + Duration::from_secs(5), now), "0s ago");
        assert_eq!(moment(now), "1970-01-12T13:46:40Z");
        assert_eq!(short("sha256:0123456789abcdef"), "sha256:0123456789ab");
    }

    #[test]
    fn leases_are_told_as_what_nomad_calls_them() {
        let alloc = "d9eb0a3f-8b0e-4a45-9d2e-0f0a1b2c3d4e";
        let owner = |name: &str| owner(&name.into());
        assert_eq!(owner(&format!("{alloc}.web.0a1b2c3d")), format!("task \"web\" of allocation {alloc}"));
        assert_eq!(owner("operator.12.99"), "a command of an operator (process 12)");
        assert_eq!(owner("x.y"), "container x.y");
    }
}
