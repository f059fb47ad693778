//! The labels and variables of a container that its messages carry: the options `labels`, `labels-regex`, `env` and
//! `env-regex`.

use std::collections::BTreeMap;

use regex::Regex;

use crate::{delivery::ContainerFacts, error::OptionError};

/// Names and patterns of labels and variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    labels: Vec<String>,
    labels_pattern: Option<String>,
    env: Vec<String>,
    env_pattern: Option<String>,
}

impl Attributes {
    /// The names of the options.
    pub const OPTIONS: [&str; 4] = ["env", "env-regex", "labels", "labels-regex"];

    /// Reads the options.
    pub fn read(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Self {
        let names = |option: &str| -> Vec<String> {
            let text = options.get(option).map_or("", String::as_str);
            text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let mut pattern = |option: &str| {
            let pattern = options.get(option).filter(|pattern| !pattern.is_empty())?;
            match Regex::new(pattern) {
                Ok(_) => Some(pattern.clone()),
                Err(_) => {
                    let remedy =
                        "write one as in \"^(APP_|REGION)\"; patterns have no look-around and no backreference";
                    errors.push(OptionError::new(option, format!("{pattern:?} is no regular expression"), remedy));
                    None
                }
            }
        };
        Self {
            labels: names("labels"),
            labels_pattern: pattern("labels-regex"),
            env: names("env"),
            env_pattern: pattern("env-regex"),
        }
    }

    /// The selected labels and variables of a container. A variable overrides a label of the same name.
    pub fn select(&self, container: &ContainerFacts) -> BTreeMap<String, String> {
        let mut selected = BTreeMap::new();
        let labels = container.labels.iter();
        let env = container.env.iter().map(|(name, value)| (name, value));
        choose(labels, &self.labels, self.labels_pattern.as_deref(), &mut selected);
        choose(env, &self.env, self.env_pattern.as_deref(), &mut selected);
        selected
    }
}

fn choose<'a>(
    all: impl Iterator<Item = (&'a String, &'a String)>,
    names: &[String],
    pattern: Option<&str>,
    selected: &mut BTreeMap<String, String>,
) {
    // The pattern was checked when the options were read.
    let pattern = pattern.and_then(|pattern| Regex::new(pattern).ok());
    let wanted = |name: &String| names.contains(name) || pattern.as_ref().is_some_and(|pattern| pattern.is_match(name));
    selected.extend(all.filter(|(name, _)| wanted(name)).map(|(name, value)| (name.clone(), value.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(options: &[(&str, &str)]) -> Vec<String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut errors = Vec::new();
        let attributes = Attributes::read(&options, &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let container = ContainerFacts {
            labels: pairs(&[("team", "blue"), ("tier", "web"), ("both", "label")]).into_iter().collect(),
            env: pairs(&[("COLOR", "red"), ("SECRET", "no"), ("both", "env")]),
            ..ContainerFacts::default()
        };
        attributes.select(&container).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn names_and_patterns_select() {
        assert!(select(&[]).is_empty());
        assert_eq!(select(&[("labels", "team,none"), ("env", "COLOR")]), ["COLOR=red", "team=blue"]);
        assert_eq!(select(&[("labels-regex", "^t")]), ["team=blue", "tier=web"]);
        assert_eq!(select(&[("env-regex", "O|oth"), ("env", "")]), ["COLOR=red", "both=env"]);
        assert_eq!(select(&[("labels", "both"), ("env", "both")]), ["both=env"]);
    }

    #[test]
    fn a_wrong_pattern_is_an_error() {
        let mut errors = Vec::new();
        Attributes::read(&BTreeMap::from([("env-regex".to_owned(), "(".to_owned())]), &mut errors);
        assert_eq!(errors[0].option, "env-regex");
        assert!(errors[0].problem.contains("no regular expression"), "{errors:?}");
    }
}
