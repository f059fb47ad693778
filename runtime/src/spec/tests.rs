mod golden;
#[path = "../../tests/common/schema.rs"]
mod schema;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use proptest::prelude::*;

use oci_spec::runtime::{LinuxNamespaceType, Spec};

use super::*;
use crate::{
    capability::CapabilityMask,
    cgroup::Version,
    plan::{
        CgroupPlacement, ContainerPlan, Device, Mount, MountKind, Namespaces, Network, NodeKind, Output, Propagation,
        Resources, Rlimit, RootFs, RootStorage, Seccomp, Security,
    },
    user::ResolvedUser,
};

fn plan() -> ContainerPlan {
    ContainerPlan {
        id: "task".parse().expect("an id"),
        args: vec!["/bin/app".to_owned()],
        env: vec![("PATH".to_owned(), "/bin".to_owned())],
        cwd: "/".to_owned(),
        user: String::new(),
        groups: Vec::new(),
        terminal: false,
        open_stdin: false,
        init: false,
        hostname: None,
        root: RootFs {
            layers: vec!["/layer".into()],
            storage: RootStorage::Overlay,
            readonly: false,
            volumes: Vec::new(),
            empty_volumes: Vec::new(),
            size: None,
        },
        mounts: Vec::new(),
        volumes: Vec::new(),
        confined: None,
        files: Vec::new(),
        devices: Vec::new(),
        hooks: Vec::new(),
        described_devices: Vec::new(),
        mount_restrictions: BTreeMap::new(),
        cache_class: None,
        namespaces: Namespaces {
            network: Network::Private,
            private_pid: true,
            private_ipc: true,
            private_uts: true,
            private_cgroup: true,
        },
        security: Security {
            privileged: false,
            capabilities: vec!["CAP_KILL".to_owned(), "CAP_SYS_RESOURCE".to_owned()],
            no_new_privileges: true,
            seccomp: Seccomp::Default,
            apparmor: None,
        },
        sysctl: BTreeMap::new(),
        rlimits: BTreeMap::new(),
        shm_size: 64 << 20,
        oom_score_adj: 0,
        resources: Resources::default(),
        cgroup: CgroupPlacement { path: "/nomad/task".to_owned(), cpuset_v1: None },
        output: Output { stdout: "/dev/null".into(), stderr: "/dev/null".into() },
        annotations: BTreeMap::new(),
        owner: None,
        shared_names: Vec::new(),
        notes: Default::default(),
        stop_signal: None,
        selinux: None,
        user_namespace: None,
        runtime: None,
        delivery: None,
    }
}

/// The capabilities of this process: all but CAP_SYS_RESOURCE, as in many containers.
fn held() -> CapabilityMask {
    let lacking = CapabilityMask::from_names(&["CAP_SYS_RESOURCE"]).expect("known");
    CapabilityMask(((1 << 41) - 1) & !lacking.0)
}

fn user(uid: u32) -> ResolvedUser {
    ResolvedUser { uid, gid: 7, groups: vec![7, 8], home: "/home/app".to_owned() }
}

