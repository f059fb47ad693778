//! Volumes, directories of the allocation, devices and the files in /etc.

use super::*;

#[test]
fn mounts_have_dockers_sources_and_destinations() {
    let mut case = Case::new(json!({
        "volumes": ["local/a:/srv/a/", "../alloc/data:/data:ro"],
        "mount": [{ "type": "bind", "source": "secrets/x", "target": "/run/x" },
                  { "type": "tmpfs", "target": "/tmp/t", "tmpfs_options": { "size": 9 } }],
    }));
    case.task.mounts = vec![NomadMount {
        task_path: "/vol".into(),
        host_path: "/host/vol".into(),
        readonly: true,
        propagation: Propagation::HostToContainer,
        selinux_label: String::new(),
    }];
    let plan = case.plan().unwrap();
    let container = &plan.container;
    let private = Propagation::Private;
    assert_eq!(*mount_at(container, "/srv/a"), bind(in_alloc("web/local/a"), "/srv/a", false, private));
    assert_eq!(*mount_at(container, "/data"), bind(in_alloc("alloc/data"), "/data", true, private));
    assert_eq!(*mount_at(container, "/run/x"), bind(in_alloc("web/secrets/x"), "/run/x", false, private));
    assert_eq!(*mount_at(container, "/vol"), bind("/host/vol", "/vol", true, Propagation::HostToContainer));
    assert_eq!(
        mount_at(container, "/tmp/t").kind,
        MountKind::Tmpfs { size: Some(9), mode: None, uid: None, gid: None }
    );
    assert_eq!(
        plan.confined_sources[5..],
        [in_alloc("web/local/a"), in_alloc("alloc/data"), in_alloc("web/secrets/x")]
    );
    assert_eq!(plan.created_sources, [in_alloc("web/local/a"), in_alloc("alloc/data")]);
    assert!(container.root.volumes.is_empty(), "the task's mount takes the place of the image's volume");
}

#[test]
fn host_paths_need_permission() {
    for block in [
        json!({ "volumes": ["/etc:/x"] }),
        json!({ "volumes": ["../../other:/x"] }),
        json!({ "mount": [{ "type": "bind", "source": "local/../../../../etc", "target": "/x" }] }),
    ] {
        let case = Case::new(block.clone());
        assert!(case.error().contains("lies outside the allocation's directory"), "{}", case.error());
        let allowed = Case::under(json!({ "volumes": { "enabled": true } }), block);
        let plan = allowed.plan().unwrap();
        assert_eq!(plan.confined_sources.len(), 5, "only Nomad's own directories");
        mount_at(&plan.container, "/x");
    }
    // A directory beside the allocation whose name begins with the allocation's.
    let sibling = format!("{}-2/x:/x", task().alloc_dir.display());
    assert!(Case::new(json!({ "volumes": [sibling] })).plan().is_err());
    let absolute = format!("{}/alloc/data:/x", task().alloc_dir.display());
    assert!(Case::new(json!({ "volumes": [absolute] })).plan().is_ok());
}

#[test]
fn every_bind_of_the_logs_is_that_of_the_tasks() {
    let private = Propagation::Private;
    for (source, logs) in [("../alloc", "/x/logs"), ("..", "/x/alloc/logs"), ("../alloc/logs", "/x")] {
        for (mode, readonly) in [("", false), (":ro", true)] {
            let container = Case::new(json!({ "volumes": [format!("{source}:/x{mode}")] })).container();
            assert_eq!(
                *mount_at(&container, logs),
                bind(in_alloc("alloc/logs/tasks"), logs, readonly, private),
                "{source}{mode}"
            );
            let nomad = format!("{logs}/.nomad");
            assert_eq!(*mount_at(&container, &nomad), bind(in_alloc("alloc/logs"), &nomad, true, private), "{source}");
        }
    }
    for (mode, propagation) in [("", private), (":rslave", Propagation::HostToContainer)] {
        let container = Case::new(json!({ "volumes": [format!("..:/x{mode}")] })).container();
        assert_eq!(*mount_at(&container, "/x/alloc"), bind(in_alloc("alloc"), "/x/alloc", false, propagation));
    }
    for (source, readonly) in [("../alloc/logs/old", true), ("../alloc/logs/tasks", false)] {
        let container = Case::new(json!({ "volumes": [format!("{source}:/x")] })).container();
        assert_eq!(mount_at(&container, "/x").readonly, readonly, "{source}");
    }
}

