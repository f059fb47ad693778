//! Executing our own binary in another role.
//!
//! It is copied into a sealed memory file once, when the runtime is opened: a container whose exec'd process finds
//! `/proc/self/exe` then finds a file that nobody can write, and an upgrade of the plugin's file does not change what the
//! running plugin starts.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// A sealed copy of this program.
#[derive(Debug)]
pub(crate) struct Launcher {
    program: OwnedFd,
}

impl Launcher {
    /// Makes the copy.
    pub fn seal() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know MFD_EXEC, later ones can be set up to refuse a file without it.
        let copy = memfd_create("oci-rs", flags | MemfdFlags::EXEC).or_else(|_| memfd_create("oci-rs", flags))?;
        let mut copy = File::from(copy);
        io::copy(&mut File::open("/proc/self/exe")?, &mut copy)?;
        fcntl_add_seals(copy.as_fd(), SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { program: copy.into() })
    }

    /// A command that executes the copy in a role, with an empty environment.
    pub fn command<S: AsRef<OsStr>>(&self, role: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command.arg0("oci-rs").arg(role).args(args).env_clear();
        command
    }

    /// Starts the copy in a role, with these as standard input, output and error and nothing else.
    pub fn spawn<S: AsRef<OsStr>>(
        &self,
        role: &str,
        args: impl IntoIterator<Item = S>,
        stdio: [Stdio; 3],
    ) -> io::Result<Child> {
        let [stdin, stdout, stderr] = stdio;
        self.command(role, args).stdin(stdin).stdout(stdout).stderr(stderr).spawn()
    }
}
