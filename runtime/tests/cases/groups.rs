//! Control groups: limits, the groups that stay and those that go, running out of memory.

use std::{fs, path::PathBuf};

use runtime::{
    cgroup::{Mode, mode},
    plan::{Mount, MountKind, Propagation, Resources},
};

use crate::common::{Node, control_groups};

pub const CASES: &[(&str, fn())] = &[
    ("groups_limits", limits),
    ("groups_out_of_memory", out_of_memory),
    ("groups_out_of_memory_of_a_child", out_of_memory_of_a_child),
    ("groups_that_were_there_stay", groups_that_were_there_stay),
    ("groups_made_inside_go", groups_made_inside_go),
    ("groups_cpuset_of_the_caller", cpuset_of_the_caller),
    ("groups_process_limit", process_limit),
];

/// The container's group that holds a file.
fn group_with(path: &str, file: &str) -> PathBuf {
    control_groups(path).into_iter().find(|group| group.join(file).exists()).expect(file)
}

fn read(path: &str, file: &str) -> String {
    fs::read_to_string(group_with(path, file).join(file)).expect(file).trim().to_owned()
}

/// Whether this kernel has a file in the groups; v1 has all of them.
fn has(file: &str) -> bool {
    let probe = PathBuf::from("/sys/fs/cgroup/oci-rs-test-probe");
    if mode().expect("a mode") == Mode::V1 {
        return true;
    }
    let controller = file.split('.').next().expect("a controller");
    let enable = fs::write("/sys/fs/cgroup/cgroup.subtree_control", format!("+{controller}"));
    fs::create_dir(&probe).expect("a group");
    let has = enable.is_ok() && probe.join(file).exists();
    fs::remove_dir(&probe).expect("removed");
    has
}

fn without_what_is_missing(resources: &mut Resources) {
    if !has("cpuset.cpus") {
        resources.cpuset_cpus = None;
    }
    if !has("cpu.max") {
        (resources.cpu_quota, resources.cpu_period) = (None, None);
    }
}

fn limits() {
    let node = Node::new();
    let mut plan = node.plan("sleep 100");
    plan.resources.memory_limit = Some(48 << 20);
    plan.resources.memory_reservation = Some(24 << 20);
    plan.resources.cpu_shares = Some(512);
    plan.resources.cpu_quota = Some(50_000);
    plan.resources.cpu_period = Some(100_000);
    plan.resources.cpuset_cpus = Some("0".to_owned());
    plan.resources.pids_limit = Some(33);
    without_what_is_missing(&mut plan.resources);
    let container = node.start(plan);
    let path = container.plan.cgroup.path.as_str();
    let expected: &[(&str, &str)] = match mode().expect("a mode") {
        Mode::V1 => &[
            ("memory.limit_in_bytes", "50331648"),
            ("memory.memsw.limit_in_bytes", "50331648"),
            ("memory.soft_limit_in_bytes", "25165824"),
            ("cpu.shares", "512"),
            ("cpu.cfs_quota_us", "50000"),
            ("cpuset.cpus", "0"),
            ("pids.max", "33"),
        ],
        Mode::V2 => &[
            ("memory.max", "50331648"),
            ("memory.swap.max", "0"),
            ("memory.low", "25165824"),
            ("cpu.weight", "59"),
            ("cpu.max", "50000 100000"),
            ("cpuset.cpus", "0"),
            ("pids.max", "33"),
        ],
    };
    for (file, value) in expected.iter().filter(|(file, _)| has(file)) {
        assert_eq!(&read(path, file), value, "{file}");
    }
}

fn out_of_memory() {
    let node = Node::new();
    let mut plan = node.plan("exec tail /dev/zero");
    plan.resources.memory_limit = Some(16 << 20);
    let (exit, _, _) = node.run(plan);
    assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (137, 9, true));
}

fn out_of_memory_of_a_child() {
    let node = Node::new();
    let mut plan = node.plan("tail /dev/zero; exit 4");
    plan.resources.memory_limit = Some(16 << 20);
    let (exit, _, _) = node.run(plan);
    assert_eq!((exit.exit_code, exit.oom_killed), (4, true));
}

