//! Containers with user namespaces of their own: root in the container is no user of the node, and files on disk keep
//! the container's ids.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use runtime::{
    DebugImage, ExecOptions, ExecRequest, OtherUser, StartErrorKind,
    plan::{
        ContainerPlan, Device, IDS_PER_CONTAINER, Mount, MountKind, NamedVolume, Network, Propagation, RootStorage,
    },
};

use rustix::mount::MountFlags;

use super::{
    exec::{Piped, null},
    roots::Disk,
};
use crate::common::{Container, Node, user_namespace};

pub const CASES: &[(&str, fn())] = &[
    ("userns_root_is_no_user_of_the_node", root_is_no_user_of_the_node),
    ("userns_files_on_disk_keep_their_ids", files_on_disk_keep_their_ids),
    ("userns_volumes_are_filled_and_keep_their_ids", volumes_are_filled_and_keep_their_ids),
    ("userns_containers_have_different_ids", containers_have_different_ids),
    ("userns_exec_joins_it", exec_joins_it),
    ("userns_debug_image_has_its_ids", debug_image_has_its_ids),
    ("userns_devices_belong_to_its_users", devices_belong_to_its_users),
    ("userns_network_of_the_node", network_of_the_node),
    ("userns_standard_mounts", standard_mounts),
    ("userns_mounts_of_the_start_are_locked", mounts_of_the_start_are_locked),
    ("userns_obstacles_are_named", obstacles_are_named),
    ("userns_mount_that_cannot_be_mapped", mount_that_cannot_be_mapped),
    ("userns_refusals_of_the_kernel_are_told", refusals_of_the_kernel_are_told),
    ("userns_set_user_id_programs", set_user_id_programs),
    ("userns_volumes_with_ids_beyond_it", volumes_with_ids_beyond_it),
    ("userns_the_node_is_tried_out", the_node_is_tried_out),
    ("userns_a_root_that_cannot_be_mapped_is_not_copied", a_root_that_cannot_be_mapped_is_not_copied),
    ("measure_userns", measure),
];

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 1; done";

fn plan(node: &Node, script: &str) -> ContainerPlan {
    ContainerPlan { user_namespace: Some(user_namespace()), ..node.plan(script) }
}

fn bind(source: impl Into<PathBuf>, destination: &str) -> Mount {
    let kind = MountKind::Bind { source: source.into() };
    Mount { destination: destination.to_owned(), kind, readonly: false, propagation: Propagation::Private }
}

/// The user and the group of a file on disk.
fn owner(path: impl AsRef<Path>) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("a file");
    (metadata.uid(), metadata.gid())
}

fn root_is_no_user_of_the_node() {
    let node = Node::new();
    for (user, id) in [("", 0), ("web", 1000), ("65535:65535", 65535)] {
        let mut plan = plan(&node, "id -u; cat /proc/self/uid_map /proc/self/gid_map; exec sleep 100");
        plan.user = user.to_owned();
        let mut container = node.start(plan);
        let first = container.ids().expect("ids").first;
        crate::common::eventually("the output", || container.proc("cmdline").starts_with("sleep"));
        let status = container.proc("status");
        let on_node = vec![(first + id).to_string(); 4].join("\t");
        assert!(status.contains(&format!("Uid:\t{on_node}\nGid:\t{on_node}\n")), "{status}");
        let own = fs::read_link("/proc/self/ns/user").expect("a namespace");
        let pid = container.running.init.pid;
        assert_ne!(fs::read_link(format!("/proc/{pid}/ns/user")).expect("a namespace"), own);
        node.runtime.kill_all(container.id()).expect("killed");
        container.wait();
        let (out, err) = container.output();
        let map = format!("{:>10} {first:>10} {IDS_PER_CONTAINER:>10}\n", 0);
        assert_eq!((out, err.as_str()), (format!("{id}\n{map}{map}"), ""));
    }
    let mut beyond = plan(&node, "true");
    beyond.user = "65536".to_owned();
    let error = node.runtime.start(&beyond).map(drop).expect_err("refused");
    assert_eq!(error.kind, StartErrorKind::UserNamespace);
    assert!(error.message.contains("has the id 65536"), "{error}");
    node.assert_clean(&beyond);
}

