//! Differences from docker: the list of `docs/docker-parity.md`, and the tasks that each of them concerns.
//!
//! The texts are those of the document, which the differential suite writes and proves. A test compares the rules here
//! with the document's list.

use std::path::Path;

use crate::{
    config::{MountRequest, MountSource, Policy, TaskSpec},
    plan::NomadTask,
};

/// The list of differences.
const DOCUMENT: &str = include_str!("../../../../docs/docker-parity.md");

/// A difference from docker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The option or the behaviour.
    pub behaviour: String,
    /// What happens with docker.
    pub docker: String,
    /// What happens with oci-rs.
    pub ours: String,
    /// What a job's author or an operator can do.
    pub remedy: String,
}

/// A task to which rules are applied.
pub struct Subject<'a> {
    /// The task's options.
    pub spec: &'a TaskSpec,
    /// The task as Nomad describes it.
    pub task: &'a NomadTask,
    /// The nodes' rules.
    pub policy: &'a Policy,
    /// The nodes take over the content of docker's volumes.
    pub migrates_volumes: bool,
}

/// The tasks that a difference concerns.
enum Concerns {
    /// Every task, or something that the job does not tell, such as its image.
    Every,
    /// Some tasks.
    Some(fn(&Subject) -> bool),
    /// Tasks that the driver refuses, so that the check has found it.
    Refused,
    /// Tasks that docker refuses. A task that runs with docker is none of them.
    RefusedByDocker,
}

use Concerns::{Every, Refused, RefusedByDocker, Some as Tasks};

/// The differences of the document, and the tasks that they concern.
const RULES: &[(&str, Concerns)] = &[
    ("signal in the exit status", Every),
    ("default host name", Every),
    (
        "`no-new-privileges`",
        Tasks(|subject| {
            let asked = subject.spec.security.no_new_privileges.is_some() || subject.spec.privileged;
            subject.policy.no_new_privileges && !asked
        }),
    ),
    ("`/alloc/logs`", Every),
    ("size of a new terminal", Tasks(|subject| subject.spec.tty)),
    ("standard output and error", Every),
    ("long lines in Nomad's log, with a log driver that delivers", Tasks(|subject| subject.spec.delivery.is_some())),
    ("devices in the device cgroup", Every),
    ("a child process that is killed at the memory limit", Every),
    ("cgroup mounts of a task (cgroup v1)", Every),
    ("`/proc/interrupts`", Every),
    (
        "`/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf` with `readonly_rootfs`",
        Tasks(|subject| subject.spec.readonly_rootfs),
    ),
    ("statistics", Every),
    ("mount propagation from a private mount", RefusedByDocker),
    ("`/etc/mtab`", Every),
    ("`/.dockerenv`", Every),
    ("`/etc/hosts`: the addresses of the own name and of all hosts", Every),
    ("a value of `dns_servers` that is no address", Refused),
    (
        "`/etc/resolv.conf` of a group with `dns`",
        Tasks(|subject| subject.task.dns.is_some() && subject.task.network_path.is_some()),
    ),
    ("`hostname` of a group's `network` block", Refused),
    ("`::1` without IPv6 on the network", Every),
    ("`network_aliases` without a network of docker's", RefusedByDocker),
    ("image `HEALTHCHECK`", Every),
    ("`nomad alloc exec` with a command that does not exist", Every),
    ("invalid values", Refused),
    (
        "a volume that exists with other options of the volume driver `local`",
        Tasks(|subject| {
            let has_options =
                |mount: &MountRequest| matches!(&mount.source, MountSource::Volume { options: Some(_), .. });
            subject.spec.mounts.iter().any(has_options)
        }),
    ),
    ("an image that the registry does not have", Every),
];

/// A difference of tasks that ran with docker before. The differential suite starts tasks without a past.
struct Past {
    behaviour: &'static str,
    docker: &'static str,
    ours: &'static str,
    remedy: &'static str,
    concerns: fn(&Subject) -> bool,
}

