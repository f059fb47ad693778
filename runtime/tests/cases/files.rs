//! The file system that the command sees: root, mounts, devices, small files, masked paths.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use runtime::{
    StartErrorKind,
    plan::{BindConfinement, Device, Mount, MountKind, NamedVolume, Propagation},
};

use crate::common::{Node, eventually};

pub const CASES: &[(&str, fn())] = &[
    ("files_writes_stay_in_the_container", writes_stay_in_the_container),
    ("files_layers_hide_one_another", layers_hide_one_another),
    ("files_root_has_the_mode_of_the_image", root_has_the_mode_of_the_image),
    ("files_readonly_root_and_volumes", readonly_root_and_volumes),
    ("files_bind_mounts", bind_mounts),
    ("files_missing_mount_points_are_made", missing_mount_points_are_made),
    ("files_missing_mount_source", missing_mount_source),
    ("files_confined_sources", confined_sources),
    ("files_confined_sources_exchanged_during_the_start", confined_sources_exchanged_during_the_start),
    ("files_tmpfs", tmpfs),
    ("files_named_volumes", named_volumes),
    ("files_small_files", small_files),
    ("files_propagation", propagation),
    ("files_propagation_bidirectional", propagation_bidirectional),
    ("files_no_mount_of_ours_propagates_to_the_host", no_mount_of_ours_propagates_to_the_host),
    ("files_hidden_and_readonly_paths", hidden_and_readonly_paths),
    ("files_devices", devices),
    ("files_devices_and_mounts", devices_and_mounts),
    ("files_dev_of_the_host", dev_of_the_host),
    ("files_mounts_that_cannot_be_placed", mounts_that_cannot_be_placed),
    ("files_mounts_nested_in_mounts", mounts_nested_in_mounts),
    ("files_shm", shm),
    ("files_hostile_links", hostile_links),
];

fn bind(source: impl Into<PathBuf>, destination: &str, readonly: bool, propagation: Propagation) -> Mount {
    let kind = MountKind::Bind { source: source.into() };
    Mount { destination: destination.to_owned(), kind, readonly, propagation }
}

fn writes_stay_in_the_container() {
    let node = Node::new();
    let (exit, _, err) = node.run(node.plan("echo x > /etc/new && rm /etc/passwd && mkdir /a && ls / >&2"));
    assert_eq!(exit.exit_code, 0, "{err}");
    let layer = node.directory.path().join("layer");
    assert!(layer.join("etc/passwd").exists() && !layer.join("etc/new").exists() && !layer.join("a").exists());
    for directory in ["dev", "proc", "sys"] {
        assert!(!layer.join(directory).exists());
    }
}

fn layers_hide_one_another() {
    let node = Node::new();
    let (top, middle) = (node.directory.path().join("top"), node.directory.path().join("mid:dle,=\\x"));
    for (layer, text) in [(&top, "top"), (&middle, "middle")] {
        fs::create_dir_all(layer.join("etc")).expect("a directory");
        fs::write(layer.join("etc/who"), text).expect("written");
        fs::write(layer.join("etc").join(text), text).expect("written");
    }
    let mut plan = node.plan("cat /etc/who /etc/middle; ls /etc/group");
    plan.root.layers = vec![top, middle, node.directory.path().join("layer")];
    assert_eq!(node.run(plan).1, "topmiddle/etc/group\n");
}

fn root_has_the_mode_of_the_image() {
    use std::os::unix::fs::PermissionsExt;
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    fs::set_permissions(&layer, fs::Permissions::from_mode(0o751)).expect("set");
    std::os::unix::fs::chown(&layer, Some(12), Some(13)).expect("set");
    assert_eq!(node.run(node.plan("stat -c '%a %u %g' /")).1, "751 12 13\n");
}

fn readonly_root_and_volumes() {
    let node = Node::new();
    fs::create_dir_all(node.directory.path().join("layer/var/lib/app")).expect("a directory");
    fs::write(node.directory.path().join("layer/var/lib/app/seed"), "seed").expect("written");
    let script =
        "touch /x; cat /var/lib/app/seed; touch /var/lib/app/y /made/z && echo ok; touch /dev/shm/a && echo ok";
    let mut plan = node.plan(script);
    plan.root.readonly = true;
    plan.root.volumes = vec!["/var/lib/app".to_owned(), "/made".to_owned()];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "seedok\nok\n", "{err}");
    assert!(err.contains("Read-only file system"), "{err}");
}

