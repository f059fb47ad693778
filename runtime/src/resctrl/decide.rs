//! What has to be done for a class of cache and memory bandwidth.

use std::collections::BTreeMap;

use crate::plan::CacheClass;

/// What has to be done before a container joins its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Join,
    /// It is made, and limited.
    Make,
    /// An interrupted start of the container has made it. It is limited.
    Limit,
}

/// The step for a class. `existing` is the content of the file with its limits, if it exists.
pub(super) fn step(wanted: &CacheClass, existing: Option<&str>) -> Result<Step, String> {
    match (&wanted.name, existing) {
        (None, None) => Ok(Step::Make),
        (None, Some(_)) => Ok(Step::Limit),
        (Some(name), None) if wanted.schemata.is_empty() => {
            Err(format!("the class {name:?} does not exist: make it, or describe its limits in the spec"))
        }
        (Some(_), None) => Ok(Step::Make),
        (Some(name), Some(existing)) => {
            let limits: Vec<Limit> = existing.lines().filter_map(Limit::parse).collect();
            let differs =
                |line: &&String| Limit::parse(line).is_none_or(|limit| !limits.iter().any(|has| has.holds(&limit)));
            match wanted.schemata.iter().find(differs) {
                None => Ok(Step::Join),
                Some(line) => {
                    let existing = existing.lines().map(str::trim).collect::<Vec<_>>().join(" ");
                    Err(format!("the class {name:?} exists with other limits: {line} is not in {existing}"))
                }
            }
        }
    }
}

/// A line of limits: `L3:0=7ff;1=7ff`.
struct Limit {
    resource: String,
    /// Values by the ids of domains.
    domains: BTreeMap<String, String>,
}

impl Limit {
    fn parse(line: &str) -> Option<Self> {
        let (resource, domains) = line.trim().split_once(':')?;
        let domains = domains.split(';').map(|domain| {
            let (id, value) = domain.trim().split_once('=')?;
            // The kernel writes masks with leading zeros.
            let value = value.trim().trim_start_matches('0').to_ascii_lowercase();
            Some((id.trim().to_owned(), value))
        });
        Some(Self { resource: resource.trim().to_owned(), domains: domains.collect::<Option<_>>()? })
    }

    /// Whether this limit has all of another one.
    fn holds(&self, other: &Self) -> bool {
        self.resource == other.resource && other.domains.iter().all(|(id, value)| self.domains.get(id) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_made_joined_or_refused() {
        let kernel = "    MB:0= 20;1=100\n    L3:0=00f;1=7FF\n";
        for (name, lines, existing, expected) in [
            (None, &[][..], None, Ok(Step::Make)),
            (None, &["L3:0=f"], None, Ok(Step::Make)),
            (None, &["L3:0=f"], Some(kernel), Ok(Step::Limit)),
            (Some("a"), &["L3:0=f"], None, Ok(Step::Make)),
            (Some("a"), &[], None, Err("\"a\" does not exist")),
            (Some("a"), &[], Some(kernel), Ok(Step::Join)),
            (Some("a"), &["L3:0=f;1=7ff", "MB:0=20"], Some(kernel), Ok(Step::Join)),
            (Some("a"), &["L3:1=7ff"], Some(kernel), Ok(Step::Join)),
            (Some("a"), &["L3:0=f", "MB:0=30"], Some(kernel), Err("MB:0=30 is not in")),
            (Some("a"), &["L2:0=f"], Some(kernel), Err("L2:0=f is not in")),
            (Some("a"), &["L3"], Some(kernel), Err("L3 is not in")),
            (Some("/"), &[], Some(kernel), Ok(Step::Join)),
        ] {
            let schemata = lines.iter().map(|line| (*line).to_owned()).collect();
            let wanted = CacheClass { name: name.map(str::to_owned), schemata, monitored: false };
            match (step(&wanted, existing), expected) {
                (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{name:?} {lines:?}"),
            }
        }
    }
}
