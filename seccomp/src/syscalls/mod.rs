//! System calls by name, with their numbers on each architecture. The numbers are those of the kernel's user-space
//! headers.

mod table;

use self::table::SYSCALLS;
use crate::arch::Arch;

/// The number of a system call; `None` when the architecture has no system call of that name.
pub(crate) fn number(arch: Arch, name: &str) -> Option<u32> {
    let found = SYSCALLS.binary_search_by(|(known, ..)| (*known).cmp(name)).ok()?;
    let (_, x86_64, i386, aarch64) = SYSCALLS[found];
    let number = match arch {
        Arch::X86_64 => x86_64,
        Arch::I386 => i386,
        Arch::Aarch64 => aarch64,
    };
    u32::try_from(number).ok()
}

/// The highest number in the table.
pub(crate) fn newest_number(arch: Arch) -> u32 {
    SYSCALLS.iter().filter_map(|(name, ..)| number(arch, name)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_numbers_are_unique() {
        assert!(SYSCALLS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for arch in [Arch::X86_64, Arch::I386, Arch::Aarch64] {
            let mut numbers: Vec<_> =
                SYSCALLS.iter().filter_map(|(name, ..)| Some((number(arch, name)?, name))).collect();
            numbers.sort();
            for pair in numbers.windows(2) {
                assert_ne!(pair[0].0, pair[1].0, "{arch:?}: {pair:?}");
            }
        }
    }

    #[test]
    fn numbers_agree_with_the_c_library() {
        let native = Arch::native().expect("a known architecture");
        let some = [
            ("read", libc::SYS_read),
            ("clone", libc::SYS_clone),
            ("unshare", libc::SYS_unshare),
            ("mount", libc::SYS_mount),
            ("ptrace", libc::SYS_ptrace),
            ("openat2", libc::SYS_openat2),
            ("clone3", libc::SYS_clone3),
            ("personality", libc::SYS_personality),
            ("mseal", libc::SYS_mseal),
            // libc has no name for it on aarch64.
            ("fchmodat2", 452),
        ];
        for (name, expected) in some {
            assert_eq!(number(native, name).map(i64::from), Some(expected), "{name}");
        }
    }
}
