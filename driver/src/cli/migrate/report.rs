//! The results of the check, as text for a terminal or as JSON.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::{
    check::{Assessment, Refusal, Verdict},
    difference::{self, Difference},
    job::DockerTask,
    node::{Addition, Nodes},
};
use crate::{cli::output, config::Permission, name::DriverName};

/// The width of text where standard output is no terminal.
const WIDTH: usize = 100;
/// The bounds of the width on a terminal.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=120;

/// The width of the terminal.
pub fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| usize::from(size.ws_col));
    columns.filter(|columns| *columns > 0).map_or(WIDTH, |columns| columns.clamp(*WIDTHS.start(), *WIDTHS.end()))
}

/// A task and its result.
pub struct Checked {
    /// The task.
    pub task: DockerTask,
    /// The result.
    pub assessment: Assessment,
}

impl Checked {
    /// The task's name with job and group, as in `shop/web/nginx`.
    fn name(&self) -> String {
        let DockerTask { namespace, job, group, nomad, .. } = &self.task;
        let name = format!("{job}/{group}/{}", nomad.name);
        if namespace == "default" { name } else { format!("{namespace}: {name}") }
    }
}

/// The results of all tasks.
pub struct Report {
    tasks: Vec<Checked>,
    driver: DriverName,
    additions: Vec<Addition>,
}

impl Report {
    /// Collects the results.
    pub fn new(tasks: Vec<Checked>, nodes: &Nodes) -> Self {
        let permissions: BTreeSet<Permission> =
            tasks.iter().flat_map(|checked| checked.assessment.permissions.iter().cloned()).collect();
        Self { additions: nodes.additions(&permissions), driver: nodes.config.driver, tasks }
    }

    /// The worst verdict.
    pub fn worst(&self) -> Verdict {
        self.verdicts().max().unwrap_or(Verdict::Unchanged)
    }

    /// What the plugin block must allow in addition.
    pub fn additions(&self) -> &[Addition] {
        &self.additions
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.tasks.iter().map(|checked| checked.assessment.verdict())
    }

    /// The report as JSON. Its form is described in the documentation.
    pub fn json(&self) -> Json {
        json!({
            "tasks": self.tasks.iter().map(task_json).collect::<Vec<_>>(),
            "plugin_block": {
                "driver": self.driver.as_str(),
                "additions": self.additions.iter().map(addition_json).collect::<Vec<_>>(),
            },
            "differences_of_every_task": difference::of_every_task().iter().map(difference_json).collect::<Vec<_>>(),
        })
    }

    /// The report as lines of text.
    pub fn text(&self, width: usize) -> Vec<String> {
        if self.tasks.is_empty() {
            return vec!["no tasks with driver = \"docker\"".to_owned()];
        }
        let mut page = Page { lines: self.table(width), width };
        self.refusals(&mut page);
        self.differences(&mut page);
        self.unchecked(&mut page);
        self.plugin_block(&mut page);
        page.line(0, "");
        let count = |verdict: Verdict| self.verdicts().filter(|found| *found == verdict).count();
        page.line(
            0,
            &format!(
                "{} tasks: {} unchanged, {} with differences, {} to change",
                self.tasks.len(),
                count(Verdict::Unchanged),
                count(Verdict::Differs),
                count(Verdict::Change)
            ),
        );
        page.line(
            0,
            &format!(
                "{} more differences may concern any task: docs/docker-parity.md",
                difference::of_every_task().len()
            ),
        );
        page.lines
    }

    fn table(&self, width: usize) -> Vec<String> {
        let mut rows = vec![["TASK", "VERDICT", "BECAUSE OF"].map(str::to_owned).to_vec()];
        for checked in &self.tasks {
            rows.push(vec![
                checked.name(),
                checked.assessment.verdict().as_str().to_owned(),
                reasons(&checked.assessment),
            ]);
        }
        let cut = |line: String| match line.char_indices().nth(width) {
            Some(_) => line.chars().take(width - 1).chain(['…']).collect(),
            None => line,
        };
        output::aligned(&rows).into_iter().map(cut).collect()
    }

    fn refusals(&self, page: &mut Page) {
        for checked in self.tasks.iter().filter(|checked| !checked.assessment.refusals.is_empty()) {
            page.line(0, "");
            page.line(0, &format!("{} needs these changes:", checked.name()));
            for Refusal { error, removed, added } in &checked.assessment.refusals {
                page.line(2, &format!("{}: {}", error.option, error.problem));
                for (sign, lines) in [('-', removed), ('+', added)] {
                    // Lines of a job are never wrapped.
                    page.lines.extend(lines.iter().map(|line| format!("    {sign} {line}")));
                }
                if !error.remedy.is_empty() {
                    page.line(4, &format!("What to do: {}", error.remedy));
                }
            }
        }
    }

