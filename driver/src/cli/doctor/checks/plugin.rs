//! The plugin: whether it runs, and what it has left on the node.

use crate::{health::Finding, name::DriverName};

/// What is known of a plugin.
#[derive(Debug, Clone, Default)]
pub struct Plugin {
    /// Its name.
    pub driver: DriverName,
    /// The plugin has left a pointer.
    pub left: Option<Left>,
    /// Plugin processes that use the directories.
    pub running: Vec<i32>,
    /// Records of tasks that cannot be read.
    pub unreadable: Vec<String>,
    /// Tasks that ended without a record.
    pub lost: Vec<String>,
}

/// What a plugin has left for commands.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// The version of its build.
    pub build: String,
    /// Its process.
    pub pid: i32,
    /// The file of that process was replaced or removed.
    pub replaced: bool,
    /// It does not answer on its socket.
    pub deaf: bool,
    /// This build cannot read its configuration, for this reason.
    pub unknown_config: Option<String>,
}

/// Judges it.
pub fn judge(plugin: &Plugin) -> Vec<Finding> {
    let mut findings = vec![process(plugin)];
    if let Some(problem) = plugin.left.as_ref().and_then(|left| left.unknown_config.as_ref()) {
        findings.push(Finding::warning(
            "configuration",
            format!("this build does not understand the plugin's configuration, so defaults are checked: {problem}"),
            "use the executable of the plugin",
        ));
    }
    if !plugin.unreadable.is_empty() {
        findings.push(Finding::error(
            "records",
            format!("records of tasks cannot be read: {}", plugin.unreadable.join("; ")),
            "look for errors of the disk (dmesg); the tasks run on, and must be stopped and started again",
        ));
    }
    if !plugin.lost.is_empty() {
        findings.push(Finding::warning(
            "lost tasks",
            format!("tasks ended without a record of their end: {}", plugin.lost.join(", ")),
            "their monitors were killed: check KillMode of the agent's unit, and dmesg for the out-of-memory killer",
        ));
    }
    findings
}

fn process(plugin: &Plugin) -> Finding {
    let (check, driver) = ("plugin", plugin.driver);
    let Some(left) = &plugin.left else {
        return match plugin.running.first() {
            Some(pid) => Finding::ok(check, format!("a plugin runs (process {pid})")),
            None => Finding::warning(
                check,
                format!("no plugin {driver} has run since the boot of this node"),
                format!("copy the executable into the agent's plugin_dir, and write `plugin \"{driver}\"` there"),
            ),
        };
    };
    if !plugin.running.contains(&left.pid) {
        return Finding::warning(
            check,
            format!("the plugin {driver} does not run (process {} has ended): its tasks go on", left.pid),
            "start the agent; if it runs, its log tells why it has not started the plugin",
        );
    }
    if left.deaf {
        return Finding::error(
            check,
            format!("the plugin {driver} (process {}) does not answer: no task can start", left.pid),
            // A stopped process takes no other signal.
            format!("kill -9 {}; the agent starts another one, and tasks go on", left.pid),
        );
    }
    if left.replaced || left.build != env!("CARGO_PKG_VERSION") {
        return Finding::warning(
            check,
            format!(
                "the plugin {driver} (process {}) runs another build than the installed one: {}",
                left.pid, left.build
            ),
            "restart the agent; tasks go on",
        );
    }
    Finding::ok(check, format!("the plugin {driver} {} runs (process {})", left.build, left.pid))
}

/// What earlier processes left behind.
#[derive(Debug, Clone, Default)]
pub struct Leftovers {
    /// The containers of interrupted starts and removals.
    pub containers: Vec<String>,
    /// The ended containers that no agent will ask for again.
    pub forgotten: Vec<String>,
    /// Leases of images without a container.
    pub leases: Vec<String>,
    /// The staging directories of killed pulls.
    pub pulls: Vec<String>,
    /// Writable layers without a container.
    pub layers: Vec<String>,
    /// Networks without a container.
    pub networks: Vec<String>,
}

impl Leftovers {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    /// All of them, as people know them.
    pub fn names(&self) -> Vec<String> {
        let kinds = [
            ("interrupted start or removal", &self.containers),
            ("ended task", &self.forgotten),
            ("lease", &self.leases),
            ("parts of layers", &self.pulls),
            ("writable layer", &self.layers),
            ("network", &self.networks),
        ];
        kinds.iter().flat_map(|(kind, names)| names.iter().map(move |name| format!("{kind} {name}"))).collect()
    }
}

