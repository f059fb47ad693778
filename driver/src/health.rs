//! What this node can do, and what is wrong with it: findings about the node in, judgements out.
//!
//! The plugin's health text, its attributes and `oci-rs doctor` use the same judgements, so they cannot disagree.

use std::path::Path;

use runtime::cgroup::Version;

use crate::{
    apparmor,
    config::{DefaultProfile, PluginConfig, Policy, RootChoice, UserNamespaceMode},
    runtimes, selinux,
};

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Something is missing or will fail later.
    Warning,
    /// Tasks cannot run, or are lost.
    Error,
}

impl Level {
    /// The name in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// How serious it is.
    pub level: Level,
    /// What was found, with its consequence.
    pub reason: String,
    /// What to do.
    pub remedy: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(check: &'static str, reason: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, reason: reason.into(), remedy: None }
    }

    /// A warning and its remedy.
    pub fn warning(check: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, reason: reason.into(), remedy: Some(remedy.into()) }
    }

    /// An error and its remedy.
    pub fn error(check: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Error, ..Self::warning(check, reason, remedy) }
    }

    /// Reason and remedy in one text.
    pub fn text(&self) -> String {
        match &self.remedy {
            Some(remedy) => format!("{}: {remedy}", self.reason),
            None => self.reason.clone(),
        }
    }
}

/// Findings about the opened node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFindings {
    /// Why images cannot be mounted in the directories.
    pub overlay_problem: Option<String>,
    /// Why no task can have a user namespace of its own, if the operator wants them and none can.
    pub userns_problem: Option<String>,
    /// Why the image store has no room for images.
    pub space_problem: Option<String>,
    /// The AppArmor profile of tasks that name none.
    pub apparmor: apparmor::Finding,
    /// The SELinux labels of tasks.
    pub selinux: selinux::Finding,
}

/// Findings about the host. They are separate from their judgement, so that the judgement is testable on any host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFindings {
    /// This process is root.
    pub root: bool,
    /// The version of cgroups that enforces limits.
    pub cgroup: Option<&'static str>,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel has seccomp filters.
    pub seccomp: bool,
    /// The kernel uses AppArmor.
    pub apparmor: bool,
    /// The findings about the opened node, or the error of its opening.
    pub opened: Result<NodeFindings, String>,
    /// Why the kernel cannot connect tasks to the driver's bridge.
    pub bridge_problem: Option<String>,
    /// The values of `runtime` that tasks can use.
    pub runtimes: Vec<String>,
}

impl HostFindings {
    /// Inspects the host. `opened` are the findings about the opened node, or the error of its opening.
    pub fn inspect(config: &PluginConfig, opened: Result<NodeFindings, String>) -> Self {
        Self {
            runtimes: runtimes::usable(&config.policy),
            bridge_problem: network::bridge_problem(&config.policy.network),
            root: rustix::process::geteuid().is_root(),
            cgroup: cgroup_version(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
            apparmor: apparmor::is_used(),
            opened,
        }
    }

    /// Whether the kernel can connect tasks to the driver's bridge.
    pub fn has_bridge(&self) -> bool {
        self.bridge_problem.is_none()
    }
}

/// The cgroup version that enforces limits on this node, if there is one.
fn cgroup_version() -> Option<&'static str> {
    match runtime::cgroup::version().ok()? {
        Version::V2 => Some("v2"),
        Version::V1 => Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists().then_some("v1"),
    }
}

/// The name of the check that the node can be opened.
pub const DIRECTORIES: &str = "directories";

/// The names of the checks for restrictions that tasks do not get although the node could have them.
const RESTRICTIONS: [&str; 2] = ["apparmor", "selinux"];

/// The first reason why no container can run here.
pub fn problem(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|finding| finding.level == Level::Error).map(Finding::text)
}

/// The first restriction that the operator may expect and that tasks do not get.
pub fn missing_restriction(findings: &[Finding]) -> Option<String> {
    let is_missing = |finding: &&Finding| finding.level == Level::Warning && RESTRICTIONS.contains(&finding.check);
    findings.iter().find(is_missing).map(|finding| finding.reason.clone())
}

/// Judges the host. An error means that no container can run here.
pub fn judge(policy: &Policy, host: &HostFindings) -> Vec<Finding> {
    let mut findings = vec![root(host), cgroup(host)];
    if let Ok(node) = &host.opened {
        findings.extend([overlay(policy.rootfs, node), user_namespaces(policy.userns.mode, node)]);
    }
    findings.push(seccomp(host));
    match &host.opened {
        Ok(node) => findings.extend([apparmor(policy, host, node), selinux(node), space(node)]),
        Err(error) => {
            findings.push(Finding { remedy: None, ..Finding::error(DIRECTORIES, error, "") });
        }
    }
    findings.push(bridge(host));
    findings
}

