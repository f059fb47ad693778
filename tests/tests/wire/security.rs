//! The rights of a task, as the kernel shows them for its process.

use std::{collections::BTreeSet, fs};

use fixtures::{busybox::Images, must::Must, process::status_field, wait::seconds};
use kit::{node::Node, plugin::Plugin, task::Task};
use serde_json::json;

const IDLE: &str = "while :; do sleep 1000; done";

/// The 13 capabilities of docker's default set without NET_RAW, by number.
const DEFAULT: [u32; 13] = [0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 29, 31];
const NET_RAW: u32 = 13;
const SYS_TIME: u32 = 25;

fn mask(numbers: &[u32]) -> String {
    format!("{:016x}", numbers.iter().fold(0u64, |mask, number| mask | 1 << number))
}

fn field(plugin: &Plugin, task: &Task, name: &str) -> String {
    status_field(plugin.init_pid(task), name).must(name)
}

#[tokio::test]
async fn the_default_profile_is_restrictive() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).command("/bin/sleep", &["1000"]).build(&mut plugin).await;
    plugin.started(&task).await;
    for set in ["CapBnd", "CapEff", "CapPrm"] {
        assert_eq!(field(&plugin, &task, set), mask(&DEFAULT), "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(field(&plugin, &task, set), mask(&[]), "{set}");
    }
    assert_eq!(field(&plugin, &task, "NoNewPrivs"), "1");
    assert_eq!(field(&plugin, &task, "Seccomp"), "2");
    for signals in ["SigIgn", "SigBlk"] {
        assert_eq!(
            field(&plugin, &task, signals),
            "0000000000000000",
            "{signals}: Rust ignores SIGPIPE, the task must not"
        );
    }
    assert_eq!(field(&plugin, &task, "Umask"), "0022");
    let init = plugin.init_pid(&task);
    assert_eq!(fs::read_to_string(format!("/proc/{init}/oom_score_adj")).must("oom_score_adj").trim(), "0");
    for namespace in ["mnt", "pid", "ipc", "uts"] {
        let link = |pid: String| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).must("a namespace");
        assert_ne!(link(init.to_string()), link("self".to_owned()), "{namespace}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_non_root_user_has_no_effective_capabilities() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).user("user").build(&mut plugin).await;
    plugin.started(&task).await;
    for set in ["CapEff", "CapPrm", "CapAmb"] {
        assert_eq!(field(&plugin, &task, set), mask(&[]), "{set}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_job_chooses_among_the_allowed_capabilities() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"allow_caps": ["all"]})).await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("cap_add", json!(["net_raw", "CAP_SYS_TIME"]))
        .option("cap_drop", json!(["chown", "mknod"]))
        .build(&mut plugin)
        .await;
    let none = node.task(&images.busybox()).sh(IDLE).option("cap_drop", json!(["all"])).build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.started(&none).await;
    let held = u64::from_str_radix(&field(&plugin, &task, "CapEff"), 16).must("a mask");
    let has = |number: u32| held & (1 << number) != 0;
    assert!(has(NET_RAW) && has(SYS_TIME) && !has(0) && !has(27), "{held:x}");
    assert_eq!(field(&plugin, &none, "CapBnd"), mask(&[]));
    plugin.end(&task).await;
    plugin.end(&none).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn dangerous_system_calls_and_proc_files_are_blocked() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&task).await;
    let forbidden = [
        // Masked and read-only paths.
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo b > /proc/sysrq-trigger",
        // Some kernels have a link to it in /dev.
        "test -n \"$(head -c 1 /proc/kcore)$(head -c 1 /dev/kcore)\"",
        "test -n \"$(head -c 1 /proc/keys)\"",
        "ls /sys/firmware/* /proc/acpi/*",
        "mkdir /sys/fs/cgroup/x",
        "touch /sys/x",
        // Capabilities and seccomp filter do not allow these.
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /sys",
        "hostname changed",
        // Making a device node is allowed, using it is not.
        "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
        "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
        "mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg",
    ];
    plugin.sh(&task, "mkdir -p /tmp /mnt").await;
    for script in forbidden {
        let answer = plugin.exec(task.id(), &["/bin/sh", "-c", script], seconds(10)).await.must("ExecTask");
        assert_ne!(answer.result.must("a result").exit_code, 0, "{script} worked");
    }
    let devices = plugin.sh(&task, "ls /dev").await;
    let devices: BTreeSet<&str> = devices.split_whitespace().collect();
    let allowed = [
        "console", "core", "fd", "full", "kcore", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
        "stdout", "tty", "urandom", "zero",
    ];
    let strange: Vec<_> = devices.iter().filter(|device| !allowed.contains(device)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    plugin.sh(&task, "echo x > /dev/null; head -c 8 /dev/urandom > /dev/null; head -c 1 /dev/zero > /dev/null").await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn programs_and_devices_in_the_allocation_give_no_rights() {
    let images = Images::start().await;
    for restricted in [true, false] {
        let node = Node::new();
        // A task with a user namespace of its own makes no device nodes.
        let options = json!({"alloc_nosuid": restricted, "userns": {"mode": "off"}});
        let mut plugin = node.launch_with(options).await;
        let task = node.task(&images.busybox()).sh(IDLE).option("volumes", json!(["local:/own"]));
        let task = task.build(&mut plugin).await;
        plugin.started(&task).await;
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", plugin.init_pid(&task))).must("its mounts");
        // Nomad's own mount for the secrets is restricted anyway.
        for directory in ["/alloc", "/local", "/own"] {
            let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(directory)).must(directory);
            let options = line.split(' ').nth(5).must("the options");
            for option in ["nosuid", "nodev"] {
                let has = options.trim().split(',').any(|other| other == option);
                assert_eq!(has, restricted, "{directory}: {options}");
            }
        }
        plugin.sh(&task, "mknod /local/null c 1 3").await;
        let command = ["/bin/sh", "-c", "echo x > /local/null"];
        let answer = plugin.exec(task.id(), &command, seconds(10)).await.must("ExecTask").result.must("a result");
        assert_eq!(answer.exit_code != 0, restricted, "the device node");
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}

#[tokio::test]
async fn requested_devices_are_usable() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"allow_devices": ["/dev/zero"]})).await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .device("/dev/kmsg", "/dev/from-plugin", "r")
        .option("devices", json!([{"host_path": "/dev/zero", "container_path": "/dev/my-zero"}]))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin.sh(&task, "test -c /dev/from-plugin && head -c 3 /dev/my-zero > /dev/null").await;
    let answer =
        plugin.exec(task.id(), &["/bin/sh", "-c", "echo x > /dev/from-plugin"], seconds(10)).await.must("ExecTask");
    assert_ne!(answer.result.must("a result").exit_code, 0, "read was given, not write");
    plugin.end(&task).await;
    let refused = node.task(&images.busybox()).sh(IDLE).option("devices", json!([{"host_path": "/dev/kmsg"}]));
    let refused = refused.build(&mut plugin).await;
    let status = plugin.start(&refused).await.err().must("a refusal");
    assert!(status.message().contains("this node does not allow \"/dev/kmsg\""), "{status}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn privileged_needs_the_operators_permission() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"allow_privileged": true})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("privileged", json!(true)).build(&mut plugin).await;
    plugin.started(&task).await;
    // All capabilities of this process.
    let own = status_field(std::process::id().cast_signed(), "CapEff").must("our own");
    assert_eq!(field(&plugin, &task, "CapEff"), own);
    assert_eq!(field(&plugin, &task, "Seccomp"), "0");
    plugin.sh(&task, "mkdir -p /mnt && mount -t tmpfs none /mnt && umount /mnt").await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn host_namespaces_need_the_operators_permission() {
    let node = Node::new();
    let modes = json!({"pid": ["host"], "ipc": ["host"], "uts": ["host"], "cgroupns": ["private"]});
    let mut plugin = node.launch_with(json!({"allowed_modes": modes})).await;
    let images = Images::start().await;
    let host = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("pid_mode", json!("host"))
        .option("ipc_mode", json!("host"))
        .option("uts_mode", json!("host"))
        .build(&mut plugin)
        .await;
    let own = node.task(&images.busybox()).sh(IDLE).option("ipc_mode", json!("none")).build(&mut plugin).await;
    plugin.started(&host).await;
    plugin.started(&own).await;
    let link = |pid: i32, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).must("a namespace");
    let ours = std::process::id().cast_signed();
    for name in ["pid", "ipc", "uts"] {
        assert_eq!(link(plugin.init_pid(&host), name), link(ours, name), "{name}");
        assert_ne!(link(plugin.init_pid(&own), name), link(ours, name), "{name}");
    }
    // The operator's list contains it.
    assert_ne!(link(plugin.init_pid(&own), "cgroup"), link(ours, "cgroup"));
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(plugin.sh(&host, "hostname; cat /etc/hostname").await, format!("{name}\n{name}"));
    assert_eq!(plugin.sh(&own, "ls -d /dev/shm 2>/dev/null; grep -c ' /dev/shm ' /proc/mounts || true").await, "0");
    // The task sees the host's processes, but it can neither trace them nor read their files.
    let pid = plugin.sh(&host, &format!("ls -d /proc/{ours}")).await;
    assert_eq!(pid, format!("/proc/{ours}"));
    for attempt in ["cat /proc/PID/environ", "ls /proc/PID/root/", "readlink /proc/PID/fd/0", "hostname changed"] {
        let script = attempt.replace("PID", &ours.to_string());
        let answer = plugin.exec(host.id(), &["/bin/sh", "-c", &script], seconds(10)).await.must("ExecTask");
        assert_ne!(answer.result.must("a result").exit_code, 0, "{attempt}");
    }
    plugin.end(&host).await;
    plugin.end(&own).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn seccomp_profiles_need_the_operators_permission() {
    let node = Node::new();
    let profile = node.root().join("profile.json");
    let allowed = json!(["seccomp=unconfined", format!("seccomp={}/*.json", node.root().display())]);
    let mut plugin = node.launch_with(json!({"allow_security_opts": allowed})).await;
    let images = Images::start().await;
    let text = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}],
    });
    fs::write(&profile, text.to_string()).must("a profile");
    let of = |option: String| node.task(&images.busybox()).sh(IDLE).option("security_opt", json!([option]));
    let open = of("seccomp=unconfined".to_owned()).build(&mut plugin).await;
    let own = of(format!("seccomp={}", profile.display())).build(&mut plugin).await;
    plugin.started(&open).await;
    plugin.started(&own).await;
    assert_eq!((field(&plugin, &open, "Seccomp"), field(&plugin, &own, "Seccomp")), ("0".into(), "2".into()));
    assert_eq!((field(&plugin, &open, "NoNewPrivs"), field(&plugin, &open, "CapEff")), ("1".into(), mask(&DEFAULT)));
    plugin.sh(&open, "mkdir /made").await;
    let answer = plugin.exec(own.id(), &["/bin/mkdir", "/made"], seconds(10)).await.must("ExecTask");
    assert!(String::from_utf8_lossy(&answer.stdout).contains("No space left"), "{answer:?}");
    plugin.end(&open).await;
    plugin.end(&own).await;
    // The pattern has only letters, so a link with such a name does not match. Only root may write the file.
    std::os::unix::fs::symlink(&profile, node.root().join("link.json")).must("a link");
    fs::write(node.root().join("theirs.json"), text.to_string()).must("a profile");
    std::os::unix::fs::chown(node.root().join("theirs.json"), Some(1000), None).must("given away");
    for (name, problem) in
        [("link.json", "leads over a link"), ("theirs.json", "others than root"), ("none.json", "does not exist")]
    {
        let task = of(format!("seccomp={}", node.root().join(name).display())).without_logs().build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must(name);
        assert!(status.message().contains(problem), "{status}");
    }
    node.finish(plugin).await;
}

