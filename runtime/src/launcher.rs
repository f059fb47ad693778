//! Executing our own binary in another role.
//!
//! It is copied into a sealed memory file once, before the first use: a container that finds our executable through /proc
//! finds a file that nobody can write. The copy has its start-up relocation behind it (`prelink`). Until then the kernel keeps the file that runs from being written, and an upgrade of
//! the plugin puts another file in its place, so it does not matter when the copy is made.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{fs::FileExt, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::prelink::{self, Parts, prelink};

/// Starts this program's sealed copy.
#[derive(Debug, Default)]
pub(crate) struct Launcher {
    sealed: Mutex<Option<Arc<OwnedFd>>>,
}

impl Launcher {
    /// The copy, made now if it was not yet.
    pub fn sealed(&self) -> io::Result<Arc<OwnedFd>> {
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = &*sealed {
            return Ok(Arc::clone(copy));
        }
        Ok(Arc::clone(sealed.insert(Arc::new(Self::seal()?))))
    }

    fn seal() -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know MFD_EXEC, later ones can be set up to refuse a file without it.
        let copy = memfd_create("oci-rs", flags | MemfdFlags::EXEC).or_else(|_| memfd_create("oci-rs", flags))?;
        let mut copy = File::from(copy);
        let original = File::open("/proc/self/exe")?;
        io::copy(&mut &original, &mut copy)?;
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        match prelink(&original, prelink::base(u64::from_ne_bytes(random))) {
            Some(patches) => patches.iter().try_for_each(|patch| copy.write_all_at(&patch.bytes, patch.offset))?,
            None => tracing::debug!("the executable relocates itself: monitors take more memory"),
        }
        fcntl_add_seals(copy.as_fd(), SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(copy.into())
    }

    /// Starts the copy in a role, with an empty environment (but for what a dev build's failpoints were told) and these as
    /// standard input, output and error, and nothing else.
    pub fn spawn<S: AsRef<OsStr>>(
        &self,
        role: &str,
        args: impl IntoIterator<Item = S>,
        stdio: [Stdio; 3],
    ) -> io::Result<Child> {
        let [stdin, stdout, stderr] = stdio;
        let program = self.sealed()?;
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.arg0("oci-rs").arg(role).args(args).env_clear();
        if cfg!(debug_assertions) {
            let told = |name| std::env::var_os(name).map(|value| (name, value));
            command.envs([failpoint::VARIABLE, failpoint::TRACE].into_iter().filter_map(told));
        }
        command.stdin(stdin).stdout(stdout).stderr(stderr).spawn()
    }
}

impl Parts for File {
    fn part(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        // A length that a broken file claims must not become memory.
        let end = offset.checked_add(u64::try_from(length).ok()?)?;
        if end > self.metadata().ok()?.len() {
            return None;
        }
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}
