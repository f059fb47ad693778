//! The rules for files of a native image: what no archive can make is refused here too.
//!
//! Pure.

use super::super::{
    format::MAX_NAME,
    kernel_xattrs::{self, Outcome},
    tree::{Content, Node},
};
use crate::{
    apply::{MAX_NAMES, check_xattrs_size, is_symlink_target, is_whiteout, may_be_set},
    error::Problem,
    limits::Limits,
    marks,
    tar::EntryKind,
};

/// The extended attribute of a directory that the layer needs but does not describe. Overlayfs hides attributes with
/// this prefix from containers and ignores those that it does not know.
pub(super) const IMPLIED: &[u8] = b"trusted.overlay.implied";

/// The value of the marks of directories.
pub(super) const SET: &[u8] = b"y";

/// What overlayfs reads on a directory that hides the lower layers' content.
pub(super) fn opaque() -> &'static [u8] {
    marks::OPAQUE.to_bytes()
}

/// Whether an extended attribute is one of the marks.
pub(super) fn is_mark(key: &[u8]) -> bool {
    key == IMPLIED || key == opaque()
}

/// Whether a directory has a mark.
pub(super) fn has_mark(node: &Node, mark: &[u8]) -> bool {
    node.xattrs.iter().any(|(key, _)| key == mark)
}

/// Refuses a name that no file of a layer has.
pub(super) fn check_name(name: &[u8]) -> Result<(), Problem> {
    let plain = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(&b'/') && !name.contains(&0);
    if plain && name != b"." && name != b".." && !is_whiteout(name) {
        return Ok(());
    }
    Err("a name that no file of a layer has".into())
}

/// Refuses a file that no layer has. Its names are counted, and its place among other files is known.
pub(super) fn check_node(node: &Node, limits: &Limits) -> Result<(), Problem> {
    if node.uid == u32::MAX || node.gid == u32::MAX {
        return Err("an owner that does not exist".into());
    }
    if node.mtime.1 >= 1_000_000_000 {
        return Err("a time that does not exist".into());
    }
    if u64::from(node.names) > MAX_NAMES {
        return Err(format!("a file with more than {MAX_NAMES} names"));
    }
    match &node.content {
        Content::CharDevice(0) => return check_whiteout(node),
        Content::Symlink(target) if !is_symlink_target(target) || node.mode != 0o777 => {
            return Err("a symbolic link that the kernel does not make".into());
        }
        _ => {}
    }
    check_xattrs(node, limits)?;
    let described = (node.mode, node.uid, node.gid, node.mtime) != (0o755, 0, 0, (0, 0))
        || node.xattrs.iter().any(|(key, _)| !is_mark(key));
    if has_mark(node, IMPLIED) && described {
        return Err("a directory that the layer describes and does not describe".into());
    }
    Ok(())
}

/// A whiteout is nothing but a mark.
fn check_whiteout(node: &Node) -> Result<(), Problem> {
    let plain = (node.mode, node.uid, node.gid, node.mtime, node.names) == (0, 0, 0, (0, 0), 1);
    match plain && node.xattrs.is_empty() {
        true => Ok(()),
        false => Err("a whiteout with attributes or with several names".into()),
    }
}

/// Extended attributes are sorted, and each of them is one that an archive can set and the kernel would keep.
fn check_xattrs(node: &Node, limits: &Limits) -> Result<(), Problem> {
    check_xattrs_size(&node.xattrs, limits)?;
    if !node.xattrs.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Err("extended attributes out of order".into());
    }
    let kind = kind(&node.content);
    for (key, value) in &node.xattrs {
        let allowed = match kernel_xattrs::outcome(key, value) {
            _ if is_mark(key) => kind == EntryKind::Dir && value == SET,
            Outcome::Set => may_be_set(kind, key, value),
            Outcome::SetWithMode(permissions) => may_be_set(kind, key, value) && node.mode & 0o777 == permissions,
            Outcome::OnlyMode(_) | Outcome::Unknown | Outcome::Invalid => false,
        };
        if !allowed {
            return Err(format!("the extended attribute \"{}\"", crate::error::show(key)));
        }
    }
    Ok(())
}

fn kind(content: &Content) -> EntryKind {
    match content {
        Content::Dir(_) => EntryKind::Dir,
        Content::File { .. } => EntryKind::File,
        Content::Symlink(_) => EntryKind::Symlink,
        Content::CharDevice(_) => EntryKind::Char,
        Content::BlockDevice(_) => EntryKind::Block,
        Content::Fifo => EntryKind::Fifo,
    }
}