fn root(host: &HostFindings) -> Finding {
    match host.root {
        true => Finding::ok("root", "runs as root"),
        false => Finding::error("root", "oci-rs needs root", "run the Nomad agent as root"),
    }
}

fn cgroup(host: &HostFindings) -> Finding {
    match host.cgroup {
        Some(version) => Finding::ok("cgroups", format!("cgroup {version} enforces the limits of tasks")),
        None => Finding::error(
            "cgroups",
            "no cgroup file system at /sys/fs/cgroup",
            "mount cgroup v2 or the v1 controllers there",
        ),
    }
}

fn overlay(rootfs: RootChoice, node: &NodeFindings) -> Finding {
    let check = "overlay";
    match (rootfs, &node.overlay_problem) {
        (RootChoice::Copy, _) => Finding::ok(check, "each task gets a copy of its image (rootfs = \"copy\")"),
        (_, None) => Finding::ok(check, "overlayfs works in data_dir"),
        (RootChoice::Overlay, Some(problem)) => {
            Finding::error(check, problem, "move data_dir, or set rootfs = \"auto\" in the plugin block")
        }
        (RootChoice::Auto, Some(problem)) => Finding::warning(
            check,
            format!("{problem}. Each task gets a copy of its image, which takes time and space"),
            "move data_dir to a local file system, such as ext4 or xfs",
        ),
    }
}

fn user_namespaces(mode: UserNamespaceMode, node: &NodeFindings) -> Finding {
    let check = "user namespaces";
    let problem = || {
        node.userns_problem.as_ref().map(|problem| format!("tasks cannot have user namespaces of their own: {problem}"))
    };
    match (mode, problem()) {
        (UserNamespaceMode::Off, _) => Finding::ok(check, "tasks use the node's (userns { mode = \"off\" })"),
        (_, None) => Finding::ok(check, "tasks have user namespaces of their own, with id-mapped mounts"),
        (UserNamespaceMode::Require, Some(problem)) => {
            Finding::error(check, problem, "change the node, or set `userns { mode = \"auto\" }` in the plugin block")
        }
        (UserNamespaceMode::Auto, Some(problem)) => Finding::warning(
            check,
            format!("{problem}. They run in the node's"),
            "change the node, or set `userns { mode = \"off\" }` in the plugin block if that is wanted",
        ),
    }
}

fn seccomp(host: &HostFindings) -> Finding {
    match host.seccomp {
        true => Finding::ok("seccomp", "the kernel filters the system calls of tasks"),
        false => {
            Finding::error("seccomp", "the kernel has no seccomp filters", "boot a kernel with CONFIG_SECCOMP_FILTER")
        }
    }
}

fn apparmor(policy: &Policy, host: &HostFindings, node: &NodeFindings) -> Finding {
    let check = "apparmor";
    match (&policy.apparmor, &node.apparmor.problem) {
        (DefaultProfile::Required(_), Some(problem)) => {
            Finding::error(check, problem, "load it, or change apparmor_profile in the plugin block")
        }
        (DefaultProfile::Automatic, Some(problem)) => Finding::warning(
            check,
            format!("tasks run without an AppArmor profile: {problem}"),
            "install apparmor_parser (Debian's package `apparmor`)",
        ),
        _ if !host.apparmor => Finding::ok(check, "the kernel does not use AppArmor"),
        (DefaultProfile::Unconfined, _) => Finding::ok(check, "switched off in the plugin block"),
        _ => {
            let profile = node.apparmor.profile.as_deref().unwrap_or("none");
            Finding::ok(check, format!("tasks have the profile {profile}"))
        }
    }
}

fn selinux(node: &NodeFindings) -> Finding {
    let check = "selinux";
    match (&node.selinux.problem, &node.selinux.labels) {
        (Some(problem), _) => Finding::warning(
            check,
            format!("tasks run without SELinux labels: {problem}"),
            "install the package `container-selinux`, or set selinux_enabled = false in the plugin block",
        ),
        (None, Some(_)) => Finding::ok(check, "tasks have labels of their own"),
        (None, None) if node.selinux.used => Finding::ok(check, "switched off in the plugin block"),
        (None, None) => Finding::ok(check, "the kernel does not use SELinux"),
    }
}

fn space(node: &NodeFindings) -> Finding {
    let check = "space";
    match &node.space_problem {
        None => Finding::ok(check, "there is room for images"),
        Some(problem) => Finding::error(
            check,
            format!("no room for images: {problem}"),
            "free space there, or set image_limits.free_mib in the plugin block",
        ),
    }
}

fn bridge(host: &HostFindings) -> Finding {
    let check = "bridge";
    match &host.bridge_problem {
        None => Finding::ok(check, "the kernel can connect tasks to the driver's bridge"),
        Some(problem) => Finding::warning(
            check,
            format!("tasks on the driver's own bridge cannot start: {problem}"),
            "boot a kernel with bridges, veth and nf_tables, or set `network { default_mode = \"host\" }`",
        ),
    }
}

