//! The table of starts, and whether the goals are reached.

use std::{fmt, time::Duration};

use super::{contenders::Contender, images::Image, sample::Sample, services::Service};
use crate::{
    pull::link::Line,
    report::{Row, Samples, milliseconds, range, say},
};

/// All starts of one image through one link.
#[derive(Debug)]
pub struct Cell {
    /// The service.
    pub service: Service,
    /// The size that was asked for, in MiB of gzip.
    pub mebibytes: u64,
    /// The link.
    pub line: Line,
    /// The time in which the disk takes the native image.
    disk: Duration,
    samples: Samples<Sample>,
}

impl Cell {
    /// No starts yet. `disk` is the time in which the disk takes the native image.
    pub fn new(image: &Image, line: Line, disk: Duration) -> Self {
        Self { service: image.service, mebibytes: image.mebibytes, line, disk, samples: Samples::default() }
    }

    /// Adds a start.
    pub fn add(&mut self, name: &str, sample: Sample) {
        self.samples.add(name, sample);
    }

    fn rows(&self) -> Vec<String> {
        self.samples.rows(|samples, Row { name, values, .. }| {
            let (low, high) = range(values.iter().map(|sample| milliseconds(&sample.ready)));
            let ready = samples.middle(name, |sample| milliseconds(&sample.ready))?;
            let whole = samples.middle(name, |sample| milliseconds(&sample.whole))?;
            let cpu = samples.middle(name, |sample| sample.cpu.as_secs_f64())?;
            let requests = samples.middle(name, |sample| sample.before.requests as f64)?;
            let megabytes = samples.middle(name, |sample| sample.before.bytes as f64 / 1e6)?;
            let whole = if Contender::tells_whole(name) { format!("{whole:.0}") } else { String::new() };
            Some(format!(
                "| {} | {name} | {ready:.0} | {low:.0} | {high:.0} | {} | {whole} | {cpu:.2} | {requests:.0} | \
                 {megabytes:.1} |",
                self.service,
                values.len(),
            ))
        })
    }

    fn middle(&self, contender: Contender, of: impl Fn(&Sample) -> Duration) -> Option<f64> {
        self.samples.middle(&contender.name(), |sample| milliseconds(&of(sample)))
    }

    /// The least time of a pull of the whole native image, in ms: the longer of link and disk.
    fn floor(&self) -> Option<f64> {
        let link = self.middle(Contender::Reader, |sample| sample.whole)?;
        Some(link.max(milliseconds(&self.disk)))
    }

    fn goals(&self) -> Vec<Goal> {
        let ready = |contender| self.middle(contender, |sample| sample.ready);
        let whole = |contender| self.middle(contender, |sample| sample.whole);
        let cpu = |contender| self.middle(contender, |sample| sample.cpu);
        let mut goals = Vec::new();
        let mut check = |what, found: Option<f64>, limit: Option<f64>| {
            if let (Some(found), Some(limit)) = (found, limit) {
                goals.push(Goal { what, found, limit });
            }
        };
        if self.mebibytes == 1024 && self.line == Line::GIGABIT {
            check("the answer, ms", ready(Contender::Lazy), Some(400.0));
        }
        for (what, eager) in [
            ("the answer, ms, against the native image whole first", Contender::Native),
            ("the answer, ms, against the gzip image", Contender::Gzip),
        ] {
            check(what, ready(Contender::Lazy), ready(eager));
        }
        let eager = whole(Contender::Native);
        check(
            "the whole image, ms, against 1.1 times the pull",
            whole(Contender::Lazy),
            eager.map(|eager| 1.1 * eager),
        );
        check(
            "the pull of the native image, ms, against 1.05 times the floor",
            eager,
            self.floor().map(|floor| 1.05 * floor),
        );
        let third = cpu(Contender::Gzip).map(|gzip| gzip / 3.0);
        check("CPU of that pull, ms, against a third of the gzip image's", cpu(Contender::Native), third);
        goals
    }
}

/// A goal of the project.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Goal {
    what: &'static str,
    found: f64,
    limit: f64,
}

