//! Mounts, volumes and devices.

use super::*;

fn bind(option: &str, path: &str, target: &str, propagation: Propagation, readonly: bool) -> MountRequest {
    let source = MountSource::Bind { path: path.into(), propagation, create: option.starts_with("volumes") };
    MountRequest { option: option.into(), source, target: target.into(), readonly }
}

#[test]
fn volumes_and_mounts_are_read_in_order() {
    let spec = decode(json!({
        "volumes": ["local/a:/a", "b:/b:ro,z", "/host:/c:rslave,rw"],
        "mount": [
            { "type": "bind", "source": "d", "target": "/d", "readonly": true,
              "bind_options": { "propagation": "rshared" } },
            { "type": "tmpfs", "target": "/e", "tmpfs_options": [{ "size": 1024, "mode": 511, "uid": 1000 }] },
        ],
        "mounts": [{ "type": "bind", "source": "f", "target": "/f", "volume_options": null }],
    }));
    assert_eq!(
        spec.mounts,
        [
            bind("volumes[0]", "local/a", "/a", Propagation::Private, false),
            bind("volumes[1]", "b", "/b", Propagation::Private, true),
            bind("volumes[2]", "/host", "/c", Propagation::HostToContainer, false),
            bind("mount[0]", "d", "/d", Propagation::Bidirectional, true),
            MountRequest {
                option: "mount[1]".into(),
                source: MountSource::Tmpfs { size: Some(1024), mode: Some(511), uid: Some(1000), gid: None },
                target: "/e".into(),
                readonly: false,
            },
            bind("mounts[0]", "f", "/f", Propagation::Private, false),
        ]
    );
}

#[test]
fn invalid_volumes_and_mounts_are_refused() {
    for (text, expected) in [
        ("a", "volumes[0]: \"a\" is not `source:destination[:options]`"),
        (":/a", "volumes[0]: \":/a\" is not"),
        ("a:/a:ro:x", "volumes[0]: \"a:/a:ro:x\" is not"),
        ("a:b", "volumes[0]: \"b\" is not a path below / in the container"),
        ("a:/", "volumes[0]: \"/\" is not a path below /"),
        ("a:/a:rwx", "volumes[0]: \"rwx\" is not an option of volumes"),
    ] {
        let error = error(json!({ "volumes": [text] }));
        assert!(error.starts_with(expected), "{error}");
    }
    for (mount, expected) in [
        (
            json!({ "target": "/a", "source": "v" }),
            "mount[0].source: named volumes such as \"v\" are not allowed on this node",
        ),
        (json!({ "target": "/a", "source": "local/v" }), "mount[0].source: \"local/v\" is no name of a volume"),
        (json!({ "target": "/a", "source": ".." }), "mount[0].source: \"..\" is no name of a volume"),
        (json!({ "target": "/a", "source": ".new.v" }), "mount[0].source: \".new.v\" is no name of a volume"),
        (json!({ "target": "/a", "readonly": true }), "mount[0].readonly: makes no sense for a volume without a name"),
        (
            json!({ "target": "/a", "volume_options": { "driver_config": { "name": "nfs" } } }),
            "mount[0].volume_options.driver_config.name: \"nfs\" is not supported: there are no docker volume plugins",
        ),
        (
            json!({ "target": "/a", "volume_options": { "driver_config": { "options": { "type": "nfs" } } } }),
            "mount[0].volume_options.driver_config.options: is not supported: options of the volume driver",
        ),
        (json!({ "type": "npipe", "target": "/a" }), "mount[0].type: \"npipe\" is not a type of mount"),
        (json!({ "type": "bind", "target": "/a" }), "mount[0].source: is missing"),
        (json!({ "type": "bind", "source": "a" }), "mount[0].target: \"\" is not a path below /"),
        (json!({ "type": "tmpfs", "source": "a", "target": "/a" }), "mount[0].source: has no meaning for a tmpfs"),
        (
            json!({ "type": "bind", "source": "a", "target": "/a", "bind_options": { "propagation": "up" } }),
            "mount[0].bind_options.propagation: \"up\" is not a propagation",
        ),
        (
            json!({ "type": "tmpfs", "target": "/a", "tmpfs_options": { "mode": 4096 } }),
            "mount[0].tmpfs_options.mode: 4096 is more than permission bits can say",
        ),
        (
            json!({ "type": "tmpfs", "target": "/a", "tmpfs_options": { "gid": 4_294_967_295u32 } }),
            "mount[0].tmpfs_options.gid: 4294967295 is no id",
        ),
    ] {
        let error = error(json!({ "mount": [mount] }));
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn devices_are_read() {
    let spec = decode(json!({ "devices": [
        { "host_path": "/dev/fuse", "container_path": null, "cgroup_permissions": "" },
        { "host_path": "/dev/a", "container_path": "/dev/b", "cgroup_permissions": "r" },
    ] }));
    let device = |host: &str, container: &str, permissions: &str| DeviceRequest {
        host_path: host.into(),
        container_path: container.into(),
        permissions: permissions.into(),
    };
    assert_eq!(spec.devices, [device("/dev/fuse", "/dev/fuse", "rwm"), device("/dev/a", "/dev/b", "r")]);
    for (block, expected) in [
        (json!({}), "devices[0].host_path: is missing"),
        (
            json!({ "host_path": "dev", "container_path": "/x" }),
            "devices[0].host_path: \"dev\" is not an absolute path",
        ),
        (
            json!({ "host_path": "/dev/a", "cgroup_permissions": "rx" }),
            "devices[0].cgroup_permissions: \"rx\" is not made of",
        ),
    ] {
        let error = error(json!({ "devices": [block] }));
        assert!(error.starts_with(expected), "{error}");
    }
}
