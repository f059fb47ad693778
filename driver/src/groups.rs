//! The networks of groups that Nomad lets the driver make, for a group with `network { hostname }`.
//!
//! Nomad asks for a network before the first task of an allocation starts, and again when the agent is restarted. A
//! request for a removal can be lost together with a plugin. The sweep finds such a network later: Nomad has
//! disconnected it before, so it has no interface. The drivers of both names share the records, and neither knows which
//! groups the other was asked for: a task's start makes the network again that a sweep took for unused.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use network::{GroupNamespace, GroupNamespaces};

use crate::{error::TaskError, plan};

/// The label by which Nomad learns the host name that the job asks for.
const HOSTNAME: &str = "docker_sandbox_hostname";
/// The label by which Nomad learns the id of docker's pause container. Its first twelve characters become the host name
/// of a group that asks for none.
const SANDBOX: &str = "docker_sandbox_container_id";

/// The networks of groups.
#[derive(Debug)]
pub struct Groups {
    namespaces: GroupNamespaces,
    /// The allocations for which the agent has asked this process for a network.
    asked: Mutex<HashSet<String>>,
}

/// The network of a group, as Nomad needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupNetwork {
    /// The pinned namespace.
    pub namespace: GroupNamespace,
    /// Labels from which Nomad makes the group's line of /etc/hosts.
    pub labels: BTreeMap<String, String>,
}

impl Groups {
    /// Creates and reads nothing on disk.
    pub fn new(namespaces: GroupNamespaces) -> Self {
        Self { namespaces, asked: Mutex::default() }
    }

    /// Makes the network of an allocation's group unless it exists. Blocks.
    pub fn create(&self, alloc: &str, hostname: &str) -> Result<GroupNetwork, TaskError> {
        check(alloc)?;
        lock(&self.asked).insert(alloc.to_owned());
        Ok(GroupNetwork { namespace: self.namespaces.create(alloc)?, labels: labels(alloc, hostname) })
    }

    /// Removes the network of an allocation's group. Idempotent. Blocks.
    pub fn destroy(&self, alloc: &str) -> Result<(), TaskError> {
        check(alloc)?;
        self.namespaces.destroy(alloc)?;
        lock(&self.asked).remove(alloc);
        Ok(())
    }

    /// The allocations whose groups have a network of the driver. Blocks.
    pub fn recorded(&self) -> Result<Vec<String>, TaskError> {
        Ok(self.namespaces.recorded()?)
    }

    /// A process in the network of a group, if there is one. Blocks.
    pub fn user(&self, alloc: &str) -> Result<Option<i32>, TaskError> {
        check(alloc)?;
        Ok(self.namespaces.user(alloc)?)
    }

    /// Removes the network of a group together with the connection that Nomad made. `plugins` are the directories with
    /// CNI plugins. Idempotent. Blocks.
    pub fn disconnect(&self, alloc: &str, plugins: &[PathBuf]) -> Result<(), TaskError> {
        check(alloc)?;
        Ok(self.namespaces.disconnect(alloc, plugins)?)
    }

    /// Removes the networks that were made at least `age` ago and that Nomad no longer uses; their allocations. Keeps
    /// those of allocations that are `in_use`. Blocks.
    pub fn sweep(&self, age: Duration, in_use: impl Fn(&str) -> bool) -> Result<Vec<String>, TaskError> {
        Ok(self.namespaces.sweep(age, |alloc| lock(&self.asked).contains(alloc) || in_use(alloc))?)
    }

    /// Makes the network of a group without a connection again, if a sweep took it for unused because none of its tasks
    /// ran. `path` is that of the task's network. Blocks.
    pub fn restore(&self, alloc: &str, path: &Path) -> Result<(), TaskError> {
        if self.namespaces.path(alloc) != path {
            return Ok(());
        }
        check(alloc)?;
        // A namespace that is still there becomes young again, so no sweep removes it during the start.
        Ok(self.namespaces.create(alloc).map(drop)?)
    }
}

fn lock(set: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The id becomes the name of two files.
fn check(alloc: &str) -> Result<(), TaskError> {
    match plan::alloc_prefix(alloc) {
        Some(_) => Ok(()),
        None => Err(TaskError::Invalid(format!("{alloc:?} is no id of an allocation"))),
    }
}

/// The labels of a network: the host name that the job asks for, or an id.
pub fn labels(id: &str, hostname: &str) -> BTreeMap<String, String> {
    let label = match hostname {
        "" => (SANDBOX, id.replace('-', "")),
        name => (HOSTNAME, name.to_owned()),
    };
    BTreeMap::from([(label.0.to_owned(), label.1)])
}

/// The host name that Nomad makes of such labels.
pub fn hostname<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    label(HOSTNAME).or_else(|| label(SANDBOX).map(|id| id.get(..12).unwrap_or(id))).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{check, hostname, labels};

    #[test]
    fn nomad_learns_the_host_name_or_an_id() {
        let alloc = "9f7b0c1e-1111-2222-3333-444455556666";
        let of = |hostname: &str| labels(alloc, hostname).into_iter().next().unwrap();
        assert_eq!(of("db.example"), ("docker_sandbox_hostname".into(), "db.example".into()));
        assert_eq!(of(""), ("docker_sandbox_container_id".into(), "9f7b0c1e111122223333444455556666".into()));
        for (asked, expected) in [("db.example", "db.example"), ("", "9f7b0c1e1111")] {
            let labels = labels(alloc, asked);
            assert_eq!(hostname(|name| labels.get(name).map(String::as_str)), Some(expected));
        }
    }

    #[test]
    fn an_id_that_names_another_file_is_refused() {
        assert!(check("9f7b0c1e-1111").is_ok());
        for alloc in ["", "..", "a/b", "."] {
            assert!(check(alloc).is_err(), "{alloc}");
        }
    }
}
