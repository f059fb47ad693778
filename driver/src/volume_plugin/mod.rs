//! The role of a dynamic host volume plugin: this executable as `oci-rs-volume` in Nomad's `host_volume_plugin_dir`.
//!
//! Nomad starts it for each operation, with the variables `DHV_…` and no others in the environment, and kills it after
//! a minute. The answer is JSON on standard output. Always holds:
//!
//! - A volume has a record once its content is complete, and not before. Content without a record is removed by the
//!   next call for the volume.
//! - A removal begins with a mark in place of the record. The next call completes it, whichever call that is.
//! - One call at a time works on a volume. The kernel frees its lock when it is killed.
//! - What is mounted is read from the kernel. After a reboot, Nomad's next `create` mounts the volume again.
//! - A directory that this plugin has not recorded is never removed or replaced.
//! - The next call that makes a volume of any id removes what killed calls left.

mod content;
mod create;
mod delete;
mod directories;
mod error;
mod expose;
mod file_system;
mod grow;
mod listing;
mod log;
mod luks;
mod parameters;
mod place;
mod quota;
mod record;
mod request;
mod snapshot;
mod storage;
mod sweep;

use std::{
    env,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use serde_json::{Value, json};

pub use self::listing::{HostVolume, host_volumes};
use self::{
    error::PluginError,
    log::{NAME, tell},
    request::Operation,
};

/// Whether this process is a volume plugin: by the name of its file, or by Nomad's variable.
pub fn is_called() -> bool {
    let program = env::args_os().next().unwrap_or_default();
    Path::new(&program).file_name().is_some_and(|file| file == NAME) || env::var_os(request::OPERATION).is_some()
}

/// Carries out one operation.
pub fn main() -> ExitCode {
    let argument = env::args_os().nth(1).map(|argument| argument.to_string_lossy().into_owned());
    let result = Operation::parse(argument, |name| env::var(name).ok()).and_then(perform);
    let (answer, code) = match result {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(error) => {
            tell(&error.to_string());
            (Some(json!({ "error": error.to_string() })), ExitCode::FAILURE)
        }
    };
    let written = answer.map_or(Ok(()), |answer| writeln!(io::stdout(), "{answer}"));
    written.map_or(ExitCode::FAILURE, |()| code)
}

/// Returns what Nomad reads.
fn perform(operation: Operation) -> Result<Option<Value>, PluginError> {
    match operation {
        Operation::Fingerprint => Ok(Some(json!({ "version": env!("CARGO_PKG_VERSION") }))),
        Operation::Create(request) => {
            let created = create::create(&request)?;
            if let Err(error) = directories::leave(request.place.volumes()) {
                tell(&format!("`oci-rs volume ls` does not know {}: {error}", request.place.volumes().display()));
            }
            tell(&format!("volume {}: {}", request.place.id(), created.description));
            Ok(Some(json!({ "path": created.path, "bytes": created.bytes })))
        }
        Operation::Delete(place) => delete::delete(&place).map(|()| None),
    }
}
