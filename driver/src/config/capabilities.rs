//! Lists of capabilities, and docker's rules for adding and dropping them.

use std::collections::BTreeSet;

use runtime::plan::CAPABILITIES;

/// Docker's default capabilities. `NET_RAW` is one of them, but the default of the plugin's `allow_caps` lacks it, so a
/// container does not get it by default.
const DOCKER_DEFAULT: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// A set of capabilities, written as a list of names or as `all`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapabilitySet {
    /// The list contains `all`.
    pub all: bool,
    /// The names in the list, in the kernel's form.
    pub names: BTreeSet<&'static str>,
}

impl CapabilitySet {
    /// Parses a list. The second value holds the names that are no capabilities.
    pub fn parse(list: &[String]) -> (Self, Vec<&String>) {
        let mut set = Self::default();
        let mut unknown = Vec::new();
        for name in list {
            let upper = name.trim().to_ascii_uppercase();
            let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if bare == "ALL" {
                set.all = true;
            } else if let Some(known) = CAPABILITIES.iter().find(|known| &known["CAP_".len()..] == bare) {
                set.names.insert(known);
            } else {
                unknown.push(name);
            }
        }
        (set, unknown)
    }

    fn contains(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    /// The capabilities of `requested` that are not in this set. `all` stands for every capability.
    pub fn missing(&self, requested: &Self) -> Vec<&'static str> {
        CAPABILITIES.into_iter().filter(|name| requested.contains(name) && !self.contains(name)).collect()
    }
}

/// The capabilities that a container gets, by docker's rules:
///
/// - A default that is not allowed is dropped.
/// - A name that is both added and dropped is added.
/// - Adding `all` gives every capability except those dropped by name.
/// - Dropping `all` leaves only those added by name.
pub fn granted(allowed: &CapabilitySet, add: &CapabilitySet, drop: &CapabilitySet) -> BTreeSet<&'static str> {
    if add.all {
        return CAPABILITIES.into_iter().filter(|name| !drop.names.contains(name)).collect();
    }
    let kept = DOCKER_DEFAULT.into_iter().filter(|name| allowed.contains(name) && !drop.contains(name));
    kept.chain(add.names.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CAPABILITIES, CapabilitySet, DOCKER_DEFAULT, granted};

    fn set(names: &str) -> CapabilitySet {
        let list: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
        let (written, unknown) = CapabilitySet::parse(&list);
        assert!(unknown.is_empty(), "{unknown:?}");
        written
    }

    fn result(allowed: &str, add: &str, drop: &str) -> BTreeSet<&'static str> {
        granted(&set(allowed), &set(add), &set(drop))
    }

    const ALLOWED: &str = "audit_write chown dac_override fowner fsetid kill mknod net_bind_service setfcap setgid \
                           setpcap setuid sys_chroot";

    #[test]
    fn the_default_is_dockers_without_net_raw() {
        let default = result(ALLOWED, "", "");
        assert_eq!(default.len(), 13);
        assert!(!default.contains("CAP_NET_RAW"));
        assert_eq!(result("all", "", "").len(), DOCKER_DEFAULT.len());
        assert_eq!(result("", "", ""), BTreeSet::new());
    }

    #[test]
    fn adding_and_dropping_follow_docker() {
        assert_eq!(result(ALLOWED, "chown KILL", "all"), BTreeSet::from(["CAP_CHOWN", "CAP_KILL"]));
        assert!(result(ALLOWED, "chown", "chown").contains("CAP_CHOWN"), "adding overrides dropping");
        assert!(!result(ALLOWED, "", "CAP_CHOWN").contains("CAP_CHOWN"));
        let all_but_one = result("all", "all", "sys_admin");
        assert_eq!(all_but_one.len(), CAPABILITIES.len() - 1);
        assert!(!all_but_one.contains("CAP_SYS_ADMIN"));
        assert_eq!(result("all", "ALL", "all").len(), CAPABILITIES.len());
    }

    #[test]
    fn missing_and_unknown_capabilities_are_named() {
        assert_eq!(set(ALLOWED).missing(&set("chown net_raw cap_sys_admin")), ["CAP_NET_RAW", "CAP_SYS_ADMIN"]);
        assert_eq!(set(ALLOWED).missing(&set("all")).len(), CAPABILITIES.len() - 13);
        assert!(set("all").missing(&set("all sys_admin")).is_empty());
        let list = ["CAP_FLY".to_owned(), "chown".to_owned()];
        assert_eq!(CapabilitySet::parse(&list).1, [&list[0]]);
    }
}
