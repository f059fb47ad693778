//! Standard output: JSON for programs, or lines and tables for people. A table on a terminal fits its width.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
};

use rustix::termios::tcgetwinsize;
use serde_json::Value;
use unicode_width::UnicodeWidthChar;

/// The space between two columns.
const GAP: usize = 2;
/// A column is not made narrower than this.
const NARROWEST: usize = 8;

/// Standard output in the form that the command line asks for.
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Writes JSON.
    pub fn value(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{}", escaped(&format!("{value:#}")))
    }

    /// Writes JSON in one line.
    pub fn compact(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{}", escaped(&value.to_string()))
    }

    /// Writes a line of text.
    pub fn line(&self, line: impl Display) -> io::Result<()> {
        writeln!(io::stdout(), "{}", printable(&line.to_string()))
    }

    /// Writes rows with aligned columns.
    pub fn table(&self, rows: &[Vec<String>]) -> io::Result<()> {
        aligned(rows).iter().try_for_each(|row| self.line(row))
    }

    /// Writes rows with aligned columns. On a terminal, the columns with these numbers are shortened to make the table
    /// fit.
    pub fn fitted(&self, rows: &[Vec<String>], shrinkable: &[usize]) -> io::Result<()> {
        let rows = match terminal_width() {
            Some(width) => fit(rows, shrinkable, width),
            None => rows.to_vec(),
        };
        self.table(&rows)
    }
}

/// Writes a remark to standard error. It does not change the result of a command.
pub fn note(text: impl Display) {
    // A closed stderr does not end the command.
    drop(writeln!(io::stderr(), "oci-rs: {}", printable(&text.to_string())));
}

/// The columns of the terminal; `None` if standard output is none.
pub fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Text without characters that a terminal acts upon. Names come from jobs and images.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect()
}

/// The same for text of several lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Characters that control a terminal (C0, C1), or that show text in another order or not at all.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// JSON text with the same meaning, in which such characters are escape sequences. They are only in its strings, except
/// for the ends of lines.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !is_unprintable(c) {
            text.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
    }
    text
}

/// The columns that a text takes on a terminal.
fn width_of(text: &str) -> usize {
    text.chars().map(|character| character.width().unwrap_or(0)).sum()
}

/// The rows as lines with aligned columns.
pub fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let widths = widths(&rows);
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let padding = width.saturating_sub(width_of(cell));
            format!("{cell}{:padding$}", "")
        });
        cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

/// The rows with shorter cells in these columns, so that a line has at most this width, if that is possible. The widest
/// column is shortened first. The first row is the title and stays.
fn fit(rows: &[Vec<String>], shrinkable: &[usize], width: usize) -> Vec<Vec<String>> {
    let mut widths = widths(rows);
    let whole = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    while whole(&widths) > width {
        let widest =
            shrinkable.iter().copied().filter(|column| *column < widths.len()).max_by_key(|column| widths[*column]);
        match widest {
            Some(column) if widths[column] > NARROWEST => widths[column] -= 1,
            _ => break,
        }
    }
    let shortened = |row: &Vec<String>| row.iter().zip(&widths).map(|(cell, width)| shorten(cell, *width)).collect();
    let titles = rows.iter().take(1).cloned();
    titles.chain(rows.iter().skip(1).map(shortened)).collect()
}

/// Text of at most this width. A mark replaces the end of longer text.
pub fn shorten(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 1;
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > width {
            break;
        }
        kept.push(character);
    }
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use serde_json::{Value, json};

    use super::{NARROWEST, aligned, escaped, fit, is_unprintable, printable, printable_lines, shorten, width_of};

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(aligned(&rows(&[&["A", "LONG", "C"], &["aaa", "é", ""]])), ["A    LONG  C", "aaa  é"]);
        assert_eq!(aligned(&rows(&[&["日本", "b"], &["x", "y"]])), ["日本  b", "x     y"], "wide characters");
        assert_eq!(aligned(&rows(&[&["a\u{1b}[2J\n"]])), ["a\u{fffd}[2J\u{fffd}"], "a name cannot clear the screen");
    }

    #[test]
    fn the_widest_column_is_shortened_first() {
        let table = rows(&[&["TASK", "IMAGE", "JOB"], &["web", "registry.example/team/app:1", "shop-front"]]);
        assert_eq!(aligned(&fit(&table, &[1, 2], 80)), aligned(&table));
        let fitted = aligned(&fit(&table, &[1, 2], 30));
        assert_eq!(fitted, ["TASK  IMAGE         JOB", "web   registry.ex…  shop-front"]);
        assert_eq!(aligned(&fit(&table, &[1, 2], 1))[1], "web   registr…  shop-fr…", "no column disappears");
    }

    #[test]
    fn no_character_reaches_a_terminal_that_it_acts_upon() {
        for c in ['\u{1b}', '\u{7f}', '\u{9b}', '\u{85}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{e0041}'] {
            assert_eq!(printable(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
            let value = json!({ "name": format!("a{c}b") });
            for text in [format!("{value:#}"), value.to_string()] {
                let written = escaped(&text);
                assert!(!written.chars().any(|c| c != '\n' && is_unprintable(c)), "{written:?}");
                assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), value);
            }
        }
        assert_eq!(printable("é 日本 …"), "é 日本 …");
        assert_eq!(printable_lines("one\n\u{9b}2J\n"), "one\n\u{fffd}2J\n");
    }

    proptest! {
        #[test]
        fn a_table_fits_if_its_columns_can_be_shortened(
            cells in prop::collection::vec("\\PC{0,40}", 3),
            width in 40..100_usize,
        ) {
            let mut table = rows(&[&["A", "B", "C"]]);
            table.push(cells);
            for line in aligned(&fit(&table, &[0, 1, 2], width)) {
                prop_assert!(width_of(&line) <= width.max(3 * NARROWEST + 4), "{line:?}");
            }
        }

        #[test]
        fn shortened_text_has_at_most_its_width(text in "\\PC{0,20}", width in 1..12_usize) {
            prop_assert!(width_of(&shorten(&text, width)) <= width);
        }
    }
}
