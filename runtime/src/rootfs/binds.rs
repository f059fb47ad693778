//! Bind mounts that are made before the engine begins.
//!
//! The engine makes one mount after the other, each with some 75 system calls. A bind takes a handful here, and what is mounted in the root
//! file system goes with it wherever the engine takes it. Left to the engine are binds that depend on its own mounts: below `/proc`, `/dev`
//! and `/sys`, in or over a file system that it makes, and all of them if one is to follow the host.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, OFlags, fstat},
    io,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use super::{Root, tree};
use crate::{
    error::{StartError, StartErrorKind},
    spec::{
        below_virtual,
        libcontainer_spec::{Mount, Spec},
    },
    sys::make_private,
};

/// Makes the binds of a spec that need not be the engine's, and takes them out of it. A source in the directory `own` is a mount that nobody
/// else needs.
pub(crate) fn make_binds(root: &Root, own: &Path, spec: &mut Spec) -> Result<(), StartError> {
    let propagation = spec.linux().as_ref().and_then(|linux| linux.rootfs_propagation().as_deref());
    if propagation != Some("private") {
        return Ok(());
    }
    let mut left: Vec<(PathBuf, Mount)> = Vec::new();
    for mount in spec.mounts_mut().take().unwrap_or_default() {
        let free = |place: &Path| !below_virtual(place) && left.iter().all(|(other, _)| apart(other, place));
        let made = match Bind::of(&mount).filter(|bind| !below_virtual(bind.destination)) {
            Some(bind) => bind.make(root, own, free).map_err(|error| bind.failed(&error))?,
            None => false,
        };
        if !made {
            let place = root.real_path(mount.destination()).unwrap_or_else(|_| mount.destination().clone());
            left.push((place, mount));
        }
    }
    spec.set_mounts(Some(left.into_iter().map(|(_, mount)| mount).collect()));
    Ok(())
}

/// Whether neither of two places lies in the other.
fn apart(one: &Path, other: &Path) -> bool {
    !one.starts_with(other) && !other.starts_with(one)
}

/// A bind mount as the spec has it.
struct Bind<'a> {
    source: &'a Path,
    destination: &'a Path,
    readonly: bool,
}

impl<'a> Bind<'a> {
    /// `None` for another kind of mount, or one with options of which nothing is known here.
    fn of(mount: &'a Mount) -> Option<Self> {
        let source = mount.source().as_deref().filter(|_| mount.typ().as_deref() == Some("bind"))?;
        let options = mount.options().iter().flatten().map(String::as_str);
        let mut bind = Self { source, destination: mount.destination(), readonly: false };
        for option in options {
            match option {
                "rbind" | "rprivate" => {}
                "rro" => bind.readonly = true,
                _ => return None,
            }
        }
        Some(bind)
    }

    /// Makes it, unless the place where it would stand is not `free`.
    fn make(&self, root: &Root, own: &Path, free: impl Fn(&Path) -> bool) -> std::io::Result<bool> {
        let tree = self.tree(own)?;
        let is_directory = FileType::from_raw_mode(fstat(&tree)?.st_mode) == FileType::Directory;
        if is_directory {
            root.make_dirs(self.destination).map(drop)?
        } else {
            root.make_file(self.destination)?
        }
        // What is open is what is mounted on: others may exchange what leads there.
        let place = root.resolve(self.destination, OFlags::PATH)?;
        if !free(&root.path_of(&place)?) {
            return Ok(false);
        }
        make_private(tree.as_fd(), self.readonly)?;
        let by_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&tree, "", &place, "", by_descriptors)?;
        Ok(true)
    }

    /// The mounts to put there: our own mount itself, or a copy.
    fn tree(&self, own: &Path) -> io::Result<OwnedFd> {
        if self.source.starts_with(own) {
            open_tree(CWD, self.source, OpenTreeFlags::OPEN_TREE_CLOEXEC)
        } else {
            tree::copy(self.source)
        }
    }

    fn failed(&self, error: &std::io::Error) -> StartError {
        let (source, destination) = (self.source.display(), self.destination.display());
        StartError::new(
            StartErrorKind::MountSource,
            format!("mounting {source} at {destination} in the container: {error}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::libcontainer_spec::MountBuilder;

    #[test]
    fn places_that_touch() {
        for (one, other, expected) in [
            ("/a", "/a", false),
            ("/a", "/a/b", false),
            ("/a/b", "/a", false),
            ("/a/b", "/a/c", true),
            ("/a", "/ab", true),
        ] {
            assert_eq!(apart(Path::new(one), Path::new(other)), expected, "{one} {other}");
        }
    }

    #[test]
    fn binds_that_are_understood() {
        let readonly = |typ: &str, options: &[&str]| {
            let options = options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
            let mount = MountBuilder::default().typ(typ).source("/s").destination("/d").options(options).build();
            Bind::of(&mount.unwrap()).map(|bind| bind.readonly)
        };
        assert_eq!(readonly("bind", &["rbind", "rprivate"]), Some(false));
        assert_eq!(readonly("bind", &["rbind", "rro", "rprivate"]), Some(true));
        assert_eq!(readonly("bind", &["rbind", "rslave"]), None, "the engine knows");
        assert_eq!(readonly("bind", &["rbind", "noexec"]), None);
        assert_eq!(readonly("tmpfs", &[]), None);
    }
}
