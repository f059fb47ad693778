//! Privileges, namespaces, the seccomp filter, volumes and NUMA memory, and the warnings about them.

use runtime::{
    VolumeOptions,
    plan::{IdPool, NamedVolume, Relabel, SeccompProfile, UserNamespace},
};

use super::{super::AllocatedPort, *};
use crate::plan::ContainerLabels;

#[test]
fn privileges_are_restricted_by_default() {
    let plain = Case::new(json!({})).container().security;
    assert!(!plain.privileged && plain.no_new_privileges && plain.seccomp == Seccomp::Default);
    assert_eq!(plain.capabilities.len(), 13);
    let open =
        Case::new(json!({ "security_opt": ["no-new-privileges=false"], "cap_drop": ["all"] })).container().security;
    assert!(!open.no_new_privileges && open.capabilities.is_empty());

    let mut case = Case::under(json!({ "allow_privileged": true }), json!({ "privileged": true }));
    case.node.held_capabilities = ["CAP_CHOWN".to_owned(), "CAP_SYS_ADMIN".to_owned()].into();
    let all = case.container().security;
    assert!(all.privileged && !all.no_new_privileges && all.seccomp == Seccomp::Unconfined);
    assert_eq!(all.capabilities, ["CAP_CHOWN", "CAP_SYS_ADMIN"]);
}

#[test]
fn a_container_gets_no_capability_that_the_agent_lacks() {
    let mut case = Case::under(json!({ "allow_caps": ["all"] }), json!({ "cap_add": ["all"] }));
    case.node.held_capabilities = ["CAP_CHOWN".to_owned()].into();
    assert_eq!(case.container().security.capabilities, ["CAP_CHOWN"]);
    let mut case = Case::under(json!({ "allow_caps": ["all"] }), json!({ "cap_add": ["bpf"] }));
    case.node.held_capabilities.remove("CAP_BPF");
    assert!(case.error().starts_with("cap_add: the agent itself lacks CAP_BPF"));
}

#[test]
fn the_cgroup_namespace_is_the_hosts_by_default() {
    for (block, expected) in
        [(json!({}), false), (json!({ "cgroupns": "host" }), false), (json!({ "cgroupns": "private" }), true)]
    {
        assert_eq!(Case::new(block).container().namespaces.private_cgroup, expected);
    }
}

