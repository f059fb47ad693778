//! A part of phase 4: whether a mount may be at its place in the root.

use std::{io, path::Path};

use crate::{
    rootfs::Root,
    spec::{self, CGROUP_DIR},
};

/// Checks that no link of the image leads a mount to a place where the plan may not mount.
pub(super) fn check_place(root: &Root, path: &Path) -> io::Result<()> {
    let real = root.real_path(path)?;
    let over_groups = real != path && real.starts_with(CGROUP_DIR);
    if spec::may_be_covered(&real) && !over_groups {
        return Ok(());
    }
    let cause = if real == path { "it" } else { "the image's links lead it to a place that" };
    Err(io::Error::other(format!("{cause} cannot be covered: {}", real.display())))
}
