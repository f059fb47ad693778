//! `oci-rs doctor` on nodes that are broken on purpose. The doctor runs in namespaces of its own, in which a script
//! makes one real breakage. The decisions have tables of their own.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, process::Command, time::Instant};

use fixtures::{
    must::Must,
    wait::{patient, seconds},
};
use kit::{
    node::Node,
    plugin::{COOKIE, PluginCommand, binary},
};
use rustix::process::Signal;
use serde_json::{Value as Json, json};

use crate::{
    doctor::{config, expect, texts},
    upgrade::install,
};

/// A breakage and a finding that tells it.
struct Breakage {
    /// What the script does, for the test's errors.
    name: &'static str,
    script: String,
    /// More options of the plugin block.
    config: Json,
    check: &'static str,
    level: &'static str,
    /// A part of the finding's text.
    part: &'static str,
    /// The node of the test may have this finding without the breakage.
    common: bool,
}

impl Breakage {
    /// Shell commands break the node.
    fn script(name: &'static str, script: impl Into<String>, finding: [&'static str; 3]) -> Self {
        let [check, level, part] = finding;
        Self { name, script: script.into(), config: json!({}), check, level, part, common: false }
    }

    /// Options of the plugin block break it.
    fn config(name: &'static str, config: Json, finding: [&'static str; 3]) -> Self {
        Self { config, ..Self::script(name, "", finding) }
    }

    /// A breakage that nodes of tests often have.
    fn common(self) -> Self {
        Self { common: true, ..self }
    }
}

/// Runs the doctor in a mount namespace of its own, in which a script breaks the node first. `$state`, `$data` and
/// `$pointers` are the directories, and `"$@"` is the doctor's command.
fn doctor(node: &Node, script: &str, more: &Json) -> (Json, Option<i32>) {
    let path = config(node, more);
    let doctor = PluginCommand::new(node.root()).without(COOKIE.0).as_std();
    let mut command = Command::new("unshare");
    // The report is the only output that goes to the standard output.
    let script = format!("exec 3>&1 >&2\nset -e\n{script}\nexec \"$@\" >&3");
    command.args(["--mount", "bash", "-c", &script, "bash"]).arg(doctor.get_program());
    command.args(["doctor", "--json", "--config", &path]).env_clear();
    command.envs(doctor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("state", node.state_dir()).env("data", node.data_dir());
    command.env("pointers", node.root().join("run/plugins"));
    let output = command.output().must("run unshare");
    let error = String::from_utf8_lossy(&output.stderr);
    (serde_json::from_slice(&output.stdout).must(&format!("JSON, not {error}")), output.status.code())
}

/// A node with the directories of a plugin that has run.
fn node_with_directories() -> Node {
    let node = Node::new();
    for directory in [node.state_dir(), node.data_dir(), node.root().join("run/plugins")] {
        fs::create_dir_all(&directory).must("a directory");
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).must("the mode");
    }
    node
}