#[test]
fn the_seccomp_filter_follows_security_opt() {
    let plugin = json!({ "allow_privileged": true });
    let seccomp = |block: Json| Case::under(plugin.clone(), block).container().security.seccomp;
    assert_eq!(seccomp(json!({ "security_opt": ["seccomp=unconfined"] })), Seccomp::Unconfined);
    assert_eq!(seccomp(json!({ "security_opt": ["seccomp=builtin"] })), Seccomp::Default);
    assert_eq!(seccomp(json!({ "privileged": true })), Seccomp::Unconfined);
    let profile = SeccompProfile::from_json(br#"{ "defaultAction": "SCMP_ACT_ALLOW" }"#).unwrap();
    for privileged in [false, true] {
        let block = json!({ "security_opt": ["seccomp=/etc/x.json"], "privileged": privileged });
        let Case { spec, task, image, mounted_images, node, policy, .. } = &Case::under(plugin.clone(), block);
        let context =
            TaskContext { spec, task, image, mounted_images, node, policy, profile: Some(&profile), edits: None };
        let security = plan_task(&context).unwrap().container.security;
        assert_eq!((security.seccomp, security.privileged), (Seccomp::Profile(profile.clone()), privileged));
    }
}

#[test]
fn an_apparmor_profile_needs_a_kernel_that_uses_it() {
    let mut case =
        Case::under(json!({ "allow_security_opts": ["apparmor=*"] }), json!({ "security_opt": ["apparmor=web"] }));
    let text = case.error();
    assert!(text.starts_with("security_opt: apparmor: this node's kernel does not use AppArmor (remove it"), "{text}");
    case.node.apparmor = true;
    assert_eq!(case.container().security.apparmor.as_deref(), Some("web"));
}

#[test]
fn the_default_apparmor_profile_confines_tasks_as_dockers_does() {
    let default = Some("oci-rs-default");
    let unconfined = json!(["apparmor=unconfined"]);
    let permitted = json!({ "allow_security_opts": ["apparmor=*"] });
    let privileged = json!({ "allow_privileged": true });
    for (plugin, block, on_node, expected) in [
        (json!({}), json!({}), default, default),
        (json!({}), json!({}), None, None),
        (json!({}), json!({ "security_opt": ["apparmor=docker-default"] }), default, default),
        (json!({}), json!({ "security_opt": ["apparmor=docker-default"] }), None, None),
        (json!({}), json!({ "security_opt": unconfined }), None, None),
        (permitted.clone(), json!({ "security_opt": unconfined }), default, None),
        (permitted, json!({ "security_opt": ["apparmor=web"] }), default, Some("web")),
        (privileged.clone(), json!({ "privileged": true }), default, None),
        (privileged.clone(), json!({ "privileged": true, "security_opt": unconfined }), default, None),
        (privileged, json!({ "privileged": true, "security_opt": ["apparmor=web"] }), default, Some("web")),
    ] {
        let mut case = Case::under(plugin.clone(), block.clone());
        case.node.apparmor = true;
        case.node.default_apparmor = on_node.map(str::to_owned);
        assert_eq!(case.container().security.apparmor.as_deref(), expected, "{plugin} {block} {on_node:?}");
    }
    let mut case = Case::new(json!({ "security_opt": unconfined }));
    case.node.default_apparmor = default.map(str::to_owned);
    let text = case.error();
    assert!(text.starts_with("security_opt: \"apparmor=unconfined\" is not allowed on this node (remove it"), "{text}");
}

/// A task on a node with SELinux.
fn labelled(plugin: Json, block: Json) -> Case {
    let mut case = Case::under(plugin, block);
    case.node.selinux = true;
    case.node.container_labels = Some(ContainerLabels {
        process: "system_u:system_r:container_t:s0".into(),
        file: "system_u:object_r:container_file_t:s0".into(),
        categories: true,
    });
    case
}

#[test]
fn tasks_have_selinux_labels_as_with_docker() {
    let (process, file) = ("system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0");
    let all = json!({
        "allow_privileged": true, "allowed_modes": { "pid": ["host"], "ipc": ["host"] },
    });
    for (block, expected) in [
        (json!({}), Some((process, file, true))),
        (json!({ "security_opt": ["label=disable"] }), None),
        (json!({ "privileged": true }), None),
        (json!({ "pid_mode": "host" }), None),
        (json!({ "ipc_mode": "host" }), None),
        (
            json!({ "security_opt": ["label=type:web_t", "label=user:u", "label=role:r", "label=filetype:web_f"] }),
            Some(("u:r:web_t:s0", "u:object_r:web_f:s0", true)),
        ),
        (
            json!({ "security_opt": ["label:level:s0:c5,c6"], "privileged": true }),
            Some(("system_u:system_r:container_t:s0:c5,c6", "system_u:object_r:container_file_t:s0:c5,c6", false)),
        ),
    ] {
        let labels = labelled(all.clone(), block.clone()).container().selinux;
        let found =
            labels.as_ref().map(|labels| (labels.process.as_str(), labels.file.as_str(), labels.own_categories));
        assert_eq!(found, expected, "{block}");
    }
    assert_eq!(Case::new(json!({ "security_opt": ["label=type:web_t"] })).container().selinux, None, "no SELinux");
    for option in ["label=disable", "label=type:web_t"] {
        let text = labelled(json!({}), json!({ "security_opt": [option] })).error();
        assert!(
            text.starts_with(&format!("security_opt: {option:?} is not allowed on this node (remove it")),
            "{text}"
        );
        labelled(json!({ "allow_security_opts": ["label=*"] }), json!({ "security_opt": [option] })).container();
    }
}

#[test]
fn files_of_the_task_and_of_volumes_get_labels() {
    let block = json!({
        "volumes": ["/a:/a", "/b:/b:z", "/c:/c:Z", "named:/d"],
        "volume_driver": "local",
        "mount": [
            { "type": "bind", "source": "/e", "target": "/e" },
            { "type": "tmpfs", "target": "/f" },
        ],
    });
    for (label, expected) in [(Json::Null, None), (json!("Z"), Some(Relabel::Private))] {
        let plugin = json!({ "volumes": { "enabled": true, "selinuxlabel": label } });
        let labels = labelled(plugin, block.clone()).container().selinux.expect("labels");
        let of = |destination: &str| labels.relabelled.get(destination).copied();
        assert_eq!(of("/a"), expected);
        assert_eq!((of("/b"), of("/c")), (Some(Relabel::Shared), Some(Relabel::Private)));
        assert_eq!((of("/d"), of("/e"), of("/f")), (Some(Relabel::Shared), None, None));
        assert_eq!((of("/alloc"), of("/alloc/logs")), (Some(Relabel::Shared), Some(Relabel::Shared)));
        assert_eq!((of("/local"), of("/secrets")), (Some(Relabel::Private), Some(Relabel::Private)));
    }
}

#[test]
fn host_namespaces_are_shared_when_the_task_asks() {
    let plugin = json!({ "allowed_modes": { "pid": ["host"], "ipc": ["host"], "uts": ["host"] } });
    let own = Case::new(json!({})).container();
    assert!(own.namespaces.private_pid && own.namespaces.private_ipc && own.namespaces.private_uts);
    let shared =
        Case::under(plugin.clone(), json!({ "pid_mode": "host", "ipc_mode": "host", "uts_mode": "host" })).container();
    assert!(!shared.namespaces.private_pid && !shared.namespaces.private_ipc && !shared.namespaces.private_uts);
    // The container has the host's name, and the plan sets no other.
    assert_eq!((shared.hostname.as_deref(), file(&shared, "/etc/hostname").as_str()), (None, "node-1\n"));
    let without = Case::new(json!({ "ipc_mode": "none" })).container();
    assert_eq!((without.namespaces.private_ipc, without.shm_size), (true, 0));
    // Parameters of a host namespace would change the node.
    for name in ["kernel.shmmax", "fs.mqueue.msg_max"] {
        let sysctl = json!({ name: "1" });
        let text = Case::under(plugin.clone(), json!({ "ipc_mode": "host", "sysctl": sysctl })).error();
        assert!(text.starts_with(&format!("sysctl: {name} cannot be set: the task uses the host's IPC")), "{text}");
        Case::new(json!({ "sysctl": sysctl })).container();
    }
}

#[test]
fn named_volumes_need_the_operators_permission() {
    let enabled = json!({ "volumes": { "enabled": true } });
    let block = json!({
        "volume_driver": "local",
        "volumes": ["db:/db", "logs.1:/logs:ro,nocopy", "/etc:/host"],
        "mount": [{ "type": "volume", "source": "web", "target": "/web/", "volume_options": { "no_copy": true } },
                  { "target": "/scratch" },
                  { "target": "/empty", "volume_options": { "no_copy": true } }],
    });
    let container = Case::under(enabled, block).container();
    let volume = |name: &str, destination: &str, copy| NamedVolume {
        directory: PathBuf::from("/data/volumes").join(name),
        destination: destination.into(),
        copy,
        mounted: false,
    };
    let expected = [volume("db", "/db", true), volume("logs.1", "/logs", false), volume("web", "/web", false)];
    assert_eq!(container.volumes, expected);
    let private = Propagation::Private;
    assert_eq!(*mount_at(&container, "/db"), bind("/data/volumes/db", "/db", false, private));
    assert_eq!(*mount_at(&container, "/logs"), bind("/data/volumes/logs.1", "/logs", true, private));
    assert_eq!(*mount_at(&container, "/host"), bind("/etc", "/host", false, private));
    let root = container.root;
    assert_eq!(root.volumes, ["/data", "/empty", "/scratch"], "nameless ones go with the container");
    assert_eq!(root.empty_volumes, ["/empty"]);
}

#[test]
fn volumes_with_options_are_bound_from_their_mounts() {
    let enabled = || json!({ "volumes": { "enabled": true } });
    let driver = |options: Json| json!({ "driver_config": { "options": options } });
    let tmpfs = driver(json!({ "type": "tmpfs", "device": "tmpfs" }));
    let nfs = driver(json!({ "type": "nfs", "device": ":/x", "o": "addr=nas" }));
    let mount = |source: Json, target: &str, options: &Json| -> Json {
        json!({ "source": source, "target": target, "volume_options": options })
    };
    let block = json!({ "mount": [
        mount(json!("cache"), "/cache", &tmpfs), mount(json!("nas"), "/nas", &nfs), mount(json!("nas"), "/again", &nfs),
        mount(json!(null), "/own", &nfs), { "source": "old", "target": "/old" },
    ] });
    let mut case = Case::under(enabled(), block);
    let stored = VolumeOptions {
        kind: "cifs".into(),
        device: "//nas/x".into(),
        mount_options: "username=u".into(),
        forgotten: vec!["password".into()],
    };
    case.node.volume_options.insert("old".into(), stored.clone());
    let plan = case.plan().expect("a plan");
    let container = &plan.container;
    let own = format!(".{}.2", container.id);
    let at = |key: &str| case.node.state_dir.join("volumes").join(key).join("mount");
    for (destination, key) in [("/cache", "cache"), ("/nas", "nas"), ("/again", "nas"), ("/own", &own), ("/old", "old")]
    {
        let kind = MountKind::Bind { source: at(key) };
        assert_eq!(mount_at(container, destination).kind, kind, "{destination}");
        let volume = container.volumes.iter().find(|volume| volume.destination == destination).expect("a volume");
        // A tmpfs is never filled.
        assert_eq!((volume.mounted, volume.copy), (true, destination != "/cache"), "{destination}");
    }
    let kinds: Vec<&str> = plan.mounted_volumes.iter().map(|volume| volume.options.kind.as_str()).collect();
    assert_eq!(kinds, ["tmpfs", "nfs", "nfs", "cifs"], "each once");
    assert_eq!(plan.mounted_volumes[3].options, stored);

    // The type of a stored volume needs the permission too.
    case.node.volume_options.insert("old".into(), VolumeOptions { kind: "ext4".into(), ..stored });
    let text = case.error();
    assert!(text.starts_with("mount[4]: volumes of the type \"ext4\" are not allowed on this node"), "{text}");

    let other = driver(json!({ "type": "nfs", "device": ":/y", "o": "addr=nas" }));
    let block = json!({ "mount": [mount(json!("nas"), "/a", &nfs), mount(json!("nas"), "/b", &other)] });
    let text = Case::under(enabled(), block).error();
    assert!(text.starts_with("mount[1]: the task uses this volume with other options"), "{text}");
}

#[test]
fn numa_memory_follows_the_reserved_cores() {
    for (cores, bound, expected) in [
        ("1", true, Some("0")),
        ("2-3", true, Some("1")),
        ("0,2", true, Some("0,1")),
        ("", true, None),
        ("1", false, None),
        ("9", true, None),
    ] {
        let mut case = Case::under(json!({ "numa_memory": bound }), json!({}));
        case.task.resources.cpuset_cpus = cores.into();
        assert_eq!(case.container().resources.cpuset_mems.as_deref(), expected, "{cores} {bound}");
    }
}

#[test]
fn unfulfilled_requests_become_warnings() {
    let mut case = Case::new(json!({}));
    case.task.mounts = vec![NomadMount {
        task_path: "/vol".into(),
        host_path: "/host/vol".into(),
        readonly: false,
        propagation: Propagation::Private,
        selinux_label: "Z".into(),
    }];
    assert!(case.plan().unwrap().warnings.is_empty());
    case.node.swap_uncounted = true;
    case.node.selinux = true;
    let told: Vec<String> = case.plan().unwrap().warnings.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("does not count swap") && told[1].ends_with(": /vol"), "{told:?}");
    case.task.resources.memory_max_mb = -1;
    assert_eq!(case.plan().unwrap().warnings.len(), 1, "without a limit there is nothing to exceed");
}

