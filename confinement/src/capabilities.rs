//! The capability sets of the calling thread.

use std::io;

use rustix::{
    io::Errno,
    thread::{CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities},
};

/// Gives up all capabilities but `kept`. None is inheritable or ambient afterwards.
pub fn hold_only(kept: CapabilitySet) -> io::Result<()> {
    let held = capabilities(None)?.permitted & kept;
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Removes all capabilities but `kept` from the bounding set: no program that is executed later gets them.
///
/// # Errors
/// EPERM without CAP_SETPCAP.
pub fn limit_bounding_set(kept: CapabilitySet) -> Result<(), Errno> {
    const LAST: u32 = 63;
    for bit in (0..=LAST).filter(|bit| kept.bits() & (1 << bit) == 0) {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // The kernel knows no capability with this or a higher number.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
