//! What was observed of one run, and the comparison of two runs.

use std::collections::{BTreeMap, BTreeSet};

/// Observations: a key, and its values in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed(BTreeMap<String, Vec<String>>);

/// A key whose values differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differs {
    /// The key.
    pub key: String,
    /// The values with the docker driver.
    pub docker: Vec<String>,
    /// The values with oci-rs.
    pub ours: Vec<String>,
}

impl Observed {
    /// Adds a value to a key.
    pub fn add(&mut self, key: &str, value: impl ToString) {
        self.0.entry(key.to_owned()).or_default().push(value.to_string());
    }

    /// Adds the lines of a script's output: `key = value`, other lines under `default`.
    pub fn add_lines(&mut self, default: &str, text: &str) {
        for line in text.lines() {
            match line.split_once(" = ") {
                Some((key, value)) if !key.contains(' ') || key.len() < 40 => self.add(key.trim(), value),
                _ => self.add(default, line),
            }
        }
    }

    /// Changes every key and every value.
    pub fn normalise(&mut self, change: impl Fn(&str) -> String) {
        for (key, values) in std::mem::take(&mut self.0) {
            self.0.entry(change(&key)).or_default().extend(values.iter().map(|value| change(value)));
        }
    }

    /// The keys whose values differ.
    #[must_use]
    pub fn compare(docker: &Self, ours: &Self) -> Vec<Differs> {
        let keys: BTreeSet<&String> = docker.0.keys().chain(ours.0.keys()).collect();
        let of = |observed: &Self, key: &String| observed.0.get(key).cloned().unwrap_or_default();
        let both = keys.into_iter().map(|key| (key, of(docker, key), of(ours, key)));
        both.filter(|(_, docker, ours)| docker != ours)
            .map(|(key, docker, ours)| Differs { key: key.clone(), docker, ours })
            .collect()
    }

    /// The number of observed values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Whether nothing was observed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All observations, one line for each.
    #[must_use]
    pub fn text(&self) -> String {
        let lines =
            self.0.iter().flat_map(|(key, values)| values.iter().map(move |value| format!("{key} = {value}\n")));
        lines.collect()
    }
}

impl Differs {
    /// The difference for a report: common lines are left out.
    #[must_use]
    pub fn text(&self) -> String {
        let only = |these: &[String], others: &[String]| {
            let lines: Vec<String> = these
                .iter()
                .filter(|line| !others.contains(line))
                .map(|line| format!("      {line}\n"))
                .take(30)
                .collect();
            if lines.is_empty() {
                "      (nothing more; the order or the number differs)\n".to_owned()
            } else {
                lines.concat()
            }
        };
        let Self { key, docker, ours } = self;
        format!("  {key}\n    docker:\n{}    ours:\n{}", only(docker, ours), only(ours, docker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(text: &str) -> Observed {
        let mut observed = Observed::default();
        observed.add_lines("stdout", text);
        observed
    }

    #[test]
    fn only_keys_with_other_values_differ() {
        let differs =
            Observed::compare(&observed("a = 1\nb = 2\nfree line"), &observed("a = 1\nb = 3\nfree line\nc = 4"));
        let keys: Vec<&str> = differs.iter().map(|differs| differs.key.as_str()).collect();
        assert_eq!(keys, ["b", "c"]);
        assert_eq!(differs[0].docker, ["2"]);
    }

    #[test]
    fn the_order_of_lines_counts() {
        assert_eq!(Observed::compare(&observed("one\ntwo"), &observed("two\none")).len(), 1);
        assert!(Observed::compare(&observed("b = 2\na = 1"), &observed("a = 1\nb = 2")).is_empty());
    }
}
