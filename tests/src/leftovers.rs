//! What a test process that was killed left on the machine.
//!
//! A process locks the directory of each of its nodes, and the lock is free when the process has ended. The first node
//! of a process removes the nodes of ended processes.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::Path,
    sync::Once,
};

use fixtures::must::Must;
use rustix::{
    fs::{FlockOperation, flock},
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

use crate::{
    alloc::{ip, remove_groups},
    leak::Traces,
};

/// The beginning of the names of all nodes' directories.
pub const PREFIX: &str = "oci-rs-kit-";
/// The locked file in a node's directory.
const LOCK: &str = "owner";

/// Says that the node belongs to this process, as long as the returned file is open.
pub fn claim(root: &Path) -> File {
    let unnamed = root.join("owner.new");
    let file = File::create(&unnamed).must("a file for the node's lock");
    // Before it has its name: another process takes a file with that name and a free lock for that of an ended process.
    flock(&file, FlockOperation::NonBlockingLockExclusive).must("lock the node");
    fs::rename(unnamed, root.join(LOCK)).must("name the node's lock");
    file
}

/// Removes the nodes of processes that have ended, once in this process.
pub fn remove_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
        for root in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
            remove_if_left(&root.path());
        }
    });
}

fn remove_if_left(root: &Path) {
    let Ok(lock) = File::open(root.join(LOCK)) else { return };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let allocs = fs::read_dir(root.join("alloc")).into_iter().flatten().flatten();
    let allocs: BTreeSet<String> = allocs.map(|alloc| alloc.file_name().to_string_lossy().into_owned()).collect();
    let traces = || Traces::find(root, &[root.to_owned()], &allocs);
    // A monitor may start one more process, so this runs twice.
    for _ in 0..2 {
        for pid in traces().processes.into_iter().filter_map(|(pid, _)| Pid::from_raw(pid)) {
            kill_process(pid, Signal::KILL).ok();
        }
    }
    let left = traces();
    for point in left.mounts.iter().rev() {
        unmount(point, UnmountFlags::DETACH).ok();
    }
    for namespace in left.namespaces.iter().filter_map(|path| path.file_name()?.to_str()) {
        ip(&["netns", "delete", namespace]).ok();
    }
    allocs.iter().for_each(|alloc| remove_groups(alloc));
    fs::remove_dir_all(root).ok();
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, mount};

    use super::*;

    #[test]
    fn the_node_of_an_ended_process_is_removed_and_that_of_another_is_not() {
        let directory = tempfile::tempdir().must("a directory");
        let node = |name: &str| {
            let root = directory.path().join(name);
            fs::create_dir_all(root.join("alloc/secrets")).must("a node's directory");
            root
        };
        let (left, used, unknown) = (node("left"), node("used"), node("unknown"));
        if rustix::process::geteuid().is_root() {
            mount("tmpfs", left.join("alloc/secrets"), "tmpfs", MountFlags::empty(), None).must("a mount");
        }
        drop(claim(&left));
        let _lock = claim(&used);
        for root in [&left, &used, &unknown] {
            remove_if_left(root);
        }
        assert!(!left.exists());
        assert!(used.exists(), "its process runs");
        assert!(unknown.exists(), "its process may not have locked it yet");
    }
}
