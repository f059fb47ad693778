//! Marks in a container's directory: a fact that was reported is not reported again, also by a later plugin process.

use std::{fs::File, io::ErrorKind, os::unix::fs::OpenOptionsExt};

use super::runtime::Runtime;
use crate::{
    error::{Context, RuntimeError},
    plan::ContainerId,
    state::{FULL_LAYER, HANG_UP},
};

/// A fact that is reported once in a container's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The terminal was hung up.
    HangUp,
    /// The writable layer has reached its limit.
    FullLayer,
}

impl Runtime {
    /// Marks a fact as reported; whether this call made the mark.
    pub fn mark(&self, id: &ContainerId, mark: Mark) -> Result<bool, RuntimeError> {
        let path = self.task(id).file(match mark {
            Mark::HangUp => HANG_UP,
            Mark::FullLayer => FULL_LAYER,
        });
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).context(|| format!("making {}", path.display())),
        }
    }
}
