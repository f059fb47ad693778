//! The kernel: its version, its features, its cgroups and its clock.

use crate::health::Finding;

/// The oldest kernel that the tests run with.
const TESTED: (u32, u32) = (6, 1);
/// The controllers that limit tasks, with the consequence of a missing one.
const CONTROLLERS: [(&str, &str); 4] = [
    ("memory", "tasks have no memory limit"),
    ("cpu", "tasks have no CPU shares"),
    ("pids", "`pids_limit` has no effect, and one task can use up all process ids"),
    ("cpuset", "jobs with `cores` cannot start"),
];
/// Fewer inotify watches are used up by log collectors and the like.
const FEWEST_WATCHES: u64 = 8192;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// Why layers cannot be EROFS images; `None` if they can, or shall not be.
    pub layer_image_problem: Option<String>,
    /// Why compressed native images are not used; `None` if they are, or if layers cannot be EROFS images.
    pub compressed_image_problem: Option<String>,
    /// Why the blocks of layers are not verified; `None` if they are, or shall not be.
    pub fs_verity_problem: Option<String>,
    /// The cgroup version is 1.
    pub cgroup_v1: bool,
    /// The controllers that are switched on.
    pub controllers: Vec<String>,
    /// Those that Nomad's cgroup has; `None` without such a cgroup, and with cgroup v1.
    pub delegated: Option<Vec<String>>,
    /// The node has swap that is not counted per cgroup.
    pub swap_uncounted: bool,
    /// The kernel tells pressure (PSI).
    pub pressure: bool,
    /// `fs.inotify.max_user_watches`.
    pub inotify_watches: Option<u64>,
    /// The node itself is a container.
    pub in_container: bool,
}

/// Judges it.
pub fn judge(kernel: &Kernel) -> Vec<Finding> {
    let mut findings = vec![version(&kernel.release), layers(kernel)];
    if let Some(problem) = &kernel.fs_verity_problem {
        findings.push(Finding::error(
            "fs-verity",
            format!("no task starts: fs_verity is on, and layers cannot be protected: {problem}"),
            "use Linux 6.15 with data_dir on btrfs, or on ext4 with the feature `verity` (tune2fs -O verity), or \
             remove fs_verity from the plugin block",
        ));
    }
    findings.extend(controllers(kernel));
    if kernel.swap_uncounted {
        findings.push(Finding::warning(
            "swap",
            "the kernel does not count swap per task: a task can use more memory than its limit by swapping",
            "boot with swapaccount=1, use cgroup v2, or switch swap off",
        ));
    }
    if !kernel.pressure {
        findings.push(Finding::warning(
            "pressure",
            "the kernel tells no pressure (PSI): the metrics `oci_rs_task_pressure_…` are missing",
            "boot with psi=1",
        ));
    }
    if let Some(watches) = kernel.inotify_watches.filter(|watches| *watches < FEWEST_WATCHES) {
        findings.push(Finding::warning(
            "inotify",
            format!(
                "fs.inotify.max_user_watches is {watches}: tasks may not see new log files, and log readers starve"
            ),
            format!("sysctl -w fs.inotify.max_user_watches={}", FEWEST_WATCHES * 8),
        ));
    }
    if kernel.in_container {
        findings.push(Finding::warning(
            "container",
            "this node is a container itself: where parts of its /proc are covered, tasks get no user namespaces",
            "run the agent on the machine",
        ));
    }
    findings
}

fn version(release: &str) -> Finding {
    let check = "kernel";
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::warning(
            check,
            format!("the kernel's version {release:?} is unknown"),
            "use Linux 6.1 or newer",
        );
    };
    if (major, minor) < TESTED {
        let reason = format!("Linux {release} is older than {}.{}, with which oci-rs is tested", TESTED.0, TESTED.1);
        return Finding::warning(check, reason, "upgrade the kernel");
    }
    Finding::ok(check, format!("Linux {release}"))
}

fn layers(kernel: &Kernel) -> Finding {
    match (&kernel.layer_image_problem, &kernel.compressed_image_problem) {
        (None, None) => Finding::ok("layers", "new layers have the form that the plugin block asks for"),
        (None, Some(problem)) => Finding::warning(
            "layers",
            format!("compressed native images are not used, but their originals, which start later: {problem}"),
            "use a kernel that reads compressed EROFS images (Linux 6.10 with CONFIG_EROFS_FS_ZIP_ZSTD)",
        ),
        (Some(problem), _) => Finding::warning(
            "layers",
            format!("layers are unpacked into directories, which is slower than EROFS images: {problem}"),
            "use a kernel with EROFS (Linux 6.15 mounts images that are files) and data_dir on a local disk, or set \
             layer_format = \"directory\" in the plugin block",
        ),
    }
}

fn controllers(kernel: &Kernel) -> Vec<Finding> {
    let missing = CONTROLLERS.iter().filter_map(|(name, consequence)| missing_controller(kernel, name, consequence));
    let missing: Vec<Finding> = missing.collect();
    if missing.is_empty() {
        vec![Finding::ok("controllers", "memory, cpu, pids and cpuset are there")]
    } else {
        missing
    }
}

