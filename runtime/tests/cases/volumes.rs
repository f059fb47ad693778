//! Volumes without a name: directories beside the writable layer that hold the image's files.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
};

use runtime::plan::{ContainerPlan, Mount, MountKind, Propagation};
use rustix::fs::{XattrFlags, setxattr};

use crate::common::Node;

pub const CASES: &[(&str, fn())] = &[
    ("volumes_are_filled_from_the_image", filled_from_the_image),
    ("volumes_at_links_and_missing_places", at_links_and_missing_places),
    ("volumes_nested_in_each_other_and_in_mounts", nested_in_each_other_and_in_mounts),
    ("volumes_are_replaced_by_mounts_at_their_place", replaced_by_mounts_at_their_place),
    ("volumes_at_impossible_places", at_impossible_places),
    ("volumes_are_gone_with_their_container", gone_with_their_container),
    ("volumes_begin_empty_if_the_plan_says_so", begin_empty),
];

/// A container with these volumes that runs `script` and then prints its mounts: root and place of each.
fn plan(node: &Node, volumes: &[&str], script: &str) -> ContainerPlan {
    let mut plan = node.plan(&format!("{script}; cut -d ' ' -f 4,5 /proc/self/mountinfo"));
    plan.security.capabilities.push("CAP_DAC_OVERRIDE".to_owned());
    plan.root.volumes = volumes.iter().map(|volume| (*volume).to_owned()).collect();
    plan
}

fn bind(source: &Path, destination: &str) -> Mount {
    let kind = MountKind::Bind { source: source.to_owned() };
    Mount { destination: destination.to_owned(), kind, readonly: false, propagation: Propagation::Private }
}

/// Whether the output of [`plan`] has a mount of the volume with this number at `place`.
fn is_mounted(output: &str, number: usize, place: &str) -> bool {
    let end = format!("/volumes/{number} {place}");
    output.lines().any(|line| line.contains("/containers/") && line.ends_with(&end))
}

fn filled_from_the_image() {
    let node = Node::new();
    let model = node.directory.path().join("layer/srv/app");
    fs::create_dir_all(model.join("deep")).expect("a directory");
    fs::write(model.join("deep/seed"), "seed").expect("written");
    chown(model.join("deep/seed"), Some(1000), Some(50)).expect("given");
    fs::set_permissions(model.join("deep/seed"), fs::Permissions::from_mode(0o4750)).expect("set");
    fs::hard_link(model.join("deep/seed"), model.join("twin")).expect("linked");
    symlink("../../../../etc/shadow", model.join("link")).expect("a link");
    setxattr(model.join("deep/seed"), "user.kind", b"model", XattrFlags::empty()).expect("set");
    chown(&model, Some(1000), Some(50)).expect("given");
    fs::set_permissions(&model, fs::Permissions::from_mode(0o2771)).expect("set");
    for readonly in [false, true] {
        // A directory has one link on btrfs.
        let script = "cd /srv/app; stat -c '%a %u %g' .; stat -c '%a %u %g %h' deep/seed; readlink link; cat twin; \
                      echo x > new; echo y > deep/seed";
        let mut plan = plan(&node, &["/srv/app"], script);
        plan.root.readonly = readonly;
        let mut container = node.start(plan);
        assert_eq!(container.wait().exit_code, 0);
        let (out, err) = container.output();
        assert!(out.starts_with("2771 1000 50\n4750 1000 50 2\n../../../../etc/shadow\nseed"), "{out}{err}");
        assert!(is_mounted(&out, 0, "/srv/app"), "{out}");
        let volume = node.directory.path().join("data/containers").join(container.id().as_str()).join("volumes/0");
        assert_eq!(fs::read_to_string(volume.join("twin")).expect("the hard link"), "y\n");
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(volume.join("deep/seed"), "user.kind", &mut value[..]).expect("an attribute");
        assert_eq!(&value[..length], b"model");
        assert!(volume.join("new").exists() && !volume.join("../../upper/srv/app/new").exists());
    }
    assert_eq!(fs::read_to_string(model.join("twin")).expect("the image"), "seed");
}

fn at_links_and_missing_places() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    let outside = node.directory.path().join("outside");
    for directory in [&layer.join("srv/real"), &outside] {
        fs::create_dir_all(directory).expect("a directory");
        fs::write(directory.join("who"), directory.to_string_lossy().as_ref()).expect("written");
    }
    symlink("/srv/real", layer.join("data")).expect("a link");
    symlink(&outside, layer.join("escape")).expect("a link");
    symlink("../../../../missing/target", layer.join("dangling")).expect("a link");
    let volumes = ["/data", "/escape", "/dangling", "/made/deep"];
    let script = "cat /data/who; echo; ls -A /escape /made/deep; stat -c '%a %u' /made/deep; \
                  touch /srv/real/x /dangling/x /made/deep/x; ls /missing/target";
    let (exit, out, err) = node.run(plan(&node, &volumes, script));
    assert_eq!(exit.exit_code, 0, "{err}");
    let expected = format!("{}/srv/real\n/escape:\n\n/made/deep:\n755 0\nx\n", layer.display());
    assert!(out.starts_with(&expected), "{out}{err}");
    let escape = outside.to_string_lossy();
    for (number, place) in ["/srv/real", &escape, "/missing/target", "/made/deep"].iter().enumerate() {
        assert!(is_mounted(&out, number, place), "{place}: {out}");
    }
    assert_eq!(fs::read_dir(&outside).expect("the host's directory").count(), 1);
}

