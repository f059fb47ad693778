//! The owners of leases.
//!
//! A lease keeps the layers of an image on disk for as long as its owner needs them. The name of a lease is the text
//! form of its owner. Every text is the name of exactly one owner, and [`LeaseOwner`] formats to the text that it was
//! parsed from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Begins the names of the leases of operators' commands.
const OPERATOR: &str = "operator.";
/// Separates the container from the rest in the names of the leases of debug images.
const DEBUG_IMAGE: &str = ".tools-";
/// Separates the container from the number in the names of the leases of mounted images.
const MOUNTED_IMAGE: &str = ".mount-";

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum LeaseOwner {
    /// The container of a task, until the container is removed. Formats to the container's id.
    Task {
        /// The container's id.
        container: String,
    },
    /// The container of a task, for one of the images that it mounts beside its own. Released with the lease of the
    /// task. Formats to `<container>.mount-<number>`.
    MountedImage {
        /// The container's id.
        container: String,
        /// Counts the mounted images of the container, from 0.
        number: u32,
    },
    /// A command in a container that uses a debug image, until the command ends. Formats to
    /// `<container>.tools-<process>-<number>`.
    DebugImage {
        /// The container's id.
        container: String,
        /// The process that started the command.
        process: u32,
        /// Counts the commands of that process.
        number: u64,
    },
    /// A command of an operator, until the command ends. Formats to `operator.<process>.<started>`.
    Operator {
        /// The process of the command.
        process: u32,
        /// When it started, in nanoseconds since 1970.
        started: u128,
    },
}

impl LeaseOwner {
    fn parse_operator(name: &str) -> Option<Self> {
        let (process, started) = name.strip_prefix(OPERATOR)?.split_once('.')?;
        Some(Self::Operator { process: process.parse().ok()?, started: started.parse().ok()? })
    }

    fn parse_debug_image(name: &str) -> Option<Self> {
        let (container, rest) = name.rsplit_once(DEBUG_IMAGE)?;
        let (process, number) = rest.split_once('-')?;
        let (process, number) = (process.parse().ok()?, number.parse().ok()?);
        Some(Self::DebugImage { container: container.to_owned(), process, number })
    }

    fn parse_mounted_image(name: &str) -> Option<Self> {
        let (container, number) = name.rsplit_once(MOUNTED_IMAGE)?;
        Some(Self::MountedImage { container: container.to_owned(), number: number.parse().ok()? })
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task { container } => f.write_str(container),
            Self::MountedImage { container, number } => write!(f, "{container}{MOUNTED_IMAGE}{number}"),
            Self::DebugImage { container, process, number } => write!(f, "{container}{DEBUG_IMAGE}{process}-{number}"),
            Self::Operator { process, started } => write!(f, "{OPERATOR}{process}.{started}"),
        }
    }
}

impl LeaseOwner {
    /// The name of the lease on disk.
    fn name(&self) -> String {
        self.to_string()
    }

    /// The owner that exists as long as this one: that of the task for the images that the task mounts.
    #[must_use]
    pub fn principal(&self) -> Self {
        match self {
            Self::MountedImage { container, .. } => Self::Task { container: container.clone() },
            other => other.clone(),
        }
    }
}

impl From<&str> for LeaseOwner {
    fn from(name: &str) -> Self {
        let parsed = Self::parse_operator(name).or_else(|| Self::parse_debug_image(name));
        // A number with a sign or leading zeros would format to another name.
        let exact = |owner: &Self| owner.name() == name;
        let parsed = parsed.filter(exact).or_else(|| Self::parse_mounted_image(name).filter(exact));
        parsed.unwrap_or_else(|| Self::Task { container: name.to_owned() })
    }
}

impl From<String> for LeaseOwner {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<&LeaseOwner> for LeaseOwner {
    fn from(owner: &LeaseOwner) -> Self {
        owner.clone()
    }
}

impl From<LeaseOwner> for String {
    fn from(owner: LeaseOwner) -> Self {
        owner.to_string()
    }
}

impl PartialEq<&str> for LeaseOwner {
    fn eq(&self, name: &&str) -> bool {
        self.name() == **name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONTAINER: &str = "d9eb0a3f-8b0e-4a45-9d2e-0f0a1b2c3d4e.web.0a1b2c3d";

    fn task(container: &str) -> LeaseOwner {
        LeaseOwner::Task { container: container.to_owned() }
    }

    #[test]
    fn names_on_disk_parse_to_their_owners() {
        let debug_image = |container: &str, process, number| LeaseOwner::DebugImage {
            container: container.to_owned(),
            process,
            number,
        };
        for (name, owner) in [
            (CONTAINER.to_owned(), task(CONTAINER)),
            (format!("{CONTAINER}.tools-4711-0"), debug_image(CONTAINER, 4711, 0)),
            (format!("{CONTAINER}.tools-1-12"), debug_image(CONTAINER, 1, 12)),
            ("a.tools-1-2.tools-3-4".to_owned(), debug_image("a.tools-1-2", 3, 4)),
            (format!("{CONTAINER}.mount-0"), LeaseOwner::MountedImage { container: CONTAINER.to_owned(), number: 0 }),
            (
                "a.tools-1-2.mount-12".to_owned(),
                LeaseOwner::MountedImage { container: "a.tools-1-2".to_owned(), number: 12 },
            ),
            ("a.mount-1.tools-3-4".to_owned(), debug_image("a.mount-1", 3, 4)),
            ("operator.12.99".to_owned(), LeaseOwner::Operator { process: 12, started: 99 }),
            (
                "operator.4194304.1766000000123456789".to_owned(),
                LeaseOwner::Operator { process: 4_194_304, started: 1_766_000_000_123_456_789 },
            ),
        ] {
            assert_eq!(LeaseOwner::from(name.as_str()), owner, "{name}");
            assert_eq!(owner.to_string(), name);
        }
    }

    #[test]
    fn every_other_name_is_that_of_a_container() {
        for name in [
            "",
            "operator",
            "operator.",
            "operator.12",
            "operator.012.99",
            "operator.+12.99",
            "operator.self.99",
            "operator.12.x",
            "a.tools-1",
            "a.tools-1-",
            "a.tools-01-2",
            "a.tools--1-2",
            "tools-1-2",
            "a.mount-",
            "a.mount-01",
            "a.mount--1",
            "mount-1",
        ] {
            assert_eq!(LeaseOwner::from(name), task(name), "{name}");
        }
    }

    #[test]
    fn the_json_form_is_the_name() {
        let owner = LeaseOwner::Operator { process: 12, started: 99 };
        assert_eq!(serde_json::to_string(&owner).unwrap(), r#""operator.12.99""#);
        assert_eq!(serde_json::from_str::<LeaseOwner>(r#""operator.12.99""#).unwrap(), owner);
    }

    proptest! {
        #[test]
        fn a_name_formats_to_itself(name in "(operator)?[a-c.0-2+-]{0,6}(\\.tools-|\\.mount-)?[0-2.+-]{0,6}") {
            prop_assert_eq!(LeaseOwner::from(name.as_str()).to_string(), name);
        }
    }
}
