//! Tasks: the work between Nomad's calls and the container runtime.
//!
//! One async task, the *owner*, owns one Nomad task and serialises all operations on it. A call registers the task's
//! id atomically or finds the owner; then it only sends an event to the owner and reads the published [`TaskView`].
//! The pure state machine `lifecycle` decides, the owner carries the decisions out.
//!
//! | module | contents |
//! |---|---|
//! | `operations` | StartTask, RecoverTask, DestroyTask |
//! | `registry` | the tasks of this process by Nomad's id |
//! | `task_ref` | the way from a call to a task's owner |
//! | `owner` | carries out the decisions about one task |
//! | `lifecycle` | decides: state and event to next state and actions |
//! | `container_watch` | the background work about a running container |
//! | `claim` | whether a task needs a network |
//! | `start` | from a task block to a running command |
//! | `starts` | how often each task of an allocation was started |
//! | `exec` | commands in a running task |
//! | `running` | a running container, and its end |
//! | `cgroup_events` | task events about reached limits |
//! | `driver_state` | the driver's part of a task handle |
//! | `info`, `view` | the fixed facts and the published state of a task |
//! | `stats` | rates of resource use |

mod cgroup_events;
mod claim;
mod container_watch;
mod driver_state;
pub mod exec;
mod info;
mod lifecycle;
mod operations;
mod owner;
mod registry;
mod running;
mod start;
mod starts;
pub mod stats;
mod task_ref;
mod view;

pub use self::{
    claim::network_claim,
    driver_state::{DriverNetwork, DriverState},
    info::CommandSlot,
    lifecycle::{Event, Phase},
    registry::Tasks,
    task_ref::TaskRef,
    view::{Exit, TaskView},
};
