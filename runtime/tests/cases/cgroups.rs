//! Cgroups: limits, existing cgroups, removal, running out of memory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use runtime::{
    Running, Status,
    cgroup::{Version, version},
    plan::{ContainerPlan, Device, Mount, MountKind, Propagation, Resources},
};

use crate::common::{Node, control_groups, eventually};

pub const CASES: &[(&str, fn())] = &[
    ("cgroups_limits", limits),
    ("cgroups_out_of_memory", out_of_memory),
    ("cgroups_out_of_memory_of_a_child", out_of_memory_of_a_child),
    ("cgroups_existing_cgroups_stay", existing_cgroups_stay),
    ("cgroups_nested_cgroups_are_removed", nested_cgroups_are_removed),
    ("cgroups_cpuset_of_the_caller", cpuset_of_the_caller),
    ("cgroups_cpuset_changes_of_the_caller_apply", cpuset_changes_of_the_caller_apply),
    ("cgroups_devices_are_not_inherited", devices_are_not_inherited),
    ("cgroups_frozen_containers_end", frozen_containers_end),
    ("cgroups_forks_do_not_escape_the_kill", forks_do_not_escape_the_kill),
    ("cgroups_swap_is_off", swap_is_off),
    ("cgroups_limits_of_the_caller_stay", limits_of_the_caller_stay),
    ("cgroups_other_cgroups_are_hidden", other_cgroups_are_hidden),
    ("cgroups_process_limit", process_limit),
    ("cgroups_contain_only_the_container", contain_only_the_container),
    ("cgroups_limits_do_not_apply_to_the_creator", limits_do_not_apply_to_the_creator),
    ("cgroups_are_shown_read_only", are_shown_read_only),
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
    if version().expect("a version") == Version::V1 {
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
    let expected: &[(&str, &str)] = match version().expect("a version") {
        Version::V1 => &[
            ("memory.limit_in_bytes", "50331648"),
            ("memory.memsw.limit_in_bytes", "50331648"),
            ("memory.soft_limit_in_bytes", "25165824"),
            ("cpu.shares", "512"),
            ("cpu.cfs_quota_us", "50000"),
            ("cpuset.cpus", "0"),
            ("pids.max", "33"),
        ],
        Version::V2 => &[
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
fn existing_cgroups_stay() {
    let node = Node::new();
    let path = format!("{}-nomad", node.cgroup);
    let existing: Vec<PathBuf> = match version().expect("a version") {
        Version::V1 => ["memory", "cpu", "freezer"].map(|name| PathBuf::from("/sys/fs/cgroup").join(name)).to_vec(),
        Version::V2 => vec![PathBuf::from("/sys/fs/cgroup")],
    };
    let mut existing: Vec<PathBuf> = existing.into_iter().map(|root| root.join(path.trim_start_matches('/'))).collect();
    existing.sort();
    for group in &existing {
        fs::create_dir_all(group).expect("a group");
    }
    if version().expect("a version") == Version::V2 {
        for directory in ["/sys/fs/cgroup", "/sys/fs/cgroup/oci-rs-test"] {
            for controller in ["cpu", "memory", "pids"] {
                let file = PathBuf::from(directory).join("cgroup.subtree_control");
                fs::write(file, format!("+{controller}")).expect("enabled, as Nomad does");
            }
        }
    }
    let mut impossible = node.plan("true");
    impossible.cgroup.path.clone_from(&path);
    impossible.mounts = vec![Mount {
        destination: "/sys/no/such/place".to_owned(),
        kind: MountKind::Tmpfs { size: None, mode: None, uid: None, gid: None },
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
        let file = if version().expect("a version") == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        let now = read(&path, file);
        assert_eq!(now == "16777216", limit.is_some(), "{now}");
        if version().expect("a version") == Version::V1 {
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

fn nested_cgroups_are_removed() {
    let node = Node::new();
    let container = node.start(node.plan("exec sleep 100"));
    let group = control_groups(&container.plan.cgroup.path).pop().expect("a group");
    fs::create_dir_all(group.join("inner/most")).expect("a group");
    fs::write(group.join("inner/most/cgroup.procs"), container.running.init.pid.to_string()).ok();
    // Dropping the container destroys it and checks that no group is left.
}

fn cpuset_of_the_caller() {
    if version().expect("a version") != Version::V1 {
        return;
    }
    let node = Node::new();
    let group = PathBuf::from(format!("/sys/fs/cgroup/cpuset{}-share", node.cgroup));
    make_cpuset(&group);
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

/// Starts a container in a group that stays, does something with its first process, and destroys it.
fn in_a_group_that_stays<T>(node: &Node, plan: &ContainerPlan, look: impl FnOnce(&Running) -> T) -> T {
    let running = node.runtime.start(plan).expect("started");
    let seen = look(&running);
    node.runtime.destroy(&plan.id).expect("destroyed");
    seen
}

/// Nomad moves cores between its tasks while they run, by writing to the group that it made around them.
fn cpuset_changes_of_the_caller_apply() {
    let node = Node::new();
    let mut plan = node.plan("sleep 100");
    let (around, scope) = match version().expect("a version") {
        Version::V1 => {
            let group = PathBuf::from(format!("/sys/fs/cgroup/cpuset{}-share", node.cgroup));
            make_cpuset(&group);
            plan.cgroup.cpuset_v1 = Some(group.clone());
            (group, None)
        }
        Version::V2 => {
            plan.cgroup.path = format!("{}-share.slice/task.scope", node.cgroup);
            let scope = PathBuf::from(format!("/sys/fs/cgroup{}", plan.cgroup.path));
            fs::create_dir_all(&scope).expect("a group");
            let around = scope.parent().expect("a slice").to_owned();
            for directory in
                ["/sys/fs/cgroup", "/sys/fs/cgroup/oci-rs-test"].map(Path::new).into_iter().chain([&*around])
            {
                fs::write(directory.join("cgroup.subtree_control"), "+cpuset").expect("enabled, as Nomad does");
            }
            (around, Some(scope))
        }
    };
    in_a_group_that_stays(&node, &plan, |running| {
        let cores = || {
            let status = fs::read_to_string(format!("/proc/{}/status", running.init.pid)).expect("a status");
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a field");
            list.trim().to_owned()
        };
        let all = cores();
        fs::write(around.join("cpuset.cpus"), "0").expect("set");
        assert_eq!(cores(), "0");
        fs::write(around.join("cpuset.cpus"), &all).expect("set");
        assert_eq!(cores(), all);
    });
    for group in scope.iter().chain([&around]) {
        fs::remove_dir(group).expect("the caller's group stays, empty");
    }
}

/// The group stays over a task's restart; what was allowed to the first run does not.
fn devices_are_not_inherited() {
    let node = Node::new();
    let path = format!("{}-restarted", node.cgroup);
    let mode = version().expect("a version");
    let group = match mode {
        Version::V1 => PathBuf::from(format!("/sys/fs/cgroup/devices{path}")),
        Version::V2 => PathBuf::from(format!("/sys/fs/cgroup{path}")),
    };
    fs::create_dir_all(&group).expect("a group");
    let may_open = |devices: Vec<Device>| {
        let mut plan = node.plan("mknod /log c 1 11 || exit 9; : >> /log || exit 1");
        plan.cgroup.path.clone_from(&path);
        plan.security.capabilities.push("CAP_MKNOD".to_owned());
        // No process of another user namespace makes a node.
        plan.user_namespace = None;
        plan.devices = devices;
        in_a_group_that_stays(&node, &plan, |running| {
            assert!(running.monitor.wait_for(Some(Duration::from_secs(20))).expect("a poll"));
            match node.runtime.status(&plan.id) {
                Ok(Status::Exited(exit)) => exit.exit_code == 0,
                other => panic!("{other:?}"),
            }
        })
    };
    let log =
        Device { host_path: "/dev/kmsg".into(), container_path: "/dev/given".to_owned(), permissions: "w".to_owned() };
    assert!(!may_open(Vec::new()));
    assert!(may_open(vec![log]));
    assert!(!may_open(Vec::new()), "as before");
    if mode == Version::V2 {
        // Nomad's group; on version 1 it makes none for devices.
        let mut stranger = Command::new("sh");
        stranger.args(["-c", "echo $$ > \"$0\" && : >> /dev/kmsg"]).arg(group.join("cgroup.procs"));
        assert!(stranger.status().expect("a shell").success(), "an empty group is as free as it was");
    }
    eventually("the end of the group", || fs::remove_dir(&group).is_ok());
}

/// A frozen process dies on v2 and does not on v1 until it is thawed; destroying works either way.
fn frozen_containers_end() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100 & sleep 100"));
    let (file, frozen, state) = match version().expect("a version") {
        Version::V1 => ("freezer.state", "FROZEN", "freezer.state"),
        Version::V2 => ("cgroup.freeze", "1", "cgroup.events"),
    };
    let group = group_with(&container.plan.cgroup.path, file);
    fs::write(group.join(file), frozen).expect("frozen");
    let is_frozen = || {
        let text = fs::read_to_string(group.join(state)).expect("a state");
        text.contains("FROZEN") || text.contains("frozen 1")
    };
    eventually("all are frozen", is_frozen);
    // Dropping the container destroys it and checks that nothing is left.
}

/// Processes that fork as fast as they can do not get away.
fn forks_do_not_escape_the_kill() {
    let node = Node::new();
    let mut plan = node.plan("f() { while :; do (f &) ; done; }; f 2>/dev/null");
    plan.resources.pids_limit = Some(30);
    plan.namespaces.private_pid = false;
    let container = node.start(plan);
    eventually("the limit", || {
        read(&container.plan.cgroup.path, "pids.current").parse::<u32>().is_ok_and(|count| count > 20)
    });
}

/// No memory of a container is swapped out, with or without a limit. On version 1 this holds as long as the node can
/// reclaim other memory.
fn swap_is_off() {
    let file = match version().expect("a version") {
        Version::V1 => "memory.swappiness",
        Version::V2 => "memory.swap.max",
    };
    let node = Node::new();
    for limit in [None, Some(64 << 20)] {
        let mut plan = node.plan("sleep 100");
        plan.resources.memory_limit = limit;
        let container = node.start(plan);
        assert_eq!(read(&container.plan.cgroup.path, file), "0");
    }
}

/// A disk of this machine, as `8:0`.
fn disk() -> Option<String> {
    let disks = fs::read_dir("/sys/block").expect("disks").flatten();
    let real = disks.filter(|disk| disk.path().join("device").exists()).find(|disk| !disk.file_name().is_empty())?;
    Some(fs::read_to_string(real.path().join("dev")).expect("its number").trim().to_owned())
}

/// Limits that the plan does not set may be set by the caller or the operator on an existing cgroup of the task. They
/// stay.
fn limits_of_the_caller_stay() {
    if version().expect("a version") == Version::V1 {
        println!("skipped: Nomad makes no group with such limits on version 1");
        return;
    }
    let node = Node::new();
    let path = format!("{}-scope", node.cgroup);
    let group = PathBuf::from(format!("/sys/fs/cgroup{path}"));
    fs::create_dir_all(&group).expect("a group");
    for directory in ["/sys/fs/cgroup", "/sys/fs/cgroup/oci-rs-test"] {
        for controller in ["memory", "io", "cpu"] {
            fs::write(PathBuf::from(directory).join("cgroup.subtree_control"), format!("+{controller}"))
                .expect("enabled");
        }
    }
    fs::write(group.join("memory.high"), "8388608").expect("set");
    let disk = disk();
    if let Some(disk) = &disk {
        fs::write(group.join("io.max"), format!("{disk} rbps=104857600 wiops=5000")).expect("set");
    }
    // More memory than it should have, which can be taken back: what is written to a file.
    let mut plan = node.plan("head -c 16000000 /dev/zero > /file; sync; exec sleep 100");
    plan.cgroup.path.clone_from(&path);
    plan.resources.memory_limit = Some(64 << 20);
    for _run in 1..=2 {
        in_a_group_that_stays(&node, &plan, |running| {
            let members = fs::read_to_string(group.join("cgroup.procs")).expect("members");
            assert!(members.lines().any(|pid| pid == running.init.pid.to_string()), "{members}");
            assert_eq!(
                (read(&path, "memory.high").as_str(), read(&path, "memory.max").as_str()),
                ("8388608", "67108864")
            );
            if let Some(disk) = &disk {
                assert_eq!(read(&path, "io.max"), format!("{disk} rbps=104857600 wbps=max riops=max wiops=5000"));
            }
            eventually("the limit is felt", || {
                let events = read(&path, "memory.events");
                events.lines().any(|line| line.strip_prefix("high ").is_some_and(|count| count != "0"))
            });
        });
    }
    fs::remove_dir(&group).expect("the caller's group stays, empty");
}

/// A container sees its own limits where programs look for them, and no other limits, in every kind of cgroup
/// namespace.
fn other_cgroups_are_hidden() {
    let node = Node::new();
    let _other = node.start(node.plan("sleep 100"));
    let script = "cd /sys/fs/cgroup && cat memory.max memory/memory.limit_in_bytes 2>/dev/null; \
                  ls -d oci-rs-test */oci-rs-test *.slice \
                  2>/dev/null; mkdir x || mkdir memory/x || echo refused";
    for private_cgroup in [true, false] {
        let mut plan = node.plan(script);
        plan.user = "web".to_owned();
        plan.namespaces.private_cgroup = private_cgroup;
        plan.resources.memory_limit = Some(64 << 20);
        let (_, out, err) = node.run(plan);
        assert_eq!(out, "67108864\nrefused\n", "{private_cgroup}: {err}");
    }
}

fn make_cpuset(group: &Path) {
    fs::create_dir_all(group).expect("a group");
    let parent = group.parent().expect("a parent");
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let whole = fs::read_to_string(Path::new("/sys/fs/cgroup/cpuset").join(file)).expect("a file");
        fs::write(parent.join(file), whole.trim()).expect("set");
        fs::write(group.join(file), whole.trim()).expect("set");
    }
}

fn process_limit() {
    let node = Node::new();
    let mut plan = node.plan("for n in 1 2 3 4 5 6 7 8; do sleep 5 & done; exit 0");
    plan.resources.pids_limit = Some(5);
    let (exit, _, err) = node.run(plan);
    assert_ne!(exit.exit_code, 0);
    assert!(err.contains("fork"), "{err}");
}

/// Neither who watches the container nor who built it is in its groups.
fn contain_only_the_container() {
    let node = Node::new();
    let container = node.start(node.plan("exec sleep 100"));
    let groups = control_groups(&container.plan.cgroup.path);
    assert!(!groups.is_empty());
    for group in groups {
        // Who forked its first process is just ending.
        let init = container.running.init.pid.to_string();
        let members = || fs::read_to_string(group.join("cgroup.procs")).expect("members");
        crate::common::eventually(&format!("{init} alone in {}", group.display()), || members().trim() == init);
    }
}

/// A command may use its limits up to the last: what makes a container on version 1 leaves before they are set.
fn limits_do_not_apply_to_the_creator() {
    if version().expect("a version") == Version::V2 {
        println!("  skipped: libcontainer's own processes are counted on version 2");
        return;
    }
    let node = Node::new();
    let mut plan = node.plan("exec true");
    plan.resources.pids_limit = Some(1);
    plan.resources.cpu_quota = Some(1_000);
    plan.resources.cpu_period = Some(100_000);
    let (exit, _, _) = node.run(plan);
    assert_eq!((exit.exit_code, exit.forks_refused), (0, 0));
}

/// On version 1 a container finds its own groups where programs look for them, and can change none.
fn are_shown_read_only() {
    if version().expect("a version") == Version::V2 {
        println!("  skipped: version 2 has one directory for everything");
        return;
    }
    let node = Node::new();
    let container = node.start(node.plan("exec sleep 100"));
    let (mounts, own) = (container.proc("mountinfo"), container.plan.cgroup.path.as_str());
    for (place, kind, root) in [("", "tmpfs", "/"), ("/memory", "cgroup", own), ("/pids", "cgroup", own)] {
        let place = format!("/sys/fs/cgroup{place}");
        let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(&place)).expect(&place);
        let fields: Vec<&str> = line.split(' ').collect();
        assert!(fields[3] == root && line.contains(&format!(" - {kind} ")), "{line}");
        assert!(fields[5].split(',').any(|option| option == "ro"), "{line}");
    }
}
