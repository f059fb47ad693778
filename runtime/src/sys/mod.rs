//! The module of the crate that may use `unsafe`: what no library offers safely.
#![allow(unsafe_code)]

use rustix::process::Signal;

/// A real-time signal by its number.
pub(crate) fn realtime_signal(signal: i32) -> Option<Signal> {
    if !(32..=64).contains(&signal) {
        return None;
    }
    // SAFETY: the kernel knows signals up to 64; numbers 32 to 64 are only ever passed to kill(2) and its relatives.
    Some(unsafe { Signal::from_raw_unchecked(signal) })
}