fn bind_mounts() {
    let node = Node::new();
    let (directory, file) = (node.directory.path().join("data-in"), node.directory.path().join("file-in"));
    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join("a"), "a").expect("written");
    fs::write(&file, "file").expect("written");
    // What is mounted below the source comes along, and is read-only with it.
    let script =
        "cat /in/a /conf/app.conf; echo b > /in/b; echo x > /conf/app.conf; echo x > /ro/sub/x || echo refused";
    let mut plan = node.plan(script);
    fs::create_dir_all(node.directory.path().join("outer/sub")).expect("a directory");
    let inner = rustix::mount::mount(
        "tmpfs",
        node.directory.path().join("outer/sub"),
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        None::<&std::ffi::CStr>,
    );
    inner.expect("a mount below the source");
    let _unmount = Unmount(node.directory.path().join("outer/sub"));
    plan.mounts = vec![
        bind(&directory, "/in", false, Propagation::Private),
        bind(&file, "/conf/app.conf", true, Propagation::Private),
        bind(node.directory.path().join("outer"), "/ro", true, Propagation::Private),
    ];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "afilerefused\n", "{err}");
    assert_eq!(fs::read_to_string(directory.join("b")).expect("written"), "b\n");
    assert_eq!(fs::read_to_string(&file).expect("read"), "file");
}

/// Unmounts when it goes.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _gone_already = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).is_err();
    }
}

/// The command's user can enter every directory that is made in the root for a mount or as working directory.
fn missing_mount_points_are_made() {
    use std::os::unix::fs::PermissionsExt;
    let node = Node::new();
    let (directory, file) = (node.directory.path().join("given"), node.directory.path().join("given-file"));
    fs::create_dir(&directory).expect("a directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("set");
    fs::write(directory.join("a"), "a").expect("written");
    fs::write(&file, "file").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("set");
    let mut plan = node.plan(
        "pwd; cat /deep/below/given/a /far/off/file; stat -c %a /deep /deep/below /far /far/off /place /place/here",
    );
    plan.user = "web".to_owned();
    plan.cwd = "/place/here".to_owned();
    plan.mounts = vec![
        bind(&directory, "/deep/below/given", false, Propagation::Private),
        bind(&file, "/far/off/file", true, Propagation::Private),
    ];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, format!("/place/here\nafile{}", "755\n".repeat(6)), "{err}");
}

fn missing_mount_source() {
    let node = Node::new();
    for propagation in [Propagation::Private, Propagation::Bidirectional] {
        let mut plan = node.plan("true");
        plan.mounts = vec![bind("/no/such/directory", "/in", false, propagation)];
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::MountSource);
        assert!(error.message.contains("/no/such/directory"), "{error}");
    }
}

/// A directory for a group of tasks, with something of the host's beside it.
fn group_directory(node: &Node) -> (PathBuf, BindConfinement) {
    let group = node.directory.path().join("group");
    fs::create_dir_all(group.join("real/sub")).expect("a directory");
    fs::write(group.join("real/who"), "inside").expect("written");
    fs::create_dir(node.directory.path().join("host")).expect("a directory");
    fs::write(node.directory.path().join("host/who"), "secret").expect("written");
    symlink("real", group.join("in")).expect("a link");
    symlink(node.directory.path().join("host"), group.join("out")).expect("a link");
    symlink("../host", group.join("up")).expect("a link");
    let sources = ["in", "out", "up", "real", "real/who"].map(|name| group.join(name)).to_vec();
    (
        group.clone(),
        BindConfinement { directory: group, restricted: false, sources, no_links_to: None, propagated: Vec::new() },
    )
}

fn confined_sources() {
    let node = Node::new();
    let (group, confined) = group_directory(&node);
    for propagation in [Propagation::Private, Propagation::HostToContainer, Propagation::Bidirectional] {
        let mut plan = node.plan("cat /a/who /b; echo x > /b || echo refused; echo new > /a/new");
        plan.confined = Some(confined.clone());
        plan.mounts = vec![
            bind(group.join("in"), "/a", false, propagation),
            bind(group.join("real/who"), "/b", true, Propagation::Private),
        ];
        assert_eq!(node.run(plan).1, "insideinsiderefused\n", "{propagation:?}");
        fs::remove_file(group.join("real/new")).expect("written by the container");
        for link in ["out", "up"] {
            let mut plan = node.plan("true");
            plan.confined = Some(confined.clone());
            plan.mounts = vec![bind(group.join(link), "/a", false, propagation)];
            let error = node.refuse(&plan);
            assert_eq!(error.kind, StartErrorKind::MountSource);
            assert!(error.message.contains("leads out of"), "{error}");
            // Without the confinement, it is what the operator allowed.
            plan.confined = None;
            plan.args[2] = "cat /a/who".to_owned();
            assert_eq!(node.run(plan).1, "secret");
        }
    }
}