/// Nomad makes some of the groups, expects them to stay, and to hold no limit of an earlier run.
fn groups_that_were_there_stay() {
    let node = Node::new();
    let path = format!("{}-nomad", node.cgroup);
    let existing: Vec<PathBuf> = match mode().expect("a mode") {
        Mode::V1 => ["memory", "cpu", "freezer"].map(|name| PathBuf::from("/sys/fs/cgroup").join(name)).to_vec(),
        Mode::V2 => vec![PathBuf::from("/sys/fs/cgroup")],
    };
    let mut existing: Vec<PathBuf> = existing.into_iter().map(|root| root.join(path.trim_start_matches('/'))).collect();
    existing.sort();
    for group in &existing {
        fs::create_dir_all(group).expect("a group");
    }
    if mode().expect("a mode") == Mode::V2 {
        for folder in ["/sys/fs/cgroup", "/sys/fs/cgroup/oci-rs-test"] {
            for controller in ["cpu", "memory", "pids"] {
                let file = PathBuf::from(folder).join("cgroup.subtree_control");
                fs::write(file, format!("+{controller}")).expect("enabled, as Nomad does");
            }
        }
    }
    let mut impossible = node.plan("true");
    impossible.cgroup.path.clone_from(&path);
    impossible.mounts = vec![Mount {
        destination: "/sys/no/such/place".to_owned(),
        kind: MountKind::Tmpfs { size: None, mode: None },
        readonly: false,
        propagation: Propagation::Private,
    }];
    let error = node.runtime.start(&impossible).map(drop).expect_err("cannot be made");
    assert!(error.message.contains("/sys/no/such/place"), "{error}");
    assert_eq!(control_groups(&path), existing, "a failure takes nothing along");
    for limit in [Some(16 << 20), None] {
        let mut plan = node.plan("exec sleep 100");
        plan.cgroup.path.clone_from(&path);
        plan.resources.memory_limit = limit;
        plan.resources.cpu_quota = limit.map(|_| 20_000);
        without_what_is_missing(&mut plan.resources);
        let id = plan.id.clone();
        let running = node.runtime.start(&plan).expect("started");
        let file = if mode().expect("a mode") == Mode::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        let now = read(&path, file);
        assert_eq!(now == "16777216", limit.is_some(), "{now}");
        if mode().expect("a mode") == Mode::V1 {
            assert_eq!(read(&path, "cpu.cfs_quota_us") == "-1", limit.is_none());
        }
        drop(running);
        node.runtime.destroy(&id).expect("destroyed");
        assert_eq!(control_groups(&path), existing, "what was there is there, what we made is not");
    }
    for group in &existing {
        fs::remove_dir(group).expect("empty");
    }
}

fn groups_made_inside_go() {
    let node = Node::new();
    let container = node.start(node.plan("exec sleep 100"));
    let group = control_groups(&container.plan.cgroup.path).pop().expect("a group");
    fs::create_dir_all(group.join("inner/most")).expect("a group");
    fs::write(group.join("inner/most/cgroup.procs"), container.running.init.pid.to_string()).ok();
    // Dropping the container destroys it and checks that no group is left.
}

fn cpuset_of_the_caller() {
    if mode().expect("a mode") != Mode::V1 {
        return;
    }
    let node = Node::new();
    let group = PathBuf::from(format!("/sys/fs/cgroup/cpuset{}-share", node.cgroup));
    fs::create_dir_all(&group).expect("a group");
    let parent = group.parent().expect("a parent");
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let whole = fs::read_to_string(PathBuf::from("/sys/fs/cgroup/cpuset").join(file)).expect("a file");
        fs::write(parent.join(file), whole.trim()).expect("set");
        fs::write(group.join(file), whole.trim()).expect("set");
    }
    let mut plan = node.plan("sleep 100");
    plan.cgroup.cpuset_v1 = Some(group.clone());
    plan.resources.cpuset_cpus = Some("0".to_owned());
    let container = node.start(plan);
    let members = fs::read_to_string(group.join("cgroup.procs")).expect("members");
    assert!(members.lines().any(|pid| pid == container.running.init.pid.to_string()), "{members}");
    assert_eq!(fs::read_to_string(group.join("cpuset.cpus")).expect("cores").trim(), "0");
    drop(container);
    fs::remove_dir(&group).expect("the caller's group stays, empty");
}

fn process_limit() {
    let node = Node::new();
    let mut plan = node.plan("for n in 1 2 3 4 5 6 7 8; do sleep 5 & done; exit 0");
    plan.resources.pids_limit = Some(5);
    let (exit, _, err) = node.run(plan);
    assert_ne!(exit.exit_code, 0);
    assert!(err.contains("fork"), "{err}");
}
