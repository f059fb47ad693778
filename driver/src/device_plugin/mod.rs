//! The device plugin `oci-rs-cdi`: the devices of CDI specs as Nomad's scheduler counts them.
//!
//! | module | contents |
//! |---|---|
//! | `groups` | decides which devices are offered, and as what |
//! | `attributes` | annotations as attributes with units |
//! | `reservation` | decides what a task with some devices gets |
//! | `facts` | what the kernel knows of a device: nodes, PCI, NUMA, memory |
//! | `watch` | reports changes of specs and nodes |
//! | `offer` | the current groups, kept up to date |
//!
//! Nothing is kept on disk: specs and the node decide everything. Nomad remembers which task has which device.

mod attributes;
mod facts;
mod groups;
mod offer;
mod reservation;
mod watch;

pub use self::{
    attributes::{Attribute, AttributeValue},
    groups::{Detected, Group},
    offer::{Offer, current},
    reservation::{Reservation, reserve},
};