/// A profile that cannot confine the task fails the start.
#[tokio::test]
async fn a_missing_apparmor_profile_fails_the_start() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"allow_security_opts": ["apparmor=*"]})).await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("security_opt", json!(["apparmor=oci-rs-nobody-loaded-it"]))
        .without_logs()
        .build(&mut plugin)
        .await;
    let status = plugin.start(&task).await.err().must("a refusal");
    let used = fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.trim() == "Y");
    let problem = if used { "\"oci-rs-nobody-loaded-it\" is not loaded on this node" } else { "does not use AppArmor" };
    assert!(status.message().contains(problem), "{status}");
    node.finish(plugin).await;
}

/// A container must not reach the binary that runs it (CVE-2019-5736).
#[tokio::test]
async fn a_task_cannot_reach_the_hosts_driver_binary() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let before = fs::read(kit::plugin::binary()).must("the binary");
    let task = node
        .task(&images.busybox())
        .sh("while :; do for exe in /proc/[0-9]*/exe; do (echo overwritten > $exe) 2>/dev/null; done; sleep 0.01; done")
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    for _ in 0..5 {
        plugin.exec(task.id(), &["/proc/self/exe"], seconds(5)).await.must("ExecTask");
    }
    plugin.end(&task).await;
    assert!(fs::read(kit::plugin::binary()).must("the binary") == before);
    node.finish(plugin).await;
}

/// No file that outlives the task contains the job's variables, and neither does the monitor's environment.
#[tokio::test]
async fn secrets_are_visible_only_in_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).env("API_TOKEN", "s3cr3t-token").build(&mut plugin).await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    for (pid, line) in node.traces().processes {
        if pid != init && !task.groups.members().contains(&pid) {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&environ).contains("s3cr3t"), "{line}");
            assert!(!line.contains("s3cr3t"), "{line}");
        }
    }
    plugin.end(&task).await;
    let left =
        files_with(node.state_dir(), b"s3cr3t-token").into_iter().chain(files_with(node.data_dir(), b"s3cr3t-token"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    assert!(!plugin.process.stderr.so_far().join("\n").contains("s3cr3t"));
    node.finish(plugin).await;
}

fn files_with(root: std::path::PathBuf, needle: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    let content = fs::read(entry.path()).unwrap_or_default();
                    if content.windows(needle.len()).any(|window| window == needle) {
                        found.push(entry.path().display().to_string());
                    }
                }
                _ => {}
            }
        }
    }
    found
}
