//! Limits of directories by project quotas, where the file system has and enforces them (xfs and ext4 with `prjquota`).
//!
//! The file system itself says which projects are in use: a project that has a file. A new directory takes a project
//! without files, and is its first file. So no list of projects can be wrong after a kill. The numbers come from a
//! name, so that the limit of another program's project is never touched.

use std::{fs::File, io, os::fd::AsFd};

use host::hash::fnv1a;

use crate::sys;
pub use crate::sys::ProjectUsage;

/// So many projects of one name are tried.
const TRIES: u8 = 16;

/// Numbers of projects for one purpose: `first` and as many more. It is a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectRange {
    first: u32,
}

impl ProjectRange {
    /// Those of writable layers.
    pub(crate) const LAYERS: Self = Self { first: 0x2000_0000 };
    /// Those of host volumes.
    pub const VOLUMES: Self = Self { first: 0x4000_0000 };

    /// The projects that a name may have, in the order in which they are tried.
    pub fn of(self, name: &str) -> impl Iterator<Item = u32> {
        (0..TRIES).map(move |number| {
            let hash = fnv1a(format!("{name}.{number}").as_bytes());
            self.first | (hash as u32 & (self.first - 1))
        })
    }

    /// Whether a name may have this project.
    pub fn has(self, name: &str, project: u32) -> bool {
        self.of(name).any(|own| own == project)
    }
}

/// Whether new directories in this one can be limited. If it has a project itself, no other project can be in it.
pub fn is_available(directory: &File) -> bool {
    is_enforced(directory) && project_of(directory).is_ok_and(|project| project == 0)
}

/// Makes an empty directory part of the first of these projects that has no files, which is the result. `None` if all
/// of them have files. The caller holds a lock against other callers with the same projects.
pub fn take(directory: &File, projects: impl Iterator<Item = u32>) -> io::Result<Option<u32>> {
    for project in projects {
        let used = usage(directory, project)?;
        if used.inodes == 0 && used.bytes == 0 {
            set_project(directory, project)?;
            return Ok(Some(project));
        }
    }
    Ok(None)
}

/// Whether the file system of this file enforces limits of projects (Linux 5.14).
pub fn is_enforced(file: &File) -> bool {
    sys::enforces_projects(file.as_fd())
}

/// The project of a file; 0 is none.
pub fn project_of(file: &File) -> io::Result<u32> {
    sys::project_of(file.as_fd())
}

/// Makes a directory, and everything that will be made in it, part of a project.
fn set_project(directory: &File, project: u32) -> io::Result<()> {
    sys::set_project(directory.as_fd(), project)
}

/// What a project uses on the file system of this file.
pub fn usage(file: &File, project: u32) -> io::Result<ProjectUsage> {
    sys::project_usage(file.as_fd(), project)
}

/// Sets the limits of a project: of its bytes, and of its files if that is given.
pub fn set_limits(file: &File, project: u32, bytes: u64, inodes: Option<u64>) -> io::Result<()> {
    sys::set_project_limits(file.as_fd(), project, bytes, inodes)
}

/// Removes the limits of a project. Without quotas there are none.
pub fn remove_limits(file: &File, project: u32) -> io::Result<()> {
    match sys::set_project_limits(file.as_fd(), project, 0, Some(0)) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) || error.kind() == io::ErrorKind::Unsupported => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The limit of an existing volume is found by these numbers.
    #[test]
    fn the_numbers_of_a_name_stay_the_same() {
        let first = ProjectRange::VOLUMES.of("4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01").next();
        let hash = fnv1a(b"4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01.0") as u32;
        assert_eq!(first, Some(0x4000_0000 | (hash & 0x3fff_ffff)));
    }

    proptest! {
        /// No layer and no volume can get a project of the other kind, and none that an operator is likely to use.
        #[test]
        fn ranges_are_apart(name in "[a-z0-9-]{1,40}") {
            for (layer, volume) in ProjectRange::LAYERS.of(&name).zip(ProjectRange::VOLUMES.of(&name)) {
                prop_assert!((0x2000_0000..0x4000_0000).contains(&layer), "{layer:x}");
                prop_assert!((0x4000_0000..0x8000_0000).contains(&volume), "{volume:x}");
                prop_assert!(ProjectRange::LAYERS.has(&name, layer) && !ProjectRange::VOLUMES.has(&name, layer));
                prop_assert!(ProjectRange::VOLUMES.has(&name, volume) && !ProjectRange::LAYERS.has(&name, volume));
            }
        }
    }
}
