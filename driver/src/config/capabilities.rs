//! Capability names and docker's arithmetic with them.

use std::collections::BTreeSet;

use runtime::plan::CAPABILITIES;

/// What a container has in docker when nobody says anything. `NET_RAW` is among them, but not among the capabilities
/// that the plugin allows unless its operator says so, and is therefore dropped like any other that is not allowed.
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

/// A set of capabilities as it is written in a list: names, or `all`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// `all` is among them.
    pub all: bool,
    /// The names, in the kernel's form.
    pub names: BTreeSet<&'static str>,
}

impl Written {
    /// Reads a list; names of no capability come back as they were written.
    pub fn read(list: &[String]) -> (Self, Vec<&String>) {
        let mut written = Self::default();
        let mut unknown = Vec::new();
        for name in list {
            let upper = name.trim().to_ascii_uppercase();
            let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if bare == "ALL" {
                written.all = true;
            } else if let Some(known) = CAPABILITIES.iter().find(|known| &known["CAP_".len()..] == bare) {
                written.names.insert(known);
            } else {
                unknown.push(name);
            }
        }
        (written, unknown)
    }

    fn contains(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    /// Those of the others that are not in this set; `all` counts as every capability.
    pub fn missing(&self, others: &Self) -> Vec<&'static str> {
        CAPABILITIES.into_iter().filter(|name| others.contains(name) && !self.contains(name)).collect()
    }
}

/// What a container gets, before the node's own capabilities limit it.
///
/// Docker's rules: what is not allowed is dropped from the defaults; a name that is both dropped and added is there;
/// `all` added gives everything except what is dropped by name; `all` dropped leaves what is added by name.
pub fn granted(allowed: &Written, add: &Written, drop: &Written) -> BTreeSet<&'static str> {
    if add.all {
        return CAPABILITIES.into_iter().filter(|name| !drop.names.contains(name)).collect();
    }
    let kept = DOCKER_DEFAULT.into_iter().filter(|name| allowed.contains(name) && !drop.contains(name));
    kept.chain(add.names.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CAPABILITIES, DOCKER_DEFAULT, Written, granted};

    fn set(names: &str) -> Written {
        let list: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
        let (written, unknown) = Written::read(&list);
        assert!(unknown.is_empty(), "{unknown:?}");
        written
    }

    fn result(allowed: &str, add: &str, drop: &str) -> BTreeSet<&'static str> {
        granted(&set(allowed), &set(add), &set(drop))
    }

    const ALLOWED: &str = "audit_write chown dac_override fowner fsetid kill mknod net_bind_service setfcap setgid setpcap setuid sys_chroot";

    #[test]
    fn the_default_is_dockers_less_net_raw() {
        let default = result(ALLOWED, "", "");
        assert_eq!(default.len(), 13);
        assert!(!default.contains("CAP_NET_RAW"));
        assert_eq!(result("all", "", "").len(), DOCKER_DEFAULT.len());
        assert_eq!(result("", "", ""), BTreeSet::new());
    }

    #[test]
    fn adding_and_dropping_follow_docker() {
        assert_eq!(result(ALLOWED, "chown KILL", "all"), BTreeSet::from(["CAP_CHOWN", "CAP_KILL"]));
        assert!(result(ALLOWED, "chown", "chown").contains("CAP_CHOWN"), "adding wins over dropping");
        assert!(!result(ALLOWED, "", "CAP_CHOWN").contains("CAP_CHOWN"));
        let all_but_one = result("all", "all", "sys_admin");
        assert_eq!(all_but_one.len(), CAPABILITIES.len() - 1);
        assert!(!all_but_one.contains("CAP_SYS_ADMIN"));
        assert_eq!(result("all", "ALL", "all").len(), CAPABILITIES.len());
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        assert_eq!(set(ALLOWED).missing(&set("chown net_raw cap_sys_admin")), ["CAP_NET_RAW", "CAP_SYS_ADMIN"]);
        assert_eq!(set(ALLOWED).missing(&set("all")).len(), CAPABILITIES.len() - 13);
        assert!(set("all").missing(&set("all sys_admin")).is_empty());
        let list = ["CAP_FLY".to_owned(), "chown".to_owned()];
        assert_eq!(Written::read(&list).1, [&list[0]]);
    }
}
