//! `oci-rs version`: the build, and the features of this kernel.

use std::{fs, path::Path};

use runtime::cgroup::Version;
use serde_json::{Map, Value, json};

use super::{failure::Failure, output::Output};
use crate::apparmor;

/// The commit of the sources, if the build knows it.
pub const COMMIT: Option<&str> = option_env!("OCI_RS_COMMIT");
/// The time of that commit. So two builds of one commit are equal.
pub const DATE: Option<&str> = option_env!("OCI_RS_COMMIT_DATE");

/// Runs the command.
pub fn run(json: bool) -> Result<(), Failure> {
    let output = Output { json };
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy().into_owned();
    let features = features();
    if json {
        let features: Map<String, Value> =
            features.iter().map(|(name, there)| ((*name).to_owned(), json!(there))).collect();
        return Ok(output.value(&json!({
            "version": env!("CARGO_PKG_VERSION"), "commit": COMMIT, "commit_date": DATE,
            "libcontainer": runtime::LIBCONTAINER_VERSION, "kernel": release, "cgroups": cgroups(),
            "features": features,
        }))?);
    }
    let unknown = "unknown (not built from a commit)";
    let seen = |there: bool| (if there { "yes" } else { "not seen" }).to_owned();
    let mut rows = vec![
        vec!["version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()],
        vec!["commit".to_owned(), COMMIT.unwrap_or(unknown).to_owned()],
        vec!["commit date".to_owned(), DATE.unwrap_or("unknown").to_owned()],
        vec!["libcontainer".to_owned(), runtime::LIBCONTAINER_VERSION.to_owned()],
        vec!["kernel".to_owned(), release],
        vec!["cgroups".to_owned(), cgroups().unwrap_or("none").to_owned()],
    ];
    rows.extend(features.into_iter().map(|(name, there)| vec![name.replace('_', " "), seen(there)]));
    Ok(output.table(&rows)?)
}

fn cgroups() -> Option<&'static str> {
    match runtime::cgroup::version().ok()? {
        Version::V1 => Some("v1"),
        Version::V2 => Some("v2"),
    }
}

/// Features of the running kernel. A file system in a module is seen once the module is loaded.
fn features() -> Vec<(&'static str, bool)> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let file_systems = text("/proc/filesystems");
    let has = |name: &str| file_systems.lines().any(|line| line.split_whitespace().last() == Some(name));
    let spaces: u64 = text("/proc/sys/user/max_user_namespaces").trim().parse().unwrap_or(0);
    vec![
        ("overlay", has("overlay")),
        ("erofs", has("erofs")),
        ("user_namespaces", spaces > 0 && Path::new("/proc/self/ns/user").exists()),
        ("seccomp_filters", Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()),
        ("apparmor", apparmor::is_used()),
        ("selinux", Path::new("/sys/fs/selinux/enforce").exists()),
        ("pressure_stall_information", Path::new("/proc/pressure/memory").exists()),
    ]
}