/// Another task of the group changes where a source leads as often as it can, while containers start that have it.
fn confined_sources_exchanged_during_the_start() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let node = Node::new();
    let (group, confined) = group_directory(&node);
    let enough = AtomicBool::new(false);
    let (mut inside, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            while !enough.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(rustix::fs::CWD, group.join("in"), rustix::fs::CWD, group.join("out"), flags)
                    .expect("exchanged");
            }
        });
        for _ in 0..30 {
            let mut plan = node.plan("cat /a/who");
            plan.confined = Some(confined.clone());
            plan.mounts = vec![bind(group.join("in"), "/a", false, Propagation::Private)];
            match node.try_run(plan) {
                Ok(output) => {
                    assert_eq!(output, "inside", "the container was given what is outside");
                    inside += 1;
                }
                Err(error) => {
                    assert!(error.message.contains("leads out of"), "{error}");
                    refused += 1;
                }
            }
        }
        enough.store(true, Ordering::Relaxed);
    });
    println!("  {inside} inside, {refused} refused");
}

fn tmpfs() {
    let node = Node::new();
    let mut plan =
        node.plan("stat -c '%a %u %g' /t /u; df -k /t | tail -1 | tr -s ' ' | cut -d ' ' -f 2; touch /t/x && echo ok");
    let tmpfs = |destination: &str, size, mode| Mount {
        destination: destination.to_owned(),
        kind: MountKind::Tmpfs { size, mode, uid: mode.map(|_| 1000), gid: mode.map(|_| 50) },
        readonly: false,
        propagation: Propagation::Private,
    };
    plan.security.capabilities.push("CAP_DAC_OVERRIDE".to_owned());
    plan.mounts = vec![tmpfs("/t", Some(65536), Some(0o750)), tmpfs("/u", None, None)];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "750 1000 50\n1777 0 0\n64\nok\n", "{err}");
}

/// Made once, with what the image has there; kept when the containers are gone.
fn named_volumes() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let node = Node::new();
    let model = node.directory.path().join("layer/srv/data");
    fs::create_dir_all(model.join("deep")).expect("a directory");
    fs::write(model.join("deep/seed"), "seed").expect("written");
    chown(&model, Some(1000), Some(50)).expect("given");
    fs::set_permissions(&model, fs::Permissions::from_mode(0o2750)).expect("set");
    let directory = node.directory.path().join("data/volumes");
    let volume = |name: &str, destination: &str, copy| NamedVolume {
        mounted: false,
        directory: directory.join(name),
        destination: destination.to_owned(),
        copy,
    };
    let volumes = [
        volume("empty", "/srv/data", false),
        volume("full", "/srv/data", true),
        volume("other", "/nowhere/yet", true),
        volume("file", "/etc/passwd", true),
    ];
    for (position, volume) in volumes[..3].iter().enumerate() {
        if position == 1 {
            // What a maker that was killed leaves.
            fs::create_dir_all(directory.join(".new.full/deep")).expect("a directory");
            fs::write(directory.join(".new.full/half"), "").expect("written");
        }
        let target = &volume.destination;
        let script =
            format!("ls -A {target} {target}/deep; stat -c '%a %u %g' {target}; echo kept > {target}/{position}");
        for times in [1, 2] {
            let mut plan = node.plan(&script);
            plan.security.capabilities.push("CAP_DAC_OVERRIDE".to_owned());
            plan.volumes = vec![volume.clone()];
            plan.mounts = vec![bind(&volume.directory, target, false, Propagation::Private)];
            let (exit, out, err) = node.run(plan);
            assert_eq!(exit.exit_code, 0, "{err}");
            assert_eq!(out.contains("seed"), position == 1, "{out}");
            assert_eq!(out.contains("2750 1000 50"), position == 1, "{out}");
            assert_eq!(out.lines().any(|line| line == position.to_string()), times == 2, "{out}");
        }
        assert_eq!(fs::read_to_string(volume.directory.join(position.to_string())).expect("kept"), "kept\n");
    }
    assert!(!directory.join(".new.full").exists() && !directory.join("full/half").exists());
    assert_eq!(fs::metadata(&directory).expect("the volumes").mode() & 0o777, 0o700);
    // A file of the image is no model for a directory, and a directory is not mounted over it.
    let mut plan = node.plan("true");
    plan.volumes = vec![volumes[3].clone()];
    plan.mounts = vec![bind(&volumes[3].directory, "/etc/passwd", false, Propagation::Private)];
    assert!(node.refuse(&plan).message.contains("/etc/passwd"));
}

