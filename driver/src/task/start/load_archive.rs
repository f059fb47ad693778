//! The archive that the option `load` names, opened without leaving the task's directory.
//!
//! The content of that directory is untrusted, links included: the task or an artifact wrote it.

use std::os::fd::OwnedFd;

use host::resolve::open_below;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{error::TaskError, plan::NomadTask};

/// Opens `path`, relative to the task's local directory. A FIFO does not block; the reader checks the file's type.
pub fn open(task: &NomadTask, path: &str) -> Result<OwnedFd, TaskError> {
    let directory = task.alloc_dir.join(&task.name);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&directory, flags, Mode::empty()).map_err(|error| {
        TaskError::Internal(format!("the task's directory {directory:?} cannot be opened: {error}"))
    })?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let below = format!("local/{path}");
    let problem = match open_below(&root, below.as_str(), flags, resolve) {
        Ok(archive) => return Ok(archive),
        Err(Errno::NOENT) => "does not exist: fetch it with an `artifact` block, whose files land in local/".to_owned(),
        Err(Errno::XDEV | Errno::LOOP) => "leads out of the task's directory: remove the link".to_owned(),
        Err(error) => format!("cannot be opened: {error}"),
    };
    Err(TaskError::Confinement(format!("option load: the image archive {below:?} {problem}")))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::open;
    use crate::plan::NomadTask;

    #[test]
    fn only_files_below_the_tasks_directory_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("alloc/web/local");
        fs::create_dir_all(&local).unwrap();
        fs::write(directory.path().join("secret"), "").unwrap();
        fs::write(local.join("image.tar"), "").unwrap();
        symlink("image.tar", local.join("inside")).unwrap();
        symlink("../../../secret", local.join("relative")).unwrap();
        symlink(directory.path().join("secret"), local.join("absolute")).unwrap();
        symlink("/proc/self/root", local.join("magic")).unwrap();
        let task = NomadTask { name: "web".into(), alloc_dir: directory.path().join("alloc"), ..NomadTask::default() };
        for path in ["image.tar", "./image.tar", "inside", ""] {
            open(&task, path).unwrap();
        }
        for (path, expected) in [
            ("relative", "leads out"),
            ("absolute", "leads out"),
            ("magic", "leads out"),
            ("../../../secret", "leads out"),
            ("none.tar", "does not exist"),
        ] {
            let error = open(&task, path).unwrap_err();
            assert!(error.to_string().contains(expected) && !error.recoverable(), "{path}: {error}");
        }
    }
}
