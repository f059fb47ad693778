//! Huge pages for the content of a memory file (madvise(2)).

use std::{fs::File, io, os::fd::AsRawFd, ptr};

use rustix::io::Errno;

/// The size of a huge page on machines with pages of 4 KiB.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;

/// Which musl's headers do not have.
const MADV_COLLAPSE: libc::c_int = 25;

/// The kernel refuses a huge page while it uses one of its small ones.
const ATTEMPTS: usize = 3;

/// Gathers the content of a memory file in huge pages, except for a part at the end that fills none. A process maps
/// each by one page fault, where its address and its offset in the file are multiples of [`HUGE_PAGE`].
///
/// Linux can do it since 6.1, if it has free memory in blocks of that size. After a failure some parts of the file may
/// have huge pages. The content of the file stays the same.
pub(crate) fn gather_in_huge_pages(file: &File) -> io::Result<()> {
    let mapping = Mapping::of(file)?;
    let mut gathered = Ok(());
    for number in 0..mapping.pages {
        let settled = |result: &rustix::io::Result<()>| *result != Err(Errno::AGAIN);
        let result = (0..ATTEMPTS).map(|_| mapping.gather(number)).find(settled).unwrap_or(Err(Errno::AGAIN));
        // Each huge page that there is saves page faults, so the others are tried too.
        gathered = gathered.and(result);
    }
    Ok(gathered?)
}

/// The whole huge pages of a file, mapped for reading.
struct Mapping {
    reserved: *mut libc::c_void,
    length: usize,
    start: *mut libc::c_void,
    /// The number of huge pages.
    pages: usize,
}

impl Mapping {
    fn of(file: &File) -> io::Result<Self> {
        let pages = usize::try_from(file.metadata()?.len() / HUGE_PAGE).map_err(io::Error::other)?;
        let (page, size) = (HUGE_PAGE as usize, pages * HUGE_PAGE as usize);
        let length = size + page;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, private, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // From here on it is unmapped when this value is dropped.
        let start = reserved.map_addr(|address| address.next_multiple_of(page));
        let mapping = Self { reserved, length, start, pages };
        if pages == 0 {
            return Ok(mapping);
        }
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: it replaces a part of the mapping from above, which has no other user.
        match unsafe { libc::mmap(start, size, libc::PROT_READ, shared, file.as_raw_fd(), 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(mapping),
        }
    }

    fn gather(&self, number: usize) -> rustix::io::Result<()> {
        let place = self.start.wrapping_byte_add(number * HUGE_PAGE as usize);
        // SAFETY: the range is a part of the mapping, and the advice keeps its content.
        match unsafe { libc::madvise(place, HUGE_PAGE as usize, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of this value. No reference into it was ever made.
        let unmapped = unsafe { libc::munmap(self.reserved, self.length) };
        debug_assert_eq!(unmapped, 0, "the mapping is this value's own");
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, os::unix::fs::FileExt};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_file_in_huge_pages_has_the_same_content() {
        let mut file = File::from(memfd_create("huge-pages-test", MemfdFlags::CLOEXEC).expect("a memory file"));
        let content: Vec<u8> = (0..HUGE_PAGE as usize * 5 / 2).map(|at| (at / 4096) as u8).collect();
        file.write_all_at(&content, 0).expect("written");
        let gathered = gather_in_huge_pages(&file);
        let mut read = Vec::new();
        file.read_to_end(&mut read).expect("read");
        assert!(read == content, "the content has changed");
        if let Err(error) = gathered {
            println!("skipped: this kernel gives no huge pages: {error}");
            return;
        }
        let mapping = Mapping::of(&file).expect("mapped");
        assert_eq!(mapping.pages, 2);
        for number in 0..mapping.pages {
            let place = mapping.start.wrapping_byte_add(number * HUGE_PAGE as usize + 4096).cast::<u8>();
            // SAFETY: a byte of the mapping, which lives.
            assert_eq!(unsafe { place.read_volatile() }, content[number * HUGE_PAGE as usize + 4096]);
        }
        let maps = fs::read_to_string("/proc/self/smaps").expect("the mappings");
        let (_, ours) = maps.split_once("huge-pages-test").expect("the mapping of the file");
        let huge = ours.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).expect("its huge pages");
        assert_eq!(huge.trim(), "4096 kB");
    }

    #[test]
    fn a_small_file_stays_as_it_is() {
        let file = File::from(memfd_create("small", MemfdFlags::CLOEXEC).expect("a memory file"));
        gather_in_huge_pages(&file).expect("nothing to do");
        file.write_all_at(&[7; 4096], 0).expect("written");
        gather_in_huge_pages(&file).expect("nothing to do");
    }
}
