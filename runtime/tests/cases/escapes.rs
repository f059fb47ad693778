//! Container escapes that were found in other runtimes. Each is tried here. `docs/security.md` lists them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use runtime::{
    StartErrorKind,
    plan::{ContainerPlan, Mount, MountKind, Network, Propagation, Seccomp},
};

use super::exec::{Piped, null};
use crate::common::{Container, Node, sys};

pub const CASES: &[(&str, fn())] = &[
    ("escapes_session_keyring", session_keyring),
    ("escapes_mount_over_proc", mount_over_proc),
    ("escapes_mount_over_proc_by_a_link_of_the_image", mount_over_proc_by_a_link_of_the_image),
    ("escapes_mount_target_exchanged_during_the_start", mount_target_exchanged_during_the_start),
    ("escapes_devices_of_the_image", devices_of_the_image),
    ("escapes_exec_with_a_hostile_proc", exec_with_a_hostile_proc),
    ("escapes_groups_of_the_user", groups_of_the_user),
    ("escapes_cgroup_release_agent", cgroup_release_agent),
    ("escapes_abstract_sockets", abstract_sockets),
    ("escapes_directories_are_for_root_only", directories_are_for_root_only),
    ("escapes_what_the_monitor_reveals", what_the_monitor_reveals),
];

fn bind(source: impl Into<PathBuf>, destination: &str) -> Mount {
    let kind = MountKind::Bind { source: source.into() };
    Mount { destination: destination.to_owned(), kind, readonly: false, propagation: Propagation::Private }
}

fn exec(node: &Node, container: &Container<'_>, script: &str) -> (i32, String) {
    let (exit, out, err) = Piped::shell(node, container, script).finish();
    (exit.exit_code, format!("{out}{err}"))
}

/// Everything that restricts a container, seen from the host.
fn assert_confined(container: &Container<'_>) {
    for (field, value) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapInh", "0000000000000000")] {
        assert_eq!(container.status_field(field), value, "{field}");
    }
    let mounts = container.proc("mountinfo");
    // The last one is on top. A kernel need not have all of them.
    let covering = |path: &str| mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(path));
    for path in ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"] {
        let options = covering(path).and_then(|line| line.split(' ').nth(5));
        let readonly = options.is_some_and(|options| options.split(',').any(|option| option == "ro"));
        assert!(readonly || !Path::new(path).exists(), "{path} can be written:\n{mounts}");
    }
    for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"] {
        assert!(covering(path).is_some() || !Path::new(path).exists(), "{path} shows:\n{mounts}");
    }
}

/// Ends a thread, also when what it works beside fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keys of the agent's session are not the container's to read, change or revoke.
fn session_keyring() {
    let node = Node::new();
    let program = std::env::current_exe().expect("our own program");
    let mut rings = vec![sys::session_keyring().to_string()];
    for user in ["", "web"] {
        let mut plan = node.plan("/probe keyring && exec sleep 100");
        plan.user = user.to_owned();
        plan.security.seccomp = Seccomp::Unconfined;
        plan.mounts = vec![Mount { readonly: true, ..bind(&program, "/probe") }];
        let mut container = node.start(plan);
        let (exit, out, err) =
            Piped::start(&node, &container, &["/probe", "keyring"], null()).expect("a command").finish();
        assert_eq!(exit.exit_code, 0, "{err}");
        rings.push(out.trim().to_owned());
        crate::common::eventually("its own ring", || container.proc("cmdline").starts_with("sleep"));
        container.running.signal(libc::SIGKILL).expect("killed");
        container.wait();
        rings.push(container.output().0.trim().to_owned());
    }
    let mut different = rings.clone();
    different.sort();
    different.dedup();
    assert!(rings.iter().all(|ring| ring.parse::<i32>().is_ok_and(|ring| ring > 0)), "{rings:?}");
    assert_eq!(different.len(), rings.len(), "{rings:?}");
}

/// What is mounted over procfs could take the place of what confines the container.
fn mount_over_proc() {
    let node = Node::new();
    let source = node.directory.path().join("source");
    fs::create_dir(&source).expect("a directory");
    for destination in ["/proc", "/proc/", "/proc/self/attr", "/proc/sys/kernel", "/proc/1", "/proc/../proc/self"] {
        let mut plan = node.plan("true");
        plan.mounts = vec![bind(&source, destination)];
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::Invalid, "{destination}: {error}");
        assert!(error.message.contains("/proc"), "{error}");
        let tmpfs = MountKind::Tmpfs { size: None, mode: None, uid: None, gid: None };
        plan.mounts = vec![Mount { kind: tmpfs, ..bind(&source, destination) }];
        assert_eq!(node.refuse(&plan).kind, StartErrorKind::Invalid, "{destination}");
    }
    // Files that show a program its limits may be replaced.
    fs::write(node.directory.path().join("meminfo"), "MemTotal: 1 kB\n").expect("written");
    let mut plan = node.plan("cat /proc/meminfo");
    plan.mounts = vec![bind(node.directory.path().join("meminfo"), "/proc/meminfo")];
    assert_eq!(node.run(plan).1, "MemTotal: 1 kB\n");
}

