//! `docs/docker-parity.md`: the list of differences, and the areas that the cases cover.

use std::{fmt::Write as _, fs, path::Path};

use e2e::{Context, Failure, Outcome};

use crate::{
    cases,
    differences::{Difference, LIST},
};

const HEAD: &str = "# Differences from the docker driver

<!-- Generated from parity/src/differences.rs and parity/src/cases/ by `make parity-docs`. -->

The differential suite (`make parity`) runs each job of its list twice on one Nomad agent: with Nomad's `docker` driver
and with `oci-rs`. It compares what the job prints and what the host sees. This page lists every known difference. A
difference that is not listed here fails the suite, and so does an entry that no longer differs.

";

/// Compares `docs/docker-parity.md` with the list, or writes it.
///
/// # Errors
/// When the document is out of date, or cannot be written.
pub fn check(write: bool) -> Outcome {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/docker-parity.md");
    if write {
        fs::write(&file, text()).context(file.display())?;
    }
    if fs::read_to_string(&file).unwrap_or_default() == text() {
        return Ok(());
    }
    Err(Failure("docs/docker-parity.md is out of date: `make parity-docs` writes it".to_owned()))
}

/// The document's text.
#[must_use]
pub fn text() -> String {
    let mut text = HEAD.to_owned();
    let total: usize = cases::AREAS.iter().map(|(_, cases)| cases.len()).sum();
    // Writing to a `String` never fails.
    writeln!(text, "## Differences\n").ok();
    for Difference { behaviour, docker, ours, why, remedy, seen } in LIST {
        writeln!(text, "### {behaviour}\n").ok();
        for (name, value) in [("docker", docker), ("oci-rs", ours), ("Why", why), ("What to do", remedy)] {
            item(&mut text, &format!("- **{name}**: {value}"));
        }
        let mut names: Vec<&str> = seen.iter().map(|(case, _)| *case).collect();
        names.dedup();
        let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
        item(&mut text, &format!("- **Cases**: {}", names.join(", ")));
        text.push('\n');
    }
    writeln!(text, "## Cases\n\nThe suite has {total} cases:\n\n| area | cases |\n|---|---|").ok();
    for (area, cases) in cases::AREAS {
        writeln!(text, "| {area} | {} |", cases.len()).ok();
    }
    text
}

/// Adds an item of a list, with lines of at most 120 characters.
fn item(text: &mut String, value: &str) {
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn docker_parity_is_generated_from_the_list() -> Outcome {
        check(false)
    }

    #[test]
    fn the_names_of_cases_are_unique() {
        let mut names = BTreeSet::new();
        for case in cases::all() {
            assert!(names.insert(case.name), "{} twice", case.name);
        }
    }

    #[test]
    fn the_list_names_only_existing_cases() {
        let names: BTreeSet<&str> = cases::all().map(|case| case.name).collect();
        for (case, _) in LIST.iter().flat_map(|difference| difference.seen) {
            assert!(names.contains(case), "the list names {case}, which does not exist");
        }
    }
}
