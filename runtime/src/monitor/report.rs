//! The messages of the creator and the monitor. Each is sent once, as JSON, through a pipe.

use serde::{Deserialize, Serialize};

use crate::{cgroup::CgroupEvents, error::StartError, user::ResolvedUser};

/// The monitor's message to the plugin.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StartOutcome {
    /// The command runs.
    Started,
    /// The container could not be started.
    Failed(StartError),
}

/// The creator's message to the monitor about a container that it has created.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CreatedContainer {
    /// The pid of the container's first process.
    pub init: i32,
    pub user: ResolvedUser,
    /// The container has a pid namespace of its own.
    pub private_pid: bool,
    /// The events that the container's cgroups had counted before it started.
    pub events_before: CgroupEvents,
}
