//! The work directory of a run, and new file systems for each program.
//!
//! The roots of containers are on new ext4 file systems on loop devices. A used file system that has just lost
//! thousands of files is much slower, which would favour the first program. State directories that are in `/run` by
//! default are in memory here, too.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use fixtures::must::Must;
use tempfile::TempDir;

/// The directory of the tmpfs.
const MEMORY: &str = "memory";
/// The size of a file system. The file is sparse.
const SIZE: u64 = 6 << 30;

/// The directory of a run.
#[derive(Debug)]
pub struct WorkDirectory {
    directory: TempDir,
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // Some programs leave mounts behind: dockerd its network namespace, podman its store.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let left: Vec<&str> = points.filter(|point| Path::new(point).starts_with(self.directory.path())).collect();
        for point in left.iter().rev() {
            Command::new("umount").arg(point).status().ok();
        }
    }
}

/// A new file system. It is removed when the value is dropped.
#[derive(Debug)]
pub struct Fresh {
    image: PathBuf,
    point: PathBuf,
    memory: PathBuf,
}

impl WorkDirectory {
    /// Makes a new work directory.
    pub fn new() -> Self {
        let workdir = Self { directory: TempDir::with_prefix("oci-rs-bench-").must("a directory for the run") };
        tool("mount", &["-t", "tmpfs", "-o", "mode=0700", "bench", &text(&workdir.directory(MEMORY))]);
        workdir
    }

    /// A directory in memory.
    pub fn memory(&self, name: &str) -> PathBuf {
        self.directory(&format!("{MEMORY}/{name}"))
    }

    /// A directory on disk.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).must("a directory of the run");
        path
    }

    /// Makes a new file system.
    pub fn fresh(&self, name: &str) -> Fresh {
        let image = self.directory.path().join(format!("{name}.ext4"));
        let file = fs::File::create(&image).must("a file for a file system");
        file.set_len(SIZE).must("space for a file system");
        drop(file);
        let point = self.directory(name);
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        tool("mkfs.ext4", &["-q", "-F", "-N", "400000", "-E", options, &text(&image)]);
        tool("mount", &["-o", "loop", &text(&image), &text(&point)]);
        Fresh { image, point, memory: self.memory(name) }
    }
}

impl Fresh {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// A directory in memory. It is removed with the file system.
    pub fn memory(&self) -> &Path {
        &self.memory
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // Recursive, because a daemon may have left mounts. Repeated, because podman cleans up in background processes.
        let deadline = Instant::now() + Duration::from_secs(20);
        let unmount = || Command::new("umount").args(["-R", &text(&self.point)]).output();
        while !unmount().is_ok_and(|output| output.status.success()) {
            if Instant::now() > deadline {
                crate::report::note(&format!("{} is still mounted", self.point.display()));
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        fs::remove_file(&self.image).ok();
        fs::remove_dir_all(&self.memory).ok();
    }
}

/// A path as text.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs a program that must succeed, and returns its output.
pub fn tool(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().must(program);
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