fn files_on_disk_keep_their_ids() {
    let node = Node::new();
    let data = node.directory.path().join("alloc/data");
    fs::create_dir_all(&data).expect("a directory");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("set");
    fs::write(data.join("old"), "old").expect("written");
    chown(data.join("old"), Some(1000), Some(50)).expect("given");
    let layer = node.directory.path().join("layer");
    fs::create_dir(layer.join("srv")).expect("a directory");
    fs::write(layer.join("srv/secret"), "layer").expect("written");
    fs::set_permissions(layer.join("srv/secret"), fs::Permissions::from_mode(0o400)).expect("set");
    chown(layer.join("srv"), Some(1000), Some(1000)).expect("given");
    let script = "cat /srv/secret /data/old; stat -c ' %u:%g' / /srv /srv/secret /data /data/old /etc/hosts;
        echo new > /data/new; mkdir /data/sub; echo x > /root-file; echo y >> /srv/secret; echo z > /etc/hosts
        chown 1000:50 /data/sub /root-file; chown 65535 /data/new; rm /data/old; mv /srv /srv2; cat /srv2/secret";
    for storage in [RootStorage::Overlay, RootStorage::Copy] {
        let mut plan = plan(&node, script);
        plan.root.storage = storage;
        plan.security.capabilities.extend(["CAP_DAC_OVERRIDE", "CAP_FOWNER"].map(str::to_owned));
        plan.mounts = vec![bind(&data, "/data")];
        plan.files = vec![("/etc/hosts".to_owned(), "127.0.0.1 localhost\n".to_owned())];
        let mut container = node.start(plan);
        assert_eq!(container.wait().exit_code, 0, "{:?}", container.output());
        let expected = "layerold 0:0\n 1000:1000\n 0:0\n 0:0\n 1000:50\n 0:0\nlayery\n";
        assert_eq!(container.output(), (expected.to_owned(), String::new()), "{storage:?}");
        assert_eq!((owner(data.join("new")), owner(data.join("sub"))), ((65535, 0), (1000, 50)));
        let changes = node.directory.path().join("data/containers").join(container.id().as_str());
        let changes = changes.join(if storage == RootStorage::Copy { "root" } else { "upper" });
        assert_eq!((owner(&changes), owner(changes.join("root-file"))), ((0, 0), (1000, 50)));
        assert_eq!((owner(changes.join("srv2")), owner(changes.join("srv2/secret"))), ((1000, 1000), (0, 0)));
        for name in ["new", "sub"] {
            fs::remove_file(data.join(name)).or_else(|_| fs::remove_dir(data.join(name))).expect("removed");
        }
        fs::write(data.join("old"), "old").expect("written");
        chown(data.join("old"), Some(1000), Some(50)).expect("given");
    }
    assert_eq!(fs::read_to_string(layer.join("srv/secret")).expect("read"), "layer", "the image is unchanged");
}

fn volumes_are_filled_and_keep_their_ids() {
    let node = Node::new();
    let model = node.directory.path().join("layer/srv/app");
    fs::create_dir_all(&model).expect("a directory");
    fs::write(model.join("seed"), "seed").expect("written");
    chown(model.join("seed"), Some(1000), Some(50)).expect("given");
    fs::set_permissions(model.join("seed"), fs::Permissions::from_mode(0o4640)).expect("set");
    chown(&model, Some(1000), Some(50)).expect("given");
    let named = node.directory.path().join("data/volumes/shared");
    let script = "for d in /srv/app /named; do cd $d; stat -c '%a %u:%g' . seed; echo x > root; done; cat /named/seed";
    // The second container finds the named volume.
    for expected in ["seed", "changed"] {
        let mut plan = plan(&node, &format!("{script}; echo changed > /named/seed"));
        plan.security.capabilities.push("CAP_DAC_OVERRIDE".to_owned());
        plan.root.volumes = vec!["/srv/app".to_owned()];
        plan.mounts = vec![bind(&named, "/named")];
        plan.volumes = vec![NamedVolume {
            directory: named.clone(),
            destination: "/srv/app".to_owned(),
            copy: true,
            mounted: false,
        }];
        let mut container = node.start(plan);
        container.wait();
        let (out, err) = container.output();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..3], ["755 1000:50", "4640 1000:50", "755 1000:50"], "{out} {err}");
        assert_eq!((lines[4], err.as_str()), (expected, ""));
        let layer = node.directory.path().join("data/containers").join(container.id().as_str());
        for directory in [layer.join("volumes/0"), named.clone()] {
            assert_eq!((owner(directory.join("seed")), owner(directory.join("root"))), ((1000, 50), (0, 0)));
        }
    }
}