fn small_files() {
    let node = Node::new();
    // As images do that expect systemd.
    symlink("../run/resolve/stub.conf", node.directory.path().join("layer/etc/resolv.conf")).expect("a link");
    let mut plan = node.plan("cat /etc/hosts /etc/resolv.conf; echo more >> /etc/hosts && cat /etc/hosts");
    plan.root.readonly = true;
    plan.files = vec![
        ("/etc/hosts".to_owned(), "127.0.0.1 localhost\n".to_owned()),
        ("/etc/resolv.conf".to_owned(), "nameserver 192.0.2.1\n".to_owned()),
    ];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "127.0.0.1 localhost\nnameserver 192.0.2.1\n127.0.0.1 localhost\nmore\n", "{err}");
}

/// A directory of ours on a mount that is shared with other namespaces, as most hosts have it.
fn shared_directory(node: &Node) -> (PathBuf, Unmount) {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let directory = node.directory.path().join("shared");
    fs::create_dir(&directory).expect("a directory");
    mount("tmpfs", &directory, "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>).expect("a mount");
    mount_change(&directory, MountPropagationFlags::SHARED).expect("shared");
    fs::create_dir(directory.join("sub")).expect("a directory");
    (directory.clone(), Unmount(directory))
}

fn mount_tmpfs(path: PathBuf) -> Unmount {
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &path, "tmpfs", flags, None::<&std::ffi::CStr>).expect("a mount");
    fs::write(path.join("late"), "late").expect("written");
    Unmount(path)
}

fn propagation() {
    let node = Node::new();
    for private_only in [false, true] {
        let (shared, unmount) = shared_directory(&node);
        let mut plan = node.plan("sleep 100");
        plan.mounts = vec![bind(&shared, "/private", false, Propagation::Private)];
        if !private_only {
            plan.mounts.push(bind(&shared, "/slave", false, Propagation::HostToContainer));
        }
        let container = node.start(plan);
        let inside = PathBuf::from(format!("/proc/{}/root", container.running.init.pid));
        let late = mount_tmpfs(shared.join("sub"));
        assert!(!inside.join("private/sub/late").exists(), "it is not private");
        assert_eq!(inside.join("slave/sub/late").exists(), !private_only);
        drop(late);
        assert!(!inside.join("slave/sub/late").exists(), "the host's unmount arrives");
        drop(unmount);
        fs::remove_dir(&shared).expect("not held by the container");
    }
}