#[test]
fn a_task_gets_a_user_namespace_unless_it_cannot_use_one() {
    let pool = IdPool { first: 1 << 20, count: 1 << 20 };
    let under = |mode: &str, block: Json| {
        let modes = json!({ "userns": ["host"] });
        let plugin = json!({ "userns": { "mode": mode }, "allow_caps": ["all"], "allowed_modes": modes });
        let mut case = Case::under(plugin, block);
        case.node.id_pool = Some(pool);
        case
    };
    let outcome = |case: &Case| {
        let plan = case.plan().unwrap();
        (plan.container.user_namespace, plan.userns_obstacle)
    };
    let own = Some(UserNamespace { pool, ids: None });
    for mode in ["auto", "require"] {
        for block in [json!({}), json!({ "cap_add": ["chown", "mknod", "sys_ptrace"] })] {
            assert_eq!(outcome(&under(mode, block)), (own, None));
        }
        assert_eq!(outcome(&under(mode, json!({ "userns_mode": "host" }))), (None, None));
        let alone = json!({ "cap_add": ["net_admin", "net_raw"], "network_mode": "none" });
        assert_eq!(outcome(&under(mode, alone)), (own, None), "its own network");
    }
    assert_eq!(outcome(&under("off", json!({ "cap_add": ["sys_time"] }))), (None, None));
    let wants = || json!({ "cap_add": ["chown", "net_raw", "sys_time"] });
    let reason = "CAP_NET_RAW, CAP_SYS_TIME of `cap_add` would have no effect in a user namespace of its own";
    assert_eq!(outcome(&under("auto", wants())), (None, Some(reason.to_owned())));
    let error = under("require", wants()).error();
    assert!(error.starts_with(&format!("userns_mode: {reason} (this node requires one")), "{error}");
    let all = outcome(&under("auto", json!({ "cap_add": ["all"] }))).1.unwrap();
    assert!(all.contains("CAP_SYS_ADMIN") && !all.contains("CAP_CHOWN"), "{all}");
    let mut low = under("auto", json!({ "network_mode": "host" }));
    low.task.resources.ports =
        vec![AllocatedPort { label: "http".to_owned(), host_ip: None, host_port: 80, container_port: 80 }];
    assert!(outcome(&low).1.unwrap().contains("could not listen on port 80 of the node's network"));
    low.node.first_unprivileged_port = 80;
    assert_eq!(outcome(&low), (own, None), "every user may listen on it");
    let mut incapable = under("auto", json!({}));
    incapable.node.userns_problem = Some("no tmpfs".to_owned());
    assert_eq!(outcome(&incapable), (None, None), "the node tells it, not each task");
    let mut incapable = under("require", json!({}));
    incapable.node.userns_problem = Some("no tmpfs".to_owned());
    assert!(incapable.error().starts_with("userns_mode: no tmpfs (this node requires one and cannot give any"));
    let mut without = under("auto", json!({}));
    without.node.id_pool = None;
    assert!(outcome(&without).1.unwrap().contains("/etc/subuid"));
}