async fn all_are_found(breakages: Vec<Breakage>) {
    let node = node_with_directories();
    let (well, _) = doctor(&node, "", &json!({}));
    for Breakage { name, script, config, check, level, part, common } in &breakages {
        assert!(*common || !texts(&well, check, level).contains(part), "{name} is nothing new: {well:#}");
        let (report, code) = doctor(&node, script, config);
        expect(&report, check, level, part);
        assert_eq!(code, Some(if report["errors"] == json!(0) { 0 } else { 3 }), "{name}: {report}");
    }
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn directories_that_no_plugin_has_made_are_told() {
    let node = Node::new();
    for (directory, check) in [(node.state_dir(), "state_dir"), (node.data_dir(), "data_dir")] {
        let (report, _) = doctor(&node, "", &json!({}));
        expect(&report, check, "warning", "does not exist");
        fs::create_dir(directory).must("the directory");
    }
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn broken_directories_are_found() {
    let small = "mount -t tmpfs -o mode=0700,size=16m none $data";
    let read_only = |path: &str| format!("mount --bind {path} {path}; mount -o remount,bind,ro {path}");
    let mut breakages = vec![
        Breakage::script("a small disk", small, ["space", "error", "less than 64 MiB"]),
        Breakage::script("images in memory", small, ["data_dir", "warning", "in memory"]),
        Breakage {
            config: json!({"image_limits": {"free_mib": 1}}),
            ..Breakage::script(
                "a full disk",
                format!("{small}; \"$@\" >&2 || true; head -c 17m /dev/zero >$data/filler || true"),
                ["space", "error", "less than 1 MiB"],
            )
        },
        Breakage {
            config: json!({"image_limits": {"free_mib": 1}}),
            ..Breakage::script(
                "a disk that is nearly full",
                format!("{small}; head -c 15200k /dev/zero >$data/filler"),
                ["data_dir", "warning", "% of the bytes"],
            )
        },
        Breakage::script(
            "a disk without inodes",
            "mount -t tmpfs -o mode=0700,size=512m,nr_inodes=200 none $data; \"$@\" >&2 || true
             i=0; while touch $data/$i 2>/dev/null; do i=$((i + 1)); done",
            ["space", "error", "no free inode"],
        ),
        Breakage::script("read-only images", read_only("$data"), ["data_dir", "error", "with rw"]),
        Breakage::script("a read-only state", read_only("$state"), ["state_dir", "error", "with rw"]),
        Breakage::script(
            "a directory of all users",
            "mount -t tmpfs -o mode=0777 none $state",
            ["state_dir", "error", "chmod go-w"],
        ),
        Breakage::script(
            "a directory of another user",
            "mount -t tmpfs -o mode=0700,uid=1 none $state",
            ["state_dir", "error", "chown root"],
        ),
        Breakage::script(
            "a file in the place of the tasks",
            "mount -t tmpfs -o mode=0700 none $state; touch $state/tasks",
            ["records", "error", "Not a directory"],
        ),
        Breakage::script(
            "a damaged pointer",
            "mount -t tmpfs -o mode=0700 none $pointers; echo '{' >$pointers/oci-rs.json",
            ["pointer", "warning", "is ignored"],
        ),
        Breakage::script(
            "a clock that is behind",
            "mount -t tmpfs -o mode=0700,size=512m none $data; touch -d '+1 hour' $data",
            ["clock", "error", "seconds behind"],
        ),
    ];
    let over = "mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work
                mount -t overlay -o lowerdir=$state,upperdir=/mnt/upper,workdir=/mnt/work none $data";
    breakages.push(Breakage::script("images on overlayfs", over, ["overlay", "warning", "overlayfs"]));
    breakages.push(Breakage {
        config: json!({"rootfs": "overlay"}),
        ..Breakage::script("overlayfs on overlayfs, as required", over, ["overlay", "error", "is on overlayfs"])
    });
    all_are_found(breakages).await;
}

#[tokio::test]
async fn missing_features_of_the_kernel_are_found() {
    // Covers a file of the kernel with another text.
    let covered = |text: &str, path: &str| {
        format!("mount -t tmpfs none /mnt; printf '{text}' >/mnt/file; mount --bind /mnt/file {path}")
    };
    // A cgroup controller that the kernel does not have.
    let without = |controller: &str| {
        format!(
            "mount -t tmpfs none /mnt; groups=/sys/fs/cgroup
             if [ -e $groups/cgroup.controllers ]; then
                 sed 's/\\b{controller}\\b//' $groups/cgroup.controllers >/mnt/file
                 mount --bind /mnt/file $groups/cgroup.controllers
             else
                 mkdir /mnt/all; mount --rbind $groups /mnt/all; mount -t tmpfs none $groups
                 for group in memory cpu pids cpuset; do
                     [ $group != {controller} ] || continue
                     mkdir $groups/$group; mount --rbind /mnt/all/$group $groups/$group
                 done
             fi"
        )
    };
    let mut breakages = vec![
        Breakage::script(
            "no cgroups",
            "mount -t tmpfs none /sys/fs/cgroup",
            ["cgroups", "error", "no cgroup file system"],
        ),
        Breakage::script("no memory controller", without("memory"), ["controllers", "error", "no memory limit"]),
        Breakage::script(
            "no pids controller",
            without("pids"),
            ["controllers", "warning", "`pids_limit` has no effect"],
        ),
        Breakage::script("no cpu controller", without("cpu"), ["controllers", "warning", "no CPU shares"]),
        Breakage::script("no cpuset controller", without("cpuset"), ["controllers", "warning", "jobs with `cores`"]),
        Breakage::script(
            "no seccomp",
            "mount -t tmpfs none /proc/sys/kernel/seccomp",
            ["seccomp", "error", "no seccomp filters"],
        ),
        Breakage::script(
            "few inotify watches",
            covered("100", "/proc/sys/fs/inotify/max_user_watches"),
            ["inotify", "warning", "max_user_watches is 100"],
        ),
        Breakage::script(
            "a node that is a container",
            "mount -t tmpfs none /run; touch /run/.containerenv",
            ["container", "warning", "a container itself"],
        )
        .common(),
    ];
    // Linux 6.1 tells no pressure unless it was booted so.
    if fs::exists("/proc/pressure/memory").must("look for pressure") {
        let finding = ["pressure", "warning", "tells no pressure"];
        breakages.push(Breakage::script("no pressure", "mount -t tmpfs none /proc/pressure", finding));
    }
    // Cgroup v1 has no delegation.
    if fs::exists("/sys/fs/cgroup/cgroup.controllers").must("look for cgroup v2") {
        let script = covered("cpuset cpu io memory", "/sys/fs/cgroup/nomad.slice/cgroup.controllers");
        let finding = ["controllers", "warning", "`pids` is not delegated to nomad.slice"];
        breakages.push(Breakage::script("a controller that is not delegated", script, finding));
    }
    // Swap is always counted with cgroup v2.
    if fs::exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").must("look for swap limits") {
        let swap = covered("Filename Type\\n/swap file 1 0 -2\\n", "/proc/swaps");
        let script = format!("{}; umount /mnt 2>/dev/null || true\n{swap}", without("memory"));
        breakages.push(Breakage::script("swap that is not counted", script, ["swap", "warning", "by swapping"]));
    }
    let covered_proc = "mount -t tmpfs none /proc/sys/kernel/seccomp";
    for (mode, level) in [("auto", "warning"), ("require", "error")] {
        breakages.push(Breakage {
            config: json!({"userns": {"mode": mode}}),
            ..Breakage::script("a covered /proc", covered_proc, ["user namespaces", level, "mounts no /proc"])
        });
    }
    all_are_found(breakages).await;
}

#[tokio::test]
async fn missing_programs_and_foreign_filters_are_found() {
    let hidden =
        |program: &str| format!("for f in /usr/sbin/{program} /sbin/{program}; do mount --bind /dev/null $f; done");
    let hanging = |program: &str| {
        format!(
            "mount -t tmpfs none /mnt; printf '#!/bin/sh\nexec sleep 1000\n' >/mnt/{program}; chmod 755 /mnt/{program}
             PATH=/mnt:$PATH"
        )
    };
    let late = "did not end within 5 seconds";
    let cni = json!({"network": {"cni_path": "/nonexistent"}});
    // A chain in a network namespace of the doctor's own.
    let chain = "set -- unshare --net bash -c '
                     nft add table inet other
                     nft add chain inet other forward \"{ type filter hook forward priority 0; policy drop; }\"
                     exec \"$@\"' bash \"$@\"";
    all_are_found(vec![
        Breakage::config(
            "layers that cannot be verified",
            json!({"fs_verity": true, "layer_format": "directory"}),
            ["fs-verity", "error", "files in directories"],
        ),
        Breakage::config("no CNI plugins", cni, ["cni", "warning", "bridge, firewall"]),
        Breakage::script("no nft", hidden("nft"), ["filters", "warning", "install nftables"]),
        Breakage::script("no iptables", hidden("iptables"), ["iptables", "warning", "install iptables"]),
        Breakage::script("an nft that hangs", hanging("nft"), ["filters", "warning", late]),
        Breakage::script("an iptables that hangs", hanging("iptables"), ["iptables", "warning", late]),
        Breakage::script("a filter that drops", chain, ["filters", "warning", "inet other forward"]),
    ])
    .await;
}

#[tokio::test]
async fn registries_that_do_not_answer_are_found() {
    let registry = |registry: Json| json!({"registry": registry});
    let helper = json!({"auth": {"helper": "of-no-program"}, "registry": {"127.0.0.1:1": {}}});
    let mirror = registry(json!({"127.0.0.1:1": {"mirrors": ["127.0.0.1:2"]}}));
    all_are_found(vec![
        Breakage::config(
            "a registry that refuses connections",
            registry(json!({"127.0.0.1:1": {}})),
            ["registry", "error", "127.0.0.1:1"],
        ),
        Breakage::config(
            "a registry without an address",
            registry(json!({"registry.invalid": {}})),
            ["registry", "error", "registry.invalid"],
        ),
        Breakage::config("a mirror that is down", mirror, ["registry", "warning", "this mirror does not help"]),
        Breakage::config(
            "a missing credential helper",
            helper,
            ["registry", "error", "docker-credential-of-no-program"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn silent_registries_are_asked_at_the_same_time() {
    // The kernel accepts the connections, and no process reads from them.
    let silent: Vec<TcpListener> = (0..7).map(|_| TcpListener::bind("127.0.0.1:0").must("a listener")).collect();
    let hosts: Vec<String> = silent.iter().map(|host| host.local_addr().must("its address").to_string()).collect();
    let (mirrors, registries) = hosts.split_at(3);
    let mut options = json!({});
    for host in registries {
        options[host] = json!({});
    }
    options[&registries[0]] = json!({"mirrors": mirrors});
    let node = node_with_directories();
    let began = Instant::now();
    let (report, code) = doctor(&node, "", &json!({"registry": options}));
    let took = began.elapsed();
    // Each of them is given up after ten seconds.
    assert!(took < patient(seconds(30)), "it took {took:?}");
    assert_eq!(code, Some(3), "{report}");
    for (hosts, level) in [(registries, "error"), (mirrors, "warning")] {
        for host in hosts {
            expect(&report, "registry", level, &format!("{host}: its interface (/v2/): nothing arrived for 10s"));
        }
    }
    node.finish_without_plugin().await;
}

/// A process that calls itself an agent, in a pid namespace with the doctor. It stops itself when it runs, and it is
/// killed with the namespace. `before` are shell commands, the last of which executes its arguments.
fn with_agent(before: &str) -> String {
    let agent = "exec -a nomad bash -c \"echo on; kill -STOP \\$\\$\" agent";
    format!(
        "set -- unshare --pid --fork --mount-proc bash -c '
             read -r on < <({before} bash -c '\\''{agent}'\\'')
             \"$@\"' bash \"$@\""
    )
}

#[tokio::test]
async fn agents_with_too_little_are_found() {
    let alone = "set -- unshare --pid --fork --mount-proc \"$@\"";
    all_are_found(vec![
        Breakage::script("no agent", alone, ["agent", "warning", "no Nomad agent runs on this node"]).common(),
        Breakage::script(
            "an agent of a user",
            with_agent("setpriv --reuid 65534"),
            ["agent", "warning", "do not count, as process 2"],
        ),
        Breakage::script(
            "an agent of an unknown version",
            with_agent(""),
            ["nomad", "warning", "its file does not contain it"],
        ),
        Breakage::script(
            "an agent with 512 files",
            with_agent("ulimit -n 512;"),
            ["LimitNOFILE", "error", "may open only 512 files"],
        ),
        Breakage::script(
            "an agent with 4096 files",
            with_agent("ulimit -n 4096;"),
            ["LimitNOFILE", "warning", "may open 4096 files"],
        ),
        Breakage::script(
            "an agent without capabilities",
            with_agent("setpriv --bounding-set -sys_admin,-net_admin"),
            ["capabilities", "error", "lacks CAP_SYS_ADMIN, CAP_NET_ADMIN"],
        ),
        Breakage::script(
            "an agent with mounts of its own",
            with_agent("unshare --mount"),
            ["mounts", "warning", "a mount namespace of its own"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_plugin_that_does_not_answer_is_found() {
    let node = Node::new();
    let plugin = node.launch().await;
    let process = format!("process {}", plugin.process.pid());
    let (well, _) = doctor(&node, "", &json!({}));
    expect(&well, "plugin", "ok", &process);

    plugin.process.signal(Signal::STOP);
    let stopped = doctor(&node, "", &json!({}));
    plugin.process.signal(Signal::CONT);
    let (socket, aside) = (&plugin.handshake.socket, node.root().join("aside"));
    fs::rename(socket, &aside).must("the socket is gone");
    let without_socket = doctor(&node, "", &json!({}));
    fs::rename(&aside, socket).must("the socket is back");
    for (report, code) in [stopped, without_socket] {
        expect(&report, "plugin", "error", &format!("({process}) does not answer"));
        assert_eq!(code, Some(3), "{report}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_plugin_of_another_build_is_found() {
    let node = Node::new();
    let installed = node.root().join("oci-rs");
    install(&binary(), &installed);
    let plugin = node.launch_as(PluginCommand::new(node.root()).binary(&installed), json!({})).await;
    let (well, _) = doctor(&node, "", &json!({}));
    expect(&well, "plugin", "ok", &format!("process {}", plugin.process.pid()));
    install(&binary(), &installed);
    let (report, _) = doctor(&node, "", &json!({}));
    expect(&report, "plugin", "warning", "runs another build than the installed one");
    node.finish(plugin).await;
}