fn containers_have_different_ids() {
    let node = Node::new();
    let containers: Vec<_> = (0..3).map(|_| node.start(plan(&node, SLEEP))).collect();
    let mut ids: Vec<u32> = containers.iter().map(|container| container.ids().expect("ids").first).collect();
    let pool = user_namespace().pool;
    assert!(ids.iter().all(|id| (id - pool.first).is_multiple_of(IDS_PER_CONTAINER)), "{ids:?}");
    ids.dedup();
    assert_eq!(ids.len(), 3);
    let last = ids[2];
    drop(containers);
    let next = node.start(plan(&node, SLEEP));
    assert_eq!(next.ids().expect("ids").first, last + IDS_PER_CONTAINER, "freed ids are used last");
}

fn exec_joins_it() {
    let node = Node::new();
    let mut as_web = plan(&node, SLEEP);
    as_web.user = "web".to_owned();
    let script = "readlink /proc/self/ns/user; id -u; cat /proc/self/uid_map | wc -l; grep CapEff /proc/self/status; \
                  echo out > /dev/stdout; echo err > /dev/stderr";
    for (plan, uid) in [(plan(&node, SLEEP), "0"), (as_web, "1000")] {
        let container = node.start(plan);
        let pid = container.running.init.pid;
        let namespace = fs::read_link(format!("/proc/{pid}/ns/user")).expect("a namespace");
        let (exit, out, err) = Piped::shell(&node, &container, script).finish();
        let capabilities = format!("CapEff:\t{}", container.status_field("CapEff"));
        let expected = [namespace.to_str().expect("text"), uid, "1", &capabilities, "out"].join("\n") + "\n";
        assert_eq!((exit.exit_code, out, err.as_str()), (0, expected, "err\n"));
        // The command is a process of the same ids, seen from the node.
        let (theirs, ours) = std::io::pipe().expect("a pipe");
        let exec = Piped::start(&node, &container, &["cat"], theirs.into()).expect("a command");
        let user = exec_uid(&container);
        assert_eq!(user, container.ids().expect("ids").first + uid.parse::<u32>().expect("a number"));
        drop(ours);
        assert_eq!(exec.finish().0.exit_code, 0);
    }
    let container = node.start(plan(&node, SLEEP));
    let other = |name: &str| ExecOptions {
        user: Some(OtherUser { name: name.to_owned(), allow_any: true }),
        cwd: Some("/home/web".to_owned()),
        ..ExecOptions::default()
    };
    let (out, _) = run_with(&node, &container, other("web:video"), "id -u; id -g; pwd");
    assert_eq!(out.expect("a command"), "1000\n44\n/home/web\n");
    let (refused, _) = run_with(&node, &container, other("70000"), "true");
    assert!(refused.expect_err("refused").contains("no user 70000"));
}

/// The uid of the process `cat` of a container, as the node sees it.
fn exec_uid(container: &Container<'_>) -> u32 {
    let mut found = None;
    crate::common::eventually("the command", || {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let namespace = fs::read_link(format!("/proc/{}/ns/pid", container.running.init.pid)).expect("a namespace");
        found = processes.map(|entry| entry.path()).find(|process| {
            fs::read_link(process.join("ns/pid")).is_ok_and(|other| other == namespace)
                && fs::read_to_string(process.join("cmdline")).is_ok_and(|command| command == "cat\0")
        });
        found.is_some()
    });
    let status = fs::read_to_string(found.expect("a process").join("status")).expect("its status");
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a uid");
    uid.split_whitespace().next().expect("a uid").parse().expect("a number")
}

