//! The containers of one state directory: the interface of this crate to the driver.
//!
//! [`Runtime`] remembers nothing that the kernel does not keep current. Every call looks at the state directory and at
//! the kernel. So any number of processes can use the same directories, and a driver that starts later knows what its
//! predecessor knew.

mod assignments;
mod category_pairs;
mod id_ranges;
mod layer_group;
mod logs;
mod marks;
mod observe;
mod removal;
mod runtime;
mod shared_names;
mod start;
mod stats;
mod status;
mod sweep;
mod usage;
mod user_namespace;
mod volumes;
mod watch;

pub use logs::{ContainerLogs, Undelivered};
pub use marks::Mark;
pub use observe::{ContainerState, ContainerView, Observer};
pub use runtime::{Runtime, containers, layer_image_problem};
pub use start::StartOptions;
pub use stats::{LayerUse, StatsReader};
pub use status::{Running, Status};
pub use usage::{NetworkUsage, Traffic, UsageSource};
pub use watch::TaskWatch;
