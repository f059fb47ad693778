//! Nomad's versions: those that the driver supports, and the features that not all of them have.
//!
//! `docs/nomad-versions.md` contains the list of features. A case that needs a feature is in the feature's list: with a
//! Nomad without the feature it must fail, otherwise the list is wrong.

use std::{fmt, path::Path, process::Command};

use crate::{Context, Failure, Outcome};

/// A version of Nomad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

/// The versions that the tests run with, the oldest first. `e2e/tools/nomad-<version>` is the module of each one.
pub const SUPPORTED: [Version; 5] =
    [Version(1, 8, 3), Version(1, 9, 4), Version(1, 10, 5), Version(1, 11, 2), Version(1, 11, 3)];

const V1_8: Version = SUPPORTED[0];
const V1_9: Version = SUPPORTED[1];
const V1_10: Version = SUPPORTED[2];
const V1_11_2: Version = SUPPORTED[3];
const V1_11_3: Version = SUPPORTED[4];

/// A feature of Nomad that matters to jobs of this driver and that some supported version lacks.
#[derive(Debug)]
pub struct Feature {
    /// The feature, for a reader of the documentation.
    pub name: &'static str,
    /// The supported versions without the feature.
    pub lacking: &'static [Version],
    /// What these versions do instead.
    pub instead: &'static str,
    /// The cases that fail without the feature.
    pub cases: &'static [&'static str],
}

/// IPv6 on Nomad's bridge.
pub const BRIDGE_IPV6: Feature = Feature {
    name: "IPv6 in bridge groups",
    lacking: &[V1_8],
    instead: "The client does not start with the option `bridge_network_subnet_ipv6`. Groups with \
              `network { mode = \"bridge\" }` have IPv4 only. The driver's own bridge has IPv6 with all versions.",
    cases: &["network_ports_lead_to_the_group_by_ipv6"],
};

/// Host volumes that an operator makes by a command.
const DYNAMIC_HOST_VOLUMES: Feature = Feature {
    name: "dynamic host volumes",
    lacking: &[V1_8, V1_9],
    instead: "`nomad volume create` refuses them. `host_volume` in the client's configuration works with all versions.",
    cases: &[
        "volume_outlives_task_agent_and_job",
        "volume_of_our_plugin_has_a_limit",
        "volume_of_an_image_has_its_files",
        "volume_of_a_volume_is_a_read_only_copy",
        "volume_in_every_form",
    ],
};

/// Groups without a network.
const NONE_NETWORK: Feature = Feature {
    name: "groups without a network",
    lacking: &[V1_11_2, V1_11_3],
    instead: "With `network { mode = \"none\" }` the allocation fails with \"network already configured but not found \
              in state\", with any driver. `network_mode = \"none\"` in the `config` block works with all versions.",
    cases: &["mixed_group_without_a_network"],
};

/// The host name of a group, for a driver that makes the group's network.
pub const GROUP_HOST_NAME: Feature = Feature {
    name: "host names of groups",
    lacking: &[V1_8, V1_9, V1_10],
    instead: "Nomad does not send `hostname` of the group's `network` block to plugins. The group starts, and its host \
              name is the first twelve digits of the allocation's id. `hostname` in the `config` block of the task \
              works with all versions.",
    cases: &["docker_group_has_its_host_name"],
};

/// What Nomad's jobs gained in 1.11, beside what the other features name.
const JOBS_OF_1_11: Feature = Feature {
    name: "`secret` blocks, identity files at a chosen path, sticky host volumes",
    lacking: &[V1_8, V1_9, V1_10],
    instead: "These versions refuse a job with `secret` or `filepath`; 1.8 and 1.9 also refuse `sticky`.",
    cases: &["docker_corpus_of_nomad_1_11"],
};

/// The end of a group's network namespace.
pub(crate) const NAMESPACE_REMOVAL: Feature = Feature {
    name: "removal of network namespaces",
    lacking: &[V1_8, V1_9],
    instead: "Nomad sometimes keeps the namespace open and cannot unmount it (\"failed to unmount NS … device or \
              resource busy\" in the client's log). `/run/netns/<allocation>` then stays until a reboot.",
    cases: &[],
};

/// The features that some supported version lacks.
pub const FEATURES: [&Feature; 6] =
    [&BRIDGE_IPV6, &DYNAMIC_HOST_VOLUMES, &NONE_NETWORK, &GROUP_HOST_NAME, &JOBS_OF_1_11, &NAMESPACE_REMOVAL];

impl Version {
    /// The version of a `nomad` executable.
    ///
    /// # Errors
    /// When it cannot be run, or prints something else.
    pub fn of(nomad: &Path) -> Outcome<Self> {
        let output = Command::new(nomad).arg("version").output().context(nomad.display())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().find_map(|word| Self::parse(word.strip_prefix('v')?));
        version.ok_or_else(|| Failure(format!("{} version printed {text:?}", nomad.display())))
    }

    /// Reads `1.8.3`, also with a suffix as in `1.8.3-dev`.
    fn parse(text: &str) -> Option<Self> {
        let (numbers, _) = text.split_once(['-', '+']).unwrap_or((text, ""));
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }

    /// Whether this version has a feature.
    #[must_use]
    pub fn has(self, feature: &Feature) -> bool {
        !feature.lacking.contains(&self)
    }

    /// The feature that a case needs and that this version lacks.
    #[must_use]
    pub fn lacks_for(self, case: &str) -> Option<&'static Feature> {
        FEATURES.into_iter().find(|feature| !self.has(feature) && feature.cases.contains(&case))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The list of features in `docs/nomad-versions.md`: a table, and what the versions without a feature do.
#[must_use]
pub fn documentation() -> String {
    let mut text = format!("| feature | {} |\n", SUPPORTED.map(|version| version.to_string()).join(" | "));
    text.push_str(&format!("|---|{}\n", "---|".repeat(SUPPORTED.len())));
    for feature in FEATURES {
        let has = SUPPORTED.map(|version| if version.has(feature) { "yes" } else { "no" });
        text.push_str(&format!("| {} | {} |\n", feature.name, has.join(" | ")));
    }
    text.push_str("\nWithout the feature:\n\n");
    for feature in FEATURES {
        text.push_str(&list_item(&format!("**{}.** {}", feature.name, feature.instead)));
    }
    text
}

/// An item of a Markdown list, in lines of at most 120 characters.
fn list_item(text: &str) -> String {
    const WIDTH: usize = 120;
    let mut lines = vec![String::from("-")];
    for word in text.split_whitespace() {
        let length = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(line) if length + 1 + word.chars().count() <= WIDTH => line.extend([" ", word]),
            _ => lines.push(format!("  {word}")),
        }
    }
    lines.join("\n") + "\n"
}
