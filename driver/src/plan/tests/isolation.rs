//! Rights, namespaces, filters, volumes and memory: what a task may take, and what is told when it cannot be had.

use runtime::plan::{NamedVolume, SeccompProfile};

use super::*;

#[test]
fn rights_are_few_unless_asked_for() {
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
fn a_container_gets_no_more_than_the_agent_holds() {
    let mut case = Case::under(json!({ "allow_caps": ["all"] }), json!({ "cap_add": ["all"] }));
    case.node.held_capabilities = ["CAP_CHOWN".to_owned()].into();
    assert_eq!(case.container().security.capabilities, ["CAP_CHOWN"]);
    let mut case = Case::under(json!({ "allow_caps": ["all"] }), json!({ "cap_add": ["bpf"] }));
    case.node.held_capabilities.remove("CAP_BPF");
    assert!(case.error().starts_with("cap_add: the agent itself lacks CAP_BPF"));
}

#[test]
fn the_cgroup_namespace_is_the_hosts_unless_asked_for() {
    for (block, expected) in
        [(json!({}), false), (json!({ "cgroupns": "host" }), false), (json!({ "cgroupns": "private" }), true)]
    {
        assert_eq!(Case::new(block).container().namespaces.private_cgroup, expected);
    }
}

#[test]
fn the_filter_is_the_tasks_choice() {
    let plugin = json!({ "allow_privileged": true });
    let seccomp = |block: Json| Case::under(plugin.clone(), block).container().security.seccomp;
    assert_eq!(seccomp(json!({ "security_opt": ["seccomp=unconfined"] })), Seccomp::Unconfined);
    assert_eq!(seccomp(json!({ "security_opt": ["seccomp=builtin"] })), Seccomp::Default);
    assert_eq!(seccomp(json!({ "privileged": true })), Seccomp::Unconfined);
    let profile = SeccompProfile::from_json(br#"{ "defaultAction": "SCMP_ACT_ALLOW" }"#).unwrap();
    for privileged in [false, true] {
        let block = json!({ "security_opt": ["seccomp=/etc/x.json"], "privileged": privileged });
        let Case { spec, task, image, node, policy, .. } = &Case::under(plugin.clone(), block);
        let context =
            TaskContext { spec, task, image, node, policy, profile: Some(&profile), attached: Attached::Soon };
        let security = container_plan(&context).unwrap().container.security;
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
fn namespaces_of_the_host() {
    let plugin = json!({ "allowed_modes": { "pid": ["host"], "ipc": ["host"], "uts": ["host"] } });
    let own = Case::new(json!({})).container();
    assert!(own.namespaces.private_pid && own.namespaces.private_ipc && own.namespaces.private_uts);
    let taken =
        Case::under(plugin.clone(), json!({ "pid_mode": "host", "ipc_mode": "host", "uts_mode": "host" })).container();
    assert!(!taken.namespaces.private_pid && !taken.namespaces.private_ipc && !taken.namespaces.private_uts);
    // It has the host's name, and nobody gives it another one.
    assert_eq!((taken.hostname.as_deref(), file(&taken, "/etc/hostname").as_str()), (None, "node-1\n"));
    let without = Case::new(json!({ "ipc_mode": "none" })).container();
    assert_eq!((without.namespaces.private_ipc, without.shm_size), (true, 0));
    // Parameters of a namespace that is the host's would change the node.
    for name in ["kernel.shmmax", "fs.mqueue.msg_max"] {
        let sysctl = json!({ name: "1" });
        let text = Case::under(plugin.clone(), json!({ "ipc_mode": "host", "sysctl": sysctl })).error();
        assert!(text.starts_with(&format!("sysctl: {name} cannot be set: the task uses the host's IPC")), "{text}");
        Case::new(json!({ "sysctl": sysctl })).container();
    }
}

#[test]
fn volumes_have_names_when_the_operator_allows_them() {
    let enabled = json!({ "volumes": { "enabled": true } });
    let block = json!({
        "volume_driver": "local",
        "volumes": ["db:/db", "logs.1:/logs:ro,nocopy", "/etc:/host"],
        "mount": [{ "type": "volume", "source": "web", "target": "/web/", "volume_options": { "no_copy": true } },
                  { "target": "/scratch" }],
    });
    let container = Case::under(enabled, block).container();
    let volume = |name: &str, destination: &str, copy| NamedVolume {
        directory: PathBuf::from("/data/volumes").join(name),
        destination: destination.into(),
        copy,
    };
    let expected = [volume("db", "/db", true), volume("logs.1", "/logs", false), volume("web", "/web", false)];
    assert_eq!(container.volumes, expected);
    let private = Propagation::Private;
    assert_eq!(*mount_at(&container, "/db"), bind("/data/volumes/db", "/db", false, private));
    assert_eq!(*mount_at(&container, "/logs"), bind("/data/volumes/logs.1", "/logs", true, private));
    assert_eq!(*mount_at(&container, "/host"), bind("/etc", "/host", false, private));
    assert_eq!(container.root.volumes, ["/data", "/scratch"], "nameless ones go with the container");
}

#[test]
fn memory_comes_from_beside_the_cores_when_the_operator_wants_it() {
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
fn what_the_node_cannot_do_is_told() {
    let mut case = Case::new(json!({}));
    case.task.mounts = vec![NomadMount {
        task_path: "/vol".into(),
        host_path: "/host/vol".into(),
        readonly: false,
        propagation: Propagation::Private,
        selinux_label: "Z".into(),
    }];
    assert_eq!(case.plan().unwrap().shortcomings, Vec::<String>::new());
    case.node.swap_uncounted = true;
    case.node.selinux = true;
    let told = case.plan().unwrap().shortcomings;
    assert!(told[0].contains("does not count swap") && told[1].ends_with(": /vol"), "{told:?}");
    case.task.resources.memory_max_mb = -1;
    assert_eq!(case.plan().unwrap().shortcomings.len(), 1, "without a limit there is nothing to exceed");
}
