//! Sizes, times and names as text for people.

use std::time::{Duration, SystemTime};

use image_store::LeaseOwner;

/// A number of bytes, as in `4.2 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A duration in its largest unit, as in `5m`.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A time in the past in its largest unit, as in `5m ago`.
pub fn ago(then: SystemTime, now: SystemTime) -> String {
    format!("{} ago", age(now.duration_since(then).unwrap_or_default()))
}

/// A time in RFC 3339, in seconds.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Seconds since 1970 as a time.
pub fn since_epoch(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A shortened digest, as in `sha256:0123456789ab`.
pub fn short_digest(digest: &str) -> &str {
    digest.get(.."sha256:".len() + 12).unwrap_or(digest)
}

/// The owner of a lease. The container of a task usually has the name `<allocation>.<task>.<random>`, with the suffix
/// `.docker` if its driver has that name.
pub fn owner(owner: &LeaseOwner) -> String {
    match owner {
        LeaseOwner::Operator { process, .. } => format!("a command of an operator (process {process})"),
        LeaseOwner::DebugImage { .. } => format!("container {owner}"),
        LeaseOwner::Task { container } | LeaseOwner::MountedImage { container, .. } => {
            match container.split('.').collect::<Vec<_>>()[..] {
                [alloc, task, _] | [alloc, task, _, "docker"] if alloc.len() == 36 => {
                    format!("task {task:?} of allocation {alloc}")
                }
                _ => format!("container {container}"),
            }
        }
    }
}

/// Several owners, separated by commas.
pub fn owners(owners: &[LeaseOwner]) -> String {
    owners.iter().map(owner).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_digests_are_readable() {
        assert_eq!(
            [size(0), size(1023), size(4_404_019), size(u64::MAX)],
            ["0 B", "1023 B", "4.2 MiB", "16777216.0 TiB"]
        );
        let now = since_epoch(1_000_000);
        let then = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(
            [then(0), then(59), then(60), then(7200), then(86_400 * 3)],
            ["0s ago", "59s ago", "1m ago", "2h ago", "3d ago"]
        );
        assert_eq!(ago(now + Duration::from_secs(5), now), "0s ago");
        assert_eq!(rfc3339(now), "1970-01-12T13:46:40Z");
        assert_eq!(short_digest("sha256:0123456789abcdef"), "sha256:0123456789ab");
    }

    #[test]
    fn lease_owners_have_nomads_names() {
        let alloc = "d9eb0a3f-8b0e-4a45-9d2e-0f0a1b2c3d4e";
        let owner = |name: &str| owner(&name.into());
        assert_eq!(owner(&format!("{alloc}.web.0a1b2c3d")), format!("task \"web\" of allocation {alloc}"));
        assert_eq!(owner(&format!("{alloc}.web.0a1b2c3d.docker")), format!("task \"web\" of allocation {alloc}"));
        assert_eq!(owner(&format!("{alloc}.web.0a1b2c3d.mount-1")), format!("task \"web\" of allocation {alloc}"));
        assert_eq!(owner("operator.12.99"), "a command of an operator (process 12)");
        assert_eq!(owner("x.y"), "container x.y");
    }
}
