//! Failpoints: named places between two durable steps, where a test kills the process as a power cut or `kill -9`
//! would.
//!
//! Always true: a release build contains none of this and never reads the environment variables. A development build
//! passes every failpoint without effect unless the environment names one:
//!
//! - `OCI_RS_FAILPOINT=name` or `name:N`: the process gets SIGKILL at its first, or Nth, arrival at that failpoint.
//! - `OCI_RS_FAILPOINT_TRACE=file`: each arrival appends the name of the failpoint and a newline. A test learns from
//!   the file which failpoints an operation passes, and then visits all of them, new ones too.

#[cfg(debug_assertions)]
mod armed;

/// The environment variable with the name of the failpoint at which the process dies.
pub const VARIABLE: &str = "OCI_RS_FAILPOINT";
/// The environment variable with the path of the file to which arrivals are appended.
pub const TRACE: &str = "OCI_RS_FAILPOINT_TRACE";

/// Passes a failpoint, or dies there. `name` has the form `operation-before-step` and is unique in the workspace.
#[inline]
pub fn at(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::at(name, VARIABLE, TRACE);
    #[cfg(not(debug_assertions))]
    let _ = name;
}
