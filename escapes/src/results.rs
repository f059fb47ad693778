//! The recorded results: `results.tsv` has one line for each attempt, with a column for each container.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{attempt::WORKS, attempts};

/// The containers in which each attempt is made, in the order of the columns.
pub const CONTAINERS: [&str; 4] = ["docker", "oci-rs", "oci-rs, user namespace", "no protection"];
/// The columns of oci-rs with its protections.
pub const OURS: [usize; 2] = [1, 2];
/// The column of docker.
pub const DOCKER: usize = 0;
/// The column of the container without protection, which is only recorded.
pub const UNPROTECTED: usize = 3;
/// The result of an attempt that was not recorded.
pub const MISSING: &str = "-";
/// The kernel of the recorded run. The errnos are the same only there.
pub const KERNEL: &str = "6.18";

const RECORDED: &str = include_str!("../results.tsv");

/// The results of an attempt, one for each container.
pub type Row = [String; CONTAINERS.len()];
/// The results of all attempts.
pub type Results = BTreeMap<String, Row>;

/// The recorded results.
#[must_use]
pub fn recorded() -> Results {
    let row = |line: &str| {
        let mut words = line.split('\t').map(str::to_owned);
        let what = words.next()?;
        Some((what, std::array::from_fn(|_| words.next().unwrap_or_else(|| MISSING.to_owned()))))
    };
    RECORDED.lines().filter_map(row).collect()
}

/// The content of `results.tsv`.
#[must_use]
pub fn file(results: &Results) -> String {
    let mut text = String::new();
    for attempt in attempts::all() {
        let row = results.get(attempt.what).map(|row| row.join("\t")).unwrap_or_default();
        // Writing to a `String` never fails.
        writeln!(text, "{}\t{row}", attempt.what).ok();
    }
    text
}

/// Whether two results agree: both succeed or both fail. `exactly`: with the same errno.
#[must_use]
pub fn agree(recorded: &str, observed: &str, exactly: bool) -> bool {
    recorded == observed || (!exactly && (recorded == WORKS) == (observed == WORKS))
}

/// The differences of a run from the recorded results. A quick run does not make all attempts.
#[must_use]
pub fn compare(recorded: &Results, observed: &Results, exactly: bool) -> Vec<String> {
    let mut differences = Vec::new();
    for (what, row) in observed {
        let expected = recorded.get(what);
        for (column, result) in row.iter().enumerate().take(UNPROTECTED) {
            let expected = expected.map_or(MISSING, |row| &row[column]);
            if result != MISSING && !agree(expected, result, exactly) {
                differences.push(format!("{what}: {}: recorded {expected}, now {result}", CONTAINERS[column]));
            }
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_attempt_has_one_name_and_is_recorded() {
        let names: Vec<&str> = attempts::all().map(|attempt| attempt.what).collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len(), "a name is there twice");
        assert!(names.len() >= 150, "only {} attempts", names.len());
        let recorded = recorded();
        let missing: Vec<&&str> = names.iter().filter(|name| !recorded.contains_key(**name)).collect();
        let stale: Vec<&String> = recorded.keys().filter(|name| !unique.contains(name.as_str())).collect();
        assert!(missing.is_empty() && stale.is_empty(), "make escapes-record; missing {missing:?}, stale {stale:?}");
        let empty: Vec<&String> = recorded
            .iter()
            .filter(|(_, row)| row.iter().any(|result| result == MISSING))
            .map(|(what, _)| what)
            .collect();
        assert_eq!(empty, Vec::<&String>::new());
    }

    #[test]
    fn no_attempt_succeeds_without_a_reason() {
        let recorded = recorded();
        let works = |what: &str| OURS.iter().any(|&column| recorded[what][column] == WORKS);
        let bare = attempts::all().filter(|attempt| works(attempt.what) && attempt.harmless.is_none());
        assert_eq!(bare.map(|attempt| attempt.what).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn nothing_succeeds_that_fails_with_docker() {
        let weaker = |(_, row): &(String, Row)| row[DOCKER] != WORKS && OURS.iter().any(|&column| row[column] == WORKS);
        assert_eq!(recorded().into_iter().filter(weaker).collect::<Vec<_>>(), Vec::<(String, Row)>::new());
    }

    #[test]
    fn another_errno_is_a_difference_only_on_the_same_kernel() {
        let row = |result: &str| BTreeMap::from([("x".to_owned(), std::array::from_fn(|_| result.to_owned()))]);
        assert_eq!(compare(&row("EPERM"), &row("ENOSYS"), true).len(), UNPROTECTED);
        assert_eq!(compare(&row("EPERM"), &row("ENOSYS"), false).len(), 0);
        assert_eq!(compare(&row("EPERM"), &row(WORKS), false).len(), UNPROTECTED);
        assert_eq!(compare(&Results::new(), &row(WORKS), false).len(), UNPROTECTED);
    }
}