fn propagation_bidirectional() {
    let node = Node::new();
    let (shared, unmount) = shared_directory(&node);
    let script =
        "mount -t tmpfs none /both/sub && echo in > /both/sub/inside; mount -t tmpfs none /private/sub; sleep 100";
    let mut plan = node.plan(script);
    plan.security.privileged = true;
    plan.mounts = vec![
        bind(&shared, "/both", false, Propagation::Bidirectional),
        bind(&shared, "/private", false, Propagation::Private),
    ];
    let container = node.start(plan);
    eventually("the container's mount on the host", || shared.join("sub/inside").exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let ours = mounts.lines().filter(|line| line.contains(node.directory.path().to_str().expect("text"))).count();
    assert_eq!(ours, 2, "nothing but the shared directory and the one mount in it: {mounts}");
    let late = Unmount(shared.join("sub"));
    drop(late);
    drop(unmount);
    drop(container);
}

/// A shared bind has other mounts in it. None of them appears on the host, and what is mounted later still propagates.
fn no_mount_of_ours_propagates_to_the_host() {
    let node = Node::new();
    let (shared, unmount) = shared_directory(&node);
    for name in ["in", "t", "late", "volume", "sub/within"] {
        fs::create_dir(shared.join(name)).expect("a directory");
    }
    // A mount below the source comes along, and propagates too.
    let inner = mount_tmpfs(shared.join("sub/within"));
    fs::create_dir(shared.join("sub/within/place")).expect("a directory");
    let data = node.directory.path().join("data-in");
    fs::create_dir(&data).expect("a directory");
    let mounts = || {
        let text = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let root = node.directory.path().to_str().expect("text").to_owned();
        text.lines().filter(|line| line.contains(&root)).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = mounts();
    let script = "touch /both/in/private; mount -t tmpfs none /both/sub/within/place; \
                  touch /both/sub/within/place/x; mount -t tmpfs none /both/late && touch /both/late/x; sleep 100";
    let mut plan = node.plan(script);
    plan.security.privileged = true;
    plan.root.volumes = vec!["/both/volume".to_owned()];
    plan.files = vec![("/both/file".to_owned(), "of the container".to_owned())];
    plan.mounts = vec![
        bind(&shared, "/both", false, Propagation::Bidirectional),
        bind(&shared, "/slave", false, Propagation::HostToContainer),
        bind(&data, "/both/in", false, Propagation::Private),
        Mount {
            kind: MountKind::Tmpfs { size: None, mode: None, uid: None, gid: None },
            ..bind("", "/both/t", false, Propagation::Private)
        },
        bind(&data, "/both/t/deeper", false, Propagation::HostToContainer),
    ];
    let container = node.start(plan);
    for place in ["sub/within/place/x", "late/x"] {
        eventually(&format!("the container's mount at {place}"), || shared.join(place).exists());
    }
    assert!(data.join("private").exists());
    let inside = PathBuf::from(format!("/proc/{}/root", container.running.init.pid));
    assert!(inside.join("slave/late/x").exists(), "the slave sees the other's mount");
    let by_host = mount_tmpfs(shared.join("sub"));
    for bind in ["both", "slave"] {
        assert!(inside.join(bind).join("sub/late").exists(), "the host's mount in {bind}");
    }
    drop(by_host);
    for place in ["sub/within/place", "late"] {
        drop(Unmount(shared.join(place)));
    }
    assert_eq!(mounts(), before, "a mount of ours is on the host");
    drop(container);
    assert_eq!(mounts(), before, "a mount of ours stayed on the host");
    drop(inner);
    drop(unmount);
}

fn hidden_and_readonly_paths() {
    let node = Node::new();
    let script = "cat /proc/kcore /proc/keys /proc/timer_list | wc -c; ls /sys/firmware | wc -l; \
                  echo x > /proc/sys/kernel/domainname || echo refused; \
                  echo x > /proc/irq/x || echo refused; touch /sys/x || echo refused; \
                  cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max; \
                  echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo refused; \
                  mkdir /sys/fs/cgroup/x || echo refused";
    let mut plan = node.plan(script);
    plan.resources.memory_limit = Some(64 << 20);
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "0\n0\nrefused\nrefused\nrefused\n67108864\nrefused\nrefused\n", "{err}");
}

fn devices() {
    let node = Node::new();
    let mut plan = node.plan(
        "ls /dev; head -c 3 /dev/mine | wc -c; echo x > /dev/mine || echo refused; \
         mknod /dev/k c 1 11 && cat /dev/k || echo refused",
    );
    plan.security.capabilities = vec!["CAP_MKNOD".to_owned()];
    plan.devices = vec![Device {
        host_path: "/dev/zero".into(),
        container_path: "/dev/mine".to_owned(),
        permissions: "rw".to_owned(),
    }];
    let (_, out, err) = node.run(plan);
    for name in ["full", "mine", "null", "ptmx", "pts", "random", "shm", "stdout", "tty", "urandom", "zero"] {
        assert!(out.lines().any(|line| line == name), "{name}: {out}");
    }
    assert!(out.contains("\n3\nrefused\n"), "{out} {err}");
    let mut plan = node.plan("true");
    plan.devices = vec![Device {
        host_path: "/dev/no-such-device".into(),
        container_path: "/dev/x".to_owned(),
        permissions: "rw".to_owned(),
    }];
    let error = node.refuse(&plan);
    assert_eq!(error.kind, StartErrorKind::MountSource);
    assert!(error.message.contains("/dev/no-such-device"), "{error}");
}

fn device(container_path: &str) -> Device {
    Device { host_path: "/dev/zero".into(), container_path: container_path.to_owned(), permissions: "rw".to_owned() }
}

/// What a mount shows brings its own nodes: none is made in it, where others could lead it astray.
fn devices_and_mounts() {
    let node = Node::new();
    let directory = node.directory.path().join("shared");
    fs::create_dir(&directory).expect("a directory");
    symlink("/etc", directory.join("link")).expect("a link");
    let mut plan = node.plan("ls /dev/given; head -c 3 /dev/plain | wc -c");
    plan.mounts = vec![bind(&directory, "/dev/given", false, Propagation::Private)];
    plan.devices = vec![device("/dev/given/zero"), device("/dev/given/link/zero"), device("/dev/plain")];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "link\n3\n", "{err}");
    assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 1);
    // All devices of the host, some of them in a directory that is bound.
    let mut plan = node.plan("ls /dev/net | wc -l");
    plan.security.privileged = true;
    plan.mounts = vec![bind(&directory, "/dev/net", true, Propagation::Private)];
    assert_eq!(node.run(plan).1, "1\n");
    for place in ["/data/zero", "/dev/../etc/zero", "/device"] {
        let mut plan = node.plan("true");
        plan.devices = vec![device(place)];
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::Invalid);
        assert!(error.message.contains(place) && error.message.contains("below /dev"), "{error}");
    }
}

