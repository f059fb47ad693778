//! SELinux labels of containers. Values only.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::{Deserialize, Serialize};

/// The SELinux labels of a container: `user:role:type`, or `user:role:type:level` if the node's policy has levels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxLabels {
    /// The label of its processes.
    pub process: String,
    /// The label of its files.
    pub file: String,
    /// Both get a pair of categories that no other container has. Their level has none.
    pub own_categories: bool,
    /// That pair. The runtime assigns it when it starts the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub categories: Option<CategoryPair>,
    /// Bind mounts whose sources get a label, by their destinations.
    #[serde(default)]
    pub relabelled: BTreeMap<String, Relabel>,
}

/// The label that the source of a bind mount gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relabel {
    /// All containers can use it.
    Shared,
    /// Only this container can use it.
    Private,
}

/// Two of the categories `c0` to `c1023`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CategoryPair {
    number: u32,
}

impl CategoryPair {
    /// The number of categories of a policy with multi-category security.
    const CATEGORIES: u32 = 1024;
    /// The number of pairs.
    pub const COUNT: u32 = Self::CATEGORIES * (Self::CATEGORIES - 1) / 2;

    /// The pair of a number below [`Self::COUNT`].
    pub fn of_number(number: u32) -> Option<Self> {
        (number < Self::COUNT).then_some(Self { number })
    }

    /// The number of the pair.
    pub fn number(self) -> u32 {
        self.number
    }

    /// The two categories, the lower one first. The pairs with a higher category `n` follow those with lower ones, of
    /// which there are `n * (n - 1) / 2`.
    fn categories(self) -> (u32, u32) {
        let before = |higher: u32| higher * (higher - 1) / 2;
        let higher = (1..Self::CATEGORIES).rev().find(|higher| before(*higher) <= self.number).unwrap_or(1);
        (self.number - before(higher), higher)
    }
}

impl fmt::Display for CategoryPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lower, higher) = self.categories();
        write!(f, "c{lower},c{higher}")
    }
}

impl SelinuxLabels {
    /// The label of the processes, with the categories.
    pub fn of_processes(&self) -> String {
        self.with_categories(&self.process)
    }

    /// The label of the files, with the categories.
    pub fn of_files(&self) -> String {
        self.with_categories(&self.file)
    }

    /// The label of files that all containers can use: docker's level for them.
    pub fn of_shared_files(&self) -> String {
        let mut parts = self.file.splitn(4, ':');
        let kind: Vec<&str> = parts.by_ref().take(3).collect();
        let level = parts.next().map_or("", |_| ":s0");
        format!("{}{level}", kind.join(":"))
    }

    fn with_categories(&self, label: &str) -> String {
        self.categories.map_or_else(|| label.to_owned(), |pair| format!("{label}:{pair}"))
    }
}

/// Directories and files whose label is the node's: docker refuses to change them.
const FIXED: [&str; 35] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/passwd",
    "/etc/pki",
    "/etc/shadow",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local",
    "/usr/sbin",
    "/usr/share",
    "/usr/src",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
];

/// Whether the files at a path of the node, without links, may get another label.
pub(crate) fn may_be_relabelled(path: &Path) -> bool {
    FIXED.iter().all(|fixed| path != Path::new(fixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_another_pair() {
        let text = |number| CategoryPair::of_number(number).map(|pair| pair.to_string());
        for (number, expected) in [
            (0, Some("c0,c1")),
            (1, Some("c0,c2")),
            (2, Some("c1,c2")),
            (3, Some("c0,c3")),
            (CategoryPair::COUNT - 1, Some("c1022,c1023")),
            (CategoryPair::COUNT, None),
        ] {
            assert_eq!(text(number).as_deref(), expected, "{number}");
        }
        let mut next = (0, 1);
        for number in 0..CategoryPair::COUNT {
            assert_eq!(CategoryPair { number }.categories(), next);
            next = if next.0 + 1 == next.1 { (0, next.1 + 1) } else { (next.0 + 1, next.1) };
            if number == 5000 {
                break;
            }
        }
    }

    #[test]
    fn labels_have_the_categories_and_shared_ones_do_not() {
        let labels = |file: &str, number: Option<u32>| SelinuxLabels {
            process: "system_u:system_r:container_t:s0".into(),
            file: file.into(),
            own_categories: number.is_some(),
            categories: number.and_then(CategoryPair::of_number),
            relabelled: BTreeMap::new(),
        };
        let own = labels("system_u:object_r:container_file_t:s0", Some(3));
        assert_eq!(own.of_processes(), "system_u:system_r:container_t:s0:c0,c3");
        assert_eq!(own.of_files(), "system_u:object_r:container_file_t:s0:c0,c3");
        assert_eq!(own.of_shared_files(), "system_u:object_r:container_file_t:s0");
        let chosen = labels("system_u:object_r:container_file_t:s0:c5,c6", None);
        assert_eq!(chosen.of_files(), "system_u:object_r:container_file_t:s0:c5,c6");
        assert_eq!(chosen.of_shared_files(), "system_u:object_r:container_file_t:s0");
        assert_eq!(labels("u:r:t", None).of_shared_files(), "u:r:t", "a policy without levels");
    }

    #[test]
    fn the_nodes_own_directories_keep_their_labels() {
        for (path, expected) in [("/", false), ("/etc", false), ("/etc/nginx", true), ("/srv/data", true)] {
            assert_eq!(may_be_relabelled(Path::new(path)), expected, "{path}");
        }
    }
}
