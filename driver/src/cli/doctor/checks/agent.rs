//! The Nomad agent: its version, its limits, and its systemd unit.

use std::collections::BTreeMap;

use crate::health::Finding;

/// The supported minor versions of Nomad 1; `docs/nomad-versions.md` has the list that is tested.
const SUPPORTED: std::ops::RangeInclusive<u32> = 8..=11;
/// The oldest minor version of Nomad 1 that removes the network namespaces of groups; `docs/nomad-versions.md`.
const REMOVES_NAMESPACES: u32 = 10;
/// With fewer descriptors, mounts of layers are released and made again and again.
const ENOUGH_FILES: u64 = 65_536;
/// With fewer, no node with a handful of tasks works.
const TOO_FEW_FILES: u64 = 1024;
/// Each task has a monitor in the agent's cgroup, and each command a helper; the plugin has threads.
const ENOUGH_PROCESSES: u64 = 10_000;
/// The capabilities without which no container can be made, and their bits (capabilities(7)).
const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_SYS_ADMIN", 21), ("CAP_NET_ADMIN", 12), ("CAP_SYS_CHROOT", 18), ("CAP_MKNOD", 27)];

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Agents {
    /// The agents of this node.
    pub agents: Vec<Agent>,
    /// Processes that call themselves agents and are of a user or in a container.
    pub others: Vec<i32>,
    /// One of them all was started with `-dev`.
    pub dev: bool,
}

/// An agent of this node.
#[derive(Debug, Clone, Default)]
pub struct Agent {
    /// The process.
    pub pid: i32,
    /// The version of Nomad, as in `1.11.3`; `None` if its file does not contain it.
    pub version: Option<String>,
    /// The soft limit of open files; `None` is unlimited.
    pub open_files: Option<u64>,
    /// The bounding set of capabilities.
    pub capabilities: u64,
    /// It has a mount namespace of its own.
    pub own_mounts: bool,
    /// Its systemd unit, and the unit's settings or why they are unknown.
    pub unit: Option<(String, Result<UnitSettings, String>)>,
}

/// The settings of a systemd unit by their names.
pub type UnitSettings = BTreeMap<String, String>;

/// Judges the agents of this node.
pub fn judge(Agents { agents, others, .. }: &Agents) -> Vec<Finding> {
    if agents.is_empty() {
        // A user can start any number of them.
        let told = others.iter().min().map_or(String::new(), |pid| {
            format!("; processes that are not root's or in a container do not count, as process {pid}")
        });
        let reason = format!("no Nomad agent runs on this node{told}");
        return vec![Finding::warning("agent", reason, "start it: systemctl start nomad")];
    }
    agents.iter().flat_map(judge_one).collect()
}

fn judge_one(agent: &Agent) -> Vec<Finding> {
    let mut findings = vec![version(agent.version.as_deref())];
    findings.extend(agent.version.as_deref().and_then(combination));
    findings.push(files(agent.open_files));
    let missing: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, bit)| agent.capabilities >> bit & 1 == 0).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        findings.push(Finding::error(
            "capabilities",
            format!("the agent (process {}) lacks {}: no task can start", agent.pid, missing.join(", ")),
            "remove CapabilityBoundingSet from the agent's unit",
        ));
    }
    if agent.own_mounts {
        findings.push(Finding::warning(
            "mounts",
            "the agent has a mount namespace of its own: mounts of the node may be missing in tasks, and mounts of \
             tasks are not seen by others",
            "remove PrivateTmp, ProtectSystem, ProtectHome, PrivateDevices and the like from the agent's unit",
        ));
    }
    match &agent.unit {
        Some((name, Ok(settings))) => findings.extend(unit(name, settings)),
        Some((name, Err(problem))) => findings.push(Finding::warning(
            "agent",
            format!("the settings of {name} are not looked at: {problem}"),
            format!("run `systemctl show {name}` on this node, and repair systemd"),
        )),
        None => {}
    }
    findings
}

/// The first two numbers of a version.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', '-', '+']).map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// What is known to go wrong with this version of Nomad.
fn combination(text: &str) -> Option<Finding> {
    let (major, minor) = numbers(text)?;
    (major == 1 && SUPPORTED.contains(&minor) && minor < REMOVES_NAMESPACES).then(|| {
        Finding::warning(
            "combination",
            format!("Nomad {text} cannot always remove the network namespace of a group: it stays until a reboot"),
            format!("upgrade Nomad to 1.{REMOVES_NAMESPACES} or newer"),
        )
    })
}

fn version(text: Option<&str>) -> Finding {
    let check = "nomad";
    let unknown =
        |what: &str| Finding::warning(check, format!("the version of Nomad is unknown{what}"), "run `nomad version`");
    let Some(text) = text else { return unknown(": its file does not contain it") };
    let Some((major, minor)) = numbers(text) else { return unknown(&format!(": {text:?}")) };
    let (first, last) = (SUPPORTED.start(), SUPPORTED.end());
    if major == 1 && SUPPORTED.contains(&minor) {
        return Finding::ok(check, format!("Nomad {text}"));
    }
    if (major, minor) < (1, *first) {
        let reason = format!("Nomad {text} is older than 1.{first}, the oldest supported version");
        return Finding::error(check, reason, format!("upgrade Nomad to 1.{first} or newer"));
    }
    Finding::warning(
        check,
        format!("Nomad {text} is newer than 1.{last}, the newest version that this release was tested with"),
        "look for a newer release of oci-rs",
    )
}

