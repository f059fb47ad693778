//! Networks on the driver's own bridge, made by the kernel on requests of this process. No program is executed.

mod addresses;
mod allocator;
pub(crate) mod connect;
pub(crate) mod link;
pub(crate) mod netlink;
pub(crate) mod node;
pub(crate) mod probe;
pub(crate) mod record;
