//! Volumes with options: file systems that the runtime mounts, shares between containers and unmounts.

use std::{
    fs,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use runtime::{
    StartErrorKind, StartOptions, Status, VolumeError, VolumeKey, VolumeOptions,
    plan::{ContainerId, ContainerPlan, Mount, MountKind, NamedVolume, Propagation},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{Container, Node};

pub const CASES: &[(&str, fn())] = &[
    ("mounted_volumes_are_shared_and_unmounted_by_the_last", shared_and_unmounted_by_the_last),
    ("mounted_volumes_that_are_directories", directories),
    ("mounted_volumes_on_a_block_device", on_a_block_device),
    ("mounted_volumes_are_filled_while_empty", filled_while_empty),
    ("mounted_volumes_keep_their_options_while_used", keep_their_options_while_used),
    ("mounted_volumes_that_cannot_be_mounted", cannot_be_mounted),
    ("mounted_volumes_of_servers", of_servers),
    ("mounted_volumes_without_an_answer", without_an_answer),
    ("mounted_volumes_of_killed_processes_are_swept", of_killed_processes_are_swept),
];

const LIMIT: Duration = Duration::from_secs(20);

fn options(kind: &str, device: &str, mount_options: &str) -> VolumeOptions {
    VolumeOptions {
        kind: kind.to_owned(),
        device: device.to_owned(),
        mount_options: mount_options.to_owned(),
        forgotten: Vec::new(),
    }
}

fn tmpfs() -> VolumeOptions {
    options("tmpfs", "tmpfs", "size=1m,uid=1000,mode=750")
}

impl Node {
    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn mount(&self, name: &str, options: &VolumeOptions, user: &ContainerId) -> Result<(), VolumeError> {
        self.runtime.mount_volume(&VolumeKey::named(name), options, user, LIMIT)
    }

    fn is_mounted(&self, name: &str) -> bool {
        let point = VolumeKey::named(name).mount_point(&self.state());
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        table.lines().filter(|line| line.split(' ').nth(4) == point.to_str()).count() == 1
    }

    /// A container with a volume at /data.
    fn with_volume(&self, name: &str, copy: bool, script: &str) -> ContainerPlan {
        let mut plan = self.plan(script);
        plan.security.capabilities.push("CAP_DAC_OVERRIDE".to_owned());
        let directory = VolumeKey::named(name).mount_point(&self.state());
        let destination = || "/data".to_owned();
        plan.volumes =
            vec![NamedVolume { directory: directory.clone(), destination: destination(), copy, mounted: true }];
        let kind = MountKind::Bind { source: directory };
        plan.mounts =
            vec![Mount { destination: destination(), kind, readonly: false, propagation: Propagation::Private }];
        plan
    }

    /// Nothing of any volume is left, except for the options of those with a name.
    fn assert_no_volumes(&self) {
        let left: Vec<_> =
            fs::read_dir(self.state().join("volumes")).expect("a directory").map(|entry| entry.expect("one")).collect();
        assert!(left.is_empty(), "{left:?}");
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!table.contains(&*self.state().to_string_lossy()), "{table}");
    }
}

/// Runs a container with a mounted volume to its end; it is checked for leftovers when it goes.
fn run(node: &Node, plan: ContainerPlan) -> (Container<'_>, String, String) {
    let mut container = node.start(plan);
    container.wait();
    let (out, err) = container.output();
    (container, out, err)
}

fn shared_and_unmounted_by_the_last() {
    let node = Node::new();
    let first = node.with_volume("v", true, "stat -c '%a %u' /data; echo shared > /data/x; df -k /data | tail -n 1");
    let second = node.with_volume("v", true, "cat /data/x");
    let third = node.with_volume("v", true, "cat /data/x");
    let users = [first.id.clone(), second.id.clone(), third.id.clone()];
    node.mount("v", &tmpfs(), &users[0]).expect("mounted");
    assert!(node.is_mounted("v"));
    let inode = |file: &str| fs::metadata(node.state().join("volumes").join(file)).expect("a file");
    assert_eq!(inode("v").mode() & 0o777, 0o700, "only root may pass");
    let (one, out, err) = run(&node, first);
    assert!(out.starts_with("750 1000\n") && out.contains("1024"), "{out}{err}");
    // A second user before the first one goes, and a third one after that.
    node.mount("v", &tmpfs(), &users[1]).expect("shared");
    assert!(node.is_mounted("v"), "mounted once");
    node.runtime.release_volumes(&users[0]).expect("released");
    node.runtime.release_volumes(&users[0]).expect("idempotent");
    node.mount("v", &tmpfs(), &users[2]).expect("shared");
    node.mount("v", &tmpfs(), &users[2]).expect("idempotent");
    let (two, out, err) = run(&node, second);
    assert_eq!(out, "shared\n", "{err}");
    node.runtime.release_volumes(&users[1]).expect("released");
    let (three, out, err) = run(&node, third);
    assert_eq!(out, "shared\n", "{err}");
    node.runtime.release_volumes(&users[2]).expect("released");
    node.assert_no_volumes();
    drop((one, two, three));
    // Another job may name it without options.
    let stored = node.runtime.stored_volume_options("v").expect("readable").expect("stored");
    assert_eq!(stored, tmpfs());
    assert_eq!(node.runtime.stored_volume_options("w").expect("readable"), None);
    // A container without such a volume has nothing to release.
    node.runtime.release_volumes(&users[0]).expect("released");
}

fn directories() {
    let node = Node::new();
    let directory = node.directory.path().join("host dir");
    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join("file"), "of the host\n").expect("written");
    let device = directory.to_string_lossy().into_owned();
    for (mount_options, writable) in [("bind", true), ("bind,ro", false), ("rbind,rshared", true)] {
        let plan = node.with_volume("v", true, "cat /data/file; touch /data/new && echo written; rm -f /data/new");
        let user = plan.id.clone();
        node.mount("v", &options("none", &device, mount_options), &user).expect("mounted");
        let (container, out, err) = run(&node, plan);
        assert_eq!(out.contains("written"), writable, "{mount_options}: {out}{err}");
        assert!(out.starts_with("of the host\n"), "{out}{err}");
        node.runtime.release_volumes(&user).expect("released");
        drop(container);
        node.assert_no_volumes();
    }
    assert_eq!(fs::read_to_string(directory.join("file")).expect("kept"), "of the host\n");
}

