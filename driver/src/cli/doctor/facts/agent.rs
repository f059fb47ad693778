//! The Nomad agents of this node.
//!
//! Any process can call itself an agent: that of a user, or that of a container. An agent of this node runs as root, in
//! the doctor's pid namespace and with its root directory. Its mount namespace may be its own, as with `PrivateTmp` in
//! its unit. Its executable file is read, and never executed.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    nomad_program,
    programs::{answer, program},
};
use crate::cli::doctor::checks::agent::{Agent, Agents, UnitSettings};

/// The settings of a unit that the checks look at.
const SETTINGS: &str = "--property=KillMode,TasksMax,Delegate";

/// Where a process is: its pid namespace, and the device and the number of its root directory.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    processes: PathBuf,
    root: (u64, u64),
}

impl Place {
    /// That of a process in `/proc`.
    fn of(process: &Path) -> Option<Self> {
        let root = fs::metadata(process.join("root")).ok()?;
        Some(Self { processes: fs::read_link(process.join("ns/pid")).ok()?, root: (root.dev(), root.ino()) })
    }
}

/// All agents, from `/proc`.
pub fn agents(proc: &Path) -> Agents {
    let node = Place::of(&proc.join("self"));
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    let mut found = Agents::default();
    for (pid, process) in processes {
        let Some(Command { is_named, dev }) = command(&process) else { continue };
        let is_nodes = is_root(&process) && node.is_some() && Place::of(&process) == node;
        // The file of another process is not even read.
        let nomad = File::open(process.join("exe")).ok().filter(|_| is_nodes).and_then(nomad_program::read);
        let is_agent = is_named || nomad.is_some();
        found.dev |= is_agent && dev;
        match (is_agent, is_nodes) {
            (true, true) => found.agents.push(agent(pid, &process, nomad.and_then(|nomad| nomad.version))),
            (true, false) => found.others.push(pid),
            (false, _) => {}
        }
    }
    found
}

/// How a process was started that has the command `agent`.
struct Command {
    /// The program is named `nomad`.
    is_named: bool,
    /// There is an option such as `-dev`.
    dev: bool,
}

/// The command of a process; `None` if it is not `agent`.
fn command(process: &Path) -> Option<Command> {
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut arguments = command.split(|byte| *byte == 0);
    let program = arguments.next().unwrap_or_default();
    let is_named = program == b"nomad" || program.ends_with(b"/nomad");
    let dev = arguments.clone().any(|argument| argument.starts_with(b"-dev") || argument.starts_with(b"--dev"));
    arguments.any(|argument| argument == b"agent").then_some(Command { is_named, dev })
}

/// Whether all user ids of a process are those of root.
fn is_root(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    ids.split_whitespace().count() == 4 && ids.split_whitespace().all(|id| id == "0")
}

fn agent(pid: i32, process: &Path, version: Option<String>) -> Agent {
    let read = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let first = process.parent().map(|proc| proc.join("1"));
    let of_node = first.and_then(|first| namespace(&first));
    Agent {
        pid,
        version,
        open_files: open_files(&read("limits")),
        capabilities: capabilities(&read("status")),
        own_mounts: of_node.is_some_and(|of_node| namespace(process).is_some_and(|own| own != of_node)),
        unit: unit(&read("cgroup")).and_then(|name| Some((name.clone(), settings(&name)?))),
    }
}

/// The soft limit of open files in `/proc/PID/limits`; `None` is unlimited.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The bounding set in `/proc/PID/status`. One that cannot be read counts as complete.
fn capabilities(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(u64::MAX)
}

/// The service in `/proc/PID/cgroup`.
fn unit(cgroups: &str) -> Option<String> {
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let names = paths.filter_map(|path| path.rsplit('/').find(|part| part.ends_with(".service")));
    names.map(str::to_owned).next()
}

