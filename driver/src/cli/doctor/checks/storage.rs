//! The driver's directories and the file systems below them.

use std::path::PathBuf;

use crate::{cli::format, health::Finding};

/// A share of inodes or bytes above which a file system counts as nearly full, if nothing else is configured.
const NEARLY_FULL: u64 = 90;

/// A directory of the driver.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    /// The option that names it.
    pub option: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// What is known if it exists.
    pub found: Option<Found>,
}

/// An existing directory.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The type of its file system, as in `/proc/mounts`.
    pub file_system: String,
    /// It is mounted read-only.
    pub read_only: bool,
    /// Another user than root owns it, or may write to it.
    pub others_write: bool,
    /// Bytes of the file system, and free ones.
    pub bytes: (u64, u64),
    /// Inodes of the file system, and free ones; zero if it makes them on demand.
    pub inodes: (u64, u64),
}

/// Judges one directory. Above `high` percent unused images are removed; `None` keeps them.
pub fn judge(directory: &Directory, high: Option<u8>) -> Vec<Finding> {
    let (check, path) = (directory.option, directory.path.display());
    let Some(found) = &directory.found else {
        return vec![Finding::warning(
            check,
            format!("{path} does not exist: the plugin has not run with this configuration"),
            "start the agent; the plugin makes it. Or name another one with --config",
        )];
    };
    let mut findings = Vec::new();
    if found.read_only {
        findings.push(Finding::error(
            check,
            format!("{path} is on a file system that is mounted read-only: no task can start"),
            "mount it with rw; after an I/O error the kernel changes it to read-only, so look at dmesg",
        ));
    }
    if found.others_write {
        findings.push(Finding::error(
            check,
            format!("other users may write to {path}: they could change images and tasks"),
            format!("chown root {path}; chmod go-w {path}"),
        ));
    }
    findings.extend(kind(directory.option, &found.file_system, &path.to_string()));
    findings.extend(fullness(check, &path.to_string(), found, high));
    if findings.is_empty() {
        let (total, free) = found.bytes;
        let (total, free) = (format::size(total), format::size(free));
        findings.push(Finding::ok(check, format!("{path} on {}: {free} of {total} free", found.file_system)));
    }
    findings
}

fn kind(option: &'static str, file_system: &str, path: &str) -> Option<Finding> {
    let is_network = ["nfs", "cifs", "smb", "9p", "ceph", "gluster"].iter().any(|name| file_system.contains(name));
    if is_network {
        return Some(Finding::warning(
            option,
            format!("{path} is on {file_system}: a server that does not answer stops all tasks"),
            format!("move {option} to a local file system"),
        ));
    }
    let is_memory = ["tmpfs", "ramfs"].contains(&file_system);
    (option == "data_dir" && is_memory).then(|| {
        Finding::warning(
            option,
            format!("{path} is in memory ({file_system}): images take the node's memory and are lost at a reboot"),
            "move data_dir to a disk",
        )
    })
}

fn fullness(option: &'static str, path: &str, found: &Found, high: Option<u8>) -> Option<Finding> {
    let limit = high.map_or(NEARLY_FULL, u64::from);
    let parts = [(found.bytes, "bytes"), (found.inodes, "inodes")];
    let percent = |(total, free): (u64, u64)| {
        if total == 0 {
            0
        } else {
            u64::try_from(u128::from(total - free.min(total)) * 100 / u128::from(total)).unwrap_or(100)
        }
    };
    let (used, unit) = parts.into_iter().map(|(amount, unit)| (percent(amount), unit)).max()?;
    if used <= limit {
        return None;
    }
    let consequence = match (option, high) {
        ("data_dir", Some(_)) => {
            ": images that no task uses are removed at once, and pulled again when they are needed"
        }
        ("data_dir", None) => ": pulls fail when it is full",
        _ => ": tasks cannot start when it is full",
    };
    let reason = format!("{used} % of the {unit} of {path} are in use{consequence}");
    Some(Finding::warning(option, reason, "free space there: `oci-rs df` and `oci-rs image prune --dry-run` show what"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::doctor::checks::tests::expect,
        health::Level::{Error, Ok, Warning},
    };

    #[test]
    fn each_problem_of_a_directory_is_told() {
        let good = || Found { file_system: "ext4".into(), bytes: (100, 50), inodes: (100, 50), ..Found::default() };
        let of = |option, found| Directory { option, path: "/d".into(), found };
        for (option, found, high, level, part) in [
            ("data_dir", Some(good()), Some(85), Ok, "50 B of 100 B free"),
            ("data_dir", None, Some(85), Warning, "does not exist"),
            ("data_dir", Some(Found { read_only: true, ..good() }), None, Error, "mount it with rw"),
            ("state_dir", Some(Found { others_write: true, ..good() }), None, Error, "chmod go-w /d"),
            ("data_dir", Some(Found { file_system: "tmpfs".into(), ..good() }), None, Warning, "in memory"),
            ("state_dir", Some(Found { file_system: "tmpfs".into(), ..good() }), None, Ok, "tmpfs"),
            ("data_dir", Some(Found { file_system: "nfs4".into(), ..good() }), None, Warning, "local file system"),
            ("data_dir", Some(Found { bytes: (100, 14), ..good() }), Some(85), Warning, "86 % of the bytes"),
            ("data_dir", Some(Found { bytes: (100, 14), ..good() }), None, Ok, "14 B"),
            ("data_dir", Some(Found { bytes: (100, 0), ..good() }), None, Warning, "pulls fail"),
            ("state_dir", Some(Found { inodes: (100, 1), ..good() }), Some(95), Warning, "99 % of the inodes"),
            ("data_dir", Some(Found { inodes: (0, 0), ..good() }), Some(85), Ok, ""),
        ] {
            expect(&judge(&of(option, found), high), option, level, part);
        }
    }
}
