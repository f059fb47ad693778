//! The rights of the driver's own processes, as the kernel shows them and as an intruder meets them.

use std::{collections::BTreeSet, fs, io, net::UdpSocket, os::unix::net::UnixDatagram, path::Path, time::Duration};

use fixtures::{
    busybox::Images,
    hung_fs::{self, HungFs},
    must::Must,
    process::{all_pids, children, command_line, status_field},
    wait::{eventually, seconds, within},
};
use kit::{
    intruder::{Intruder, restricts_files, restricts_signals},
    node::Node,
    plugin::{KILL_ON_VIOLATION, Plugin, PluginCommand, binary},
    task::Task,
};
use serde_json::{Value as Json, json};

use super::runtimes;

const WAIT: &str = "while [ ! -e /local/end ]; do sleep 0.02; done; exit 3";

const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const KILL: u32 = 5;
const SYS_ADMIN: u32 = 21;
const SYSLOG: u32 = 34;

fn mask(numbers: &[u32]) -> String {
    format!("{:016x}", numbers.iter().fold(0u64, |mask, number| mask | 1 << number))
}

/// A plugin of which no process is killed for a forbidden system call, as it is in a release build.
async fn launch(node: &Node, options: Json) -> Plugin {
    node.launch_as(PluginCommand::new(node.root()).without(KILL_ON_VIOLATION), options).await
}

/// Waits until a process has given up its rights, and checks what is left.
async fn holds_only(pid: i32, capabilities: &[u32]) {
    let confined = || status_field(pid, "Seccomp").is_some_and(|mode| mode == "2");
    assert!(eventually(seconds(20), confined).await, "no filter: {}", command_line(pid));
    let expected = [
        ("CapEff", mask(capabilities)),
        ("CapPrm", mask(capabilities)),
        ("CapBnd", mask(capabilities)),
        ("CapInh", mask(&[])),
        ("CapAmb", mask(&[])),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp_filters", "1".to_owned()),
    ];
    for (field, value) in expected {
        assert_eq!(status_field(pid, field), Some(value), "{field} of {}", command_line(pid));
    }
}

/// What no process of the driver may do that has given up its rights.
fn is_harmless(process: &Intruder, readable: &[&str], hidden: &[&str]) {
    let denied = |result: io::Result<u64>| result.map_err(|error| error.raw_os_error());
    let init = [1, 0, 0, 0];
    for (name, call, args) in [
        ("mount", libc::SYS_mount, [0; 4]),
        ("unshare", libc::SYS_unshare, [u64::from(libc::CLONE_NEWNS.cast_unsigned()), 0, 0, 0]),
        ("setns", libc::SYS_setns, [0; 4]),
        ("ptrace", libc::SYS_ptrace, [u64::from(libc::PTRACE_SEIZE.cast_unsigned()), 1, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, init),
        ("setuid", libc::SYS_setuid, [0; 4]),
        ("chmod", libc::SYS_chmod, [0; 4]),
        ("init_module", libc::SYS_init_module, [0; 4]),
        ("bpf", libc::SYS_bpf, [0; 4]),
        ("packet socket", libc::SYS_socket, [17, 3, 0, 0]),
        ("netlink socket", libc::SYS_socket, [16, 3, 0, 0]),
    ] {
        assert_eq!(denied(process.call(call, args)), Err(Some(libc::EPERM)), "{name}");
    }
    let executable = u64::from((libc::PROT_READ | libc::PROT_EXEC).cast_unsigned());
    assert_eq!(denied(process.call(libc::SYS_mmap, [0, 4096, executable, 0x22])), Err(Some(libc::EPERM)), "mmap");
    for path in readable {
        let opened = process.open(path, libc::O_RDONLY);
        let number = opened.must(path);
        process.call(libc::SYS_close, [number, 0, 0, 0]).must("closed");
    }
    if restricts_files() {
        for path in hidden {
            assert_eq!(denied(process.open(path, libc::O_RDONLY)), Err(Some(libc::EACCES)), "{path}");
        }
        let flags = libc::O_WRONLY | libc::O_CREAT;
        assert_eq!(denied(process.open("/etc/oci-rs-test", flags)), Err(Some(libc::EACCES)), "a new file");
        assert_eq!(denied(process.open("/proc/1/mem", libc::O_RDWR)), Err(Some(libc::EACCES)), "memory");
        assert_eq!(denied(process.open("/proc/1/environ", libc::O_RDONLY)), Err(Some(libc::EACCES)), "an environment");
    }
}

/// What a stopped process has open.
fn descriptors(pid: i32) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).must("descriptors").flatten();
    let targets = entries.map(|entry| fs::read_link(entry.path()).must("a descriptor").to_string_lossy().into_owned());
    targets.collect()
}

