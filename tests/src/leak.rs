//! The traces of a node on the machine. A test fails when a trace is left at its end.
//!
//! Tests run concurrently, so the state before the test is not compared. A trace contains the path of the node's
//! directories or the id of one of its allocations.

use std::{
    collections::BTreeSet,
    fmt, fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use fixtures::{
    cgroup,
    process::{all_pids, command_line},
};

/// Traces of a node on the machine.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Traces {
    /// Processes whose command line, environment or cgroup names the node: pid and command line.
    pub processes: Vec<(i32, String)>,
    /// Mount points below the driver's directories in the host's mount table. A running task has none, except the
    /// pinned namespace of its own network.
    pub mounts: Vec<String>,
    /// Loop devices of files in the driver's directories.
    pub loop_devices: Vec<String>,
    /// Cgroups that carry an allocation's id.
    pub cgroups: Vec<PathBuf>,
    /// Network namespaces that carry an allocation's id.
    pub namespaces: Vec<PathBuf>,
    /// Files of single tasks in the driver's directories.
    pub files: Vec<PathBuf>,
}

impl Traces {
    /// Finds the traces of a node with these directories and allocations.
    pub fn find(root: &Path, driver_dirs: &[PathBuf], allocs: &BTreeSet<String>) -> Self {
        Self {
            processes: processes(root, allocs),
            mounts: mounts(driver_dirs),
            loop_devices: loop_devices(driver_dirs),
            cgroups: allocs.iter().flat_map(|alloc| cgroup::find(alloc)).collect(),
            namespaces: namespaces(allocs),
            files: files(driver_dirs, allocs),
        }
    }

    /// Whether there are no traces.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (pid, command) in &self.processes {
            writeln!(f, "process {pid}: {command}")?;
        }
        for mount in &self.mounts {
            writeln!(f, "mount in the host's table: {mount}")?;
        }
        for device in &self.loop_devices {
            writeln!(f, "loop device of {device}")?;
        }
        for path in &self.cgroups {
            writeln!(f, "cgroup {} (members {:?})", path.display(), cgroup::members(path))?;
        }
        for path in &self.namespaces {
            writeln!(f, "network namespace {}", path.display())?;
        }
        for path in &self.files {
            writeln!(f, "file {}", path.display())?;
        }
        Ok(())
    }
}

fn processes(root: &Path, allocs: &BTreeSet<String>) -> Vec<(i32, String)> {
    let own = std::process::id().cast_signed();
    let root = root.to_string_lossy();
    let belongs = |pid: &i32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let text = [read("cmdline"), read("environ"), read("cgroup")].concat();
        let text = String::from_utf8_lossy(&text);
        text.contains(&*root) || allocs.iter().any(|alloc| text.contains(alloc.as_str()))
    };
    all_pids().into_iter().filter(|pid| *pid != own && belongs(pid)).map(|pid| (pid, command_line(pid))).collect()
}

fn mounts(driver_dirs: &[PathBuf]) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| driver_dirs.iter().any(|dir| Path::new(point).starts_with(dir))).map(str::to_owned).collect()
}

fn loop_devices(driver_dirs: &[PathBuf]) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    // Only a device with a file has this attribute.
    let files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| driver_dirs.iter().any(|dir| Path::new(file).starts_with(dir))).collect()
}

fn namespaces(allocs: &BTreeSet<String>) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| allocs.iter().any(|alloc| path.to_string_lossy().contains(alloc.as_str()))).collect()
}

fn files(driver_dirs: &[PathBuf], allocs: &BTreeSet<String>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = driver_dirs.to_vec();
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            // The files of layers belong to images, not to tasks.
            if name == "layers" {
                continue;
            }
            // Each entry of these directories belongs to one task, also when its name has no allocation id.
            let of_a_task =
                ["tasks", "networks", "containers", "leases"].iter().any(|parent| directory.ends_with(parent));
            // A used address is a file with that name, in the directory of its network.
            let lease = directory.parent().is_some_and(|parent| parent.ends_with("addresses"))
                && name.to_str().is_some_and(|name| name.parse::<IpAddr>().is_ok());
            let named = |alloc: &String| name.to_string_lossy().contains(alloc.as_str());
            if of_a_task || lease || allocs.iter().any(named) {
                found.push(entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    found.sort();
    found
}
