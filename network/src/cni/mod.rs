//! Networks that CNI plugins make: those of the operator (`network_mode = "cni/<name>"`), and those that an earlier
//! release made on the driver's bridge. Also disconnecting what Nomad connected by CNI plugins.

pub(crate) mod cached;
pub(crate) mod conflist;
pub(crate) mod connect;
pub(crate) mod lookup;
mod plugin;
mod program;
pub(crate) mod record;
pub(crate) mod result;
mod semaphore;
