//! The container's standard streams.
//!
//! A log FIFO is opened through a mount of its own that is attached nowhere. So its path in `/proc/<pid>/fd` is `/`,
//! and a container sees no path of the host.
//!
//! When the kernel copies a mount, it looks at all mounts below it, and the node's root file system has many. So a FIFO
//! in the directory of confined sources gets a copy of that directory's copy, which has few.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Gid, OFlags, Uid, fchown},
    pipe::{PipeFlags, pipe_with},
};

use super::job::Job;
use crate::{
    logs::{Fifo, OutputStream, open_handle},
    plan::ContainerPlan,
    rootfs::{BindSources, PreparedBinds, clone_open},
};

/// The mounts of the log FIFOs. A log without one is `/dev/null`, or the kernel refused the copy: then only the look in
/// `/proc` differs.
#[derive(Debug)]
pub(super) struct LogMounts {
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl LogMounts {
    /// Copies the mounts of the FIFOs outside the directory of confined sources. The caller is in the host's namespace.
    pub fn open(job: &Job<'_>, plan: &ContainerPlan, sources: &BindSources) -> Self {
        let mount = |stream| {
            let log = job.outputs.log(stream);
            let elsewhere = log.held.is_some() && !sources.confines(plan, &log.path);
            elsewhere.then(|| clone_open(log.handle()).ok()).flatten()
        };
        Self { stdout: mount(OutputStream::Stdout), stderr: mount(OutputStream::Stderr) }
    }

    /// Copies the mounts of the other FIFOs.
    pub fn find(self, job: &Job<'_>, plan: &ContainerPlan, binds: &PreparedBinds) -> Self {
        let mount = |stream| {
            let log = job.outputs.log(stream);
            let held = log.held.as_ref()?;
            let found = binds.open_confined(plan, &log.path)?;
            let is_same = Fifo::of(&found, &log.path).is_ok_and(|found| found.id == held.fifo.id);
            is_same.then(|| clone_open(&found).ok()).flatten()
        };
        Self {
            stdout: self.stdout.or_else(|| mount(OutputStream::Stdout)),
            stderr: self.stderr.or_else(|| mount(OutputStream::Stderr)),
        }
    }

    /// Opens the standard streams. The input is open if the ids of the command's user on the node are given.
    pub fn stdio(&self, job: &Job<'_>, open_stdin_for: Option<[u32; 2]>) -> io::Result<[OwnedFd; 3]> {
        let stdin = match open_stdin_for {
            Some(owner) => endless_input(owner)?,
            None => File::open("/dev/null")?.into(),
        };
        let log = |stream, mount: &Option<OwnedFd>| {
            let handle = mount.as_ref().map_or_else(|| job.outputs.log(stream).handle(), AsFd::as_fd);
            open_handle(handle, OFlags::RDWR)
        };
        Ok([stdin, log(OutputStream::Stdout, &self.stdout)?, log(OutputStream::Stderr, &self.stderr)?])
    }
}

/// Makes a pipe and opens both of its ends with one descriptor, so that a reader waits and never sees the end of the
/// input. The user is the owner, so that its processes can open `/dev/stdin` again.
fn endless_input([uid, gid]: [u32; 2]) -> io::Result<OwnedFd> {
    let (reader, _writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let both = open_handle(&reader, OFlags::RDWR)?;
    fchown(&both, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    Ok(both)
}