fn files(limit: Option<u64>) -> Finding {
    let check = "LimitNOFILE";
    let remedy = format!("set LimitNOFILE={ENOUGH_FILES} in the agent's unit, and restart the agent");
    match limit {
        Some(limit) if limit <= TOO_FEW_FILES => {
            Finding::error(check, format!("the agent may open only {limit} files: tasks fail to start"), remedy)
        }
        Some(limit) if limit < ENOUGH_FILES => Finding::warning(
            check,
            format!("the agent may open {limit} files: with many tasks, layers are mounted again and again"),
            remedy,
        ),
        Some(limit) => Finding::ok(check, format!("the agent may open {limit} files")),
        None => Finding::ok(check, "the agent may open any number of files"),
    }
}

fn unit(name: &str, settings: &UnitSettings) -> Vec<Finding> {
    let setting = |key: &str| settings.get(key).map(String::as_str).unwrap_or_default();
    let mut findings = Vec::new();
    findings.push(match setting("KillMode") {
        "process" | "none" => Finding::ok("KillMode", format!("{name} leaves tasks and monitors alone")),
        mode => Finding::error(
            "KillMode",
            format!(
                "{name} has KillMode={mode}: a stop of the agent kills the monitors, and exit codes and output are lost"
            ),
            format!("systemctl edit {name}: write KillMode=process into [Service]"),
        ),
    });
    let tasks = setting("TasksMax");
    findings.push(match tasks.parse::<u64>() {
        Ok(limit) if limit < ENOUGH_PROCESSES => Finding::warning(
            "TasksMax",
            format!("{name} may have {limit} processes and threads: each task needs a monitor there"),
            format!("systemctl edit {name}: write TasksMax=infinity into [Service]"),
        ),
        _ => Finding::ok("TasksMax", format!("{name} may have enough processes ({tasks})")),
    });
    // Nomad's cgroups are outside of the unit's, so nothing depends on it.
    let delegate = setting("Delegate");
    findings
        .push(Finding::ok("Delegate", format!("{name} has Delegate={delegate}; Nomad's cgroups are outside the unit")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::doctor::checks::tests::expect,
        health::Level::{Error, Ok, Warning},
    };

    fn good() -> Agent {
        Agent { version: Some("1.11.2".into()), capabilities: u64::MAX, ..Agent::default() }
    }

    fn in_unit(settings: &[(&str, &str)]) -> Agent {
        let all = [("KillMode", "process"), ("TasksMax", "infinity"), ("Delegate", "yes")];
        let settings = all.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Agent { unit: Some(("nomad.service".into(), Result::Ok(settings.collect()))), ..good() }
    }

    #[test]
    fn each_fault_of_an_agent_and_its_unit_is_told() {
        let judge =
            |agents: &[Agent]| super::judge(&Agents { agents: agents.to_vec(), others: vec![8, 7], dev: false });
        assert!(judge(&[good(), in_unit(&[])]).iter().all(|finding| finding.level == Ok));
        expect(&judge(&[]), "agent", Warning, "do not count, as process 7");
        let none = super::judge(&Agents::default());
        expect(&none, "agent", Warning, "no Nomad agent runs on this node");
        assert_eq!(none[0].reason, "no Nomad agent runs on this node");
        let version = |text: &str| Agent { version: Some(text.into()), ..good() };
        for (agent, check, level, part) in [
            (Agent { version: None, ..good() }, "nomad", Warning, "unknown"),
            (version("what"), "nomad", Warning, "unknown"),
            (version("1.7.7"), "nomad", Error, "older than 1.8"),
            (version("0.12.0"), "nomad", Error, "older than 1.8"),
            (version("1.12.0-beta.1"), "nomad", Warning, "newer than 1.11"),
            (version("2.0.0"), "nomad", Warning, "newer than 1.11"),
            (version("1.10.5+ent"), "nomad", Ok, "1.10.5"),
            (version("1.8.3+ent"), "combination", Warning, "upgrade Nomad to 1.10"),
            (version("1.9.4"), "combination", Warning, "until a reboot"),
            (Agent { open_files: Some(1024), ..good() }, "LimitNOFILE", Error, "LimitNOFILE=65536"),
            (Agent { open_files: Some(4096), ..good() }, "LimitNOFILE", Warning, "4096"),
            (Agent { open_files: Some(65_536), ..good() }, "LimitNOFILE", Ok, "65536"),
            (Agent { capabilities: !(1 << 21), ..good() }, "capabilities", Error, "lacks CAP_SYS_ADMIN:"),
            (Agent { own_mounts: true, ..good() }, "mounts", Warning, "PrivateTmp"),
            (in_unit(&[("KillMode", "control-group")]), "KillMode", Error, "KillMode=process"),
            (in_unit(&[("KillMode", "mixed")]), "KillMode", Error, "systemctl edit nomad.service"),
            (in_unit(&[("TasksMax", "512")]), "TasksMax", Warning, "TasksMax=infinity"),
            (in_unit(&[("TasksMax", "10000")]), "TasksMax", Ok, "enough"),
            (
                Agent { unit: Some(("nomad.service".into(), Err("killed".into()))), ..good() },
                "agent",
                Warning,
                "killed",
            ),
        ] {
            expect(&judge(&[agent]), check, level, part);
        }
    }
}