/// An ext4 file system in a file, on a loop device.
struct Loop(String);

impl Loop {
    /// `None` on a machine without the programs.
    fn new(file: &Path) -> Option<Self> {
        fs::File::create(file).and_then(|file| file.set_len(16 << 20)).expect("an image");
        let Ok(made) = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(file).status() else {
            fixtures::program::missing("mkfs.ext4");
            return None;
        };
        assert!(made.success(), "mkfs.ext4");
        let found = Command::new("losetup").args(["--find", "--show"]).arg(file).output().expect("losetup");
        // Busybox's program has other options.
        found.status.success().then_some(())?;
        Some(Self(String::from_utf8_lossy(&found.stdout).trim().to_owned()))
    }

    fn detach(&self) -> bool {
        Command::new("losetup").args(["--detach", &self.0]).status().expect("losetup").success()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.detach();
    }
}

fn on_a_block_device() {
    let node = Node::new();
    let Some(device) = Loop::new(&node.directory.path().join("image")) else {
        println!("skipped: this machine makes no ext4 file system on a loop device");
        return;
    };
    let ext4 = options("ext4", &device.0, "noatime,nodev");
    for (script, expected) in [("ls /data; echo kept > /data/x", "lost+found\n"), ("cat /data/x", "kept\n")] {
        let plan = node.with_volume("disk", true, script);
        let user = plan.id.clone();
        node.mount("disk", &ext4, &user).expect("mounted");
        let (container, out, err) = run(&node, plan);
        assert_eq!(out, expected, "{err}");
        drop_with_volume(&node, container, &user);
        node.assert_no_volumes();
    }
    // The device is free at once: it has no other holder.
    let user = node.plan("true").id;
    node.mount("disk", &ext4, &user).expect("mounted");
    node.runtime.release_volumes(&user).expect("released");
    let exclusive = rustix::fs::open(
        &device.0,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    exclusive.expect("the device is not mounted any more");
}

/// Destroys a container and then releases its volumes, as the driver does.
fn drop_with_volume(node: &Node, container: Container<'_>, user: &ContainerId) {
    node.runtime.destroy(user).expect("destroyed");
    node.runtime.release_volumes(user).expect("released");
    drop(container);
}

fn filled_while_empty() {
    let node = Node::new();
    let model = node.directory.path().join("layer/data");
    fs::create_dir(&model).expect("a directory");
    fs::write(model.join("seed"), "seed").expect("written");
    chown(&model, Some(1000), Some(50)).expect("given");
    fs::set_permissions(&model, fs::Permissions::from_mode(0o2750)).expect("set");
    for (copy, mount_options, before, expected) in [
        (true, "bind", None, "seed\n2750 1000 50\n"),
        (false, "bind", None, "755 0 0\n"),
        (true, "bind", Some("mine"), "mine\n755 0 0\n"),
        (true, "bind,ro", None, "755 0 0\n"),
    ] {
        let directory = tempfile::tempdir_in(node.directory.path()).expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
        if let Some(file) = before {
            fs::write(directory.path().join(file), "").expect("written");
        }
        for _ in 0..2 {
            let plan = node.with_volume("v", copy, "ls -A /data; stat -c '%a %u %g' /data");
            let user = plan.id.clone();
            node.mount("v", &options("none", &directory.path().to_string_lossy(), mount_options), &user).expect("it");
            let (container, out, err) = run(&node, plan);
            assert_eq!(out, expected, "{copy} {mount_options} {before:?}: {err}");
            drop_with_volume(&node, container, &user);
        }
    }
}

fn keep_their_options_while_used() {
    let node = Node::new();
    let [one, two] = [node.plan("true").id, node.plan("true").id];
    let other = options("tmpfs", "tmpfs", "size=2m");
    node.mount("v", &tmpfs(), &one).expect("mounted");
    let error = node.mount("v", &other, &two).expect_err("in use");
    let text = error.to_string();
    assert!(error.passing && text.starts_with("volume \"v\": another task of this node uses it with"), "{text}");
    assert!(node.is_mounted("v"));
    // Its only user may exchange it, and so may the next one.
    node.mount("v", &other, &one).expect("exchanged");
    assert!(node.is_mounted("v"));
    node.runtime.release_volumes(&one).expect("released");
    node.mount("v", &tmpfs(), &two).expect("mounted");
    assert_eq!(node.runtime.stored_volume_options("v").expect("readable"), Some(tmpfs()));
    node.runtime.release_volumes(&two).expect("released");
    // A directory with data is not hidden.
    fs::create_dir_all(node.directory.path().join("data/volumes/plain")).expect("a volume");
    let error = node.mount("plain", &tmpfs(), &one).expect_err("a plain volume");
    assert!(!error.passing && error.text.contains("exists on this node without options"), "{error}");
    // A volume without a name has none to share, and no options that outlive it.
    let key = VolumeKey::of_container(&one, 0);
    node.runtime.mount_volume(&key, &tmpfs(), &one, LIMIT).expect("mounted");
    node.runtime.release_volumes(&one).expect("released");
    node.assert_no_volumes();
    let names = fs::read_dir(node.directory.path().join("data/volumes")).expect("a directory");
    let mut names: Vec<_> = names.map(|entry| entry.expect("one").file_name()).collect();
    names.sort();
    assert_eq!(names, [".options.v.json", "plain"]);
}

fn cannot_be_mounted() {
    let node = Node::new();
    let user = node.plan("true").id;
    for (options, expected) in [
        (options("tmpfs", "tmpfs", "sizze=1m"), "the kernel refuses option `o`: `sizze` is unknown"),
        (options("tmpfs", "tmpfs", "size=much"), "the kernel refuses option `o`: `size` is unknown, or its value"),
        (options("nofs", "x", ""), "has no file system \"nofs\" (option `type`): load its module"),
        (options("none", "/no/such", "bind"), "\"/no/such\" (option `device`) does not exist on the node"),
        (options("ext4", "/no/such", ""), "there is no device \"/no/such\""),
        (options("ext4", "/dev/null", ""), "is no block device"),
        (options("nfs", ":/x", "addr=no-such-host.invalid"), "cannot resolve the server's name"),
        (options("tmpfs", "tmpfs", "remount"), "`remount` makes no volume"),
    ] {
        let error = node.mount("v", &options, &user).expect_err("a wrong volume");
        assert!(error.text.starts_with("volume \"v\": ") && error.text.contains(expected), "{error}");
        node.assert_no_volumes();
    }
    assert_eq!(node.runtime.stored_volume_options("v").expect("readable"), None, "it was never mounted");
}

/// The kernel's clients understand the options: they get as far as the server, which refuses the connection.
fn of_servers() {
    let node = Node::new();
    let user = node.plan("true").id;
    for (kind, device, mount_options) in [
        ("nfs", ":/export", "addr=localhost,nfsvers=4,soft,port=9,rw"),
        ("nfs4", ":/export", "addr=127.0.0.1,soft,port=9"),
        ("cifs", "//localhost/share", "username=app,password=s,,ecret,port=9,vers=3.0,ro"),
        ("cifs", "//127.0.0.1/share", "addr=localhost,username=app,password=secret,port=9"),
    ] {
        let limit = Duration::from_secs(10);
        let options = options(kind, device, mount_options);
        let mounted = node.runtime.mount_volume(&VolumeKey::named("v"), &options, &user, limit);
        let error = mounted.expect_err("no server");
        if error.text.contains("has no file system") {
            println!("skipped: this kernel has no file system {kind}");
        } else {
            assert!(error.passing, "{kind} {mount_options}: {error}");
        }
        assert!(!error.text.contains("ecret"), "{error}");
        node.assert_no_volumes();
    }
}

/// A file system whose server never answers.
struct Silent {
    directory: PathBuf,
    _server: std::os::fd::OwnedFd,
}

impl Silent {
    fn new(directory: PathBuf) -> Self {
        fs::create_dir(&directory).expect("a directory");
        let server = fs::File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let data = std::ffi::CString::new(data).expect("text");
        mount("fuse", &directory, "fuse", MountFlags::empty(), data.as_c_str()).expect("a fuse file system");
        Self { directory, _server: server.into() }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        unmount(&self.directory, UnmountFlags::DETACH).expect("unmounted");
    }
}

fn without_an_answer() {
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    let node = Node::new();
    let silent = Silent::new(node.directory.path().join("silent"));
    let hanging = options("none", &silent.directory.join("below").to_string_lossy(), "bind");
    let users: Vec<ContainerId> = (0..4).map(|_| node.plan("true").id).collect();
    let limit = Duration::from_secs(2);
    // Several starts wait for one server: none waits for the time of the others too. Other volumes do not wait.
    let began = std::time::Instant::now();
    thread::scope(|scope| {
        let waiting: Vec<_> = users[..3]
            .iter()
            .map(|user| scope.spawn(|| node.runtime.mount_volume(&VolumeKey::named("v"), &hanging, user, limit)))
            .collect();
        node.mount("w", &tmpfs(), &users[3]).expect("another volume");
        node.runtime.release_volumes(&users[3]).expect("released");
        assert!(waiting.iter().all(|start| !start.is_finished()), "the other volume did not wait");
        for start in waiting {
            let error = start.join().expect("no panic").expect_err("no answer");
            assert!(error.passing && error.text.contains("took longer than 2 seconds"), "{error}");
        }
    });
    assert!(began.elapsed() < limit * 3, "{:?}", began.elapsed());
    node.assert_no_volumes();
    // The same for a server that stops answering after the volume was mounted.
    let root = options("none", &silent.directory.to_string_lossy(), "bind");
    let error = node.runtime.mount_volume(&VolumeKey::named("v"), &root, &users[0], limit);
    error.expect("the mount itself asks the server nothing");
    let error = node.runtime.mount_volume(&VolumeKey::named("v"), &root, &users[1], limit).expect_err("no answer");
    assert!(error.text.starts_with("volume \"v\": asking bind "), "{error}");
    // The same between the mount and the command: the start looks into the volume, to fill it if it is empty.
    // This file system cannot be mapped to a user namespace's ids.
    let plan = ContainerPlan { user_namespace: None, ..node.with_volume("v", true, "true") };
    let error = node
        .runtime
        .start_with(&plan, StartOptions { limit: Some(limit), ..StartOptions::default() })
        .map(drop)
        .expect_err("no answer");
    let expected = "the container did not start within 2 seconds: the server or device of a volume answers too slowly";
    assert!(error.kind == StartErrorKind::TimedOut && error.message.starts_with(expected), "{error}");
    assert!(!error.message.contains("failed too"), "{error}");
    assert!(matches!(node.runtime.status(&plan.id), Ok(Status::Unknown)), "nothing is left");
    node.runtime.release_volumes(&users[0]).expect("unmounted");
    node.assert_no_volumes();
}

fn of_killed_processes_are_swept() {
    let node = Node::new();
    let [lost, kept] = [node.plan("true").id, node.plan("true").id];
    for name in ["both", "lost"] {
        node.mount(name, &tmpfs(), &lost).expect("mounted");
    }
    node.mount("both", &tmpfs(), &kept).expect("mounted");
    // What a process leaves that is killed before it notes a user, and before it mounts.
    fs::create_dir(node.state().join("volumes/empty")).expect("a directory");
    fs::create_dir_all(node.state().join("volumes/half/users")).expect("a directory");
    fs::create_dir_all(node.state().join("volumes/half/mount")).expect("a directory");
    fs::write(node.state().join("volumes/half/users").join(lost.as_str()), "").expect("a user");
    let sweep = |kept: &[&ContainerId]| {
        let mut swept =
            node.runtime.sweep_volumes(|user| kept.iter().any(|kept| kept.as_str() == user)).expect("a sweep");
        swept.sort();
        swept
    };
    assert_eq!(sweep(&[&kept, &lost]), ["empty"]);
    assert_eq!(sweep(&[&kept]), ["half", "lost"]);
    assert!(node.is_mounted("both") && !node.is_mounted("lost"));
    assert_eq!(sweep(&[]), ["both"]);
    node.assert_no_volumes();
}
