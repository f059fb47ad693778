//! Control groups (cgroups) of containers, on cgroup v1 and v2.
//!
//! Cgroups that exist before the container (Nomad's) are used, and they stay. Cgroups that this crate creates are
//! removed with the container, with everything below them. A record says which are which, and it is written before the
//! first one is created.
//!
//! The modules use only modules that stand above them in this list:
//!
//! - `version`: cgroup v1 or v2; `flat_keyed`: parsing of files.
//! - `hierarchy`: mounted hierarchies and paths in them.
//! - `kill`: ending all processes of a cgroup, removing cgroups.
//! - `device_rules`, `device_program`: the devices that a container may use, as lines for v1 and as a BPF program for
//!   v2.
//! - `container`: the cgroups of one container.
//! - `limits`, `oom_log`, `events`: resetting limits, counting events.
//! - `stats`, `open_counters`, `usage`: measuring usage.
//! - `join`, `membership`: moving this process into cgroups.

mod container;
mod device_program;
mod device_rules;
mod events;
mod flat_keyed;
mod hierarchy;
mod join;
mod kill;
mod limits;
mod membership;
mod oom_log;
pub(crate) mod open_counters;
pub mod stats;
pub mod usage;
mod version;

pub(crate) use container::Cgroups;
pub(crate) use device_rules::{Access, DeviceRule};
pub use events::{CgroupEvents, OutOfMemory};
pub use join::warm_up;
pub(crate) use join::{cgroups_of_process, join};
pub(crate) use kill::{is_frozen, kill_cgroup, processes_in};
pub(crate) use limits::reset_limits;
pub(crate) use membership::{MembershipGuard, PreparedCgroups};
pub use oom_log::Victim;
pub use version::{Version, version};
