//! Many concurrent tasks, each with its own limits and mounts: no task sees those of another one.

use std::fs;

use fixtures::{
    busybox::Images,
    cgroup::{self, Mode},
    must::Must,
    process::status_field,
};
use kit::{node::Node, plugin::Plugin, task::Task};
use serde_json::json;

const TASKS: usize = 36;
const MIB: u64 = 1 << 20;

/// The settings of the task with this number. They all differ from those of the other tasks.
struct Wish {
    number: usize,
}

impl Wish {
    fn memory_mib(&self) -> u64 {
        24 + self.number as u64
    }

    fn pids(&self) -> usize {
        20 + self.number
    }

    fn files(&self) -> usize {
        100 + self.number
    }

    fn score(&self) -> usize {
        300 + self.number
    }

    fn name(&self) -> String {
        format!("host-{}", self.number)
    }

    fn readonly(&self) -> bool {
        self.number.is_multiple_of(3)
    }

    fn capability(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    fn user(&self) -> &'static str {
        if self.number.is_multiple_of(4) { "user" } else { "" }
    }

    async fn task(&self, node: &Node, image: &str, plugin: &mut Plugin) -> Task {
        let mut task = node
            .task(image)
            .sh("while :; do sleep 1000; done")
            .resources(100 + self.number as i64, self.memory_mib().cast_signed(), 0)
            .env("NUMBER", &self.number.to_string())
            .option("pids_limit", json!(self.pids()))
            .option("ulimit", json!({"nofile": self.files().to_string()}))
            .option("oom_score_adj", json!(self.score()))
            .option("hostname", json!(self.name()))
            .option("shm_size", json!((self.number as u64 + 1) * 64 * 1024))
            .option("sysctl", json!({"kernel.msgmax": (10_000 + self.number).to_string()}))
            .option("readonly_rootfs", json!(self.readonly()))
            .option("init", json!(self.number.is_multiple_of(5)))
            .option("cap_drop", if self.capability() { json!([]) } else { json!(["all"]) })
            .option("volumes", json!([format!("local/own:/volume-{}", self.number)]));
        if !self.user().is_empty() {
            task = task.user(self.user());
        }
        task.build(plugin).await
    }

    /// From outside: the kernel's records of the task's first process and cgroup.
    fn assert_kept(&self, plugin: &Plugin, task: &Task) {
        let pid = plugin.init_pid(task);
        let who = format!("task {}", self.number);
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).must(&who);
        let (memory, pids) = match cgroup::mode() {
            Mode::V1 => ("memory.limit_in_bytes", "pids.max"),
            Mode::V2 => ("memory.max", "pids.max"),
        };
        assert_eq!(task.groups.read("memory", memory), (self.memory_mib() * MIB).to_string(), "{who}");
        assert_eq!(pids_limit(pid, pids), self.pids().to_string(), "{who}");
        assert_eq!(read("oom_score_adj").trim(), self.score().to_string(), "{who}");
        let limits = read("limits");
        let files = limits.lines().find(|line| line.starts_with("Max open files")).must(&who);
        assert_eq!(files.split_whitespace().nth(3), Some(self.files().to_string().as_str()), "{who}");
        let bounding = status_field(pid, "CapBnd").must(&who);
        assert_eq!(bounding == "0000000000000000", !self.capability(), "{who}: {bounding}");
        let uid = status_field(pid, "Uid").must(&who);
        assert_eq!(uid.starts_with('0'), self.user().is_empty(), "{who}: {uid}");
        let mounts = read("mountinfo");
        let at = |path: &str| mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(path));
        assert!(at(&format!("/volume-{}", self.number)).is_some(), "{who}");
        let volumes =
            mounts.lines().filter(|line| line.split(' ').nth(4).is_some_and(|path| path.starts_with("/volume-")));
        assert_eq!(volumes.count(), 1, "{who} has a volume of another one");
        let root = at("/").must(&who).split(' ').nth(5).must(&who).to_owned();
        assert_eq!(root.split(',').any(|option| option == "ro"), self.readonly(), "{who}: {root}");
        let shm = at("/dev/shm").must(&who);
        assert!(shm.contains(&format!("size={}k", (self.number + 1) * 64)), "{who}: {shm}");
    }
}

/// The limit of a process's cgroup. On v1, the driver has made that cgroup.
fn pids_limit(pid: i32, file: &str) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).must("groups");
    let path = match cgroup::mode() {
        Mode::V1 => {
            let line = groups.lines().find_map(|line| line.split_once(":pids:")).must("a group of pids");
            format!("/sys/fs/cgroup/pids{}", line.1)
        }
        Mode::V2 => format!("/sys/fs/cgroup{}", groups.trim().strip_prefix("0::").must("a group")),
    };
    fs::read_to_string(format!("{path}/{file}")).must("a limit").trim().to_owned()
}

#[tokio::test]
async fn concurrent_tasks_have_separate_limits_and_mounts() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let image = images.busybox();
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let wish = Wish { number };
        let task = wish.task(&node, &image, &mut plugin).await;
        tasks.push((wish, task));
    }
    let starts = tasks.iter().map(|(_, task)| plugin.start(task));
    for (started, (wish, _)) in futures_util::future::join_all(starts).await.into_iter().zip(&tasks) {
        started.must(&wish.name());
    }
    for (wish, task) in &tasks {
        wish.assert_kept(&plugin, task);
    }
    // From inside: host name, parameter of the IPC namespace, processes and files are the task's own.
    for (wish, task) in tasks.iter().step_by(7) {
        let script = "hostname; cat /proc/sys/kernel/msgmax; echo $NUMBER; ls -d /volume-*; ls /proc | grep -c \
                      '^[0-9]*$'; cd /sys/fs/cgroup; \
                      cat memory.max memory/memory.limit_in_bytes 2>/dev/null; find . -name '*.main*' | wc -l";
        let text = plugin.sh(task, script).await;
        let mut lines = text.lines();
        let number = wish.number;
        assert_eq!(lines.next(), Some(wish.name().as_str()));
        assert_eq!(lines.next(), Some((10_000 + number).to_string().as_str()));
        assert_eq!(lines.next(), Some(number.to_string().as_str()));
        assert_eq!(lines.next(), Some(format!("/volume-{number}").as_str()));
        let processes: usize = lines.next().must("a count").parse().must("a number");
        assert!(processes < 10, "{processes} processes in task {number}");
        let limit = (wish.memory_mib() * MIB).to_string();
        assert_eq!(
            (lines.next(), lines.next()),
            (Some(limit.as_str()), Some("0")),
            "groups of others in task {number}"
        );
    }
    let distinct = |name: &str| {
        let links = tasks.iter().map(|(_, task)| fs::read_link(format!("/proc/{}/ns/{name}", plugin.init_pid(task))));
        let mut links: Vec<_> = links.map(|link| link.must("a namespace")).collect();
        links.sort();
        links.dedup();
        links.len()
    };
    for name in ["mnt", "pid", "ipc", "uts"] {
        assert_eq!(distinct(name), TASKS, "{name}");
    }
    for (_, task) in &tasks {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}
