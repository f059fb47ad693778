//! `docs/escapes.md`: the table of all attempts.

use std::{fmt::Write as _, fs, path::Path};

use crate::{
    attempt::{Attempt, WORKS},
    attempts::AREAS,
    results::{CONTAINERS, DOCKER, MISSING, OURS, Results},
};

const HEAD: &str = "# Attempts to escape

<!-- Generated from escapes/src/attempts/ and escapes/results.tsv by `make escapes-record`. -->

The escape suite (`make escapes`) starts the same image four times on one Nomad agent, and makes the same attempts as
root in each container. A result that differs from this page fails the suite. The containers are:

- **docker**: Nomad's docker driver with dockerd 20.10.24 and runc 1.1, without options.
- **oci-rs**: this driver with `userns_mode = \"host\"`, otherwise without options.
- **oci-rs, user namespace**: the task has a user namespace of its own, otherwise without options.
- **no protection**: `privileged = true` with oci-rs. The column shows what each attempt does where nothing holds it: an
  error is then that of the kernel or of the attempt's harmless arguments. It is recorded, not compared.

*works* means that the attempt succeeded. An errno is the kernel's answer to the last step. Other words say what the
attempt found. *held* is a task that did not start, or found nothing of the node. *never* is the result of an attempt on
processes that are seen only for a moment. The errnos are those of Linux 6.18 with cgroups v1. Attempts that work with
oci-rs are in bold, with their reasons below the table.

";

/// Compares `docs/escapes.md` with the table, or writes it.
///
/// # Errors
/// When the document is out of date, or cannot be written.
pub fn check(results: &Results, write: bool) -> Result<(), String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/escapes.md");
    let text = text(results);
    if write {
        fs::write(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if fs::read_to_string(&file).unwrap_or_default() == text {
        return Ok(());
    }
    Err("docs/escapes.md is out of date: `make escapes-record` writes it".to_owned())
}

/// The document's text.
#[must_use]
pub fn text(results: &Results) -> String {
    let mut text = HEAD.to_owned();
    // Writing to a `String` never fails.
    writeln!(text, "{}", summary(results)).ok();
    for (area, attempts) in AREAS {
        writeln!(text, "\n## {area}\n\n| attempt | {} |\n|---|---|---|---|---|", CONTAINERS.join(" | ")).ok();
        for attempt in *attempts {
            let row: Vec<String> = (0..CONTAINERS.len()).map(|column| cell(results, attempt, column)).collect();
            writeln!(text, "| {} | {} |", attempt.what, row.join(" | ")).ok();
        }
        for (why, whats) in reasons(results, attempts) {
            item(&mut text, &format!("- **{}**: {why}.", whats.join("**, **")));
        }
    }
    text
}

fn result<'a>(results: &'a Results, attempt: &Attempt, column: usize) -> &'a str {
    results.get(attempt.what).map_or(MISSING, |row| &row[column])
}

fn succeeds(results: &Results, attempt: &Attempt) -> bool {
    OURS.iter().any(|&column| result(results, attempt, column) == WORKS)
}

fn cell(results: &Results, attempt: &Attempt, column: usize) -> String {
    let result = result(results, attempt, column);
    if result == WORKS && OURS.contains(&column) { format!("**{result}**") } else { result.to_owned() }
}

/// The number of attempts, and of those that succeed.
fn summary(results: &Results) -> String {
    let total: usize = AREAS.iter().map(|(_, attempts)| attempts.len()).sum();
    let mut text = "| container | attempts | work |\n|---|---|---|".to_owned();
    for (column, container) in CONTAINERS.iter().enumerate() {
        let works = results.values().filter(|row| row[column] == WORKS).count();
        write!(text, "\n| {container} | {total} | {works} |").ok();
    }
    let weaker =
        |row: &&[String; CONTAINERS.len()]| row[DOCKER] != WORKS && OURS.iter().any(|&column| row[column] == WORKS);
    let weaker = results.values().filter(weaker).count();
    write!(text, "\n\nAttempts that work with oci-rs and not with docker: {weaker}.").ok();
    text
}

/// The reasons of an area, each with the attempts that succeed for it.
fn reasons(results: &Results, attempts: &[Attempt]) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for attempt in attempts.iter().filter(|attempt| succeeds(results, attempt)) {
        let Some(why) = attempt.harmless else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, whats)) => whats.push(attempt.what),
            None => reasons.push((why, vec![attempt.what])),
        }
    }
    reasons
}

/// Adds an item of a list, with lines of at most 120 characters, after an empty line if it is the first one.
fn item(text: &mut String, value: &str) {
    if text.ends_with("|\n") {
        text.push('\n');
    }
    let mut line = String::new();
    for word in value.split(' ') {
        if line.chars().count() + word.chars().count() >= 120 {
            text.push_str(&line);
            text.push('\n');
            line = "  ".to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::recorded;

    #[test]
    fn escapes_is_generated_from_the_table() {
        assert_eq!(check(&recorded(), false), Ok(()));
    }

    #[test]
    fn rows_fit_into_a_line() {
        let text = text(&recorded());
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
        assert_eq!(long, Vec::<&str>::new());
    }
}
