//! What the kernel knows of project quotas.

use std::{fs::File, io, path::Path};

use crate::sys;

/// Whether this machine must be able to limit and to encrypt storage: `OCI_RS_QUOTAS=1`. Then a kernel without project
/// quotas or dm-crypt is a failure, and not the reason to skip a test.
pub fn is_required() -> bool {
    std::env::var_os("OCI_RS_QUOTAS").is_some_and(|value| value == "1")
}

/// The limits and the use of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectQuota {
    /// The limit in bytes; 0 is none.
    pub bytes: u64,
    /// The limit of files; 0 is none.
    pub files: u64,
    /// The bytes in use.
    pub used_bytes: u64,
    /// The files in use.
    pub used_files: u64,
}

/// The quota of the project of a directory.
pub fn project_quota(directory: &Path) -> io::Result<ProjectQuota> {
    let directory = File::open(directory)?;
    let project = sys::project_of(&directory)?;
    let ([kibibytes, files], [used_bytes, used_files]) = sys::project_quota(&directory, project)?;
    Ok(ProjectQuota { bytes: kibibytes * 1024, files, used_bytes, used_files })
}

/// The projects with a limit on the file system of a directory.
pub fn limited_projects(directory: &Path) -> io::Result<Vec<u32>> {
    let (directory, mut next, mut limited) = (File::open(directory)?, 0, Vec::new());
    while let Some((project, has_limit)) = sys::next_project(&directory, next)? {
        limited.extend(has_limit.then_some(project));
        let Some(following) = project.checked_add(1) else { break };
        next = following;
    }
    Ok(limited)
}