const OF_THE_PAST: &[Past] = &[
    Past {
        behaviour: "content of named volumes",
        docker: "a named volume is a directory of docker's.",
        ours: "a named volume is a directory in `data_dir`, which the first task fills from its image.",
        remedy: "set `migrate_volumes` in the plugin block, or copy the content once before the task starts.",
        concerns: |subject| {
            let is_directory = |mount: &MountRequest| matches!(mount.source, MountSource::Volume { options: None, .. });
            !subject.migrates_volumes && subject.spec.mounts.iter().any(is_directory)
        },
    },
    Past {
        behaviour: "NVIDIA devices",
        docker: "NVIDIA's container runtime gives the task its devices.",
        ours: "the node's CDI spec gives the task its devices, so the node needs one.",
        remedy: "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` on the nodes, after each update of \
                 NVIDIA's driver too.",
        concerns: |subject| {
            subject.spec.nvidia_runtime || subject.task.device_env.contains_key("NVIDIA_VISIBLE_DEVICES")
        },
    },
    Past {
        behaviour: "host paths of docker's daemon",
        docker: "the task uses the daemon's socket or reads its files.",
        ours: "on a node without Docker these paths do not exist, and `volumes` makes empty directories.",
        remedy: "let the task use Nomad's API or service discovery, or run it on nodes that keep Docker.",
        concerns: |subject| subject.spec.mounts.iter().any(|mount| is_of_dockerd(&mount.source)),
    },
];

/// Paths of docker's daemon.
const DOCKERD: [&str; 5] =
    ["/var/run/docker.sock", "/run/docker.sock", "/var/lib/docker", "/etc/docker", "/var/run/docker"];

fn is_of_dockerd(source: &MountSource) -> bool {
    let MountSource::Bind { path, .. } = source else { return false };
    DOCKERD.iter().any(|dockers| Path::new(path).starts_with(dockers))
}

/// The differences that concern a task because of its options.
pub fn of_task(subject: &Subject) -> Vec<Difference> {
    let concerns = |behaviour: &str| {
        RULES.iter().any(|(name, concerns)| *name == behaviour && matches!(concerns, Tasks(rule) if rule(subject)))
    };
    let listed = document().into_iter().filter(|difference| concerns(&difference.behaviour));
    let past = OF_THE_PAST.iter().filter(|past| (past.concerns)(subject)).map(|past| Difference {
        behaviour: past.behaviour.to_owned(),
        docker: past.docker.to_owned(),
        ours: past.ours.to_owned(),
        remedy: past.remedy.to_owned(),
    });
    listed.chain(past).collect()
}

/// The differences that may concern every task.
pub fn of_every_task() -> Vec<Difference> {
    let is_general =
        |behaviour: &str| RULES.iter().any(|(name, concerns)| *name == behaviour && matches!(concerns, Every));
    document().into_iter().filter(|difference| is_general(&difference.behaviour)).collect()
}

/// The differences that the document lists.
fn document() -> Vec<Difference> {
    let list = DOCUMENT.split_once("\n## Differences\n").map_or("", |(_, list)| list);
    let list = list.split("\n## ").next().unwrap_or_default();
    list.split("\n### ").skip(1).map(section).collect()
}

fn section(text: &str) -> Difference {
    let (behaviour, items) = text.split_once('\n').unwrap_or((text, ""));
    let item = |name: &str| {
        let (_, rest) = items.split_once(&format!("- **{name}**: ")).unwrap_or_default();
        let text = rest.split("\n- ").next().unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    Difference {
        behaviour: behaviour.to_owned(),
        docker: item("docker"),
        ours: item("oci-rs"),
        remedy: item("What to do"),
    }
}

#[cfg(test)]
mod tests {
    use super::{RULES, document};

    #[test]
    fn every_difference_of_the_document_has_a_rule() {
        let documented: Vec<String> = document().into_iter().map(|difference| difference.behaviour).collect();
        let ruled: Vec<&str> = RULES.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            documented, ruled,
            "docs/docker-parity.md has changed: say in RULES which tasks the difference concerns, in the same order"
        );
    }

    #[test]
    fn the_documents_texts_are_whole() {
        for difference in document() {
            for text in [&difference.docker, &difference.ours, &difference.remedy] {
                assert!(text.ends_with('.') && !text.contains("**"), "{difference:?}");
            }
        }
    }
}
