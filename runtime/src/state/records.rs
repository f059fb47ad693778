//! The records of a container: their file names and contents.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{CgroupEvents, Cgroups, OutOfMemory},
    exit_status::ExitStatus,
    process::ProcessRecord,
    user::ResolvedUser,
};

/// The plan, as the caller gave it.
pub(crate) const PLAN: &str = "plan.json";
/// The monitor's process.
pub(crate) const MONITOR: &str = "monitor.json";
/// The container's first process. It exists once the command runs.
pub(crate) const CONTAINER: &str = "container.json";
/// How the container ended.
pub(crate) const EXIT: &str = "exit.json";
/// The plugin process that watches the log FIFOs.
pub(crate) const LOG_WATCHER: &str = "keeper.json";
/// The process that guards incomplete layers.
pub(crate) const GUARD: &str = "guard.json";
/// The signal that tells the guard that the layers are complete. After another signal, a guard is still needed.
pub(crate) const NO_GUARD_NEEDED: i32 = libc::SIGALRM;
/// The log relay's process.
pub(crate) const RELAY: &str = "relay.json";
/// A mark: the hang-up of the terminal was reported.
pub(crate) const HANG_UP: &str = "hang-up";
/// A mark: the full writable layer was reported.
pub(crate) const FULL_LAYER: &str = "full-layer";
/// The cgroups of the container, and which of them are ours to remove.
pub(crate) const CGROUP: &str = "cgroup.json";

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The command's exit code; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// Whether the kernel killed a process of the container for want of memory.
    pub oom_killed: bool,
    /// Details of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
    /// The number of processes and threads that the container could not create because of its limit.
    #[serde(default)]
    pub forks_refused: u64,
    /// When the command was started.
    pub started_at: SystemTime,
    /// When its end was seen.
    pub finished_at: SystemTime,
}

impl ExitRecord {
    /// The record of a container that ended just now. The events that its cgroups counted since `before` belong to it.
    pub(crate) fn of(
        status: ExitStatus,
        groups: Option<&Cgroups>,
        before: CgroupEvents,
        started_at: SystemTime,
    ) -> Self {
        let events = groups.map(Cgroups::events).unwrap_or_default().since(before);
        let out_of_memory =
            groups.filter(|_| events.oom_kills > 0).map(|groups| groups.out_of_memory(events.oom_kills, started_at));
        Self {
            exit_code: status.exit_code,
            signal: status.signal,
            oom_killed: events.oom_kills > 0,
            out_of_memory,
            forks_refused: events.forks_refused,
            started_at,
            finished_at: SystemTime::now(),
        }
    }
}

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub init: ProcessRecord,
    pub started_at: SystemTime,
    pub user: ResolvedUser,
    /// The container has a pid namespace of its own: all its processes end with the first one.
    pub private_pid: bool,
    /// The events that its cgroups had counted before it started. Older builds did not record this.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "hits")]
    pub events_before: Option<CgroupEvents>,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cgroup::Version,
        plan::{ContainerPlan, Network, Propagation, RootStorage, Seccomp},
    };

    /// Reads a record with every field and writes it again. A renamed field is missing then.
    fn keeps_its_fields<T: Serialize + DeserializeOwned>(text: &str) {
        let recorded: Value = serde_json::from_str(text).expect("JSON");
        let record: T = host::record::decode(1, text.as_bytes()).expect("a record");
        let written = host::record::encode(1, &record).expect("written");
        let written: Value = serde_json::from_slice(&written).expect("JSON");
        assert!(host::record::keeps_fields(&recorded, &written), "{recorded} became {written}");
    }

    /// The files hold every field of every record. A field that is added to a record is added there too. No field
    /// changes its name or disappears: tasks of older builds have records with it.
    #[test]
    fn records_keep_the_names_of_their_fields() {
        keeps_its_fields::<ContainerPlan>(include_str!("../../tests/records/plan.json"));
        keeps_its_fields::<ProcessRecord>(include_str!("../../tests/records/monitor.json"));
        keeps_its_fields::<ContainerRecord>(include_str!("../../tests/records/container.json"));
        keeps_its_fields::<Cgroups>(include_str!("../../tests/records/cgroup.json"));
        keeps_its_fields::<ExitRecord>(include_str!("../../tests/records/exit.json"));
    }

    #[test]
    fn records_keep_the_names_of_their_values() {
        let found = [
            json!([Version::V1, Version::V2]),
            json!([RootStorage::Overlay, RootStorage::Copy]),
            json!([Propagation::Private, Propagation::HostToContainer, Propagation::Bidirectional]),
            json!([Network::Host, Network::Private, Network::Path("/n".into())]),
            json!([Seccomp::Default, Seccomp::Unconfined]),
        ];
        let expected = [
            json!(["v1", "v2"]),
            json!(["overlay", "copy"]),
            json!(["private", "host_to_container", "bidirectional"]),
            json!(["host", "private", {"path": "/n"}]),
            json!(["default", "unconfined"]),
        ];
        assert_eq!(found, expected);
    }
}
