//! The container's name and labels.

use std::collections::BTreeMap;

use runtime::plan::ContainerId;

use super::TaskContext;
use crate::config::any_matches;

/// The container of a task: a name that is safe as a file name, and another one for every other task.
///
/// Nomad's ids are `<alloc>/<task>/<random>` and become `<alloc>.<task>.<random>`. An id that this does not keep apart from
/// all others (a task name with a dot or with letters of no file name) gets a hash of the whole id at its end.
pub fn container_id(task_id: &str) -> ContainerId {
    /// Leaves room for the hash within what a container id may have.
    const LONGEST: usize = 180;
    let safe = |c: char| c.is_ascii_alphanumeric() || "_+-".contains(c);
    let exact = task_id.len() <= LONGEST
        && task_id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && task_id.chars().all(|c| safe(c) || c == '/');
    let mut name: String = task_id
        .chars()
        .take(LONGEST)
        .map(|c| match c {
            '/' | '.' => '.',
            c if safe(c) => c,
            _ => '_',
        })
        .collect();
    if !exact {
        name = format!("{}.{:016x}", name.trim_start_matches(['.', '-']), fnv1a(task_id.as_bytes()));
        name = name.trim_start_matches('.').to_owned();
    }
    name.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

/// What the ids of all containers of an allocation begin with; none if its id is not of Nomad's form.
pub fn alloc_prefix(alloc_id: &str) -> Option<String> {
    let plain = !alloc_id.is_empty() && alloc_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    plain.then(|| format!("{alloc_id}."))
}

/// The FNV-1a hash: the same in every build, which the standard library's hash is not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

const PREFIX: &str = "com.hashicorp.nomad.";

/// What an image may say about itself. Other labels steer programs (`run.oci.*`, `org.systemd.property.*` …), and whoever built an
/// image does not decide for the node.
const DESCRIPTIVE: &str = "org.opencontainers.image.";

/// The image's descriptive labels, over them the task's, over them Nomad's own.
pub fn labels(context: &TaskContext) -> BTreeMap<String, String> {
    let TaskContext { spec, task, image, policy, .. } = *context;
    let mut labels = image.config.labels.clone();
    labels.retain(|name, _| name.starts_with(DESCRIPTIVE));
    labels.extend(spec.labels.clone());
    labels.insert(format!("{PREFIX}alloc_id"), task.alloc_id.clone());
    // Nomad leaves the parent out of the task, but not out of its environment.
    let parent = task.env.get("NOMAD_JOB_PARENT_ID").map_or("", String::as_str);
    let extra = [
        ("job_name", task.job_name.as_str()),
        ("job_id", &task.job_id),
        ("parent_job_id", parent),
        ("task_group_name", &task.task_group_name),
        ("task_name", &task.name),
        ("namespace", &task.namespace),
        ("node_name", &task.node_name),
        ("node_id", &task.node_id),
    ];
    for (name, value) in extra {
        if !value.is_empty() && any_matches(&policy.extra_labels, name) {
            labels.insert(format!("{PREFIX}{name}"), value.to_owned());
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{alloc_prefix, container_id};

    #[test]
    fn containers_of_an_allocation_are_told_by_their_ids() {
        let prefix = alloc_prefix("9f7b0c1e-1111-2222-3333-444455556666").unwrap();
        for name in ["web", "a.b/c", "ü"] {
            let id = container_id(&format!("9f7b0c1e-1111-2222-3333-444455556666/{name}/01234567"));
            assert!(id.as_str().starts_with(&prefix), "{id}");
        }
        assert!(!container_id("9f7b0c1e-1111-2222-3333-4444555566661/web/1").as_str().starts_with(&prefix));
        assert_eq!((alloc_prefix(""), alloc_prefix("a/b")), (None, None));
    }

    #[test]
    fn ids_stay_readable() {
        let id = "9f7b0c1e-1111-2222-3333-444455556666/web/01234567";
        assert_eq!(container_id(id).as_str(), "9f7b0c1e-1111-2222-3333-444455556666.web.01234567");
        assert_eq!(
            container_id("9f7b0c1e-1111-2222-3333-444455556666").as_str(),
            "9f7b0c1e-1111-2222-3333-444455556666"
        );
    }

    proptest! {
        #[test]
        fn any_two_ids_are_kept_apart(a in "[a-c./_ é-]{0,6}", b in "[a-c./_ é-]{0,6}") {
            prop_assert_eq!(a == b, container_id(&a) == container_id(&b));
        }

        #[test]
        fn any_text_becomes_an_id(text in any::<String>()) {
            container_id(&text);
        }
    }
}
