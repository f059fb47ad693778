//! Series of times, their medians, and tables of ratios.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Prints a line of the report, which is Markdown.
pub fn say(line: &str) {
    // The report is this program's output.
    #[allow(clippy::print_stdout)]
    {
        println!("{line}");
    }
}

/// Prints progress on standard error, not in the report.
pub fn note(line: &str) {
    #[allow(clippy::print_stderr)]
    {
        eprintln!("bench: {line}");
    }
}

/// Returns the value. For an error, it adds one line to the report, and does not repeat the line.
pub fn or_say<T>(attempt: Result<T, String>) -> Option<T> {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let tell = |error: String| {
        if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(error.clone()) {
            say(&format!("- left out: {error}"));
        }
    };
    attempt.map_err(tell).ok()
}

/// The median; for an even number of values, the mean of the two in the middle. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (upper, lower) = (sorted.get(sorted.len() / 2)?, sorted.get(sorted.len().saturating_sub(1) / 2)?);
    Some(f64::midpoint(*upper, *lower))
}

/// The measurements of each program, in the order in which the programs first appeared.
#[derive(Debug)]
pub struct Samples<T> {
    order: Vec<String>,
    values: BTreeMap<String, Vec<T>>,
}

impl<T> Default for Samples<T> {
    fn default() -> Self {
        Self { order: Vec::new(), values: BTreeMap::new() }
    }
}

impl<T> Samples<T> {
    /// Adds a measurement.
    pub fn add(&mut self, name: &str, value: T) {
        if !self.values.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.values.entry(name.to_owned()).or_default().push(value);
    }

    /// The median of one quantity of a program.
    pub fn middle(&self, name: &str, of: impl Fn(&T) -> f64) -> Option<f64> {
        median(&self.values.get(name)?.iter().map(of).collect::<Vec<_>>())
    }

    /// Prints a table; `head` is its first two lines.
    pub fn print(&self, title: &str, head: &str, row: impl Fn(&Self, Row<T>) -> Option<String>) {
        say(&format!("\n### {title}\n\n{head}"));
        for row in self.rows(row) {
            say(&row);
        }
    }

    /// One line for each program. Ratios relate to the first program.
    pub fn rows(&self, row: impl Fn(&Self, Row<T>) -> Option<String>) -> Vec<String> {
        let Some(first) = self.order.first() else { return Vec::new() };
        self.order.iter().filter_map(|name| row(self, Row { name, first, values: &self.values[name] })).collect()
    }
}

/// The content of a line of a table.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a, T> {
    /// The name of the program.
    pub name: &'a str,
    /// The name of the first program.
    pub first: &'a str,
    /// The measurements.
    pub values: &'a [T],
}

/// The smallest and the largest value.
pub fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)))
}

/// Measurements of time.
pub type Series = Samples<Duration>;

impl Series {
    /// Prints a table of the times.
    pub fn table(&self, title: &str) {
        let head = "| | median ms | lowest | highest | runs | ratio to ours |\n|---|---:|---:|---:|---:|---:|";
        self.print(title, head, Self::row);
    }

    fn row(&self, Row { name, first, values }: Row<Duration>) -> Option<String> {
        let (low, high) = range(values.iter().map(milliseconds));
        let middle = self.middle(name, milliseconds)?;
        let ratio = middle / self.middle(first, milliseconds)?;
        Some(format!("| {name} | {middle:.1} | {low:.1} | {high:.1} | {} | {ratio:.2} |", values.len()))
    }
}

/// A time in milliseconds.
pub fn milliseconds(time: &Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use fixtures::must::Must;

    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn ratios_are_to_the_first() {
        let mut series = Series::default();
        for (name, time) in [("z", 10), ("a", 5), ("z", 30), ("a", 5), ("z", 20)] {
            series.add(name, Duration::from_millis(time));
        }
        let rows = series.rows(Series::row);
        assert!(rows[0].starts_with("| z | 20.0 | 10.0 | 30.0 | 3 | 1.00"), "{rows:?}");
        assert!(rows.get(1).must("a second row").ends_with("| 2 | 0.25 |"), "{rows:?}");
    }
}