/// Nomad gives the host's /dev to CSI plugins. It is shown as it is, and nothing is made or replaced in it.
fn dev_of_the_host() {
    use std::os::unix::fs::MetadataExt;
    let node = Node::new();
    let known = ["core", "fd", "null", "ptmx", "pts", "shm", "stdin", "tty", "zero"];
    let inodes = || known.map(|name| fs::symlink_metadata(format!("/dev/{name}")).map(|it| (it.ino(), it.mode())).ok());
    let before = inodes();
    for (privileged, readonly) in [(false, false), (true, true), (true, false)] {
        let script = "test -c /dev/kmsg && echo shown; echo x > /dev/null && echo written; \
                      (: < /dev/kmsg) && echo opened; \
                      test -w /dev && touch /dev/oci-rs-test && rm /dev/oci-rs-test && echo made";
        let mut plan = node.plan(script);
        plan.security.privileged = privileged;
        plan.user = if privileged { String::new() } else { "web".to_owned() };
        plan.devices = vec![device("/dev/another-name")];
        plan.mounts = vec![bind("/dev", "/dev", readonly, Propagation::Private)];
        let (_, out, err) = node.run(plan);
        let expected = match (privileged, readonly) {
            (false, _) => "shown\nwritten\n",
            (true, true) => "shown\nwritten\nopened\n",
            (true, false) => "shown\nwritten\nopened\nmade\n",
        };
        assert_eq!(out, expected, "{err}");
    }
    assert_eq!(inodes(), before);
    // A directory that is no /dev at all stays as it is too, also if its source is confined.
    let directory = node.directory.path().join("other");
    fs::create_dir(&directory).expect("a directory");
    for propagation in [Propagation::Private, Propagation::HostToContainer, Propagation::Bidirectional] {
        for confined in [false, true] {
            let mut plan = node.plan("ls -a /dev | wc -l");
            plan.mounts = vec![bind(&directory, "/dev", false, propagation)];
            let all = node.directory.path().to_owned();
            let (sources, propagated) = (vec![directory.clone()], Vec::new());
            plan.confined = confined.then_some(BindConfinement {
                directory: all,
                restricted: false,
                sources,
                no_links_to: None,
                propagated,
            });
            assert_eq!(node.run(plan).1, "2\n", "{propagation:?}, confined: {confined}");
            assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 0);
        }
    }
}

