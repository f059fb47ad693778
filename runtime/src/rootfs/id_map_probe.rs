//! Whether containers can have user namespaces of their own: the parts that are the same for every container of a node.
//!
//! It is tried out. Only the support of overlayfs is known by the kernel's version. No mount is ever attached.

use std::path::Path;

use super::mount_tree::{clone_one, map_tree};
use crate::{
    error::{Context, RuntimeError},
    id_map::{IdMap, refuses_namespaces},
    plan::{IDS_PER_CONTAINER, IdRange},
    sys,
};

/// The first version of Linux with which overlayfs takes id-mapped directories.
const MAPPED_OVERLAY: (u32, u32) = (5, 19);

/// The reason why no container can have a user namespace of its own; `None` if there is none.
///
/// # Errors
///
/// The result is unknown.
pub(crate) fn user_namespace_problem(
    state_dir: &Path,
    data_dir: &Path,
    kernel: (u32, u32),
) -> Result<Option<String>, RuntimeError> {
    match try_out(state_dir, data_dir, kernel) {
        Ok(()) => Ok(None),
        Err(RuntimeError::UserNamespace(problem)) => Ok(Some(problem)),
        Err(error) => Err(error),
    }
}

fn try_out(state_dir: &Path, data_dir: &Path, kernel: (u32, u32)) -> Result<(), RuntimeError> {
    // Any ids: no process gets them.
    let map = IdMap::probe(IdRange { first: IDS_PER_CONTAINER })?;
    for (option, directory) in [("state_dir", state_dir), ("data_dir", data_dir)] {
        let mount = clone_one(directory).context(|| format!("copying the mount of {}", directory.display()))?;
        map_tree(&mount, Some(&map), || format!("`{option}` {}", directory.display()))?;
    }
    if kernel < MAPPED_OVERLAY {
        let (major, minor) = MAPPED_OVERLAY;
        let text = format!("overlayfs takes id-mapped directories since Linux {major}.{minor}");
        return Err(RuntimeError::UserNamespace(text));
    }
    match sys::try_proc_in_user_namespace() {
        Err(error) if refuses_namespaces(&error) => {
            let text = format!(
                "the kernel mounts no /proc in a user namespace of this node: {error}. It refuses that where parts of \
                 the node's own /proc are covered, for example in a container"
            );
            Err(RuntimeError::UserNamespace(text))
        }
        tried => tried.context(|| "mounting /proc in a user namespace".to_owned()),
    }
}