    fn differences(&self, page: &mut Page) {
        let mut tasks: BTreeMap<&str, (&Difference, Vec<String>)> = BTreeMap::new();
        for checked in &self.tasks {
            for difference in &checked.assessment.differences {
                tasks.entry(&difference.behaviour).or_insert((difference, Vec::new())).1.push(checked.name());
            }
        }
        for (behaviour, (difference, names)) in tasks {
            page.line(0, "");
            page.line(0, &format!("Differs: {behaviour}"));
            page.line(2, &format!("docker: {}", difference.docker));
            page.line(2, &format!("oci-rs: {}", difference.ours));
            page.line(2, &format!("What to do: {}", difference.remedy));
            page.line(2, &format!("Tasks: {}", names.join(", ")));
        }
    }

    fn unchecked(&self, page: &mut Page) {
        let all = self.tasks.iter().flat_map(|checked| {
            checked.assessment.unchecked.iter().map(|unchecked| {
                format!("{}: {} has {}", checked.name(), unchecked.option, unchecked.variables.join(", "))
            })
        });
        for (index, line) in all.enumerate() {
            if index == 0 {
                page.line(0, "");
                page.line(0, "Not checked, because the values depend on the node:");
            }
            page.line(2, &line);
        }
    }

    fn plugin_block(&self, page: &mut Page) {
        if self.additions.is_empty() {
            return;
        }
        page.line(0, "");
        page.line(0, "The plugin block must have:");
        page.lines.push(format!("  plugin \"{}\" {{", self.driver));
        page.lines.push("    config {".to_owned());
        for addition in &self.additions {
            page.lines.push(format!("      {}", addition.hcl()));
        }
        page.lines.extend(["    }", "  }"].map(str::to_owned));
        for addition in &self.additions {
            let needs = |checked: &&Checked| {
                checked.assessment.permissions.iter().any(|needed| needed.option == addition.option)
            };
            let names: Vec<String> = self.tasks.iter().filter(needs).map(Checked::name).collect();
            page.line(2, &format!("{}: for {}", addition.option, names.join(", ")));
        }
    }
}

/// Lines of text with a largest width.
struct Page {
    lines: Vec<String>,
    width: usize,
}

impl Page {
    /// Adds a line. A line that is too long is continued, further to the right.
    fn line(&mut self, indent: usize, text: &str) {
        let mut line = " ".repeat(indent);
        let mut is_empty = true;
        for word in text.split(' ') {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > self.width {
                self.lines.push(std::mem::replace(&mut line, " ".repeat(indent + 4)));
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.lines.push(line);
    }
}

/// The options and behaviours that cause a verdict, and what the plugin block must allow.
fn reasons(assessment: &Assessment) -> String {
    let mut reasons: Vec<String> = assessment.refusals.iter().map(|refusal| refusal.error.option.clone()).collect();
    reasons.extend(assessment.differences.iter().map(|difference| difference.behaviour.clone()));
    reasons.extend(assessment.permissions.iter().map(|needed| format!("plugin block: {}", needed.option)));
    reasons.extend(assessment.unchecked.iter().map(|unchecked| format!("not checked: {}", unchecked.option)));
    reasons.dedup();
    reasons.join(", ")
}

fn task_json(checked: &Checked) -> Json {
    let Checked { task, assessment } = checked;
    let unchecked = assessment.unchecked.iter().map(|one| json!({ "option": one.option, "variables": one.variables }));
    let needed = assessment.permissions.iter().map(|permission| permission.option);
    json!({
        "file": task.file,
        "namespace": task.namespace,
        "job": task.job,
        "group": task.group,
        "task": task.nomad.name,
        "verdict": assessment.verdict().as_str(),
        "differences": assessment.differences.iter().map(difference_json).collect::<Vec<_>>(),
        "changes": assessment.refusals.iter().map(refusal_json).collect::<Vec<_>>(),
        "plugin_block": needed.collect::<Vec<_>>(),
        "not_checked": unchecked.collect::<Vec<_>>(),
    })
}

fn refusal_json(refusal: &Refusal) -> Json {
    let Refusal { error, removed, added } = refusal;
    json!({
        "option": error.option,
        "problem": error.problem,
        "remedy": error.remedy,
        "removed": removed,
        "added": added,
    })
}

fn difference_json(difference: &Difference) -> Json {
    let Difference { behaviour, docker, ours, remedy } = difference;
    json!({ "behaviour": behaviour, "docker": docker, "oci_rs": ours, "remedy": remedy })
}

fn addition_json(addition: &Addition) -> Json {
    json!({ "option": addition.option, "hcl": addition.hcl() })
}
