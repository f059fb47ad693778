//! `oci-rs version`: the build, and the features of this kernel.

use std::{fs, path::Path, sync::LazyLock};

use runtime::cgroup::Version;
use serde_json::{Map, Value, json};

use super::{failure::Failure, format, output::Output};
use crate::apparmor;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of the sources, if the build knows it.
const COMMIT: Option<&str> = option_env!("OCI_RS_COMMIT");
/// The time of that commit, in seconds since 1970.
const COMMIT_TIME: Option<&str> = option_env!("OCI_RS_COMMIT_TIME");
/// The time of the build: `SOURCE_DATE_EPOCH`, or else the time of the commit. So two builds of one commit are equal.
const BUILD_TIME: Option<&str> = option_env!("OCI_RS_BUILD_TIME");

/// The text of `--version`.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| line(COMMIT, BUILD_TIME));
    &TEXT
}

/// The version, and the commit and day of a build that knows them.
fn line(commit: Option<&str>, built: Option<&str>) -> String {
    let Some(commit) = commit else { return VERSION.to_owned() };
    let built = built.and_then(date).map(|time| format!(", {}", &time[..10])).unwrap_or_default();
    format!("{VERSION} (commit {commit}{built})")
}

/// Seconds since 1970 as text in RFC 3339.
fn date(seconds: &str) -> Option<String> {
    // The formatting library knows the years up to 9999.
    let seconds = seconds.parse().ok().filter(|seconds| *seconds < 253_402_300_800)?;
    Some(format::rfc3339(format::since_epoch(seconds)))
}

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
            "version": VERSION, "commit": COMMIT, "commit_date": COMMIT_TIME.and_then(date),
            "build_date": BUILD_TIME.and_then(date),
            "libcontainer": runtime::LIBCONTAINER_VERSION, "kernel": release, "cgroups": cgroups(),
            "features": features,
        }))?);
    }
    let known = |time: Option<&str>| time.and_then(date).unwrap_or_else(|| "unknown".to_owned());
    let seen = |there: bool| (if there { "yes" } else { "not seen" }).to_owned();
    let mut rows = vec![
        vec!["version".to_owned(), VERSION.to_owned()],
        vec!["commit".to_owned(), COMMIT.unwrap_or("unknown (not a release build of a repository)").to_owned()],
        vec!["commit date".to_owned(), known(COMMIT_TIME)],
        vec!["build date".to_owned(), known(BUILD_TIME)],
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

#[cfg(test)]
mod tests {
    use super::{VERSION, date, line};

    #[test]
    fn the_version_names_the_commit_and_the_day_of_a_build_that_knows_them() {
        let day = Some("1795219199");
        for (commit, built, expected) in [
            (None, None, VERSION.to_owned()),
            (None, day, VERSION.to_owned()),
            (Some("abc"), day, format!("{VERSION} (commit abc, 2026-11-20)")),
            (Some("abc"), None, format!("{VERSION} (commit abc)")),
            (Some("abc-changed"), Some("no number"), format!("{VERSION} (commit abc-changed)")),
            (Some("abc"), Some("18446744073709551615"), format!("{VERSION} (commit abc)")),
        ] {
            assert_eq!(line(commit, built), expected);
        }
        assert_eq!(date("0").as_deref(), Some("1970-01-01T00:00:00Z"));
    }
}
