//! Capabilities by name and as bits.

use std::str::FromStr;

use super::libcontainer_spec::{Capabilities, Capability, LinuxCapabilities, LinuxCapabilitiesBuilder};
use crate::plan::CAPABILITIES;

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
            let bit = CAPABILITIES.iter().position(|known| known == &name.as_ref());
            bit.map(|bit| Self(mask.0 | 1 << bit)).ok_or_else(|| CapabilityError(name.as_ref().to_owned()))
        })
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        CAPABILITIES.into_iter().enumerate().filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| name)
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
        let all = CapabilityMask::from_names(&CAPABILITIES).expect("all known");
        assert_eq!(all.0, (1 << CAPABILITIES.len()) - 1);
        assert_eq!(all.names().count(), CAPABILITIES.len());
        let spec = all.for_user(1000).expect("a spec");
        assert_eq!(spec.bounding().as_ref().map(|set| set.len()), Some(CAPABILITIES.len()));
        assert_eq!(spec.effective().as_ref().map(|set| set.len()), Some(0));
        assert!(CapabilityMask::from_names(&["NET_RAW"]).is_err());
    }
}