/// Mounts for which there is no place are refused in words.
fn mounts_that_cannot_be_placed() {
    let node = Node::new();
    let directory = node.directory.path().join("other");
    fs::create_dir(&directory).expect("a directory");
    let mut plan = node.plan("true");
    plan.mounts = vec![
        bind("/dev", "/dev", false, Propagation::Private),
        bind(&directory, "/dev/x", false, Propagation::Private),
    ];
    assert!(node.refuse(&plan).message.contains("\"/dev/x\""));
    plan.mounts = vec![bind("/no/such/directory", "/dev", false, Propagation::Private)];
    assert_eq!(node.refuse(&plan).kind, StartErrorKind::MountSource);
    let tmpfs = |destination: &str, readonly| Mount {
        kind: MountKind::Tmpfs { size: None, mode: None, uid: None, gid: None },
        ..bind("", destination, readonly, Propagation::Private)
    };
    plan.mounts = vec![tmpfs("/dev", false)];
    assert!(node.refuse(&plan).message.contains("\"/dev\""));
    // A mount point cannot be made in an empty read-only file system.
    plan.mounts = vec![tmpfs("/empty", true), bind(&directory, "/empty/inner", false, Propagation::Private)];
    let error = node.refuse(&plan).message;
    assert!(error.contains("\"/empty/inner\"") && error.contains("read-only tmpfs"), "{error}");
}

/// Nested mounts are made in the order of the plan, also if the engine makes some and we make others.
fn mounts_nested_in_mounts() {
    let node = Node::new();
    let directory = |name: &str| {
        let path = node.directory.path().join(name);
        fs::create_dir(&path).expect("a directory");
        fs::write(path.join(name), "").expect("written");
        path
    };
    let (one, two, outer, other) = (directory("one"), directory("two"), directory("outer"), directory("other"));
    let tmpfs = |destination: &str| Mount {
        kind: MountKind::Tmpfs { size: None, mode: None, uid: None, gid: None },
        ..bind("", destination, false, Propagation::Private)
    };
    let bind = |source: &Path, destination: &str| bind(source, destination, false, Propagation::Private);
    // By a link of the image into a file system that is the engine's.
    symlink("/dev/shm", node.directory.path().join("layer/shared")).expect("a link");
    let mut plan = node
        .plan("for i in /a /a/b /c /c/d /c/d/e /f /g /g/h /i /dev/shm/j /k /sys/fs/cgroup; do echo $i $(ls $i); done");
    plan.mounts = vec![
        tmpfs("/a"),
        bind(&one, "/a/b"),
        bind(&outer, "/c"),
        tmpfs("/c/d"),
        bind(&two, "/c/d/e"),
        tmpfs("/f/below"),
        bind(&one, "/f"),
        bind(&other, "/g"),
        bind(&two, "/g/h"),
        bind(&one, "/i"),
        bind(&two, "/i"),
        bind(&two, "/shared/j"),
        bind(&one, "/k"),
        bind(&two, "/sys/fs/cgroup"),
    ];
    let (exit, out, err) = node.run(plan);
    assert_eq!(exit.exit_code, 0, "{err}");
    let expected = "/a b\n/a/b one\n/c d outer\n/c/d e\n/c/d/e two\n/f one\n/g h other\n/g/h two\n/i two\n\
                    /dev/shm/j two\n/k one\n/sys/fs/cgroup two\n";
    assert_eq!(out, expected);
}

fn shm() {
    let node = Node::new();
    let mut plan = node.plan("df -k /dev/shm | tail -1 | tr -s ' ' | cut -d ' ' -f 2; stat -c %a /dev/shm");
    plan.shm_size = 128 << 10;
    assert_eq!(node.run(plan).1, "128\n1777\n");
}

fn hostile_links() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    let outside = node.directory.path().join("outside");
    fs::create_dir(&outside).expect("a directory");
    symlink(&outside, layer.join("in")).expect("a link");
    let mut plan = node.plan("ls /in/made /in/data");
    plan.cwd = "/in/made".to_owned();
    plan.mounts = vec![bind(node.directory.path().join("layer/home"), "/in/data", false, Propagation::Private)];
    let (exit, out, err) = node.run(plan);
    assert_eq!(exit.exit_code, 0, "{err}");
    assert!(out.contains("web"), "{out}");
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0, "something was made outside of the container");
    for name in ["dev", "proc", "sys"] {
        symlink(&outside, layer.join(name)).expect("a link");
        let error = node.refuse(&node.plan("true"));
        assert_eq!(error.kind, StartErrorKind::Invalid);
        assert!(error.message.contains(name), "{error}");
        assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
        fs::remove_file(layer.join(name)).expect("removed");
    }
    fs::remove_file(layer.join("etc/passwd")).expect("removed");
    symlink("/etc/shadow", layer.join("etc/passwd")).expect("a link");
    let mut plan = node.plan("true");
    plan.user = "daemon".to_owned();
    assert_eq!(node.refuse(&plan).kind, StartErrorKind::UnknownUser);
}