/// A mount in such a bind would appear on the host, over Nomad's log directory.
#[test]
fn no_bind_of_the_logs_is_shared_with_the_host() {
    let shared = || json!({ "volumes": { "allow_shared": true } });
    let host_paths = || json!({ "volumes": { "enabled": true }, "allow_privileged": true });
    for source in ["..", "../alloc", "../alloc/logs", "../alloc/logs/tasks"] {
        for propagation in ["shared", "rshared", "ro,rshared"] {
            let block = json!({ "volumes": [format!("{source}:/x:{propagation}")] });
            let privileged = json!({ "volumes": [format!("{source}:/x:{propagation}")], "privileged": true });
            for case in [Case::under(shared(), block), Case::under(host_paths(), privileged)] {
                let error = case.error();
                assert!(error.starts_with("volumes[0]") && error.contains("Nomad's log directory"), "{error}");
            }
        }
    }
    for (source, propagation) in [("../alloc/data", "rshared"), ("local", "shared"), ("..", "rslave")] {
        Case::under(shared(), json!({ "volumes": [format!("{source}:/x:{propagation}")] })).container();
    }
    let container = Case::under(host_paths(), json!({ "volumes": ["/:/x:rshared"] })).container();
    let below = |mount: &&Mount| mount.destination.starts_with("/x/");
    assert_eq!(container.mounts.iter().find(below), None, "a mount that the host would have too");
}

#[test]
fn bidirectional_propagation_needs_permission() {
    let block = || json!({ "volumes": ["local/a:/a:rslave", "local/b:/b:rshared"] });
    let volume = || NomadMount {
        task_path: "/vol".into(),
        host_path: "/host/vol".into(),
        readonly: false,
        propagation: Propagation::Bidirectional,
        selinux_label: String::new(),
    };
    let mut case = Case::new(block());
    case.task.mounts = vec![volume()];
    let error = case.error();
    for part in
        ["volumes[1]: this node does not allow", "volume_mount /vol: this node", "volumes { allow_shared = true }"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("volumes[0]"), "{error}");
    for policy in [json!({ "volumes": { "allow_shared": true } }), json!({ "allow_privileged": true })] {
        let mut case = Case::under(policy, block());
        case.task.mounts = vec![volume()];
        let container = case.container();
        for place in ["/b", "/vol"] {
            assert_eq!(mount_at(&container, place).propagation, Propagation::Bidirectional);
        }
    }
}

#[test]
fn two_mounts_at_one_destination_are_an_error() {
    for (target, earlier) in
        [("/local", "the task's local directory"), ("/a", "volumes[0]"), ("/alloc/logs/", "the task's logs directory")]
    {
        let case = Case::new(json!({
            "volumes": ["local/a:/a"],
            "mount": [{ "type": "tmpfs", "target": target }],
        }));
        assert!(case.error().contains(&format!("is already the destination of {earlier}")), "{}", case.error());
    }
    let mut case = Case::new(json!({}));
    case.task.mounts = vec![NomadMount {
        task_path: "/".into(),
        host_path: "/x".into(),
        readonly: false,
        propagation: Propagation::Private,
        selinux_label: String::new(),
    }];
    assert!(case.error().contains("would cover the container's root"));
}

#[test]
fn nomads_variables_set_the_destinations_of_its_directories() {
    let mut case = Case::new(json!({}));
    case.task.env.insert("NOMAD_ALLOC_DIR".into(), "/shared/".into());
    case.task.env.insert("NOMAD_TASK_DIR".into(), "relative".into());
    let container = case.container();
    assert!(mount_at(&container, "/shared/logs/.nomad").readonly);
    assert!(!mount_at(&container, "/shared/logs").readonly);
    mount_at(&container, "/local");
}

#[test]
fn devices_need_permission() {
    let block = |path: &str| json!({ "devices": [{ "host_path": path }] });
    let error = Case::new(block("/dev/mem")).error();
    assert!(error.starts_with("devices: this node does not allow \"/dev/mem\" (remove it"), "{error}");
    assert!(error.contains("allow_devices = [\"/dev/mem\"]"), "{error}");
    for (patterns, path, allowed) in [
        (json!(["/dev/fuse", "/dev/dri/*"]), "/dev/fuse", true),
        (json!(["/dev/fuse", "/dev/dri/*"]), "/dev/dri/card0", true),
        (json!(["/dev/fuse", "/dev/dri/*"]), "/dev/dri/../mem", false),
        (json!(["/dev/fuse", "/dev/dri/*"]), "/dev//fuse", true),
        (json!(["/dev/fuse", "/dev/dri/*"]), "/dev/fuse0", false),
        (json!(["/dev/fuse", "/dev/dri/*"]), "/dev", false),
        (json!(["*"]), "/dev/mem", true),
        (json!([]), "/dev/fuse", false),
    ] {
        let plan = Case::under(json!({ "allow_devices": patterns }), block(path)).plan();
        assert_eq!(plan.is_ok(), allowed, "{patterns} {path}");
    }
    assert!(Case::under(json!({ "allow_privileged": true }), block("/dev/mem")).plan().is_ok());
    let mut assigned = Case::new(json!({}));
    assigned.task.devices =
        vec![NomadDevice { task_path: "/dev/x".into(), host_path: "/dev/c".into(), permissions: "r".into() }];
    assert_eq!(assigned.container().devices.len(), 1, "a device plugin's device needs no permission");
}