fn spec_with(plan: &ContainerPlan, change: impl FnOnce(&mut SpecInputs<'_>)) -> Result<Spec, SpecError> {
    spec_for(plan, &[], change)
}

fn spec_for(
    plan: &ContainerPlan,
    devices: &[HostDevice],
    change: impl FnOnce(&mut SpecInputs<'_>),
) -> Result<Spec, SpecError> {
    let user = user(1000);
    let mut inputs = SpecInputs {
        user: &user,
        cgroup_version: Version::V1,
        swap_accounting: true,
        held: held(),
        kernel: (6, 1),
        devices,
        rootfs: Path::new("/run/rootfs"),
        files: Path::new("/run/etc"),
        visible_cgroups: &[],
        volumes: &[],
    };
    change(&mut inputs);
    complete_spec(plan, &inputs)
}

fn spec(plan: &ContainerPlan) -> Spec {
    spec_with(plan, |_| ()).expect("a spec")
}

fn destinations(spec: &Spec) -> Vec<&str> {
    let mounts = spec.mounts().as_ref().expect("mounts");
    mounts.iter().map(|mount| mount.destination().to_str().expect("text")).collect()
}

#[test]
fn the_bounding_set_has_the_wanted_capabilities_that_we_hold() {
    let spec = spec(&plan());
    let process = spec.process().as_ref().expect("a process");
    let set = process.capabilities().as_ref().expect("capabilities");
    let names: Vec<String> = set.bounding().iter().flatten().map(ToString::to_string).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(set.effective().as_ref().is_some_and(|set| set.is_empty()), "not root");
    assert_eq!(capabilities(&plan(), held()), CapabilityMask::from_names(&["CAP_KILL"]));
    let privileged = ContainerPlan { security: Security { privileged: true, ..plan().security }, ..plan() };
    assert_eq!(capabilities(&privileged, held()), Ok(held()));
}

#[test]
fn home_is_set_if_the_environment_lacks_it() {
    let env = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        environment(&ContainerPlan { env: pairs, ..plan() }, &user(1000))
    };
    let home = |value: &str| ("HOME".to_owned(), value.to_owned());
    assert_eq!(env(&[]), [home("/home/app")]);
    assert_eq!(env(&[("HOME", "/x")]), [home("/x")]);
    assert_eq!(env(&[("HOME", "")]), [home("/home/app")]);
}

#[test]
fn paths_are_masked_unless_the_container_is_privileged() {
    let linux = |spec: &Spec| spec.linux().clone().expect("linux");
    let normal = linux(&spec(&plan()));
    assert!(normal.masked_paths().iter().flatten().any(|path| path == "/proc/kcore"));
    assert!(normal.readonly_paths().iter().flatten().any(|path| path == "/proc/sys"));
    let privileged = ContainerPlan { security: Security { privileged: true, ..plan().security }, ..plan() };
    let privileged = linux(&spec(&privileged));
    assert_eq!(privileged.masked_paths().as_ref().map(Vec::len), Some(0));
    assert_eq!(privileged.readonly_paths().as_ref().map(Vec::len), Some(0));
}

#[test]
fn swap_is_off_with_every_kind_of_kernel() {
    let limited =
        ContainerPlan { resources: Resources { memory_limit: Some(1 << 20), ..Resources::default() }, ..plan() };
    let resources = |plan: &ContainerPlan, mode, swap_accounting| {
        let spec = spec_with(plan, |inputs| {
            inputs.cgroup_version = mode;
            inputs.swap_accounting = swap_accounting;
        });
        spec.expect("a spec").linux().clone().and_then(|linux| linux.resources().clone()).expect("resources")
    };
    let swap = |plan: &ContainerPlan, mode, accounting| {
        let resources = resources(plan, mode, accounting);
        let unified = resources.unified().as_ref().and_then(|files| files.get("memory.swap.max").cloned());
        (resources.memory().as_ref().and_then(|memory| memory.swap()), unified)
    };
    // Version 1 has only the swappiness, which works without a limit too.
    let swappiness = |plan: &ContainerPlan, mode| resources(plan, mode, false).memory().as_ref()?.swappiness();
    for plan in [&plan(), &limited] {
        assert_eq!((swappiness(plan, Version::V1), swappiness(plan, Version::V2)), (Some(0), None));
    }
    assert_eq!(swap(&limited, Version::V1, true), (Some(1 << 20), None));
    assert_eq!(swap(&limited, Version::V2, true), (Some(1 << 20), Some("0".to_owned())));
    assert_eq!(swap(&limited, Version::V1, false), (None, None));
    assert_eq!(swap(&plan(), Version::V1, true), (None, None));
    assert_eq!(swap(&plan(), Version::V2, true), (None, Some("0".to_owned())));
    assert_eq!(swap(&limited, Version::V2, false), (None, None));
}

#[test]
fn cores_are_not_set_in_a_cpuset_that_the_container_does_not_use() {
    let mut plan = plan();
    plan.resources.cpuset_cpus = Some("1".to_owned());
    plan.resources.cpuset_mems = Some("0".to_owned());
    let mems = |plan: &ContainerPlan| {
        let resources = spec(plan).linux().clone().and_then(|linux| linux.resources().clone()).expect("resources");
        resources.cpu().as_ref().and_then(|cpu| cpu.mems().clone())
    };
    assert_eq!(mems(&plan).as_deref(), Some("0"));
    let cpus = |plan: &ContainerPlan, mode| {
        let spec = spec_with(plan, |inputs| inputs.cgroup_version = mode).expect("a spec");
        let resources = spec.linux().clone().and_then(|linux| linux.resources().clone()).expect("resources");
        resources.cpu().as_ref().and_then(|cpu| cpu.cpus().clone())
    };
    assert_eq!(cpus(&plan, Version::V1).as_deref(), Some("1"));
    plan.cgroup.cpuset_v1 = Some("/sys/fs/cgroup/cpuset/nomad/share".into());
    assert_eq!(cpus(&plan, Version::V1), None);
    assert_eq!(cpus(&plan, Version::V2).as_deref(), Some("1"));
}

#[test]
fn only_listed_devices_are_allowed() {
    let device = HostDevice {
        container_path: "/dev/mine".into(),
        kind: NodeKind::Character,
        major: 10,
        minor: 20,
        mode: 0o660,
        uid: 0,
        gid: 5,
        permissions: Some("rw".to_owned()),
    };
    let rules = |spec: Spec| {
        let resources = spec.linux().clone().and_then(|linux| linux.resources().clone()).expect("resources");
        resources.devices().clone().expect("rules")
    };
    let list = rules(spec_for(&plan(), std::slice::from_ref(&device), |_| ()).expect("a spec"));
    assert_eq!(list.iter().map(|rule| rule.allow()).collect::<Vec<_>>(), [false, true]);
    assert_eq!((list[1].major(), list[1].minor(), list[1].access().as_deref()), (Some(10), Some(20), Some("rw")));
    let privileged = ContainerPlan { security: Security { privileged: true, ..plan().security }, ..plan() };
    assert!(rules(spec(&privileged))[0].allow());
    let wrong = HostDevice { permissions: Some("rx".to_owned()), ..device };
    let error = spec_for(&plan(), std::slice::from_ref(&wrong), |_| ()).expect_err("refused");
    assert_eq!(error, SpecError::DevicePermissions("rx".to_owned()));
}

#[test]
fn a_mount_of_the_plan_replaces_a_standard_one_or_a_small_file() {
    let mut plan = plan();
    plan.files = vec![("/etc/hosts".to_owned(), String::new()), ("/etc/hostname".to_owned(), String::new())];
    let bind = |destination: &str| Mount {
        destination: destination.to_owned(),
        kind: MountKind::Bind { source: "/source".into() },
        readonly: true,
        propagation: Propagation::HostToContainer,
    };
    plan.mounts = vec![bind("/dev/shm"), bind("/etc/hosts")];
    let spec = spec(&plan);
    for destination in ["/dev/shm", "/etc/hosts", "/etc/hostname", "/proc", "/dev"] {
        assert_eq!(destinations(&spec).iter().filter(|one| **one == destination).count(), 1, "{destination}");
    }
    let last = spec.mounts().as_ref().and_then(|mounts| mounts.last()).expect("a mount");
    assert_eq!(last.options().clone(), Some(["rbind", "rro", "rslave"].map(str::to_owned).to_vec()));
}

#[test]
fn a_container_without_a_cgroup_namespace_sees_its_own_cgroup() {
    let group = &*vec![(String::new(), PathBuf::from("/sys/fs/cgroup/nomad.slice/task.scope"))].leak();
    let shown = |groups| {
        let spec = spec_with(&plan(), |inputs| (inputs.cgroup_version, inputs.visible_cgroups) = (Version::V2, groups));
        let mounts = spec.expect("a spec").mounts().clone().expect("mounts");
        let mount = mounts.into_iter().find(|mount| mount.destination() == Path::new("/sys/fs/cgroup"));
        mount.map(|mount| (mount.typ().clone(), mount.source().clone())).expect("a mount")
    };
    assert_eq!(shown(group), (Some("bind".to_owned()), Some(group[0].1.clone())));
    assert_eq!(shown(&[]).0.as_deref(), Some("cgroup"));
}

#[test]
fn the_cgroup_view_is_ours_unless_a_mount_of_the_plan_is_in_its_place() {
    let groups = &*vec![("memory".to_owned(), PathBuf::from("/sys/fs/cgroup/memory/nomad/task"))].leak();
    let readonly = |change: fn(&mut ContainerPlan), mode| {
        let mut plan = plan();
        change(&mut plan);
        cgroup_view(&plan, mode, groups).map(|view| view.readonly)
    };
    let mounted = |destination: &str| {
        let mut plan = plan();
        plan.mounts.push(Mount {
            destination: destination.to_owned(),
            kind: MountKind::Bind { source: "/source".into() },
            readonly: true,
            propagation: Propagation::Private,
        });
        cgroup_view(&plan, Version::V1, groups).is_none()
    };
    assert_eq!(readonly(|_| (), Version::V1), Some(true));
    assert_eq!(readonly(|plan| plan.security.privileged = true, Version::V1), Some(false));
    assert_eq!(readonly(|_| (), Version::V2), None, "a file system of its own");
    assert!(["/sys", "/sys/fs/cgroup", "/sys/fs/cgroup/memory"].into_iter().all(mounted));
    assert!(!mounted("/sys/fs/bpf"));
    assert!(cgroup_view(&plan(), Version::V1, &[]).is_none());

    let plan = plan();
    let complete = spec_with(&plan, |inputs| inputs.visible_cgroups = groups).expect("a spec");
    let places = |spec: &Spec| {
        let paths = spec.linux().as_ref().and_then(|linux| linux.readonly_paths().clone()).expect("paths");
        destinations(spec).into_iter().map(str::to_owned).chain(paths).collect::<Vec<_>>()
    };
    let view = cgroup_view(&plan, Version::V1, groups);
    let engine = for_engine(complete.clone(), "/root", &PreparedSources::default(), Version::V1, view.as_ref());
    let (all, engine) = (places(&complete), places(&engine));
    assert_eq!(
        all.iter().filter(|place| place.starts_with(CGROUP_DIR)).count(),
        3,
        "a directory, a group, a path to be read: {all:?}"
    );
    assert_eq!(engine, all.into_iter().filter(|place| !place.starts_with(CGROUP_DIR)).collect::<Vec<_>>());
}

#[test]
fn an_error_names_the_wrong_value() {
    let limit = |name: &str, soft, hard| {
        let rlimits = BTreeMap::from([(name.to_owned(), Rlimit { soft, hard })]);
        spec_with(&ContainerPlan { rlimits, ..plan() }, |_| ()).expect_err("refused").to_string()
    };
    assert!(limit("files", 1, 1).contains("\"files\""));
    assert!(limit("nofile", 2, 1).contains("nofile"));
    let mut nameless = plan();
    nameless.hostname = Some("x".to_owned());
    nameless.namespaces.private_uts = false;
    assert_eq!(spec_with(&nameless, |_| ()).expect_err("refused"), SpecError::HostnameOfHost);
    for destination in ["", "/", "//", "relative", "/a/../b"] {
        let file = ContainerPlan { files: vec![(destination.to_owned(), String::new())], ..plan() };
        assert_eq!(spec_with(&file, |_| ()).expect_err("refused"), SpecError::MountDestination(destination.to_owned()));
    }
    let empty = ContainerPlan { args: Vec::new(), ..plan() };
    assert_eq!(spec_with(&empty, |_| ()).expect_err("refused"), SpecError::NoCommand);
    let security = Security { capabilities: vec!["CAP_NOTHING".to_owned()], ..plan().security };
    let unknown = ContainerPlan { security, ..plan() };
    assert!(spec_with(&unknown, |_| ()).expect_err("refused").to_string().contains("CAP_NOTHING"));
}

#[test]
fn a_prepared_source_replaces_only_the_source_of_its_mount() {
    let mut plan = plan();
    let bind = |destination: &str| Mount {
        destination: destination.to_owned(),
        kind: MountKind::Bind { source: "/source".into() },
        readonly: false,
        propagation: Propagation::Private,
    };
    plan.mounts = vec![bind("/a"), bind("/b")];
    let sources = PreparedSources(vec![PreparedSource {
        destination: "/b".to_owned(),
        original: "/source".into(),
        prepared: "/prepared".into(),
    }]);
    let engine = for_engine(spec(&plan), "/root", &sources, Version::V2, None);
    let source = |destination: &str| {
        let mounts = engine.mounts().as_ref().expect("mounts");
        mounts
            .iter()
            .find(|mount| mount.destination() == Path::new(destination))
            .and_then(|mount| mount.source().clone())
    };
    assert_eq!(source("/a"), Some("/source".into()));
    assert_eq!(source("/b"), Some("/prepared".into()));
}

fn any_mount() -> impl Strategy<Value = Mount> {
    let propagation =
        prop_oneof![Just(Propagation::Private), Just(Propagation::HostToContainer), Just(Propagation::Bidirectional)];
    let kind = prop_oneof![
        "/[a-z]{1,8}".prop_map(|source| MountKind::Bind { source: source.into() }),
        (any::<Option<u64>>(), proptest::option::of(0u32..0o7777), any::<Option<u32>>())
            .prop_map(|(size, mode, id)| MountKind::Tmpfs { size, mode, uid: id, gid: id })
    ];
    // Neither over /dev nor in a read-only tmpfs: those are refused.
    ("/[a-ce-z][a-z/]{0,12}", kind, any::<bool>(), propagation).prop_map(
        |(destination, kind, readonly, propagation)| {
            let readonly = readonly && matches!(kind, MountKind::Bind { .. });
            Mount { destination, kind, readonly, propagation }
        },
    )
}

fn any_plan() -> impl Strategy<Value = ContainerPlan> {
    let flags = any::<[bool; 8]>();
    let limits = (any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<i64>>());
    let mounts = proptest::collection::vec(any_mount(), 0..5);
    let devices = proptest::collection::vec("/dev/[a-z]{1,4}", 0..3);
    (flags, limits, mounts, devices).prop_map(|(flags, limits, mounts, devices)| {
        let [privileged, new_privileges, pid, ipc, uts, cgroup, host_network, readonly] = flags;
        let mut plan = plan();
        plan.security.privileged = privileged;
        plan.security.no_new_privileges = !new_privileges;
        plan.namespaces = Namespaces {
            private_pid: pid,
            private_ipc: ipc,
            private_uts: uts,
            private_cgroup: cgroup,
            ..plan.namespaces
        };
        if host_network {
            plan.namespaces.network = Network::Host;
        }
        plan.root.readonly = readonly;
        plan.resources.memory_limit = limits.0;
        plan.resources.cpu_shares = limits.1;
        plan.resources.pids_limit = limits.2;
        plan.mounts = mounts;
        let device =
            |path: String| Device { host_path: path.clone().into(), container_path: path, permissions: "r".into() };
        plan.devices = devices.into_iter().map(device).collect();
        plan
    })
}

proptest! {
    /// The spec of every plan is valid and has all restrictions.
    #[test]
    fn the_spec_of_every_plan_is_valid_and_confines_the_container(plan in any_plan(), v2 in any::<bool>()) {
        let version = if v2 { Version::V2 } else { Version::V1 };
        let spec = spec_with(&plan, |inputs| inputs.cgroup_version = version).expect("a spec");
        schema::assert_valid(&serde_json::to_value(&spec).expect("JSON"));
        let text = serde_json::to_vec(&spec).expect("JSON");
        prop_assert_eq!(&serde_json::from_slice::<Spec>(&text).expect("a spec"), &spec);
        let linux = spec.linux().as_ref().expect("linux");
        let spaces: Vec<_> = linux.namespaces().iter().flatten().map(|space| space.typ()).collect();
        prop_assert!(spaces.contains(&LinuxNamespaceType::Mount));
        prop_assert_eq!(spaces.contains(&LinuxNamespaceType::Pid), plan.namespaces.private_pid);
        prop_assert!(["private", "slave", "shared"].contains(&linux.rootfs_propagation().as_deref().expect("one")));
        prop_assert!(linux.cgroups_path().as_ref().is_some_and(|path| path.is_absolute()));
        let mounts = spec.mounts().as_ref().expect("mounts");
        // libcontainer would mount cgroups of version 1 writable, and one of them at the host's root.
        prop_assert!(v2 || mounts.iter().all(|mount| mount.typ().as_deref() != Some("cgroup")));
        let process = spec.process().as_ref().expect("a process");
        if !plan.security.privileged {
            prop_assert!(linux.masked_paths().as_ref().is_some_and(|paths| !paths.is_empty()));
            prop_assert_eq!(process.no_new_privileges(), Some(plan.security.no_new_privileges));
            let rules = linux.resources().as_ref().and_then(|all| all.devices().clone()).expect("rules");
            prop_assert!(!rules[0].allow() && rules[0].major().is_none());
        }
        let set = process.capabilities().as_ref().expect("capabilities");
        prop_assert!(set.ambient().as_ref().is_some_and(|set| set.is_empty()));
        prop_assert!(set.inheritable().as_ref().is_some_and(|set| set.is_empty()));
    }

    /// The engine never gets the steps that are ours.
    #[test]
    fn the_engine_gets_none_of_our_last_steps(plan in any_plan()) {
        let engine = for_engine(spec(&plan), "/root", &PreparedSources::default(), Version::V1, None);
        let process = engine.process().as_ref().expect("a process");
        prop_assert!(process.capabilities().is_none() && process.rlimits().is_none());
        prop_assert!(process.oom_score_adj().is_none());
        prop_assert_ne!(process.no_new_privileges(), Some(false), "libcontainer takes it for true in places");
        let ours = engine.linux().as_ref().map(|linux| (linux.seccomp().is_none(), linux.resources().is_none()));
        prop_assert_eq!(ours, Some((true, true)));
        prop_assert_eq!(process.user().umask(), Some(0o022));
    }
}
