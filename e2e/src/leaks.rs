//! Leftovers: processes, mounts, cgroups, network namespaces, interfaces, addresses, firewall rules, directories.
//!
//! A leftover contains the name of an agent's directory or of one of its allocations, so that other programs can use
//! the machine. In the run's own network namespace, every network resource of a task is a leftover.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, id},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};

use crate::{
    network,
    process::{self, Process},
    watch::patient,
};

/// The first words of a leftover that is a network namespace.
pub(crate) const NAMESPACE: &str = "network namespace";

/// What is left behind does not change for this long.
const REST: Duration = Duration::from_secs(15);
/// What changes for ever is left behind too.
const LIMIT: Duration = Duration::from_secs(120);

/// Polls until nothing is left, or until what is left does not change any more. The kernel and Nomad clean up in the
/// background. For one network, Nomad's CNI plugins execute iptables many times. Beside two other agents and their
/// tasks that can take more than 15 seconds.
#[must_use]
pub fn settle(look: impl Fn() -> Vec<String>) -> Vec<String> {
    let begun = Instant::now();
    let (mut left, mut changed) = (Vec::new(), begun);
    loop {
        let found = look();
        if found != left {
            (left, changed) = (found, Instant::now());
        }
        if left.is_empty() || changed.elapsed() > patient(REST) || begun.elapsed() > patient(LIMIT) {
            return left;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The leftovers of ended jobs while their agent still runs.
#[must_use]
pub fn of_jobs(directory: &Path, allocs: &[String]) -> Vec<String> {
    let mut found: Vec<String> = processes(directory, allocs)
        .into_iter()
        .filter(|process| !is_agent(process, directory))
        .map(|process| format!("process {}: {}", process.pid, process.command))
        .collect();
    found.extend(
        mounts(directory)
            .into_iter()
            .filter(|mount| !mount.contains("/client/alloc/"))
            .map(|mount| format!("mount {mount}")),
    );
    found.extend(cgroups(allocs));
    found.extend(of_networks(directory, allocs));
    for inside in ["state/tasks", "state/groups", "data/containers"] {
        found.extend(entries(&directory.join(inside)).map(|entry| format!("directory {}", entry.display())));
    }
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The namespaces, records, interfaces, firewall rules and addresses of tasks.
#[must_use]
pub fn of_networks(directory: &Path, allocs: &[String]) -> Vec<String> {
    let namespaces = allocs.iter().map(|alloc| format!("/run/netns/{alloc}")).filter(|path| Path::new(path).exists());
    let mut found: Vec<String> = namespaces.map(|path| format!("{NAMESPACE} {path}")).collect();
    found.extend(entries(&directory.join("state/networks")).map(|entry| format!("record {}", entry.display())));
    found.extend(interfaces());
    found.extend(firewall_rules(allocs));
    found.extend(leases(directory, allocs).iter().map(|lease| format!("lease {}", lease.display())));
    found
}

/// Removes the network namespaces of ended allocations, for a Nomad that leaves them behind.
pub(crate) fn remove_namespaces(allocs: &[String]) {
    for alloc in allocs {
        let namespace = Path::new("/run/netns").join(alloc);
        if namespace.exists() {
            // What cannot be removed is reported as a leftover.
            unmount(&namespace, UnmountFlags::DETACH).ok();
            fs::remove_file(&namespace).ok();
        }
    }
}

/// The leftovers after the end of the agent.
#[must_use]
pub fn of_agent(directory: &Path, allocs: &[String]) -> Vec<String> {
    let mut found = of_jobs(directory, allocs);
    let left = processes(directory, allocs).into_iter().filter(|process| is_agent(process, directory));
    found.extend(left.map(|process| format!("process {}: {}", process.pid, process.command)));
    found.extend(
        mounts(directory)
            .into_iter()
            .filter(|mount| mount.contains("/client/alloc/"))
            .map(|mount| format!("mount {mount}")),
    );
    found
}

/// The mount points below a directory.
#[must_use]
pub fn mounts(directory: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let prefix = format!("{}/", directory.display());
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| point.starts_with(&prefix)).map(str::to_owned).collect()
}

/// Ends processes and removes mounts by force. Returns the failures.
pub(crate) fn remove_by_force(directory: &Path, allocs: &[String]) -> Vec<String> {
    let mut trouble = Vec::new();
    for process in processes(directory, allocs) {
        process::signal(process.pid, Signal::KILL);
        if !process::wait_gone(process.pid, Duration::from_secs(5)).unwrap_or(false) {
            trouble.push(format!("process {} does not end: {}", process.pid, process.command));
        }
    }
    // Nested mounts come later in the table.
    for mount in mounts(directory).into_iter().rev() {
        if let Err(error) = unmount(&mount, UnmountFlags::DETACH) {
            trouble.push(format!("{mount}: {error}"));
        }
    }
    remove_namespaces(allocs);
    for lease in leases(directory, allocs) {
        fs::remove_file(lease).ok();
    }
    trouble
}

/// The processes that run from the directory, contain its path, or belong to a task of one of the allocations.
fn processes(directory: &Path, allocs: &[String]) -> Vec<Process> {
    let directory = directory.display().to_string();
    let mut found = process::find(|process| {
        process.command.contains(&directory)
            || process.exe.starts_with(&directory)
            || process::alloc_of(process.pid).is_some_and(|alloc| allocs.contains(&alloc))
    });
    found.retain(|process| process.pid != id().cast_signed());
    found
}

/// Whether the process is the server, the client or a plugin of the client. They outlive jobs.
fn is_agent(process: &Process, directory: &Path) -> bool {
    Path::new(&process.exe).parent() == Some(&directory.join("plugins"))
        || process.command.contains(&format!("agent -config {}/", directory.display()))
}

fn cgroups(allocs: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![Path::new("/sys/fs/cgroup").to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if allocs.iter().any(|alloc| name.contains(alloc)) {
                found.push(format!("cgroup {}", entry.path().display()));
            } else {
                directories.push(entry.path());
            }
        }
    }
    found
}

/// The veth interfaces of tasks. The kernel removes a pair together with the task's namespace.
fn interfaces() -> Vec<String> {
    let pairs = output_of("ip", &["-brief", "link", "show", "type", "veth"]);
    let names = pairs.lines().filter_map(|line| line.split(['@', ' ']).next());
    names
        .filter(|name| !name.is_empty() && *name != network::INTERFACE)
        .map(|name| format!("interface {name}"))
        .collect()
}

/// The firewall rules with an allocation's id, and the rules of CNI plugins for one address. Chains of a network stay.
fn firewall_rules(allocs: &[String]) -> Vec<String> {
    let of_a_task = |line: &str| {
        let chain = line.split_whitespace().nth(usize::from(line.starts_with("-A"))).unwrap_or_default();
        let own = |prefix: &str| chain.trim_start_matches(':').strip_prefix(prefix).is_some_and(is_hash);
        own("CNI-")
            || own("CNI-DN-")
            || line.starts_with("-A CNI-FORWARD -d ")
            || line.starts_with("-A CNI-FORWARD -s ")
            || allocs.iter().any(|alloc| line.contains(alloc))
    };
    let rules = ["iptables-save", "ip6tables-save"].map(|program| output_of(program, &[])).concat();
    let rules = rules.lines().filter(|line| of_a_task(line)).map(|line| format!("firewall rule {line}"));
    // The published ports of the driver's bridge are elements of maps.
    let ports = output_of("nft", &["list", "ruleset"]);
    let ports = ports.lines().map(str::trim).filter(|line| line.starts_with("elements = "));
    rules.chain(ports.map(|line| format!("firewall rule {line}"))).collect()
}

fn is_hash(text: &str) -> bool {
    text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The address leases of host-local for an allocation, and the records of other CNI plugins.
fn leases(directory: &Path, allocs: &[String]) -> Vec<PathBuf> {
    let holds = |path: &Path| {
        let mut text = fs::read(path).unwrap_or_default();
        text.extend(path.as_os_str().as_encoded_bytes());
        let text = String::from_utf8_lossy(&text).into_owned();
        allocs.iter().any(|alloc| text.contains(alloc))
    };
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> =
        ["/run/cni", "/var/lib/cni"].into_iter().map(PathBuf::from).chain([directory.join("leases")]).collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(kind) if kind.is_file() && holds(&entry.path()) => found.push(entry.path()),
                // Another agent's entry, which was removed meanwhile.
                _ => {}
            }
        }
    }
    found
}

/// The output of a program; empty if the program is not installed.
fn output_of(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}