fn is_in_the_nodes_namespaces(pid: i32) {
    for namespace in ["mnt", "pid", "net", "ipc", "uts", "user", "cgroup"] {
        let link = |pid: String| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).must("a namespace");
        assert_eq!(link(pid.to_string()), link("self".to_owned()), "{namespace}");
    }
}

/// The only process below `parent` in this role.
fn in_role(role: &str, parent: i32) -> i32 {
    let is_it = |(_, command): &(i32, String)| command.split_whitespace().nth(1) == Some(role);
    let found: Vec<i32> = children(parent).into_iter().filter(is_it).map(|(pid, _)| pid).collect();
    assert_eq!(found.len(), 1, "{role}: {found:?}");
    found[0]
}

fn end(task: &Task) {
    fs::write(task.dir().join("local/end"), "").must("tell the task");
}

#[tokio::test]
async fn a_monitor_can_do_little_and_still_records_the_end() {
    let node = Node::new();
    let mut plugin = launch(&node, json!({})).await;
    let images = Images::start().await;
    for terminal in [false, true] {
        let task = node.task(&images.busybox()).sh(WAIT).user("1000").option("tty", json!(terminal));
        let task = task.build(&mut plugin).await;
        plugin.started(&task).await;
        let monitor = plugin.monitor_pid(&task);
        holds_only(monitor, &[DAC_READ_SEARCH, SYSLOG]).await;
        is_in_the_nodes_namespaces(monitor);
        let intruder = Intruder::enter(monitor).await;
        let held = descriptors(monitor);
        let log = node.state_dir().join("tasks");
        let fifos = ["stdout", "stderr"].map(|stream| task.alloc.dir.join(format!("alloc/logs/.main.{stream}.fifo")));
        let known = |target: &String| {
            let ours = target.starts_with(&*log.to_string_lossy()) && target.ends_with("/monitor.log");
            let is_log = fifos.iter().any(|fifo| fifo.as_os_str() == target.as_str());
            ours || is_log
                || ["/dev/null", "/dev/pts/ptmx", "/dev/ptmx", "anon_inode:[pidfd]", "pidfd"].contains(&target.as_str())
                || target.starts_with("/dev/pts/")
        };
        let unknown: Vec<&String> = held.iter().filter(|target| !known(target)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        is_harmless(&intruder, &["/proc/self/stat"], &["/etc/passwd", "/etc/shadow", "/root", "/dev/zero"]);
        let signalled = intruder.call(libc::SYS_kill, [1, 0, 0, 0]).map_err(|error| error.raw_os_error());
        assert_eq!(signalled, if restricts_signals() { Err(Some(libc::EPERM)) } else { Ok(0) });
        drop(intruder);
        end(&task);
        assert_eq!(plugin.wait(task.id()).await.code, 3);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_exec_helper_can_do_little_and_still_ends_its_command() {
    let node = Node::new();
    let mut plugin = launch(&node, json!({})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(WAIT).user("1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let script = "trap '' HUP; echo ready; while :; do sleep 1000; done";
    let mut session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], None).await.must("a session");
    session.until("ready", seconds(20)).await;
    let helper = in_role("exec-helper", plugin.process.pid());
    holds_only(helper, &[KILL]).await;
    is_in_the_nodes_namespaces(helper);
    let intruder = Intruder::enter(helper).await;
    let hidden = ["/etc/passwd", "/root", &*node.state_dir().to_string_lossy()].map(str::to_owned);
    is_harmless(&intruder, &["/proc/self/stat"], &hidden.each_ref().map(String::as_str));
    drop(intruder);
    let command = in_role_command(helper);
    drop(session);
    assert!(eventually(seconds(20), || !all_pids().contains(&command)).await, "the command was not ended");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// Where the node has other runtimes.
#[tokio::test]
async fn helpers_keep_rights_only_for_commands_in_sandboxes() {
    for (runtime, is_sandbox) in [("crun", false), ("runsc", true)] {
        if !runtimes::is_installed(runtime) {
            continue;
        }
        let node = Node::new();
        let mut plugin = launch(&node, runtimes::options(runtime)).await;
        let images = Images::start().await;
        let task = node.task(&images.busybox()).sh(WAIT).option("runtime", json!(runtime));
        let task = task.build(&mut plugin).await;
        plugin.started(&task).await;
        holds_only(in_role("monitor", plugin.process.pid()), &[DAC_READ_SEARCH, SYSLOG]).await;
        let script = "trap '' HUP; echo ready; while :; do sleep 1000; done";
        let mut session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], None).await.must("a session");
        session.until("ready", seconds(20)).await;
        let helper = in_role("exec-helper", plugin.process.pid());
        if is_sandbox {
            let rights = |pid| ["CapEff", "Seccomp", "NoNewPrivs"].map(|field| status_field(pid, field));
            assert_eq!(rights(helper), rights(plugin.process.pid()));
        } else {
            holds_only(helper, &[KILL]).await;
        }
        let command = in_role_command(helper);
        drop(session);
        assert!(eventually(seconds(20), || !all_pids().contains(&command)).await, "the command was not ended");
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}

/// The only child of an exec helper.
fn in_role_command(helper: i32) -> i32 {
    let found: Vec<i32> = children(helper).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

#[tokio::test]
async fn a_log_relay_can_do_little_and_its_successor_no_more() {
    let node = Node::new();
    let paths = format!("{}/*", node.root().display());
    let mut plugin = launch(&node, json!({ "allow_log_paths": [paths] })).await;
    let images = Images::start().await;
    let udp = UdpSocket::bind("127.0.0.1:0").must("a socket");
    let path = node.root().join("syslog");
    let _unix = UnixDatagram::bind(&path).must("a socket");
    let servers = [
        (format!("udp://{}", udp.local_addr().must("its address")), &[][..]),
        (format!("unixgram://{}", path.display()), &[DAC_OVERRIDE][..]),
    ];
    for (address, capabilities) in servers {
        let logging = json!({ "type": "syslog", "config": [{ "syslog-address": address }] });
        let task = node.task(&images.busybox()).sh(WAIT).user("1000").option("logging", logging);
        let task = task.build(&mut plugin).await;
        plugin.started(&task).await;
        let monitor = plugin.monitor_pid(&task);
        holds_only(monitor, &[DAC_OVERRIDE, DAC_READ_SEARCH, SYSLOG]).await;
        let first = in_role("relay", monitor);
        holds_only(first, capabilities).await;
        is_in_the_nodes_namespaces(first);
        let intruder = Intruder::enter(first).await;
        is_harmless(&intruder, &["/etc/passwd"], &[]);
        drop(intruder);
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(first).must("a pid"),
            rustix::process::Signal::KILL,
        )
        .must("kill the relay");
        let other = || children(monitor).iter().any(|(pid, command)| *pid != first && command.contains(" relay "));
        assert!(eventually(seconds(20), other).await, "not started again");
        let second = in_role("relay", monitor);
        // It has the monitor's filter, too.
        let filters = || status_field(second, "Seccomp_filters").is_some_and(|filters| filters == "2");
        assert!(eventually(seconds(20), filters).await, "no filter of its own");
        assert_eq!(status_field(second, "CapEff"), Some(mask(capabilities)));
        end(&task);
        assert_eq!(plugin.wait(task.id()).await.code, 3);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_mounter_holds_only_what_mounting_needs() {
    let node = Node::new();
    let mut plugin = launch(&node, json!({ "volumes": { "enabled": true, "mount_timeout": "20s" } })).await;
    let images = Images::start().await;
    let point = node.root().join("hung");
    let Some(hung) = HungFs::mount(&point) else { return node.finish(plugin).await };
    let device = point.join(hung_fs::FILE);
    let options = json!({ "type": "none", "device": device.to_string_lossy(), "o": "bind" });
    let mount = json!([{
        "type": "volume", "target": "/data", "source": "hung",
        "volume_options": { "driver_config": { "name": "local", "options": options } },
    }]);
    let task = node.task(&images.busybox()).sh(WAIT).option("mount", mount).build(&mut plugin).await;
    let parent = plugin.process.pid();
    let hung = tokio::task::spawn_blocking(move || {
        assert!(hung.wait_for_lookup(seconds(20)), "nothing was mounted");
        let mounter = in_role("mounter", parent);
        let fields = ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"].map(|field| status_field(mounter, field));
        hung.abort();
        fields
    });
    let (started, fields) = tokio::join!(plugin.start(&task), hung);
    assert!(started.is_err() || !started.must("an answer").driver_error_msg.is_empty(), "the volume was mounted");
    let [sets @ .., nnp, seccomp] = fields.must("the fields");
    assert_eq!(sets, [const { DAC_READ_SEARCH }; 3].map(|_| Some(mask(&[DAC_READ_SEARCH, SYS_ADMIN]))));
    assert_eq!((nnp.as_deref(), seccomp.as_deref()), (Some("1"), Some("2")));
    node.finish(plugin).await;
}

/// The plugin makes monitors, which make containers: it needs all that a container may get.
#[tokio::test]
async fn the_plugin_keeps_the_agents_rights() {
    let node = Node::new();
    let plugin = node.launch().await;
    let own = i32::try_from(std::process::id()).must("a pid");
    for field in ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"] {
        assert_eq!(status_field(plugin.process.pid(), field), status_field(own, field), "{field}");
    }
    node.finish(plugin).await;
}

/// Where `/proc` hides the processes of other users, or those that cannot be traced, the driver's processes still find
/// the container's processes: a command that takes too long ends with its children, and the monitor records the end.
#[tokio::test]
async fn tasks_run_where_proc_hides_processes() {
    for hidden in ["hidepid=2,gid=65534", "hidepid=4"] {
        let (node, images) = (Node::new(), Images::start().await);
        let script = format!("mount -t proc -o {hidden} proc /proc && exec {}", binary().display());
        let command = PluginCommand::new(node.root()).binary(Path::new("/usr/bin/unshare"));
        let mut plugin = node.launch_as(command.args(&["--mount", "/bin/sh", "-c", &script]), json!({})).await;
        let script = "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.05; done";
        let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
        plugin.started(&task).await;
        task.stdout().contains("up", seconds(20)).await;
        let late =
            plugin.exec(task.id(), &["/bin/sh", "-c", "sleep 987 & sleep 987"], Duration::from_millis(500)).await;
        assert_eq!(late.must("ExecTask").result.must("a result").signal, 9, "{hidden}");
        let left = "ps -o args | grep -c '^sleep 98[7]' || true";
        assert_eq!(plugin.sh(&task, left).await, "0", "{hidden}");
        let mut stream = plugin.stats(task.id(), Duration::from_millis(100)).await.must("TaskStats");
        let sample = within(seconds(20), "a sample", stream.message()).await.must("TaskStats").must("a sample");
        let memory = sample.stats.must("stats").agg_resource_usage.must("a usage").memory.must("memory");
        assert!(memory.usage > 0, "{hidden}: {memory:?}");
        plugin.stop(task.id(), seconds(60), "").await.must("StopTask");
        assert_eq!(plugin.wait(task.id()).await.code, 4, "{hidden}");
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}