#[cfg(test)]
pub mod tests {
    use super::{Finding, HostFindings, Level, NodeFindings, judge, missing_restriction};
    use crate::{
        apparmor,
        config::{DefaultProfile, Policy, RootChoice, UserNamespaceMode},
        selinux,
    };

    /// A host on which all is well.
    pub fn healthy() -> HostFindings {
        HostFindings {
            root: true,
            cgroup: Some("v2"),
            kernel: "6.1".into(),
            seccomp: true,
            apparmor: false,
            opened: Ok(NodeFindings::default()),
            bridge_problem: None,
            runtimes: vec!["runc".into()],
        }
    }

    fn policy(rootfs: RootChoice, userns: UserNamespaceMode, apparmor: DefaultProfile) -> Policy {
        let mut policy = Policy { rootfs, apparmor, ..Policy::default() };
        policy.userns.mode = userns;
        policy
    }

    #[test]
    fn each_problem_has_its_level_and_names_its_remedy() {
        use DefaultProfile::{Automatic, Required, Unconfined};
        use RootChoice::{Auto, Copy, Overlay};
        use UserNamespaceMode::{Auto as Try, Off, Require};
        let found = |node| HostFindings { opened: Ok(node), ..healthy() };
        let problem = || Some("this".to_owned());
        let overlay = found(NodeFindings { overlay_problem: problem(), ..NodeFindings::default() });
        let userns = found(NodeFindings { userns_problem: problem(), ..NodeFindings::default() });
        let space = found(NodeFindings { space_problem: problem(), ..NodeFindings::default() });
        let profile = apparmor::Finding { profile: None, problem: problem() };
        let profile = found(NodeFindings { apparmor: profile, ..NodeFindings::default() });
        let labels = selinux::Finding { used: true, labels: None, problem: problem() };
        let labels = found(NodeFindings { selinux: labels, ..NodeFindings::default() });
        let (ok, warning, error) = (Level::Ok, Level::Warning, Level::Error);
        for (policy, host, check, level, part) in [
            (policy(Auto, Off, Automatic), &HostFindings { root: false, ..healthy() }, "root", error, "as root"),
            (
                policy(Auto, Off, Automatic),
                &HostFindings { cgroup: None, ..healthy() },
                "cgroups",
                error,
                "mount cgroup",
            ),
            (policy(Auto, Off, Automatic), &HostFindings { seccomp: false, ..healthy() }, "seccomp", error, "CONFIG_"),
            (policy(Overlay, Off, Automatic), &overlay, "overlay", error, "this: move data_dir"),
            (policy(Auto, Off, Automatic), &overlay, "overlay", warning, "copy"),
            (policy(Copy, Off, Automatic), &overlay, "overlay", ok, "copy"),
            (policy(Auto, Require, Automatic), &userns, "user namespaces", error, "\"auto\""),
            (policy(Auto, Try, Automatic), &userns, "user namespaces", warning, "the node's"),
            (policy(Auto, Off, Automatic), &userns, "user namespaces", ok, "off"),
            (policy(Auto, Off, Automatic), &space, "space", error, "this: free space there"),
            (policy(Auto, Off, Required("x".into())), &profile, "apparmor", error, "this: load it"),
            (policy(Auto, Off, Automatic), &profile, "apparmor", warning, "without an AppArmor profile: this"),
            (policy(Auto, Off, Unconfined), &profile, "apparmor", ok, "does not use"),
            (policy(Auto, Off, Automatic), &labels, "selinux", warning, "without SELinux labels: this"),
            (
                policy(Auto, Off, Automatic),
                &HostFindings { opened: Err("read-only".into()), ..healthy() },
                "directories",
                error,
                "read-only",
            ),
            (
                policy(Auto, Off, Automatic),
                &HostFindings { bridge_problem: problem(), ..healthy() },
                "bridge",
                warning,
                "this",
            ),
        ] {
            let findings = judge(&policy, host);
            let finding = findings.iter().find(|finding| finding.check == check).unwrap();
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.text().contains(part), "{finding:?}");
            assert!(findings.iter().all(|finding| finding.check == check || finding.level == ok), "{findings:?}");
            let expected = level == warning && ["apparmor", "selinux"].contains(&check);
            assert_eq!(missing_restriction(&findings).is_some(), expected);
            let node_failed = finding.level == error;
            assert_eq!(super::problem(&findings), node_failed.then(|| finding.text()));
        }
        let well: Vec<Finding> = judge(&Policy::default(), &healthy());
        assert!(well.iter().all(|finding| finding.level == Level::Ok && finding.remedy.is_none()), "{well:?}");
    }
}
