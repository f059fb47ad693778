//! The capabilities of a process in the words of the OCI spec.

use std::str::FromStr;

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities, LinuxCapabilitiesBuilder};

use super::error::SpecError;
use crate::capability::CapabilityMask;

/// The capability sets of a user. As in docker, a user other than root starts with none in effect.
pub(crate) fn capability_sets(mask: CapabilityMask, uid: u32) -> Result<LinuxCapabilities, SpecError> {
    let all: Capabilities =
        mask.names().filter_map(|name| Capability::from_str(name.trim_start_matches("CAP_")).ok()).collect();
    let effective = if uid == 0 { all.clone() } else { Capabilities::new() };
    Ok(LinuxCapabilitiesBuilder::default()
        .bounding(all)
        .effective(effective.clone())
        .permitted(effective)
        .inheritable(Capabilities::new())
        .ambient(Capabilities::new())
        .build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::CAPABILITIES;

    #[test]
    fn the_spec_knows_every_capability() {
        let all = CapabilityMask::from_names(&CAPABILITIES).expect("all known");
        let spec = capability_sets(all, 1000).expect("a spec");
        assert_eq!(spec.bounding().as_ref().map(|set| set.len()), Some(CAPABILITIES.len()));
        assert_eq!(spec.effective().as_ref().map(|set| set.len()), Some(0));
    }
}
