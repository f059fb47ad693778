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
        fd::{AsRawFd, OwnedFd},
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
        Ok(Arc::clone(sealed.insert(Arc::new(Self::copy()?))))
    }

    fn copy() -> io::Result<OwnedFd> {
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
        seal(&copy)?;
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

/// Nobody writes to a memory file from now on (memfd_create(2), fcntl(2)).
///
/// `FUTURE_WRITE` and not `WRITE`: they differ in mappings made before, of which there are none, and `WRITE` is refused with EBUSY while
/// the kernel has a page in hand, as it may at any moment when it looks for memory to reclaim.
fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?)
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::{
        fs::fcntl_get_seals,
        io::Errno,
        pipe::{SpliceFlags, pipe, splice},
    };

    use super::*;

    #[test]
    fn a_file_is_sealed_while_the_kernel_holds_a_page_of_it() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("test", flags).expect("a file"));
        file.write_all(&[7; 8192]).expect("written");
        let (_reader, writer) = pipe().expect("a pipe");
        // What was spliced is the file's page itself.
        let spliced = splice(&file, Some(&mut 0), &writer, None, 4096, SpliceFlags::empty()).expect("spliced");
        assert_eq!(spliced, 4096);
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::BUSY), "the page is held");

        seal(&file).expect("sealed");
        let again = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        for file in [&file, &again.expect("opened")] {
            let refused = |result: io::Result<()>| {
                assert_eq!(result.map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied))
            };
            refused(file.write_all_at(b"x", 0));
            refused(file.set_len(0));
            refused(file.set_len(1 << 20));
            assert!(fcntl_get_seals(file).expect("seals").contains(SealFlags::SEAL));
        }
    }
}
