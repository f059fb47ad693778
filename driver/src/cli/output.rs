//! Standard output: JSON for programs, or lines and tables for people.

use std::{
    fmt::Display,
    io::{self, Write},
};

use serde_json::Value;

/// Standard output in the form that the command line asks for.
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Writes JSON.
    pub fn value(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{value:#}")
    }

    /// Writes a line of text.
    pub fn line(&self, line: impl Display) -> io::Result<()> {
        writeln!(io::stdout(), "{line}")
    }

    /// Writes rows with aligned columns.
    pub fn table(&self, rows: &[Vec<String>]) -> io::Result<()> {
        aligned(rows).iter().try_for_each(|row| self.line(row))
    }
}

/// The rows as lines with aligned columns.
pub fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn columns_are_aligned() {
        let rows = [["A", "LONG", "C"], ["aaa", "é", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), ["A    LONG  C", "aaa  é"]);
    }
}