#[test]
fn devices_come_from_the_task_and_from_plugins() {
    let block =
        json!({ "devices": [{ "host_path": "/dev/a" }, { "host_path": "/dev/b", "container_path": "/dev/x" }] });
    let mut case = Case::under(json!({ "allow_devices": ["/dev/*"] }), block);
    case.task.devices =
        vec![NomadDevice { task_path: "/dev/x".into(), host_path: "/dev/c".into(), permissions: "r".into() }];
    let device = |host: &str, container: &str, permissions: &str| Device {
        host_path: host.into(),
        container_path: container.into(),
        permissions: permissions.into(),
    };
    assert_eq!(case.container().devices, [device("/dev/a", "/dev/a", "rwm"), device("/dev/c", "/dev/x", "r")]);
    case.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "0".into());
    assert_eq!(case.container().devices.len(), 2, "devices of specs need no permission if they are reserved");
    case.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "MIG-GPU-1/2/3".into());
    assert!(case.error().starts_with("NVIDIA_VISIBLE_DEVICES: device \"MIG-GPU-1/2/3\""), "{}", case.error());
}

#[test]
fn nvidias_runtime_gives_the_devices_of_the_environment_if_they_are_allowed() {
    let runtime = json!({ "runtime": "nvidia" });
    let plugin = |devices: Json| json!({ "allow_runtimes": ["nvidia"], "allow_devices": devices });
    let names = |case: &Case| {
        let names = permitted_cdi_names(&case.spec, &case.task, &case.image.config, &case.policy);
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let mut case = Case::under(plugin(json!(["nvidia.com/gpu=*"])), runtime.clone());
    assert_eq!(names(&case), [""; 0], "no variable");
    case.image.config.env.push(("NVIDIA_VISIBLE_DEVICES".into(), "all".into()));
    assert_eq!(names(&case), ["nvidia.com/gpu=all"], "the image's");
    case.task.env.insert("NVIDIA_VISIBLE_DEVICES".into(), "0,GPU-1".into());
    assert_eq!(names(&case), ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1"], "the task's");
    case.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "GPU-2".into());
    assert_eq!(names(&case), ["nvidia.com/gpu=GPU-2"], "the reservation's");
    let mut refused = Case::under(plugin(json!([])), runtime);
    refused.task.env.insert("NVIDIA_VISIBLE_DEVICES".into(), "all".into());
    assert_eq!(names(&refused), [""; 0]);
    assert!(refused.error().starts_with("devices: this node does not allow \"nvidia.com/gpu=all\""));
    refused.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "GPU-2".into());
    assert_eq!(names(&refused), ["nvidia.com/gpu=GPU-2"], "the scheduler gave it");
    let without = Case::new(json!({}));
    assert_eq!(names(&without), [""; 0]);
}

#[test]
fn a_file_is_not_made_where_the_task_mounts_its_own() {
    let container =
        Case::new(json!({ "volumes": ["local/hosts:/etc/hosts", "local/r:/etc//resolv.conf"] })).container();
    let paths: Vec<&str> = container.files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/etc/hostname"]);
}

#[test]
fn a_mounted_image_is_stacked_or_copied_as_the_root_is() {
    let block = json!({ "mount": [{ "type": "image", "source": "models", "target": "/models/", "sub_path": "x" }] });
    let mut case = Case::new(block.clone());
    let layers: Vec<PathBuf> = vec!["/layers/top".into(), "/layers/bottom".into()];
    case.mounted_images.get_mut("models").unwrap().layers = layers.clone();
    let mounted = |storage: RootStorage| Mount {
        destination: "/models".to_owned(),
        kind: MountKind::Image { layers: layers.clone(), storage, sub_path: Some("x".into()) },
        readonly: true,
        propagation: Propagation::Private,
    };
    let plan = case.plan().unwrap();
    assert_eq!(*mount_at(&plan.container, "/models"), mounted(RootStorage::Overlay));
    assert!(plan.warnings.is_empty());
    // Only this image can be no lower directory of an overlay.
    case.mounted_images.get_mut("models").unwrap().copy_only = true;
    let plan = case.plan().unwrap();
    assert_eq!(*mount_at(&plan.container, "/models"), mounted(RootStorage::Copy));
    assert_eq!((plan.container.root.storage, plan.copy_reason), (RootStorage::Overlay, None));
    let told = "Copying the image models for the mount at /models/, which makes the start slow: ";
    assert!(plan.warnings[0].to_string().starts_with(told), "{:?}", plan.warnings);
    case.mounted_images.get_mut("models").unwrap().layers = vec!["/layer".into(); 501];
    case.mounted_images.get_mut("models").unwrap().copy_only = false;
    let error = case.error();
    assert!(error.contains("mount[0]: has 501 layers"), "{error}");
}
