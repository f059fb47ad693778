//! Limits of directories by project quotas, where the file system has and enforces them (xfs and ext4 with `prjquota`).

use std::{fs::File, io, os::fd::AsFd};

use crate::sys;
pub use crate::sys::ProjectUsage;

/// Whether the file system of this file enforces limits of projects (Linux 5.14).
pub fn is_enforced(file: &File) -> bool {
    sys::enforces_projects(file.as_fd())
}

/// The project of a file; 0 is none.
pub fn project_of(file: &File) -> io::Result<u32> {
    sys::project_of(file.as_fd())
}

/// Makes a directory, and everything that will be made in it, part of a project.
pub fn set_project(directory: &File, project: u32) -> io::Result<()> {
    sys::set_project(directory.as_fd(), project)
}

/// What a project uses on the file system of this file.
pub fn usage(file: &File, project: u32) -> io::Result<ProjectUsage> {
    sys::project_usage(file.as_fd(), project)
}

/// Sets the limit of a project in bytes. 0 removes it.
pub fn set_limit(file: &File, project: u32, bytes: u64) -> io::Result<()> {
    sys::set_project_limit(file.as_fd(), project, bytes)
}