/// The settings of a unit, from systemd; `None` on a node without systemd.
fn settings(unit: &str) -> Option<Result<UnitSettings, String>> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let systemctl: PathBuf = program("systemctl")?;
    let of = |answer: String| {
        let settings = answer.lines().filter_map(|line| line.split_once('='));
        settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    Some(answer(&systemctl, &["show", SETTINGS, unit]).map(of))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::{agent, agents, capabilities, open_files, unit};
    use crate::cli::doctor::facts::nomad_program::tests::program;

    #[test]
    fn files_of_the_kernel_are_understood() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288  files\n";
        assert_eq!(
            (open_files(limits), open_files("Max open files  unlimited  unlimited  files"), open_files("")),
            (Some(1024), None, None)
        );
        assert_eq!((capabilities("Name:\tx\nCapBnd:\t00000000a80425fb\n"), capabilities("")), (0xa804_25fb, u64::MAX));
        for (cgroups, expected) in [
            ("0::/system.slice/nomad.service\n", Some("nomad.service")),
            ("12:pids:/system.slice/nomad.service\n1:name=systemd:/x\n", Some("nomad.service")),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(unit(cgroups).as_deref(), expected, "{cgroups}");
        }
    }

    #[test]
    fn only_processes_of_the_node_are_its_agents() {
        const ROOT: &str = "0\t0\t0\t0";
        const USER: &str = "1000\t1000\t1000\t1000";
        let (proc, node, container) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (node, container) = (node.path(), container.path());
        let nomad = program("github.com/hashicorp/nomad", "v1.11.3", &[]);
        let other = program("example.com/other", "v1.11.3", &[]);
        for (pid, command, uids, root, processes, file) in [
            ("self", "oci-rs\0doctor\0", ROOT, node, "pid:[1]", &other),
            ("2", "/usr/bin/nomad\0agent\0-dev\0", ROOT, node, "pid:[1]", &nomad),
            ("3", "/opt/orchestrator-1.11\0agent\0", ROOT, node, "pid:[1]", &nomad),
            ("4", "nomad\0agent\0", ROOT, node, "pid:[1]", &other),
            ("5", "nomad\0status\0", ROOT, node, "pid:[1]", &nomad),
            ("6", "/usr/bin/notnomad\0agent\0", ROOT, node, "pid:[1]", &other),
            ("7", "", ROOT, node, "pid:[1]", &nomad),
            // Of a user, of a container, of a container that sees the node's processes, and under another name.
            ("8", "nomad\0agent\0", USER, node, "pid:[1]", &nomad),
            ("9", "nomad\0agent\0", ROOT, node, "pid:[2]", &nomad),
            ("10", "nomad\0agent\0", ROOT, container, "pid:[1]", &nomad),
            ("11", "orchestrator\0agent\0", ROOT, container, "pid:[2]", &nomad),
            ("12", "nomad\0agent\0", "1000\t0\t0\t0", node, "pid:[1]", &nomad),
        ] {
            let process = proc.path().join(pid);
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("cmdline"), command).unwrap();
            fs::write(process.join("status"), format!("Name:\tx\nUid:\t{uids}\n")).unwrap();
            fs::write(process.join("exe"), file).unwrap();
            symlink(root, process.join("root")).unwrap();
            symlink(processes, process.join("ns/pid")).unwrap();
        }
        let found = agents(proc.path());
        let mut told: Vec<_> = found.agents.iter().map(|agent| (agent.pid, agent.version.as_deref())).collect();
        told.sort_unstable();
        assert_eq!(told, [(2, Some("1.11.3")), (3, Some("1.11.3")), (4, None)]);
        assert!(found.dev);
        let mut others = found.others;
        others.sort_unstable();
        assert_eq!(others, [8, 9, 10, 12]);
        fs::remove_dir_all(proc.path().join("2")).unwrap();
        assert!(!agents(proc.path()).dev);
        fs::remove_dir_all(proc.path().join("self")).unwrap();
        assert!(agents(proc.path()).agents.is_empty(), "the place of the node is unknown");
        // This process has the limits of the test.
        let own = agent(7, Path::new("/proc/self"), None);
        assert!(own.capabilities > 0 && own.pid == 7);
    }
}
