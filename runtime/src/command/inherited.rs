//! Attributes that a process sets for itself and that its forks and their commands inherit.

use std::{
    fs::{self, File},
    io::{self, Write},
};

use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};

use crate::error::StartError;

/// The SELinux label of the calling thread's next command.
const SELINUX_EXEC: &str = "/proc/thread-self/attr/exec";

/// Sets the oom_score_adj of this process. Lowering it takes a capability that we may lack.
pub(crate) fn apply_oom_score(score: i32) -> Result<(), StartError> {
    const FILE: &str = "/proc/self/oom_score_adj";
    match fs::write(FILE, score.to_string()) {
        // A plan that asks for no protection keeps the score of this process.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && score >= 0 => Ok(()),
        Err(error) => Err(StartError::invalid(format!(
            "oom_score_adj {score}: {error}; a score below the driver's own needs CAP_SYS_RESOURCE"
        ))),
        Ok(()) => Ok(()),
    }
}

/// Gives the next command that this process or a fork of it executes, and keys that are made until then, an SELinux
/// label. `/proc` must be the host's.
pub(crate) fn apply_selinux(label: &str) -> Result<(), StartError> {
    label_keys(label)?;
    written(label, File::options().write(true).open(SELINUX_EXEC))
}

/// Gives keys that this process or a fork of it makes until its next command an SELinux label. `/proc` must be the
/// host's.
pub(crate) fn label_keys(label: &str) -> Result<(), StartError> {
    written(label, File::options().write(true).open("/proc/thread-self/attr/keycreate"))
}

/// Writes a label to an attribute of the calling thread.
fn written(label: &str, attribute: io::Result<File>) -> Result<(), StartError> {
    attribute.and_then(|mut file| file.write_all(label.as_bytes())).map_err(|error| {
        StartError::invalid(match error.raw_os_error() {
            Some(libc::EINVAL) => format!("SELinux label {label:?} does not exist in this node's policy"),
            _ => format!("SELinux label {label:?}: {error}; the policy must allow it to the Nomad agent"),
        })
    })
}

/// What the command gets from the security modules, if its first process did not inherit it.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnLabels {
    /// The SELinux label.
    pub selinux: Option<String>,
    /// The AppArmor profile.
    pub apparmor: Option<String>,
}

impl OwnLabels {
    /// Gives them to the next command that the calling thread or a fork of it executes. `/proc` is the container's.
    pub fn apply(&self) -> Result<(), StartError> {
        if let Some(label) = &self.selinux {
            written(label, File::options().write(true).open(SELINUX_EXEC).and_then(of_procfs))?;
        }
        let Some(profile) = &self.apparmor else { return Ok(()) };
        confine(profile, attribute("exec").and_then(of_procfs))
    }
}

/// Confines the next execve(2) of this process or of a fork of it by an AppArmor profile. `/proc` must be the host's.
pub(crate) fn apply_apparmor(profile: &str) -> Result<(), StartError> {
    confine(profile, attribute("exec"))
}

fn confine(profile: &str, exec: io::Result<File>) -> Result<(), StartError> {
    let written = exec.and_then(|mut file| file.write_all(format!("exec {profile}").as_bytes()));
    written.map_err(|error| refused(profile, &error))
}

/// The attribute by which a thread of a container confines itself.
pub(super) struct OwnProfile(File);

impl OwnProfile {
    /// Opens the attribute of the calling thread. `/proc` is the container's.
    pub fn open() -> io::Result<Self> {
        attribute("current").and_then(of_procfs).map(Self)
    }

    /// Confines the calling thread, its forks and their commands by an AppArmor profile.
    pub fn become_profile(mut self, profile: &str) -> Result<(), StartError> {
        self.0.write_all(format!("changeprofile {profile}").as_bytes()).map_err(|error| refused(profile, &error))
    }
}

/// A file of a container's `/proc`. A task can mount other files there.
fn of_procfs(file: File) -> io::Result<File> {
    let is_procfs = fstatfs(&file)?.f_type == PROC_SUPER_MAGIC;
    if is_procfs { Ok(file) } else { Err(io::Error::other("it is not in procfs")) }
}

/// Opens an attribute of the calling thread. The first file exists since Linux 5.8. The second one belongs to the first
/// security module that is loaded.
fn attribute(name: &str) -> io::Result<File> {
    const DIRECTORIES: [&str; 2] = ["/proc/thread-self/attr/apparmor", "/proc/thread-self/attr"];
    let open = |directory: &str| File::options().write(true).open(format!("{directory}/{name}"));
    match open(DIRECTORIES[0]) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open(DIRECTORIES[1]),
        opened => opened,
    }
}

fn refused(profile: &str, error: &io::Error) -> StartError {
    StartError::invalid(match error.kind() {
        io::ErrorKind::NotFound => format!("AppArmor profile {profile:?} is not loaded on this node"),
        _ => format!("AppArmor profile {profile:?}: {error}; the kernel may have been started without AppArmor"),
    })
}