/// The finding about a controller that tasks lack; `None` if they have it.
fn missing_controller(kernel: &Kernel, name: &str, consequence: &str) -> Option<Finding> {
    let check = "controllers";
    let has = |controllers: &[String]| controllers.iter().any(|known| known == name);
    if has(&kernel.controllers) {
        let is_missing = kernel.delegated.as_ref().is_some_and(|delegated| !has(delegated));
        return is_missing.then(|| {
            Finding::warning(
                check,
                format!("the cgroup controller `{name}` is not delegated to nomad.slice: {consequence}"),
                format!("restart the agent, or add {name} to /sys/fs/cgroup/cgroup.subtree_control"),
            )
        });
    }
    let remedy = match (name, kernel.cgroup_v1) {
        ("memory", _) => "boot with cgroup_enable=memory".to_owned(),
        (_, true) => format!("mount the controller at /sys/fs/cgroup/{name}"),
        (_, false) => format!("boot a kernel with the controller, and without cgroup_disable={name}"),
    };
    let reason = format!("the cgroup controller `{name}` is missing: {consequence}");
    Some(if name == "memory" { Finding::error(check, reason, remedy) } else { Finding::warning(check, reason, remedy) })
}

/// What was found about the clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    /// The kernel says that the clock follows a time server; `None` if it does not say.
    pub synchronized: Option<bool>,
    /// The clock is behind the time of a file that exists, by these seconds.
    pub behind: u64,
}

/// A clock may be this much behind: file servers have clocks of their own.
const TOLERANCE: u64 = 60;

/// Judges the clock.
pub fn clock(clock: Clock) -> Finding {
    let check = "clock";
    let remedy = "start a time service, such as systemd-timesyncd or chrony";
    match clock {
        Clock { behind, .. } if behind > TOLERANCE => Finding::error(
            check,
            format!("the clock is {behind} seconds behind the files of this driver: certificates of registries fail"),
            remedy,
        ),
        Clock { synchronized: Some(false), .. } => Finding::warning(
            check,
            "no time service keeps the clock right: certificates of registries fail when it is wrong",
            remedy,
        ),
        _ => Finding::ok(check, "the clock is right, as far as the kernel knows"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::doctor::checks::tests::expect,
        health::Level::{Error, Ok, Warning},
    };

    fn good() -> Kernel {
        Kernel {
            release: "6.1.0-18-amd64".into(),
            controllers: CONTROLLERS.iter().map(|(name, _)| (*name).to_owned()).collect(),
            pressure: true,
            inotify_watches: Some(65_536),
            ..Kernel::default()
        }
    }

    fn without(name: &str) -> Kernel {
        let mut kernel = good();
        kernel.controllers.retain(|known| known != name);
        kernel
    }

    fn delegated(names: &[&str]) -> Kernel {
        Kernel { delegated: Some(names.iter().map(|name| (*name).to_owned()).collect()), ..good() }
    }

    #[test]
    fn each_lack_of_the_kernel_has_its_consequence_and_remedy() {
        assert!(judge(&good()).iter().all(|finding| finding.level == Ok));
        for (kernel, check, level, part) in [
            (Kernel { release: "6.0.9".into(), ..good() }, "kernel", Warning, "older than 6.1"),
            (Kernel { release: "5.19".into(), ..good() }, "kernel", Warning, "older than 6.1"),
            (Kernel { release: "custom".into(), ..good() }, "kernel", Warning, "unknown"),
            (Kernel { layer_image_problem: Some("on tmpfs".into()), ..good() }, "layers", Warning, "on tmpfs"),
            (Kernel { compressed_image_problem: Some("no".into()), ..good() }, "layers", Warning, "FS_ZIP_ZSTD"),
            (Kernel { fs_verity_problem: Some("no".into()), ..good() }, "fs-verity", Error, "remove fs_verity"),
            (without("memory"), "controllers", Error, "cgroup_enable=memory"),
            (without("pids"), "controllers", Warning, "cgroup_disable=pids"),
            (delegated(&["memory", "cpu", "cpuset"]), "controllers", Warning, "`pids` is not delegated"),
            (delegated(&["cpu", "cpuset", "pids"]), "controllers", Warning, "cgroup.subtree_control"),
            (delegated(&["memory", "cpu", "cpuset", "io", "pids"]), "controllers", Ok, "are there"),
            (Kernel { cgroup_v1: true, ..without("cpuset") }, "controllers", Warning, "/sys/fs/cgroup/cpuset"),
            (without("cpu"), "controllers", Warning, "no CPU shares"),
            (Kernel { swap_uncounted: true, ..good() }, "swap", Warning, "swapaccount=1"),
            (Kernel { pressure: false, ..good() }, "pressure", Warning, "psi=1"),
            (Kernel { inotify_watches: Some(100), ..good() }, "inotify", Warning, "max_user_watches=65536"),
            (Kernel { in_container: true, ..good() }, "container", Warning, "on the machine"),
        ] {
            expect(&judge(&kernel), check, level, part);
        }
        assert_eq!(judge(&Kernel { release: "7.0".into(), inotify_watches: None, ..good() })[0].level, Ok);
    }

    #[test]
    fn a_clock_is_judged_by_the_kernel_and_by_files() {
        for (synchronized, behind, level) in
            [(Some(true), 0, Ok), (None, TOLERANCE, Ok), (Some(false), 0, Warning), (Some(true), TOLERANCE + 1, Error)]
        {
            assert_eq!(clock(Clock { synchronized, behind }).level, level, "{synchronized:?} {behind}");
        }
    }
}
