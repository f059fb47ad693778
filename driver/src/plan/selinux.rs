//! The SELinux labels of a container: docker's rules.

use std::collections::BTreeMap;

use runtime::plan::{Relabel, SelinuxLabels};

use super::context::TaskContext;
use crate::config::{ErrorCollector, IpcMode, LabelOption, LabelPart, check_permitted};

/// Decides the labels. `relabelled` are the mounts whose sources get a label.
pub fn decide(
    context: &TaskContext,
    relabelled: BTreeMap<String, Relabel>,
    errors: &ErrorCollector,
) -> Option<SelinuxLabels> {
    let node = context.node.container_labels.as_ref()?;
    let options = &context.spec.security.labels;
    for option in options {
        check_permitted(errors, context.policy, format!("label={option}"));
    }
    let namespaces = &context.spec.namespaces;
    let of_node = context.spec.privileged || namespaces.host_pid || namespaces.ipc == IpcMode::Host;
    if options.contains(&LabelOption::Disable) || options.is_empty() && of_node {
        return None;
    }
    let mut labels = SelinuxLabels {
        process: node.process.clone(),
        file: node.file.clone(),
        own_categories: node.categories,
        categories: None,
        relabelled,
    };
    for option in options {
        if let LabelOption::Part(part, value) = option {
            change(&mut labels, *part, value);
        }
    }
    Some(labels)
}

/// Exchanges a part of the labels.
fn change(labels: &mut SelinuxLabels, part: LabelPart, value: &str) {
    let (of_process, of_file) = match part {
        LabelPart::User => (Some(0), Some(0)),
        LabelPart::Role => (Some(1), None),
        LabelPart::Type => (Some(2), None),
        LabelPart::FileType => (None, Some(2)),
        LabelPart::Level => {
            labels.own_categories = false;
            (Some(3), Some(3))
        }
    };
    for (label, index) in [(&mut labels.process, of_process), (&mut labels.file, of_file)] {
        let Some(index) = index else { continue };
        let mut parts: Vec<&str> = label.splitn(4, ':').collect();
        match parts.get_mut(index) {
            Some(part) => *part = value,
            None => parts.push(value),
        }
        *label = parts.join(":");
    }
}
