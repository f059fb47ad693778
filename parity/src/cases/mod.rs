//! The cases, by area.

pub mod commands;
pub mod environment;
pub mod exec;
pub mod files;
pub mod images;
pub mod ipv6;
pub mod lifecycle;
pub mod limits;
pub mod logs;
pub mod mounts;
pub mod network;
pub mod process;
pub mod refused;

use crate::case::Case;

/// All areas and their cases.
pub const AREAS: &[(&str, &[Case])] = &[
    ("command, arguments and exit", commands::CASES),
    ("environment and labels", environment::CASES),
    ("process, user and confinement", process::CASES),
    ("resources and limits", limits::CASES),
    ("mounts, volumes and devices", mounts::CASES),
    ("generated files", files::CASES),
    ("networks and ports", network::CASES),
    ("IPv6 on the default bridge", ipv6::CASES),
    ("start, stop and restart", lifecycle::CASES),
    ("exec", exec::CASES),
    ("output", logs::CASES),
    ("images", images::CASES),
    ("refused jobs", refused::CASES),
];

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    AREAS.iter().flat_map(|(_, cases)| cases.iter())
}
