//! Landlock: the files that a thread may open, TCP, and signals.
//!
//! A thread that is restricted this way can also trace no process, see no other process's secrets in `/proc`, and mount
//! nothing. No capability changes that.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

/// The newest rights that are asked for. An older kernel restricts what it knows.
const NEWEST: ABI = ABI::V6;

/// What a thread may reach. Everything else is refused.
#[derive(Debug, Default)]
pub struct Files<'a> {
    /// Files and directories, with what is below them. One that is missing is left out.
    pub places: Vec<(Place<'a>, Access)>,
    /// TCP connections may be made.
    pub tcp: bool,
    /// Signals may be sent to processes that do not have these restrictions.
    pub signals: bool,
}

/// A file or directory.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// By its path.
    Path(&'a Path),
    /// By a descriptor.
    Open(BorrowedFd<'a>),
}

/// What may be done at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read files and list directories.
    Read,
    /// Read, make, write, replace and remove regular files, and list directories.
    Write,
    /// Everything but executing.
    All,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::Write => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile,
            Self::All => AccessFs::from_all(NEWEST) & !AccessFs::Execute,
        }
    }
}

impl Files<'_> {
    /// Restricts the calling thread, which has no_new_privs.
    pub(crate) fn restrict(&self) -> io::Result<()> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))
            .map_err(cause)?
            .handle_access(if self.tcp { AccessNet::BindTcp.into() } else { AccessNet::from_all(NEWEST) })
            .map_err(cause)?
            .scope(if self.signals { Scope::AbstractUnixSocket.into() } else { Scope::from_all(NEWEST) })
            .map_err(cause)?
            .create()
            .map_err(cause)?;
        for (place, access) in &self.places {
            let opened;
            let place = match place {
                Place::Open(place) => *place,
                Place::Path(path) => match open_place(path)? {
                    Some(place) => {
                        opened = place;
                        opened.as_fd()
                    }
                    None => continue,
                },
            };
            rules = rules.add_rule(PathBeneath::new(place, access.rights())).map_err(cause)?;
        }
        rules.restrict_self().map(drop).map_err(cause)
    }
}

fn open_place(path: &Path) -> io::Result<Option<OwnedFd>> {
    match open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Whether this kernel restricts files.
#[cfg(test)]
pub(crate) fn is_supported() -> bool {
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    strict.handle_access(AccessFs::ReadFile).and_then(Ruleset::create).is_ok()
}

fn cause(error: RulesetError) -> io::Error {
    io::Error::other(format!("Landlock: {error}"))
}
