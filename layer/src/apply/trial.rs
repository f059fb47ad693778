//! What the file system can hold, tried on files that no layer contains.
//!
//! A layer in an EROFS image is written without the file system's consent, and shows everything that it says. But a
//! container that changes a file gets a copy of it in its writable layer, on the same file system as the image. So
//! extended attributes that the file system refuses are refused when the layer is unpacked, and times are those that
//! the file system can store. Both forms of a layer then show the same.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags},
    io::Errno,
};

use crate::{
    error::{UnpackError, show},
    tar::Xattrs,
};

/// The name of a directory for a trial. No entry can have it: it would be a whiteout.
const TRIAL: &str = ".wh..trial";
/// An attribute that overlayfs adds to a copy, with a value longer than its own.
const OVERLAYS: (&str, [u8; 64]) = ("trusted.overlay.origin", [0; 64]);
/// Times that every file system stores: from 1970 to 2038.
const USUAL_SECONDS: std::ops::RangeInclusive<i64> = 0..=i32::MAX as i64;
/// Attributes of less than this do not fill a file's place for them, so that a full disk is no fault of the image.
const SMALL: usize = 2048;

/// Tries on the file system of a directory.
pub(crate) struct Trial {
    directory: Option<OwnedFd>,
    /// The last attributes that the file system took, on a directory or not.
    taken: Option<(bool, Xattrs)>,
}

impl Trial {
    /// On the file system of this directory.
    pub(crate) fn on(directory: &OwnedFd) -> io::Result<Self> {
        Ok(Self { directory: Some(directory.try_clone()?), taken: None })
    }

    /// Without a file system: everything passes. For layers that no container of this machine uses.
    pub(crate) fn none() -> Self {
        Self { directory: None, taken: None }
    }

    /// Removes the attributes that the file system does not know, and returns their names. Fails with the name of an
    /// attribute that it refuses.
    pub(crate) fn filter(&mut self, is_dir: bool, xattrs: &mut Xattrs) -> Result<Vec<Vec<u8>>, UnpackError> {
        if xattrs.is_empty() || self.taken.as_ref().is_some_and(|taken| taken.0 == is_dir && taken.1 == *xattrs) {
            return Ok(Vec::new());
        }
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let unknown = match file(directory, is_dir) {
            Ok(file) => set_all(&file, xattrs),
            // Without such files there is no trial. The file system answers for the layer's own files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(Vec::new()),
            Err(errno) => Err(UnpackError::disk("trying its extended attributes", errno.into())),
        };
        if is_dir {
            remove_directory(directory)?;
        }
        let unknown = unknown?;
        xattrs.retain(|(key, _)| !unknown.contains(key));
        self.taken = Some((is_dir, xattrs.clone()));
        Ok(unknown)
    }

    /// The time that the file system stores for this one.
    pub(crate) fn time(&self, (seconds, nanos): (i64, u32)) -> Result<(i64, u32), UnpackError> {
        let Some(directory) = self.directory.as_ref().filter(|_| !USUAL_SECONDS.contains(&seconds)) else {
            return Ok((seconds, nanos));
        };
        let failed = |errno: Errno| UnpackError::disk("trying its time", errno.into());
        let file = match file(directory, false) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return Ok((seconds, nanos)),
            file => file.map_err(failed)?,
        };
        let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time }).map_err(failed)?;
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        Ok((stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()))
    }
}

/// A file without a name, or a directory that [`remove_directory`] removes.
fn file(directory: &OwnedFd, is_dir: bool) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::CLOEXEC, Mode::from_raw_mode(0o700));
    if is_dir {
        rustix::fs::mkdirat(directory, TRIAL, mode)?;
        return rustix::fs::openat(directory, TRIAL, flags | OFlags::DIRECTORY, Mode::empty());
    }
    rustix::fs::openat(directory, c".", flags | OFlags::TMPFILE | OFlags::RDWR, mode)
}

fn remove_directory(directory: &OwnedFd) -> Result<(), UnpackError> {
    match rustix::fs::unlinkat(directory, TRIAL, AtFlags::REMOVEDIR) {
        Err(errno) if errno != Errno::NOENT => Err(UnpackError::disk("removing a directory for a trial", errno.into())),
        _ => Ok(()),
    }
}

/// Sets attributes, and one of overlayfs. Returns the names of those that the file system does not know.
fn set_all(file: impl AsFd, xattrs: &Xattrs) -> Result<Vec<Vec<u8>>, UnpackError> {
    let size: usize = xattrs.iter().map(|(key, value)| key.len() + value.len()).sum();
    let refused = |key: &[u8], length: usize, errno: Errno| {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) && size < SMALL {
            return UnpackError::disk("setting its extended attributes", errno.into());
        }
        let (key, error) = (show(key), io::Error::from(errno));
        let problem = format!(
            "the file system of data_dir cannot hold its extended attributes of {size} bytes: {key:?} of {length} \
             bytes: {error}"
        );
        UnpackError::refused(b"", problem)
    };
    let mut unknown = Vec::new();
    for (key, value) in xattrs {
        match rustix::fs::fsetxattr(file.as_fd(), &key[..], value, XattrFlags::empty()) {
            Ok(()) => {}
            // On a file system without them the image runs all the same. Without capabilities its programs would fail.
            Err(Errno::OPNOTSUPP) if key != b"security.capability" => unknown.push(key.clone()),
            Err(errno) => return Err(refused(key, value.len(), errno)),
        }
    }
    let (key, value) = OVERLAYS;
    match rustix::fs::fsetxattr(file.as_fd(), key, &value, XattrFlags::empty()) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(refused(key.as_bytes(), value.len(), errno)),
        // A test without root may not set it.
        _ => Ok(unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial() -> (tempfile::TempDir, Trial) {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let trial = Trial::on(&root).unwrap();
        (directory, trial)
    }

    fn one(key: &str, length: usize) -> Xattrs {
        vec![(key.as_bytes().to_vec(), vec![b'v'; length])]
    }

    #[test]
    fn attributes_are_tried_on_files_and_directories_and_nothing_is_left() {
        let (directory, mut trial) = trial();
        for is_dir in [false, true] {
            for (mut xattrs, accepted) in
                [(one("user.a", 3), true), (one("user.a", 0), true), (one("user.", 1), false), (one("user.b", 1), true)]
            {
                let result = trial.filter(is_dir, &mut xattrs);
                assert_eq!(result.is_ok(), accepted, "{xattrs:?} {is_dir}: {result:?}");
            }
        }
        let error = trial.filter(false, &mut one("security.capability", 7)).unwrap_err().within(b"etc/x");
        let UnpackError::Refused { entry, problem } = &error else { panic!("{error:?}") };
        assert_eq!(entry.as_deref(), Some("etc/x"));
        assert!(problem.contains("security.capability") && problem.contains("extended attributes"), "{problem}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn times_are_those_that_a_file_of_this_file_system_gets() {
        let (directory, trial) = trial();
        let path = directory.path().join("f");
        let file = std::fs::File::create(&path).unwrap();
        for time in [(0, 5), (-1, 7), (i64::from(i32::MAX), 3), (1 << 33, 9), (1 << 40, 1), (-(1 << 40), 1)] {
            let wanted = Timespec { tv_sec: time.0, tv_nsec: time.1.into() };
            rustix::fs::futimens(&file, &Timestamps { last_access: wanted, last_modification: wanted }).unwrap();
            let stat = rustix::fs::fstat(&file).unwrap();
            assert_eq!(trial.time(time).unwrap(), (stat.st_mtime, stat.st_mtime_nsec as u32), "{time:?}");
        }
    }
}
