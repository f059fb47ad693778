//! Hostile images. The node makes these attempts: it starts a task with the image, whose command looks around.

use std::{fs, os::unix::fs::MetadataExt};

use super::tools::{given, is_the_nodes, nodes_file_below};
use crate::attempt::{Attempt, WORKS};

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::hosted("start an image with /proc as a link to the node's directory"),
    Attempt::hosted("start an image with /sys as a link to the node's directory"),
    Attempt::hosted("start an image with /dev as a link to the node's directory"),
    Attempt::hosted("start an image with /etc as a link to the node's directory"),
    Attempt::hosted("start an image with /tmp as a link to the node's directory"),
    Attempt::hosted("start an image with /alloc as a link to the node's directory"),
    Attempt::hosted("start an image with /local as a link to /proc"),
    Attempt::hosted("start an image with /secrets as a link to /sys/kernel"),
    Attempt::hosted("start an image with /dev/null as a link to the node's file"),
    Attempt::hosted("start an image with /dev/console as a link to /proc/sysrq-trigger"),
    Attempt::hosted("start an image with /etc/hosts as a link to the node's file"),
    Attempt::hosted("start an image with /etc/resolv.conf as a link to /proc/sys/kernel/core_pattern"),
    Attempt::hosted("start an image with /etc/passwd as a link to the node's file"),
    Attempt::hosted("start an image with a volume behind a link to the node's directory"),
    Attempt::hosted("start an image with a file above its root (..)"),
    Attempt::hosted("start an image with a hard link to the node's file"),
    Attempt::hosted("start an image with a file behind its own link to the node's directory"),
    Attempt::hosted("start an image with a node of the disk, and open it"),
    Attempt::hosted("start an image in the directory /proc/self/fd/7 (CVE-2024-21626)"),
    Attempt::hosted("start an image in the directory /proc/self/fd/8 (CVE-2024-21626)"),
    Attempt::hosted("start an image with the user 4294967295"),
    Attempt::hosted("start an image with the command /proc/self/exe (CVE-2019-5736)"),
];

/// What a task with a hostile image finds: `works` if it is something of the node, or not what every container has.
#[must_use]
pub fn look_around() -> &'static str {
    let roots = ["", "/proc/1/root", "../../../../../../../../../.."];
    let file = given("ESCAPE_FILE");
    let shown = ["/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/stolen", "/dev/null", &file];
    let reached = roots.iter().any(|root| nodes_file_below(root).is_ok())
        || shown.iter().any(|path| is_the_nodes(path).is_ok())
        || fs::File::open("/disk").is_ok();
    for directory in ["/alloc", "/local", "/secrets", "/data/volume", "/tmp", "/etc"] {
        // The node looks whether it finds this file.
        drop(fs::write(format!("{directory}/left-by-the-container"), ""));
    }
    // /dev/null is the device 1:3.
    let null = fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == 0x103);
    let usual = null && fs::exists("/proc/self/status").unwrap_or(false);
    if reached || !usual { WORKS } else { "nothing" }
}
