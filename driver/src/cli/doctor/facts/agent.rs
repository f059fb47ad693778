//! The Nomad agents of this node.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{answer, program};
use crate::cli::doctor::checks::agent::Agent;

/// The settings of a unit that the checks look at.
const SETTINGS: &str = "--property=KillMode,TasksMax,Delegate";

/// All agents.
pub fn agents() -> Vec<Agent> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    processes.filter(|(_, process)| is_agent(process)).map(|(pid, process)| agent(pid, &process)).collect()
}

fn is_agent(process: &Path) -> bool {
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut arguments = command.split(|byte| *byte == 0);
    let program = arguments.next().unwrap_or_default();
    let is_nomad = program == b"nomad" || program.ends_with(b"/nomad");
    is_nomad && arguments.any(|argument| argument == b"agent")
}

fn agent(pid: i32, process: &Path) -> Agent {
    let read = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let version = answer(&process.join("exe"), &["version"]);
    Agent {
        pid,
        version: version.map(|text| String::from_utf8_lossy(&text).into_owned()),
        open_files: open_files(&read("limits")),
        capabilities: capabilities(&read("status")),
        own_mounts: namespace(process).is_some_and(|own| namespace(Path::new("/proc/1")).is_some_and(|all| own != all)),
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

/// The settings of a unit, from systemd.
fn settings(unit: &str) -> Option<BTreeMap<String, String>> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let systemctl: PathBuf = program("systemctl")?;
    let answer = String::from_utf8(answer(&systemctl, &["show", SETTINGS, unit])?).ok()?;
    let settings = answer.lines().filter_map(|line| line.split_once('='));
    Some(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{agent, capabilities, is_agent, open_files, unit};

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
    fn agents_are_told_from_other_processes() {
        let process = tempfile::tempdir().unwrap();
        for (command, expected) in [
            ("/usr/bin/nomad\0agent\0-dev\0", true),
            ("nomad\0agent\0", true),
            ("nomad\0status\0", false),
            ("/usr/bin/notnomad\0agent\0", false),
            ("", false),
        ] {
            fs::write(process.path().join("cmdline"), command).unwrap();
            assert_eq!(is_agent(process.path()), expected, "{command:?}");
        }
        // This process has the limits of the test.
        let own = agent(7, Path::new("/proc/self"));
        assert!(own.capabilities > 0 && own.pid == 7);
    }
}
