//! Lines for the agent's log.

use std::io::{self, Write};

/// The name of the executable as a volume plugin, which is the volumes' `plugin_id`.
pub const NAME: &str = "oci-rs-volume";

/// Writes a line for the agent's log.
pub fn tell(text: &str) {
    // Without a reader there is no log.
    writeln!(io::stderr(), "{NAME}: {text}").ok();
}
