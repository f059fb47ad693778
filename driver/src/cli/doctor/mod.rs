//! `oci-rs doctor`: why a node is not as it should be, and what to do.
//!
//! `facts` looks, `checks` and `health` decide. Nothing is changed without `--fix`, which removes what killed processes
//! of the driver and of Nomad left behind, and only while no plugin runs.

mod checks;
mod facts;

use std::path::{Path, PathBuf};

use image_store::RegistryAnswer;
use runtime::plan::ContainerId;
use serde_json::{Value, json};

use self::checks::{
    agent::{self, Agents},
    kernel, network, plugin, registry, storage,
};
use super::{
    arguments::DoctorArguments,
    failure::Failure,
    output::{Output, note, printable},
    settings::Settings,
};
use crate::{
    cleanup,
    config::PluginConfig,
    events::Events,
    health::{self, Finding, HostFindings, Level},
    name::DriverName,
    node::Node,
    plan::Compute,
    pointer::{self, Pointers},
    task::Tasks,
};

/// A finding, and the plugin that it is about; `None` is the whole node.
struct Line {
    plugin: Option<DriverName>,
    finding: Finding,
}

/// Runs the command.
pub fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Failed("doctor reads what only root may read: run it as root".to_owned()));
    }
    let settings = Settings::all(&arguments.node)?;
    let mut removed = Vec::new();
    let agents = facts::agents(Path::new("/proc"));
    if arguments.fix {
        for Settings { config, .. } in &settings {
            removed.extend(fix(config, agents.dev)?);
        }
    }
    let lines = look(&settings, &agents)?;
    let output = Output { json: arguments.node.json };
    if output.json {
        output.value(&json_of(&lines, &removed))?
    } else {
        write(&lines, &removed, settings.len(), &output)?
    }
    let failed = lines.iter().any(|line| line.finding.level == Level::Error);
    if failed { Err(Failure::Damage) } else { Ok(()) }
}

/// All findings: first those about the node, then those about each plugin.
fn look(settings: &[Settings], agents: &Agents) -> Result<Vec<Line>, Failure> {
    let pointers = pointer::found();
    let mut findings = of_node(settings, &pointers);
    findings.extend(agent::judge(agents));
    let mut lines: Vec<Line> = findings.into_iter().map(|finding| Line { plugin: None, finding }).collect();
    for (settings, answers) in settings.iter().zip(facts::registries(settings)?) {
        let plugin = Some(settings.config.driver);
        let findings = of_plugin(settings, &pointers, &answers, agents.dev);
        lines.extend(findings.into_iter().map(|finding| Line { plugin, finding }));
    }
    Ok(lines)
}

fn of_node(settings: &[Settings], pointers: &Pointers) -> Vec<Finding> {
    let Some(Settings { config, .. }) = settings.first() else { return Vec::new() };
    let written: Vec<PathBuf> = settings
        .iter()
        .flat_map(|Settings { config, .. }| [config.state_dir.clone(), config.data_dir.clone()])
        .collect();
    // First, because the trial mounts of the others change the directories' times.
    let clock = kernel::clock(facts::clock(&written));
    let mut findings = kernel::judge(&facts::kernel(config));
    findings.push(clock);
    findings.extend(pointers.problems.iter().map(|problem| {
        Finding::warning("pointer", problem.clone(), "remove the file; the plugin writes it again when it starts")
    }));
    findings
}

fn of_plugin(
    settings: &Settings,
    pointers: &Pointers,
    answers: &[RegistryAnswer],
    dev_agent_runs: bool,
) -> Vec<Finding> {
    let config = &settings.config;
    let mut findings = health_of(config);
    let high = config.retention.map(|retention| retention.high);
    findings.extend(facts::directories(config).iter().flat_map(|directory| storage::judge(directory, high)));
    findings.extend(network::judge(&facts::network(config)));
    findings.extend(registry::judge(answers));
    findings.extend(plugin::judge(&facts::plugin(settings, &pointers.found)));
    findings.push(plugin::leftovers(facts::leftovers(config, dev_agent_runs)));
    findings
}

/// The judgements by which the plugin is healthy or not.
fn health_of(config: &PluginConfig) -> Vec<Finding> {
    let exist = config.state_dir.is_dir() && config.data_dir.is_dir();
    let opened = if exist { facts::opened(config) } else { Err(String::new()) };
    let mut findings = health::judge(&config.policy, &HostFindings::inspect(config, opened));
    // The check of the directories tells that they are missing.
    findings.retain(|finding| exist || finding.check != health::DIRECTORIES);
    findings
}

/// Removes leftovers, unless a plugin runs; what they were.
fn fix(config: &PluginConfig, dev_agent_runs: bool) -> Result<Vec<String>, Failure> {
    let Some(found) = facts::leftovers(config, dev_agent_runs).map_err(Failure::Failed)? else {
        note(format_args!("a plugin {} runs, which removes leftovers itself", config.driver));
        return Ok(Vec::new());
    };
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let node = Node::open(config.clone(), Compute::default(), Events::default()).map_err(Failure::of)?;
    cleanup::remove_leftovers(&node, &Tasks::new(config.driver)).map_err(Failure::of)?;
    for name in &found.forgotten {
        forget(&node, name, dev_agent_runs)?;
    }
    drop(node);
    let left = facts::leftovers(config, dev_agent_runs).map_err(Failure::Failed)?.unwrap_or_default();
    Ok(found.names().into_iter().filter(|name| !left.names().contains(name)).collect())
}

/// Removes an ended task, unless an agent may ask for it after all.
fn forget(node: &Node, name: &str, dev_agent_runs: bool) -> Result<(), Failure> {
    let container: ContainerId = name.parse().map_err(Failure::of)?;
    let may_go = || facts::is_forgotten(&node.config, &container, dev_agent_runs);
    if node.runtime.destroy_if(&container, may_go).map_err(Failure::of)? {
        node.release_resources(&container).map_err(Failure::of)?;
    }
    Ok(())
}

fn json_of(lines: &[Line], removed: &[String]) -> Value {
    let count = |level: Level| lines.iter().filter(|line| line.finding.level == level).count();
    let findings = lines.iter().map(|Line { plugin, finding: Finding { check, level, reason, remedy } }| {
        json!({
            "plugin": plugin.map(DriverName::as_str), "check": check, "level": level.as_str(), "reason": reason,
            "remedy": remedy,
        })
    });
    json!({
        "findings": findings.collect::<Value>(), "removed": removed,
        "errors": count(Level::Error), "warnings": count(Level::Warning),
    })
}

fn write(lines: &[Line], removed: &[String], plugins: usize, output: &Output) -> Result<(), Failure> {
    for name in removed {
        output.line(printable(&format!("removed {name}")))?;
    }
    for Line { plugin, finding: Finding { check, level, reason, remedy } } in lines {
        let plugin = plugin.filter(|_| plugins > 1).map(|name| format!("{name}: ")).unwrap_or_default();
        output.line(printable(&format!("{:<8} {plugin}{check}: {reason}", level.as_str())))?;
        if let Some(remedy) = remedy {
            output.line(printable(&format!("{:<8}   remedy: {remedy}", "")))?;
        }
    }
    let count = |level: Level| lines.iter().filter(|line| line.finding.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    Ok(output.line(format_args!("{} checks: {errors} errors, {warnings} warnings", lines.len()))?)
}