fn nested_in_each_other_and_in_mounts() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    for directory in ["a/b/c", "outer/sub", "on-tmpfs"] {
        fs::create_dir_all(layer.join(directory)).expect("a directory");
        fs::write(layer.join(directory).join("name"), directory).expect("written");
    }
    let (below, outer) = (node.directory.path().join("below"), node.directory.path().join("outer"));
    for directory in [&below, &outer] {
        fs::create_dir(directory).expect("a directory");
    }
    // The inner volume has the lower number.
    let script = "cat /a/b/name /a/b/c/name /outer/sub/name /on-tmpfs/sub/name; \
                  touch /a/x /a/b/x /a/b/c/x /below/sub/x /outer/sub/x /a/mounted/x";
    fs::create_dir_all(layer.join("a/b")).expect("a directory");
    fs::write(layer.join("a/b/name"), "a/b").expect("written");
    fs::create_dir_all(layer.join("on-tmpfs/sub")).expect("a directory");
    fs::write(layer.join("on-tmpfs/sub/name"), "on-tmpfs/sub").expect("written");
    let mut plan = plan(&node, &["/a/b/c", "/a", "/outer/sub", "/on-tmpfs/sub", "/below"], script);
    plan.mounts = vec![
        bind(&outer, "/outer"),
        Mount {
            destination: "/on-tmpfs".to_owned(),
            kind: MountKind::Tmpfs { size: None, mode: None, uid: None, gid: None },
            readonly: false,
            propagation: Propagation::Private,
        },
        bind(&below, "/a/mounted"),
        bind(&below, "/below/sub"),
    ];
    let mut container = node.start(plan);
    assert_eq!(container.wait().exit_code, 0);
    let (out, err) = container.output();
    assert!(out.starts_with("a/ba/b/couter/subon-tmpfs/sub"), "{out}{err}");
    for (number, place) in ["/a/b/c", "/a", "/outer/sub", "/on-tmpfs/sub", "/below"].iter().enumerate() {
        assert!(is_mounted(&out, number, place), "{place}: {out}");
    }
    let volumes = node.directory.path().join("data/containers").join(container.id().as_str()).join("volumes");
    for path in ["0/x", "1/x", "1/b/x", "2/x"] {
        assert!(volumes.join(path).exists(), "{path}");
    }
    assert!(!volumes.join("1/b/c/x").exists(), "the inner volume is over the outer one");
    assert!(below.join("x").exists());
    assert!(outer.join("sub").is_dir() && !outer.join("sub/x").exists(), "the place in the outer mount is made");
}

fn replaced_by_mounts_at_their_place() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    fs::create_dir_all(layer.join("srv/real")).expect("a directory");
    symlink("/srv/real", layer.join("alias")).expect("a link");
    let given = node.directory.path().join("given");
    fs::create_dir(&given).expect("a directory");
    fs::write(given.join("mine"), "").expect("written");
    for (volume, mount) in [("/data", "/data"), ("/alias", "/srv/real"), ("/srv/real", "/alias")] {
        let mut plan = plan(&node, &[volume], &format!("ls -A {volume}"));
        plan.mounts = vec![bind(&given, mount)];
        let (_, out, err) = node.run(plan);
        assert!(out.starts_with("mine\n") && !out.contains("/volumes/"), "{volume} {mount}: {out}{err}");
    }
}

fn at_impossible_places() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    symlink("/proc/sys", layer.join("to-proc")).expect("a link");
    symlink("loop", layer.join("loop")).expect("a link");
    for volume in ["/etc/passwd", "/etc/passwd/x", "/to-proc", "/proc/x", "/loop"] {
        let mut plan = plan(&node, &[volume], "true");
        plan.root.volumes = vec![volume.to_owned()];
        let error = node.refuse(&plan);
        assert!(error.message.contains(&format!("volume {volume} of the image")), "{error}");
    }
}

fn gone_with_their_container() {
    let node = Node::new();
    let plan = plan(&node, &["/data"], "test ! -e /data/x && touch /data/x");
    for _ in 0..2 {
        let running = node.runtime.start(&plan).expect("started");
        assert!(running.monitor.wait_for(Some(std::time::Duration::from_secs(20))).expect("a poll"));
        let runtime::Status::Exited(exit) = node.runtime.status(&plan.id).expect("a status") else { panic!("running") };
        assert_eq!(exit.exit_code, 0, "a new container has a new volume");
        let layer = node.directory.path().join("data/containers").join(plan.id.as_str());
        let volume = fs::metadata(layer.join("volumes/0")).expect("a volume");
        assert_eq!((volume.mode() & 0o7777, volume.uid()), (0o755, 0));
        assert!(layer.join("volumes/0/x").exists());
        node.runtime.destroy(&plan.id).expect("destroyed");
        node.assert_clean(&plan);
    }
}

fn begin_empty() {
    let node = Node::new();
    let model = node.directory.path().join("layer/data");
    fs::create_dir(&model).expect("a directory");
    fs::write(model.join("seed"), "").expect("written");
    chown(&model, Some(1000), Some(50)).expect("given");
    for (empty, expected) in [(false, "755 1000 50\nseed\nwritten\n"), (true, "755 0 0\nwritten\n")] {
        let mut plan = plan(&node, &["/data"], "stat -c '%a %u %g' /data; ls /data; touch /data/x && echo written");
        plan.root.empty_volumes = if empty { vec!["/data".to_owned()] } else { Vec::new() };
        let (_, out, err) = node.run(plan);
        assert!(out.starts_with(expected), "empty {empty}: {out}{err}");
    }
}