/// The output of a script with these options, or why there is none; and its errors.
fn run_with(
    node: &Node,
    container: &Container<'_>,
    options: ExecOptions,
    script: &str,
) -> (Result<String, String>, String) {
    let (mut stdout, theirs) = std::io::pipe().expect("a pipe");
    let (mut stderr, their_errors) = std::io::pipe().expect("a pipe");
    let request = ExecRequest {
        args: ["sh", "-c", script].map(str::to_owned).to_vec(),
        terminal: None,
        stdin: null(),
        stdout: theirs.into(),
        stderr: their_errors.into(),
        options,
    };
    let text = |pipe: &mut std::io::PipeReader| std::io::read_to_string(pipe).expect("output");
    match node.runtime.exec(container.id(), request) {
        Err(error) => (Err(error.to_string()), String::new()),
        Ok(process) => {
            let output = (Ok(text(&mut stdout)), text(&mut stderr));
            process.wait();
            output
        }
    }
}

fn debug_image_has_its_ids() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    fs::write(layer.join("etc/private"), "tool").expect("written");
    fs::set_permissions(layer.join("etc/private"), fs::Permissions::from_mode(0o400)).expect("set");
    // The kernel refuses one directory twice.
    let tools = node.directory.path().join("tools");
    let copied = Command::new("cp").arg("-a").args([&layer, &tools]).status();
    assert!(copied.expect("cp").success());
    let container = node.start(plan(&node, &format!("echo task > /tmp/own; {SLEEP}")));
    crate::common::eventually("the file", || {
        run_with(&node, &container, ExecOptions::default(), "cat /tmp/own").0.is_ok_and(|text| text == "task\n")
    });
    let image = DebugImage { layers: vec![tools], path: Some("/bin".to_owned()) };
    let options = ExecOptions { debug_image: Some(image), ..ExecOptions::default() };
    let script = "id -u; cat /etc/private /task/tmp/own; stat -c '%u:%g' /etc/private /task/tmp/own /; echo x > /tmp/x";
    let (out, err) = run_with(&node, &container, options, script);
    assert_eq!((out.as_deref(), err.as_str()), (Ok("0\ntooltask\n0:0\n0:0\n0:0\n"), ""));
}

fn devices_belong_to_its_users() {
    let node = Node::new();
    let device = |host: &str, container: &str| Device {
        host_path: host.into(),
        container_path: container.to_owned(),
        permissions: "rw".to_owned(),
    };
    let script = "stat -c '%F %t:%T %a %u:%g' /dev/own/zero /dev/tty0; head -c 4 /dev/own/zero | wc -c; \
                  echo x > /dev/null; head -c 1 /dev/urandom | wc -c; ls -l /dev/ptmx | wc -l";
    let mut plan = plan(&node, script);
    plan.devices = vec![device("/dev/zero", "/dev/own/zero"), device("/dev/tty0", "/dev/tty0")];
    if !Path::new("/dev/tty0").exists() {
        plan.devices[1] = device("/dev/full", "/dev/tty0");
    }
    let shown = |path: &Path| {
        let metadata = fs::metadata(path).expect("a device");
        let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
        format!("character special file {major:x}:{minor:x} {mode:o} {uid}:{gid}\n")
    };
    let expected: String = plan.devices.iter().map(|device| shown(&device.host_path)).collect();
    let (exit, out, err) = node.run(plan);
    assert_eq!((exit.exit_code, out, err.as_str()), (0, format!("{expected}4\n1\n1\n"), ""));
}

/// A process in a network namespace of its own. Killed when this is dropped.
pub struct NetworkHolder(Child);

impl NetworkHolder {
    pub fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "100"]).stdout(Stdio::null());
        let holder = Self(command.spawn().expect("unshare(1)"));
        let own = fs::read_link("/proc/self/ns/net").expect("a namespace");
        crate::common::eventually("the namespace", || {
            fs::read_link(holder.path()).is_ok_and(|namespace| namespace != own)
        });
        holder
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }
}

