//! What a file is apart from its content: owner, mode, time and extended attributes.
//!
//! Whether an image may set an extended attribute depends on its name and on the kind of file. [`SkippedXattrs`] counts
//! those that are left out, so that they are reported.

use crate::{
    error::{Problem, UnpackError, show},
    limits::Limits,
    tar::{EntryKind, TarEntry, Xattrs},
};

/// What an entry says about its file, with the extended attributes that images may set.
pub(crate) struct Attributes {
    /// Permissions and the three special bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Xattrs,
}

/// Extended attributes that were left out: the marks of overlayfs, which an image must not forge, the labels of the
/// node, and attributes that the kernel does not keep on this kind of file (xattr(7)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkippedXattrs {
    /// How many.
    pub count: u64,
    /// The first one's name, fit for a log.
    pub first: String,
}

impl SkippedXattrs {
    /// Counts one more.
    pub(crate) fn add(&mut self, key: &[u8]) {
        if self.count == 0 {
            self.first = show(key);
        }
        self.count += 1;
    }
}

impl Attributes {
    /// What an entry says about a file of this kind, without extended attributes that [`SkippedXattrs`] lists.
    pub(super) fn of(
        entry: &TarEntry,
        kind: EntryKind,
        limits: &Limits,
        skipped: &mut SkippedXattrs,
    ) -> Result<Self, UnpackError> {
        check_xattrs_size(&entry.xattrs, limits).map_err(|problem| UnpackError::refused(&entry.name, problem))?;
        let mut xattrs = Vec::new();
        for (key, value) in &entry.xattrs {
            if may_be_set(kind, key, value) {
                xattrs.push((key.clone(), value.clone()));
            } else {
                skipped.add(key);
            }
        }
        Ok(Self { mode: entry.mode, uid: entry.uid, gid: entry.gid, mtime: entry.mtime, xattrs })
    }
}

/// Refuses extended attributes that are too large.
pub(crate) fn check_xattrs_size(xattrs: &Xattrs, limits: &Limits) -> Result<(), Problem> {
    let mut total = 0;
    for (key, value) in xattrs {
        total += key.len() + value.len();
        if value.len() > limits.xattr_bytes || total > limits.xattr_total_bytes || key.len() > 255 {
            return Err("its extended attributes are too large".into());
        }
    }
    Ok(())
}

/// Whether an image may give a file of this kind this attribute. The kernel executes no file with empty capabilities.
pub(crate) fn may_be_set(kind: EntryKind, key: &[u8], value: &[u8]) -> bool {
    is_set_on(kind, key) && !(value.is_empty() && key == b"security.capability")
}

/// Bytes of all names and values.
pub(crate) fn xattrs_size(xattrs: &Xattrs) -> usize {
    xattrs.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Whether an image may set this attribute, and the kernel has it for this kind of file:
///
/// - `user.*` on files and directories
/// - access ACLs on everything but links, default ACLs on directories
/// - capabilities on everything
fn is_set_on(kind: EntryKind, key: &[u8]) -> bool {
    let holds_data = matches!(kind, EntryKind::File | EntryKind::Dir);
    match key {
        b"security.capability" => true,
        b"system.posix_acl_access" => kind != EntryKind::Symlink,
        b"system.posix_acl_default" => kind == EntryKind::Dir,
        key => holds_data && key.starts_with(b"user.") && !key.starts_with(b"user.overlay."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_may_set_where() {
        use EntryKind::{Char, Dir, Fifo, File, Symlink};
        for (key, kinds) in [
            ("user.a", &[File, Dir][..]),
            ("user.overlay.opaque", &[]),
            ("trusted.overlay.opaque", &[]),
            ("trusted.x", &[]),
            ("security.selinux", &[]),
            ("security.capability", &[File, Dir, Symlink, Char, Fifo]),
            ("system.posix_acl_access", &[File, Dir, Char, Fifo]),
            ("system.posix_acl_default", &[Dir]),
            ("user", &[]),
            ("", &[]),
        ] {
            for kind in [File, Dir, Symlink, Char, Fifo] {
                assert_eq!(is_set_on(kind, key.as_bytes()), kinds.contains(&kind), "{key} on {kind:?}");
            }
        }
    }
}