/// The same by a link that an image brings: the job's author names a harmless path.
fn mount_over_proc_by_a_link_of_the_image() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    let source = node.directory.path().join("source");
    fs::create_dir(&source).expect("a directory");
    for (name, target) in [
        ("a", "/proc"),
        ("b", "/proc/self"),
        ("c", "proc/sys/kernel"),
        ("d", "/home/../proc/self/attr"),
        ("e", "/sys/fs/cgroup"),
    ] {
        symlink(target, layer.join(name)).expect("a link");
        let mut plan = node.plan("exec sleep 100");
        plan.mounts = vec![bind(&source, &format!("/{name}"))];
        match node.try_start(plan) {
            Ok(container) => assert_confined(&container),
            Err(error) => assert!(error.message.contains(&format!("/{name}")), "{target}: {error}"),
        }
        assert_eq!(fs::read_dir(&source).expect("a directory").count(), 0, "{target}");
    }
}

/// Another container exchanges the place of a mount for a link to elsewhere, in a volume that both have.
fn mount_target_exchanged_during_the_start() {
    let node = Node::new();
    let (volume, outside) = (node.directory.path().join("volume"), node.directory.path().join("outside"));
    fs::create_dir_all(volume.join("real/place")).expect("a directory");
    fs::create_dir(&outside).expect("a directory");
    let data = node.directory.path().join("inner");
    fs::create_dir(&data).expect("a directory");
    symlink(outside.join("made"), volume.join("link")).expect("a link");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (place, other) = (volume.join("place"), volume.join("other"));
            symlink(Path::new("/../../../../../..").join(outside.strip_prefix("/").expect("absolute")), &other)
                .expect("a link");
            fs::create_dir(&place).expect("a directory");
            while !stop.load(Ordering::Relaxed) {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                renameat_with(CWD, &place, CWD, &other, RenameFlags::EXCHANGE).expect("exchanged");
            }
        });
        let _stop = StopAtEnd(&stop);
        for round in 0..18 {
            let mut plan = node.plan("echo x > /volume/place/file; exec sleep 100");
            plan.mounts =
                vec![bind(&volume, "/volume"), bind(&data, "/volume/place"), bind(&data, "/volume/place/deep")];
            plan.mounts[round % 3].propagation =
                [Propagation::Private, Propagation::HostToContainer, Propagation::Bidirectional][round / 3 % 3];
            // It starts or is refused; which, is a matter of moments.
            if let Ok(container) = node.try_start(plan) {
                assert_confined(&container);
            }
        }
    });
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0, "something was made outside of the container");
}

/// An image that brings nodes, links and files where the container's own devices are made.
fn devices_of_the_image() {
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    let secret = node.directory.path().join("secret");
    fs::write(&secret, "secret").expect("written");
    fs::create_dir_all(layer.join("dev/pts")).expect("a directory");
    symlink(&secret, layer.join("dev/null")).expect("a link");
    symlink("/proc/self/fd/0", layer.join("dev/console")).expect("a link");
    symlink("/proc/sysrq-trigger", layer.join("dev/ptmx")).expect("a link");
    symlink("/proc/sys/kernel/core_pattern", layer.join("dev/pts/0")).expect("a link");
    for terminal in [false, true] {
        let mut plan = node.plan("test -c /dev/null && echo x > /dev/null; exec sleep 100");
        plan.terminal = terminal;
        let container = node.start(plan);
        assert_confined(&container);
        let (code, text) = exec(&node, &container, "test -c /dev/null && test ! -L /dev/ptmx -o -c /dev/ptmx");
        assert_eq!(code, 0, "{text}");
    }
    assert_eq!(fs::read_to_string(&secret).expect("read"), "secret");
}

/// A container that may mount has replaced its /proc. The entering process must not trust that /proc.
fn exec_with_a_hostile_proc() {
    let node = Node::new();
    let script = "mount -t tmpfs none /proc && mkdir -p /proc/self/attr /proc/self/fd /proc/thread-self && \
                  ln -s /etc /proc/self/cwd \
        && echo 0 > /proc/self/oom_score_adj && echo ready && exec sleep 100";
    let mut plan = node.plan(script);
    plan.security.capabilities = vec!["CAP_SYS_ADMIN".to_owned(), "CAP_CHOWN".to_owned()];
    plan.oom_score_adj = 77;
    let container = node.start(plan);
    crate::common::eventually("its own /proc", || container.proc("cmdline").starts_with("sleep"));
    let command = Piped::start(&node, &container, &["sleep", "50"], null()).expect("a command");
    let pid = crate::common::control_groups(&container.plan.cgroup.path)
        .iter()
        .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().filter_map(|line| line.parse::<i32>().ok()).collect::<Vec<_>>())
        .find(|pid| *pid != container.running.init.pid)
        .expect("the command, in the container's group");
    let field = |pid: i32, name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        status.lines().find(|line| line.starts_with(&format!("{name}:"))).map(str::to_owned).expect("a field")
    };
    for name in ["CapEff", "CapBnd", "CapInh", "NoNewPrivs", "Seccomp", "Uid", "Groups"] {
        assert_eq!(field(pid, name), field(container.running.init.pid, name), "{name}");
    }
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("a score").trim(), "77");
    drop(command);
}

