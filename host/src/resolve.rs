//! Opening a path that must not lead out of a directory (openat2(2)).

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
    path::Arg,
};

/// How often a path is tried. An open that does not block also fails with EAGAIN as long as a process holds a lease on
/// the file (fcntl(2)), so there is a limit.
const ATTEMPTS: u32 = 1000;

/// Opens a path below `directory`, with the limits of `resolve`. Repeats an attempt that failed because a rename or a
/// mount anywhere on the node kept the kernel from deciding whether a `..` leads out of the directory (EAGAIN).
pub fn open_below(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let open = || openat2(directory.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    let mut opened = open();
    for _ in 1..ATTEMPTS {
        if !matches!(opened, Err(Errno::AGAIN)) {
            break;
        }
        opened = open();
    }
    opened
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use crate::sys;

    #[test]
    fn a_lease_on_a_file_does_not_keep_an_open_going_for_ever() {
        let root = tempfile::tempdir().unwrap();
        let leased =
            fs::File::options().write(true).create(true).truncate(false).open(root.path().join("file")).unwrap();
        sys::take_lease(&leased).unwrap();
        let directory = fs::File::open(root.path()).unwrap();
        let open = |flags| open_below(&directory, "file", flags, ResolveFlags::IN_ROOT).map(drop);
        assert_eq!(open(OFlags::RDONLY | OFlags::NONBLOCK), Err(Errno::AGAIN));
        // It does not open the file itself.
        assert_eq!(open(OFlags::PATH), Ok(()));
        drop(leased);
        assert_eq!(open(OFlags::RDONLY | OFlags::NONBLOCK), Ok(()));
    }

    #[test]
    fn renames_elsewhere_do_not_keep_a_path_from_being_opened() {
        let [root, elsewhere] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let directory = fs::File::open(root.path()).unwrap();
        let (from, to) = (elsewhere.path().join("from"), elsewhere.path().join("to"));
        fs::create_dir(&from).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    fs::rename(&from, &to).and_then(|()| fs::rename(&to, &from)).unwrap();
                }
            });
            let open = |_| open_below(&directory, "a/b/../b/../..", OFlags::PATH, ResolveFlags::IN_ROOT);
            let problem = (0..20_000).map(open).find_map(Result::err);
            ended.store(true, Ordering::Relaxed);
            assert_eq!(problem, None);
        });
    }
}