/// Judges leftovers; `None`: a plugin runs, and what looks like one may belong to a task that is starting. An error is
/// why they cannot be looked for.
pub fn leftovers(found: Result<Option<Leftovers>, String>) -> Finding {
    let check = "leftovers";
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Finding::ok(check, "the running plugin removes them"),
        Err(error) => {
            let remedy = "look at the findings about the directories";
            return Finding::warning(check, format!("leftovers cannot be looked for: {error}"), remedy);
        }
    };
    let kinds = [
        ("interrupted starts and removals of tasks", &found.containers),
        ("ended tasks that no agent will ask for again", &found.forgotten),
        ("images held for tasks that are gone", &found.leases),
        ("pulls that were killed and left parts of layers", &found.pulls),
        ("writable layers of tasks that are gone", &found.layers),
        ("networks of tasks that are gone", &found.networks),
    ];
    // A plugin knows only the tasks of its own agent.
    let remedy = if found.forgotten.is_empty() {
        "start the agent, whose plugin removes them, or run `oci-rs doctor --fix`"
    } else {
        "run `oci-rs doctor --fix` while no plugin runs"
    };
    let kinds = kinds.iter().filter(|(_, names)| !names.is_empty());
    let texts: Vec<String> = kinds.map(|(kind, names)| format!("{} {kind} ({})", names.len(), few(names))).collect();
    match texts.as_slice() {
        [] => Finding::ok(check, "there are none"),
        texts => Finding::warning(check, texts.join(", "), remedy),
    }
}

/// The first names of a list.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, …") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::doctor::checks::tests::expect,
        health::Level::{Error, Ok, Warning},
    };

    #[test]
    fn each_state_of_a_plugin_is_told() {
        let left = || Left { build: env!("CARGO_PKG_VERSION").into(), pid: 7, ..Left::default() };
        let of = |left, running: &[i32]| Plugin { left, running: running.to_vec(), ..Plugin::default() };
        let good = || of(Some(left()), &[7]);
        for (plugin, check, level, part) in [
            (good(), "plugin", Ok, "process 7"),
            (of(None, &[]), "plugin", Warning, "plugin_dir"),
            (of(None, &[9]), "plugin", Ok, "process 9"),
            (of(Some(left()), &[]), "plugin", Warning, "does not run"),
            (of(Some(left()), &[8]), "plugin", Warning, "process 7 has ended"),
            (of(Some(Left { deaf: true, ..left() }), &[7]), "plugin", Error, "kill -9 7"),
            (of(Some(Left { replaced: true, ..left() }), &[7]), "plugin", Warning, "restart the agent"),
            (of(Some(Left { build: "0.0.1".into(), ..left() }), &[7]), "plugin", Warning, "0.0.1"),
            (of(Some(Left { unknown_config: Some("x".into()), ..left() }), &[7]), "configuration", Warning, "x"),
            (Plugin { unreadable: vec!["f: bad".into()], ..good() }, "records", Error, "f: bad"),
            (Plugin { lost: vec!["a/web".into()], ..good() }, "lost tasks", Warning, "KillMode"),
        ] {
            expect(&judge(&plugin), check, level, part);
        }
    }

    #[test]
    fn leftovers_are_counted_only_without_a_plugin() {
        assert_eq!(leftovers(Result::Ok(None)).level, Ok);
        assert_eq!(leftovers(Result::Ok(Some(Leftovers::default()))).level, Ok);
        assert_eq!(leftovers(Err("read-only".into())).level, Warning);
        let names = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
        let some = Leftovers { layers: names(5), leases: names(1), ..Leftovers::default() };
        let finding = leftovers(Result::Ok(Some(some)));
        assert_eq!(finding.level, Warning);
        assert!(finding.reason.contains("5 writable layers of tasks that are gone (n0, n1, n2, …)"), "{finding:?}");
        assert!(finding.reason.contains("1 images held") && finding.text().contains("--fix"), "{finding:?}");
        let forgotten = leftovers(Result::Ok(Some(Leftovers { forgotten: names(1), ..Leftovers::default() })));
        assert!(forgotten.text().contains("1 ended tasks that no agent"), "{forgotten:?}");
        assert!(forgotten.text().contains("--fix` while no plugin runs"), "{forgotten:?}");
        let pulls = leftovers(Result::Ok(Some(Leftovers { pulls: names(2), ..Leftovers::default() })));
        assert!(pulls.text().contains("2 pulls that were killed and left parts of layers (n0, n1)"), "{pulls:?}");
        assert!(Leftovers::default().is_empty());
    }
}