impl Drop for NetworkHolder {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("reaped");
    }
}

fn network_of_the_node() {
    let node = Node::new();
    let holder = NetworkHolder::new();
    let script = "readlink /proc/self/ns/net; ls /sys/class/net; cat /proc/sys/net/ipv4/ip_default_ttl; \
                  ls -d /sys/fs/cgroup; mkdir /sys/x 2>/dev/null || echo read-only";
    for network in [Network::Path(holder.path()), Network::Host, Network::Private] {
        let mut plan = plan(&node, script);
        let is_host = network == Network::Host;
        if !is_host {
            plan.sysctl.insert("net.ipv4.ip_default_ttl".to_owned(), "77".to_owned());
            plan.sysctl.insert("net.ipv4.ping_group_range".to_owned(), "0 2147483647".to_owned());
        }
        let namespace = match &network {
            Network::Path(path) => Some(fs::read_link(path).expect("a namespace")),
            Network::Host => Some(fs::read_link("/proc/self/ns/net").expect("a namespace")),
            Network::Private => None,
        };
        plan.namespaces.network = network;
        let (exit, out, err) = node.run(plan);
        assert_eq!((exit.exit_code, err.as_str()), (0, ""), "{out}");
        let lines: Vec<&str> = out.lines().collect();
        if let Some(namespace) = namespace {
            assert_eq!(lines[0], namespace.to_str().expect("text"));
        }
        assert!(lines.contains(&"lo") && lines.ends_with(&["/sys/fs/cgroup", "read-only"]), "{out}");
        assert_eq!(lines.contains(&"77"), !is_host, "{out}");
    }
}

fn standard_mounts() {
    let node = Node::new();
    let script = "for m in /proc /dev /dev/pts /dev/shm /dev/mqueue /sys /t; do \
                  grep -c \" / $m \" /proc/self/mountinfo; done; \
                  stat -c '%a %u:%g' /t /dev/shm; echo x > /dev/shm/x && echo x > /t/x && cat /proc/sys/kernel/msgmni; \
                  (echo x > /proc/sys/kernel/msgmni) 2>/dev/null || echo read-only";
    let mut plan = plan(&node, script);
    plan.mounts = vec![Mount {
        destination: "/t".to_owned(),
        kind: MountKind::Tmpfs { size: Some(1 << 20), mode: Some(0o750), uid: Some(1000), gid: Some(44) },
        readonly: false,
        propagation: Propagation::Private,
    }];
    plan.security.capabilities.push("CAP_DAC_OVERRIDE".to_owned());
    plan.sysctl.insert("kernel.msgmni".to_owned(), "123".to_owned());
    plan.init = true;
    let (exit, out, err) = node.run(plan);
    let expected = format!("{}750 1000:44\n1777 0:0\n123\nread-only\n", "1\n".repeat(7));
    assert_eq!((exit.exit_code, out, err.as_str()), (0, expected, ""));
}

/// A container that may mount can neither unmount the mounts with which it began nor make them writable.
fn mounts_of_the_start_are_locked() {
    let node = Node::new();
    let directory = node.directory.path().join("alloc/data");
    fs::create_dir_all(&directory).expect("a directory");
    let script = "umount /data; umount -l /etc/hosts; mount -o remount,bind,rw /ro; echo x > /ro/x
        mount -t tmpfs none /data && umount /data && echo mounts and unmounts its own; readlink /proc/self/fd/0";
    let mut plan = plan(&node, script);
    plan.security.capabilities.push("CAP_SYS_ADMIN".to_owned());
    plan.files = vec![("/etc/hosts".to_owned(), "127.0.0.1 localhost\n".to_owned())];
    plan.mounts = vec![bind(&directory, "/data"), Mount { readonly: true, ..bind(&directory, "/ro") }];
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "mounts and unmounts its own\n/dev/null\n", "{err}");
    let refused: Vec<&str> = err.lines().map(|line| line.rsplit(": ").next().unwrap_or(line)).collect();
    let expected =
        ["Invalid argument", "Invalid argument", "permission denied (are you root?)", "Read-only file system"];
    assert_eq!(refused, expected, "{err}");
}