/// Groups of the agent must not come along, and the user's own must all be there.
fn groups_of_the_user() {
    let node = Node::new();
    for (user, group_add, expected) in [
        ("", &[][..], vec![0]),
        ("web", &[], vec![50, 1000]),
        ("1000:44", &["staff"], vec![44, 50]),
        ("4711", &[], vec![0]),
    ] {
        let mut plan = node.plan("exec sleep 100");
        plan.user = user.to_owned();
        plan.groups = group_add.iter().map(|&group: &&str| group.to_owned()).collect();
        let container = node.start(plan);
        let mut groups: Vec<u32> =
            container.status_field("Groups").split_whitespace().map(|group| group.parse().expect("a number")).collect();
        groups.sort();
        assert_eq!(groups, expected, "{user:?} {group_add:?}");
        let (_, out) = exec(&node, &container, "grep ^Groups: /proc/self/status");
        let mut entered: Vec<u32> =
            out.split_whitespace().skip(1).map(|group| group.parse().expect("a number")).collect();
        entered.sort();
        assert_eq!(entered, expected, "exec: {user:?} {group_add:?}");
    }
}

/// A program that the kernel runs on the host when a group becomes empty.
fn cgroup_release_agent() {
    let node = Node::new();
    let attempts = [
        "mount -t cgroup -o memory cgroup /tmp",
        "mount -t cgroup2 cgroup2 /tmp",
        "unshare -U -r -m -C mount -t cgroup -o rdma cgroup /tmp",
        "mkdir /sys/fs/cgroup/x /sys/fs/cgroup/*/x",
        "for file in /sys/fs/cgroup/release_agent /sys/fs/cgroup/*/release_agent; do \
         echo /cmd > $file && exit 0; done; exit 1",
        "for file in /sys/fs/cgroup/notify_on_release /sys/fs/cgroup/*/notify_on_release; do \
         echo 1 > $file && exit 0; done; exit 1",
        "echo 0 > /sys/fs/cgroup/cgroup.procs || for file in /sys/fs/cgroup/*/cgroup.procs; do \
         echo 1 > $file && exit 0; done; exit 1",
    ];
    for private_cgroup in [true, false] {
        let mut plan = node.plan("exec sleep 100");
        plan.namespaces.private_cgroup = private_cgroup;
        let container = node.start(plan);
        for attempt in attempts {
            let (code, text) = exec(&node, &container, attempt);
            assert_ne!(code, 0, "{attempt}: {text}");
        }
    }
}

/// Abstract sockets belong to the network namespace: a container on the host's network could connect to every listener.
fn abstract_sockets() {
    let node = Node::new();
    let mut plan = node.plan("exec sleep 100");
    plan.namespaces.network = Network::Host;
    let container = node.start(plan);
    let listening = fs::read_to_string("/proc/net/unix").expect("sockets");
    for process in [&container.running.monitor, &container.running.init] {
        for entry in fs::read_dir(format!("/proc/{}/fd", process.pid)).expect("descriptors").flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
            let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) else { continue };
            let line = listening.lines().find(|line| line.split_whitespace().nth(6) == Some(inode));
            assert!(!line.is_some_and(|line| line.contains(" @")), "{line:?}");
        }
    }
}

/// Programs with set-user-id bits lie in images: no other user of the host may come near them.
fn directories_are_for_root_only() {
    use std::os::unix::fs::MetadataExt;
    let node = Node::new();
    let container = node.start(node.plan("exec sleep 100"));
    for directory in ["state", "state/tasks", "data", "data/containers"] {
        let metadata = fs::metadata(node.directory.path().join(directory)).expect("a directory");
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o700, 0), "{directory}");
    }
    for directory in ["state/tasks", "data/containers"] {
        let directory = node.directory.path().join(directory).join(container.id().as_str());
        assert_eq!(fs::metadata(&directory).expect("a directory").mode() & 0o077, 0, "{}", directory.display());
    }
}

/// In the host's pid namespace a container sees its own monitor: it must not be able to look into it.
fn what_the_monitor_reveals() {
    let node = Node::new();
    let mut plan: ContainerPlan = node.plan("exec sleep 100");
    plan.namespaces.private_pid = false;
    plan.env.push(("TOKEN".to_owned(), "s3cr3t".to_owned()));
    plan.security.capabilities = vec!["CAP_DAC_OVERRIDE".to_owned()];
    let container = node.start(plan);
    let monitor = container.running.monitor.pid;
    for attempt in [
        "cat /proc/MONITOR/environ",
        "readlink /proc/MONITOR/fd/0",
        "readlink /proc/MONITOR/exe",
        "echo x > /proc/MONITOR/mem",
        "kill -0 MONITOR",
    ] {
        let (code, text) = exec(&node, &container, &attempt.replace("MONITOR", &monitor.to_string()));
        assert!(code != 0 || text.is_empty(), "{attempt}: {text}");
        assert!(!text.contains("s3cr3t"), "{attempt}: {text}");
    }
}
