//! All attempts, by area.

mod compatibility;
mod devices;
mod files;
mod images;
mod kernel;
mod kernel_files;
mod mounts;
mod namespaces;
mod network;
pub(crate) mod processes;
pub(crate) mod tools;

pub use images::look_around;
pub use tools::{OF_THE_NODE, count_descriptors};

use crate::attempt::Attempt;

/// The areas and their attempts.
pub const AREAS: &[(&str, &[Attempt])] = &[
    ("Mounts", mounts::ALL),
    ("Namespaces", namespaces::ALL),
    ("Devices", devices::ALL),
    ("Files of the kernel", kernel_files::ALL),
    ("Interfaces of the kernel", kernel::ALL),
    ("System calls of 32-bit programs", compatibility::ALL),
    ("Network", network::ALL),
    ("Files", files::ALL),
    ("Processes of the driver", processes::ALL),
    ("Images", images::ALL),
];

/// All attempts.
pub fn all() -> impl Iterator<Item = &'static Attempt> {
    AREAS.iter().flat_map(|(_, attempts)| attempts.iter())
}
