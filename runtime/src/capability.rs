//! Capabilities (capabilities(7)) by name and as bits.

/// Every capability that Linux has (capabilities(7)), in the kernel's order: the position is the bit.
pub const CAPABILITIES: [&str; 41] = [
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

/// A name that is not the name of a capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("capability {0:?}: there is no such capability; names are like CAP_NET_RAW")]
pub(crate) struct CapabilityError(String);

impl CapabilityMask {
    /// The set of the named capabilities.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, CapabilityError> {
        names.iter().try_fold(Self::default(), |mask, name| {
            let bit = CAPABILITIES.iter().position(|known| known == &name.as_ref());
            bit.map(|bit| Self(mask.0 | 1 << bit)).ok_or_else(|| CapabilityError(name.as_ref().to_owned()))
        })
    }

    /// The capabilities that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The names of the set's capabilities, in the kernel's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        CAPABILITIES.into_iter().enumerate().filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| name)
    }
}

/// The capability sets of a process besides its bounding set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldCapabilities {
    pub effective: CapabilityMask,
    pub permitted: CapabilityMask,
    pub inheritable: CapabilityMask,
    pub ambient: CapabilityMask,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_agree() {
        let all = CapabilityMask::from_names(&CAPABILITIES).expect("all known");
        assert_eq!(all.0, (1 << CAPABILITIES.len()) - 1);
        assert_eq!(all.names().count(), CAPABILITIES.len());
        assert!(CapabilityMask::from_names(&["NET_RAW"]).is_err());
    }
}
