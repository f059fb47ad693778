//! Mounts, volumes and devices.

use runtime::{VolumeOptions, plan::Relabel};

use super::*;

fn bind(option: &str, path: &str, target: &str, propagation: Propagation, readonly: bool) -> MountRequest {
    let source = MountSource::Bind { path: path.into(), propagation, create: option.starts_with("volumes") };
    MountRequest { option: option.into(), source, target: target.into(), readonly, relabel: None }
}

#[test]
fn volumes_and_mounts_are_read_in_order() {
    let spec = decode(json!({
        "volumes": ["local/a:/a", "b:/b:ro,z", "b:/b2:Z", "/host:/c:rslave,rw"],
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
            MountRequest {
                relabel: Some(Relabel::Shared),
                ..bind("volumes[1]", "b", "/b", Propagation::Private, true)
            },
            MountRequest {
                relabel: Some(Relabel::Private),
                ..bind("volumes[2]", "b", "/b2", Propagation::Private, false)
            },
            bind("volumes[3]", "/host", "/c", Propagation::HostToContainer, false),
            bind("mount[0]", "d", "/d", Propagation::Bidirectional, true),
            MountRequest {
                option: "mount[1]".into(),
                source: MountSource::Tmpfs { size: Some(1024), mode: Some(511), uid: Some(1000), gid: None },
                target: "/e".into(),
                readonly: false,
                relabel: None,
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
        (json!({ "type": "npipe", "target": "/a" }), "mount[0].type: \"npipe\" is not a type of mount"),
        (json!({ "type": "bind", "target": "/a" }), "mount[0].source: is missing"),
        (json!({ "type": "image", "target": "/a" }), "mount[0].source: is missing"),
        (json!({ "type": "image", "source": "A/", "target": "/a" }), "mount[0].source: "),
        (
            json!({ "type": "image", "source": "m", "target": "/a", "sub_path": "/b" }),
            "mount[0].sub_path: \"/b\" is not a path below the image's root",
        ),
        (
            json!({ "type": "image", "source": "m", "target": "/a", "sub_path": "b/../.." }),
            "mount[0].sub_path: \"b/../..\" is not a path below",
        ),
        (
            json!({ "type": "bind", "source": "a", "target": "/a", "sub_path": "b" }),
            "mount[0].sub_path: is only for mounts of type \"image\"",
        ),
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
fn images_as_mounts_are_read_and_are_always_read_only() {
    let mount = |image: &str, target: &str| json!({ "type": "image", "source": image, "target": target });
    let mut part = mount("r.example/models:1", "/b");
    part["sub_path"] = json!("share/models");
    let spec = decode(json!({ "mount": [mount("r.example/models:1", "/a"), part, mount("tools", "/c")] }));
    let read: Vec<_> = spec.mounts.iter().map(|mount| (mount.source.clone(), mount.readonly)).collect();
    let image = |image: &str, sub_path: Option<&str>| {
        (MountSource::Image { image: image.into(), sub_path: sub_path.map(Into::into) }, true)
    };
    let models = "r.example/models:1";
    assert_eq!(read, [image(models, None), image(models, Some("share/models")), image("tools", None)]);
    assert_eq!(spec.mounted_images(), [models, "tools"], "each image occurs once");
}

#[test]
fn the_limit_of_the_writable_layer_has_dockers_notation() {
    let size = |text: &str| decode(json!({ "storage_opt": { "size": text } })).layer_size;
    assert_eq!(
        ["10G", "1.5g", "512m", "1048576", "0"].map(size),
        [Some(10 << 30), Some(3 << 29), Some(512 << 20), Some(1 << 20), None]
    );
    for (options, expected) in [
        (json!({ "inodes": "1" }), "storage_opt: \"inodes\" is not supported"),
        (json!({ "size": "much" }), "storage_opt: size = \"much\" is no size"),
        (json!({ "size": "1k" }), "storage_opt: size = \"1k\" is too small"),
    ] {
        let error = error(json!({ "storage_opt": options }));
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

#[test]
fn volumes_with_options_are_read() {
    let policy = policy(json!({ "volumes": { "enabled": true } }));
    let mount = |name: Json, options: Json| {
        let driver = json!({ "name": "local", "options": options });
        json!({ "mount": [{ "target": "/a", "source": name, "volume_options": { "driver_config": driver } }] })
    };
    let read = |name: Json, options: Json| {
        let spec = decode_with(mount(name, options), &policy).expect("valid");
        spec.mounts.into_iter().next().expect("a mount").source
    };
    let nfs = json!([{ "type": "nfs", "o": "addr=nas,ro", "device": ":/x" }]);
    let expected = VolumeOptions {
        kind: "nfs".into(),
        device: ":/x".into(),
        mount_options: "addr=nas,ro".into(),
        forgotten: Vec::new(),
    };
    let named = MountSource::Volume { name: "v".into(), copy: true, options: Some(expected.clone()) };
    assert_eq!(read(json!("v"), nfs.clone()), named);
    assert_eq!(read(json!(null), nfs), MountSource::Anonymous { copy: true, options: Some(expected) });
    assert_eq!(read(json!("v"), json!({})), MountSource::Volume { name: "v".into(), copy: true, options: None });
    for (options, expected) in [
        (json!({ "type": "nfs" }), "`device` is missing"),
        (json!({ "device": ":/x" }), "`type` is missing"),
        (json!({ "type": "tmpfs", "device": "tmpfs", "size": "1m" }), "`size` is not possible: volumes have no quota"),
        (json!({ "type": "tmpfs", "device": "tmpfs", "x": "1" }), "\"x\" is no option of the driver \"local\""),
        (json!({ "type": "none", "device": "srv", "o": "bind" }), "`device` \"srv\" is not an absolute path"),
        (json!({ "type": "ext4", "device": "/dev/sdb" }), "volumes of the type \"ext4\" are not allowed on this node"),
        (json!({ "type": "tmpfs", "device": "tmpfs", "o": "x".repeat(4096) }), "`o` is longer than 4095 bytes"),
    ] {
        let error = decode_with(mount(json!("v"), options), &policy).expect_err("refused");
        let expected = format!("mount[0].volume_options.driver_config.options: {expected}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn volumes_with_options_need_the_operators_permission() {
    let block = |kind: &str, o: &str| {
        let driver = json!({ "options": { "type": kind, "device": "/dev/sdb", "o": o } });
        json!({ "mount": [{ "target": "/a", "volume_options": { "driver_config": driver } }] })
    };
    for (plugin, allowed, refused) in [
        (json!({}), &[][..], &[("tmpfs", ""), ("none", "bind"), ("nfs", "")][..]),
        (
            json!({ "volumes": { "enabled": true } }),
            &[
                ("tmpfs", ""),
                ("none", "bind"),
                ("ext4", "ro,rbind"),
                ("nfs", ""),
                ("nfs4", ""),
                ("cifs", ""),
                ("smb3", ""),
            ],
            &[("ext4", ""), ("overlay", "")],
        ),
        (
            json!({ "volumes": { "enabled": true, "allow_types": ["ext*"] } }),
            &[("ext4", ""), ("ext3", "")],
            &[("tmpfs", ""), ("none", "bind"), ("ext4", "bind")],
        ),
    ] {
        let policy = policy(plugin);
        for (kind, o) in allowed {
            decode_with(block(kind, o), &policy).unwrap_or_else(|error| panic!("{kind} {o}: {error}"));
        }
        for (kind, o) in refused {
            let error = decode_with(block(kind, o), &policy).expect_err("not allowed");
            assert!(error.contains("not allowed on this node"), "{kind} {o}: {error}");
        }
    }
}
