//! The sealed copy of our executable.
//!
//! It is a memory file that no process can write: a container that finds our executable through `/proc` finds this
//! file. Its start-up relocation is done (`prelink`), and it is in huge pages where the kernel gives some. The kernel
//! keeps the file of a running program from being written, and an upgrade of the plugin puts another file in its place,
//! so the copy can be made at any time.

use std::{
    fs::File,
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::FileExt},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::prelink::{self, ReadAt, prelink};
use crate::sys::gather_in_huge_pages;

/// Makes the copy.
pub(super) fn sealed_copy() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know MFD_EXEC. Later ones can be configured to refuse a file without it.
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
    if let Err(error) = gather_in_huge_pages(&copy) {
        tracing::debug!(%error, "not all of the executable is in huge pages: starts have more page faults");
    }
    seal(&copy)?;
    Ok(copy.into())
}

/// Forbids every later change of a memory file (memfd_create(2), fcntl(2)).
///
/// `FUTURE_WRITE` and not `WRITE`: they differ in earlier mappings, of which there are none. `WRITE` is refused with
/// EBUSY while the kernel holds a page of the file, which happens at any time when it looks for memory to reclaim.
fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?)
}

impl ReadAt for File {
    fn part(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        // A length that a broken file claims must not be allocated.
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
    use std::{io::Write, os::fd::AsRawFd};

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
        // The pipe holds the file's page itself.
        let spliced = splice(&file, Some(&mut 0), &writer, None, 4096, SpliceFlags::empty()).expect("spliced");
        assert_eq!(spliced, 4096);
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::BUSY), "the kernel holds the page");

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