impl Goal {
    fn is_reached(self) -> bool {
        self.found <= self.limit
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, found, limit } = self;
        let reached = if self.is_reached() { "reached" } else { "**missed**" };
        write!(f, "{what} | {found:.0} | {limit:.0} | {reached}")
    }
}

/// Prints one table for each size and link, and one of all goals.
pub fn print(cells: &[Cell]) {
    let head = "| service | | ready, median ms | lowest | highest | runs | image whole, ms | CPU s | requests before | \
                MB before |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|";
    let mut kinds: Vec<(u64, Line)> = Vec::new();
    for cell in cells {
        if !kinds.contains(&(cell.mebibytes, cell.line)) {
            kinds.push((cell.mebibytes, cell.line));
        }
    }
    for (mebibytes, line) in kinds {
        say(&format!("\n### readiness: {mebibytes} MiB through {line}\n\n{head}"));
        let these = || cells.iter().filter(|cell| (cell.mebibytes, cell.line) == (mebibytes, line));
        these().flat_map(Cell::rows).for_each(|row| say(&row));
        for cell in these() {
            let pull = cell.middle(Contender::Native, |sample| sample.whole);
            if let (Some(pull), Some(floor)) = (pull, cell.floor()) {
                say(&format!(
                    "\nFloor of the native image's pull, {}: {floor:.0} ms; the pull takes {:.3} times that.",
                    cell.service,
                    pull / floor
                ));
            }
        }
    }
    say(
        "\n### readiness: goals\n\n| service | MiB | link | goal | found | limit | |\n|---|---:|---|---|---:|---:|---|",
    );
    for cell in cells {
        for goal in cell.goals() {
            say(&format!("| {} | {} | {} | {goal} |", cell.service, cell.mebibytes, cell.line));
        }
    }
}

#[cfg(test)]
mod tests {
    use fixtures::must::Must;

    use super::*;
    use crate::pull::link::Traffic;

    fn cell() -> Cell {
        let (disk, samples) = (Duration::from_millis(8000), Samples::default());
        let mut cell = Cell { service: Service::Static, mebibytes: 1024, line: Line::GIGABIT, disk, samples };
        let sample = |ready, whole, cpu| Sample {
            ready: Duration::from_millis(ready),
            whole: Duration::from_millis(whole),
            cpu: Duration::from_millis(cpu),
            before: Traffic { requests: 12, bytes: 3_500_000 },
        };
        cell.add(&Contender::Reader.name(), sample(9000, 9000, 0));
        cell.add(&Contender::Lazy.name(), sample(300, 9500, 1000));
        cell.add(Contender::PRESENT, sample(100, 100, 10));
        cell.add(&Contender::Native.name(), sample(9600, 9500, 1000));
        cell.add(&Contender::Gzip.name(), sample(9000, 9000, 2000));
        cell
    }

    #[test]
    fn rows_have_medians() {
        let rows = cell().rows();
        assert_eq!(rows[1], "| nginx | oci-rs, lazy | 300 | 300 | 300 | 1 | 9500 | 1.00 | 12 | 3.5 |");
        assert!(Contender::tells_whole("ctr pull + run, erofs") && !Contender::tells_whole("ctr pull + run, soci"));
        assert_eq!(rows[2], "| nginx | oci-rs, image present | 100 | 100 | 100 | 1 |  | 0.01 | 12 | 3.5 |");
    }

    #[test]
    fn goals_are_checked() {
        let reached: Vec<bool> = cell().goals().into_iter().map(Goal::is_reached).collect();
        // 400 ms; not later than both pulls; whole in time; 9500 of 9450; 1000 of 667.
        assert_eq!(reached, [true, true, true, true, false, false]);
    }

    #[test]
    fn the_first_goal_is_of_the_large_image_through_the_fast_link() {
        let small = Cell { mebibytes: 150, ..cell() };
        assert_eq!(small.goals().len(), 5);
        let slow = Cell { line: "100".parse().must("a line"), ..cell() };
        assert_eq!(slow.goals().len(), 5);
    }
}
