//! The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::mem;

/// The calendar time and the offset from UTC in seconds, in the node's time zone (localtime_r(3)). `None` if the year
/// does not fit.
pub(crate) fn calendar(seconds: i64) -> Option<([i32; 6], i64)> {
    // SAFETY: all-zero bytes are a valid tm.
    let mut parts: libc::tm = unsafe { mem::zeroed() };
    // SAFETY: both arguments are valid for the call. The C library locks its copy of the time zone; this program never
    // changes its environment.
    let converted = unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) };
    let tm = (!converted.is_null()).then_some(parts)?;
    Some(([tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec], tm.tm_gmtoff))
}