/// A change of a plan.
type Change = fn(&mut ContainerPlan);

fn obstacles_are_named() {
    let node = Node::new();
    let changes: [(&str, Change); 6] = [
        ("privileged", |plan| plan.security.privileged = true),
        ("the node's PID namespace", |plan| plan.namespaces.private_pid = false),
        ("the node's IPC namespace", |plan| plan.namespaces.private_ipc = false),
        ("propagate to or from /m", |plan| {
            plan.mounts = vec![Mount { propagation: Propagation::HostToContainer, ..bind("/etc", "/m") }];
        }),
        ("the node's /dev", |plan| plan.mounts = vec![bind("/dev", "/dev")]),
        ("belongs to the id 70000", |plan| {
            let kind = MountKind::Tmpfs { size: None, mode: None, uid: Some(70000), gid: None };
            plan.mounts = vec![Mount { kind, ..bind("/", "/t") }];
        }),
    ];
    for (reason, change) in changes {
        let mut plan = plan(&node, "true");
        change(&mut plan);
        let error = node.runtime.start(&plan).map(drop).expect_err("refused");
        assert_eq!(error.kind, StartErrorKind::UserNamespace, "{error}");
        assert!(error.message.contains(reason), "{error}");
        node.assert_clean(&plan);
    }
}

fn mount_that_cannot_be_mapped() {
    let node = Node::new();
    let mut plan = plan(&node, "true");
    plan.mounts = vec![bind("/proc/sys", "/data")];
    let error = node.runtime.start(&plan).map(drop).expect_err("refused");
    assert_eq!(error.kind, StartErrorKind::UserNamespace, "{error}");
    assert!(error.message.contains("mount source /proc/sys") && error.message.contains("id-mapped"), "{error}");
    node.assert_clean(&plan);
    plan.user_namespace = None;
    assert_eq!(node.run(plan).0.exit_code, 0);
}

/// The parameter belongs to the container's UTS namespace, but only root of the node may set it.
fn refusals_of_the_kernel_are_told() {
    let node = Node::new();
    let mut plan = plan(&node, SLEEP);
    plan.sysctl.insert("kernel.domainname".to_owned(), "example.org".to_owned());
    let error = node.runtime.start(&plan).map(drop).expect_err("refused");
    assert_eq!(error.kind, StartErrorKind::UserNamespace, "{error}");
    node.assert_clean(&plan);
    starts_without(&node, &plan, "procfs");
}

/// A container that may have the node's user namespace starts there, with this reason.
fn starts_without(node: &Node, plan: &ContainerPlan, reason: &str) {
    let (running, obstacle) =
        node.runtime.start_in_any_user_namespace(plan, runtime::StartOptions::default()).expect("started");
    assert!(obstacle.is_some_and(|text| text.contains(reason)));
    let own = fs::read_link("/proc/self/ns/user").expect("a namespace");
    assert_eq!(fs::read_link(format!("/proc/{}/ns/user", running.init.pid)).expect("a namespace"), own);
    node.runtime.destroy(&plan.id).expect("destroyed");
    node.assert_clean(plan);
}

/// su(1) of an image gives the rights of the container's root, and only if the plan lets programs gain rights.
fn set_user_id_programs() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    fs::create_dir(layer.join("suid")).expect("a directory");
    fs::copy(layer.join("bin/busybox"), layer.join("suid/su")).expect("a copy");
    fs::set_permissions(layer.join("suid/su"), fs::Permissions::from_mode(0o4755)).expect("set");
    fs::write(layer.join("etc/passwd"), "root::0:0:root:/:/bin/sh\nweb:x:1000:1000:web:/:/bin/sh\n").expect("written");
    for (may_gain, uids) in [(true, "0\t0\t0\t0"), (false, "1000\t1000\t1000\t1000")] {
        for storage in [RootStorage::Overlay, RootStorage::Copy] {
            let mut plan = plan(&node, "/suid/su -c 'grep ^Uid /proc/self/status' || grep ^Uid /proc/self/status");
            plan.root.storage = storage;
            plan.user = "web".to_owned();
            plan.security.no_new_privileges = !may_gain;
            let (_, out, err) = node.run(plan);
            assert_eq!(out, format!("Uid:\t{uids}\n"), "{storage:?}: {err}");
        }
    }
}

