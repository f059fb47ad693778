//! Capabilities by name and as bits.

use std::str::FromStr;

use super::libcontainer_spec::{Capabilities, Capability, LinuxCapabilities, LinuxCapabilitiesBuilder};

/// Names in the kernel's order: the position is the bit.
const NAMES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// A set of capabilities, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CapabilityMask(pub u64);

/// A name that is no capability's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("capability {0:?}: there is no such capability; names are like CAP_NET_RAW")]
pub(crate) struct CapabilityError(String);

impl CapabilityMask {
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, CapabilityError> {
        names.iter().try_fold(Self::default(), |mask, name| {
            let bit = NAMES.iter().position(|known| known == &name.as_ref());
            bit.map(|bit| Self(mask.0 | 1 << bit)).ok_or_else(|| CapabilityError(name.as_ref().to_owned()))
        })
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().enumerate().filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| name)
    }

    /// The spec's form: a user other than root starts with none in effect, as docker has it.
    pub(super) fn for_user(self, uid: u32) -> Result<LinuxCapabilities, super::SpecError> {
        let all: Capabilities =
            self.names().filter_map(|name| Capability::from_str(name.trim_start_matches("CAP_")).ok()).collect();
        let effective = if uid == 0 { all.clone() } else { Capabilities::new() };
        Ok(LinuxCapabilitiesBuilder::default()
            .bounding(all)
            .effective(effective.clone())
            .permitted(effective)
            .inheritable(Capabilities::new())
            .ambient(Capabilities::new())
            .build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_agree_and_the_spec_knows_them_all() {
        let all = CapabilityMask::from_names(&NAMES).expect("all known");
        assert_eq!(all.0, (1 << NAMES.len()) - 1);
        assert_eq!(all.names().count(), NAMES.len());
        let spec = all.for_user(1000).expect("a spec");
        assert_eq!(spec.bounding().as_ref().map(|set| set.len()), Some(NAMES.len()));
        assert_eq!(spec.effective().as_ref().map(|set| set.len()), Some(0));
        assert!(CapabilityMask::from_names(&["NET_RAW"]).is_err());
    }
}
