//! Named places between two durable steps, where a test kills the process as a power cut or `kill -9` would.
//!
//! Holds always: a release build has none of this, not even the look at the environment. A dev build passes every point
//! without effect unless the environment names one:
//!
//! - `OCI_RS_FAILPOINT=name` or `name:N`: the process gets SIGKILL at its first, or Nth, arrival at that point;
//! - `OCI_RS_FAILPOINT_TRACE=file`: each arrival appends its name and a newline, so that a test learns which points an operation
//!   passes and visits every one of them, new ones too.

#[cfg(debug_assertions)]
mod armed;

/// Environment variable that names the point to die at.
pub const VARIABLE: &str = "OCI_RS_FAILPOINT";
/// Environment variable that names the file to which arrivals are appended.
pub const TRACE: &str = "OCI_RS_FAILPOINT_TRACE";

/// Passes a point, or dies there. `name` is `operation-before-step`, unique in the workspace.
#[inline]
pub fn at(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::at(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}