fn volumes_with_ids_beyond_it() {
    let node = Node::new();
    let model = node.directory.path().join("layer/srv/app");
    fs::create_dir_all(&model).expect("a directory");
    let named = node.directory.path().join("data/volumes/shared");
    for mode in [0o644, 0o600] {
        fs::write(model.join("file"), "x").expect("written");
        fs::set_permissions(model.join("file"), fs::Permissions::from_mode(mode)).expect("set");
        chown(model.join("file"), Some(70000), Some(70000)).expect("given");
        let mut anonymous = plan(&node, SLEEP);
        anonymous.root.volumes = vec!["/srv/app".to_owned()];
        let mut of_name = plan(&node, SLEEP);
        of_name.mounts = vec![bind(&named, "/named")];
        let (directory, destination) = (named.clone(), "/srv/app".to_owned());
        of_name.volumes = vec![NamedVolume { directory, destination, copy: true, mounted: false }];
        for plan in [anonymous, of_name] {
            let error = node.runtime.start(&plan).map(drop).expect_err("refused");
            assert_eq!(error.kind, StartErrorKind::UserNamespace, "{error}");
            assert!(error.message.contains("above 65535"), "{error}");
            starts_without(&node, &plan, "above 65535");
        }
        assert_eq!(owner(named.join("file")), (70000, 70000));
        fs::remove_dir_all(&named).expect("removed");
    }
}

fn the_node_is_tried_out() {
    let problem = |node: &Node| node.runtime.user_namespace_problem().expect("a probe");
    assert_eq!(problem(&Node::new()), None);
    let disk = Disk::nodev("ramfs", MountFlags::empty(), None);
    let text = problem(&Node::on(&disk.root())).expect("ramfs cannot be mapped");
    assert!(text.starts_with("`state_dir` /") && text.contains("does not support id-mapped mounts"), "{text}");
}

fn a_root_that_cannot_be_mapped_is_not_copied() {
    let disk = Disk::nodev("ramfs", MountFlags::empty(), None);
    let node = Node::on(&disk.root());
    let mut plan = plan(&node, SLEEP);
    plan.root.storage = RootStorage::Copy;
    let at = |name: &str| node.directory.path().join(name);
    fs::write(at("plan"), serde_json::to_vec(&plan).expect("text")).expect("written");
    let mut start = Command::new(std::env::current_exe().expect("this program"));
    start.arg("start").args(["state", "data", "plan"].map(at)).env("OCI_RS_FAILPOINT_TRACE", at("trace"));
    let told = start.output().expect("a start");
    let (status, text) = (told.status, String::from_utf8_lossy(&told.stdout));
    assert!(!status.success() && text.contains("the writable layer") && text.contains("id-mapped"), "{text}");
    let trace = fs::read_to_string(at("trace")).expect("a trace");
    assert!(trace.contains("creator-before-root") && !trace.contains("root-before-copy"), "{trace}");
    node.assert_clean(&plan);
    starts_without(&node, &plan, "the writable layer");
}

/// Prints the duration of starts with and without user namespaces, in turns.
fn measure() {
    let node = Node::new();
    let start = |user_namespace| {
        let plan = ContainerPlan { user_namespace, ..node.plan("exec sleep 100") };
        let begun = std::time::Instant::now();
        node.runtime.start(&plan).expect("started");
        let took = begun.elapsed();
        node.runtime.destroy(&plan.id).expect("destroyed");
        took
    };
    start(None);
    let (mut with, mut without): (Vec<_>, Vec<_>) =
        (0..100).map(|_| (start(Some(user_namespace())), start(None))).unzip();
    with.sort();
    without.sort();
    println!("start: {:?} with a user namespace, {:?} without (medians of 100)", with[50], without[50]);
}
