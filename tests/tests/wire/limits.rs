//! The kernel's settings for a job's resources.

use fixtures::{
    busybox::Images,
    cgroup::{self, Mode},
    must::Must,
    wait::seconds,
};
use kit::node::Node;
use serde_json::json;

const IDLE: &str = "while :; do sleep 1000; done";
const MIB: u64 = 1024 * 1024;

#[tokio::test]
async fn the_task_is_in_the_clients_cgroups() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    for group in &task.groups.own {
        let below = cgroup::find(&format!("{}.main", task.alloc.id)).into_iter().filter(|path| path.starts_with(group));
        let members: Vec<i32> = below.flat_map(|path| cgroup::members(&path)).collect();
        assert!(members.contains(&init), "{} has {members:?}", group.display());
    }
    if cgroup::mode() == Mode::V1 {
        assert!(cgroup::members(&task.groups.cpuset).contains(&init), "the shared cpuset");
    }
    // An exec command is in the same cgroup.
    plugin.exec(task.id(), &["/bin/sh", "-c", "sleep 500 & echo $!"], seconds(5)).await.must("ExecTask");
    plugin.end(&task).await;
    assert!(task.groups.members().is_empty());
    node.finish(plugin).await;
}

#[tokio::test]
async fn memory_limits_are_set() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    // memory, memory_max → hard limit, reservation; all in MiB.
    let cases: [(i64, i64, Option<u64>, u64); 3] = [(64, 0, Some(64), 0), (32, 96, Some(96), 32), (32, -1, None, 32)];
    for (memory, max, hard, soft) in cases {
        let task = node.task(&images.busybox()).sh(IDLE).resources(100, memory, max).build(&mut plugin).await;
        plugin.started(&task).await;
        let number = |file: &str| task.groups.read("memory", file).parse::<u64>().ok();
        match cgroup::mode() {
            Mode::V1 => {
                let unlimited = u64::MAX >> 2;
                let limit = number("memory.limit_in_bytes").must("a limit");
                match hard {
                    Some(hard) => {
                        assert_eq!(limit, hard * MIB);
                        if let Ok(swap) =
                            std::fs::read_to_string(task.groups.of("memory").join("memory.memsw.limit_in_bytes"))
                        {
                            assert_eq!(swap.trim(), (hard * MIB).to_string(), "no swap beyond the limit");
                        }
                    }
                    None => assert!(limit > unlimited, "{limit}"),
                }
                let reserved = number("memory.soft_limit_in_bytes").must("a soft limit");
                assert!(if soft == 0 { reserved > unlimited } else { reserved == soft * MIB }, "{reserved}");
            }
            Mode::V2 => {
                assert_eq!(number("memory.max"), hard.map(|hard| hard * MIB));
                assert_eq!(number("memory.low"), Some(soft * MIB));
                assert_eq!(number("memory.swap.max"), Some(0));
            }
        }
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

/// The client keeps the cgroup over a restart. The limits of the last run must not stay.
#[tokio::test]
async fn limits_of_an_earlier_run_are_replaced() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let (controller, file) = match cgroup::mode() {
        Mode::V1 => ("memory", "memory.limit_in_bytes"),
        Mode::V2 => ("memory", "memory.max"),
    };
    for memory in [32, 128, 64] {
        let task = node
            .task(&images.busybox())
            .in_alloc(&alloc)
            .sh(IDLE)
            .resources(100, memory, 0)
            .without_logs()
            .build(&mut plugin)
            .await;
        plugin.started(&task).await;
        assert_eq!(task.groups.read(controller, file), (memory.cast_unsigned() * MIB).to_string());
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_oom_kill_is_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}; sleep 1000";
    let task = node.task(&images.busybox()).sh(script).resources(100, 24, 0).build(&mut plugin).await;
    plugin.started(&task).await;
    let exit = plugin.wait(task.id()).await;
    assert!(exit.oom, "{exit:?}");
    assert_eq!(exit.code, 137, "{exit:?}");
    assert!(exit.err.to_uppercase().contains("OOM") || exit.err.contains("memory"), "{exit:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    // A killed task is no OOM kill, also in a cgroup with an earlier OOM kill.
    let again = node
        .task(&images.busybox())
        .in_alloc(&task.alloc)
        .sh(IDLE)
        .resources(100, 24, 0)
        .without_logs()
        .build(&mut plugin)
        .await;
    plugin.started(&again).await;
    plugin.signal(again.id(), "SIGKILL").await.must("SignalTask");
    let exit = plugin.wait(again.id()).await;
    assert!(!exit.oom, "{exit:?}");
    plugin.destroy(again.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn cpu_limits_are_set() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).resources(500, 64, 0).build(&mut plugin).await;
    let hard = node
        .task(&images.busybox())
        .sh(IDLE)
        .resources(1000, 64, 0)
        .option("cpu_hard_limit", json!(true))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin.started(&hard).await;
    match cgroup::mode() {
        Mode::V1 => {
            assert_eq!(task.groups.read("cpu", "cpu.shares"), "500");
            assert_eq!(task.groups.read("cpu", "cpu.cfs_quota_us"), "-1");
            assert_eq!(hard.groups.read("cpu", "cpu.shares"), "1000");
            // A quarter of two cores.
            assert_eq!(hard.groups.read("cpu", "cpu.cfs_quota_us"), "50000");
            assert_eq!(hard.groups.read("cpu", "cpu.cfs_period_us"), "100000");
        }
        Mode::V2 => {
            let weight: u32 = task.groups.read("cpu", "cpu.weight").parse().must("a weight");
            assert!((10..100).contains(&weight), "{weight}");
            assert_eq!(task.groups.read("cpu", "cpu.max"), "max 100000");
            assert_eq!(hard.groups.read("cpu", "cpu.max"), "50000 100000");
        }
    }
    plugin.end(&task).await;
    plugin.end(&hard).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn reserved_cores_are_used() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"numa_memory": true})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).cores("1").build(&mut plugin).await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    assert_eq!(fixtures::process::status_field(init, "Cpus_allowed_list").as_deref(), Some("1"));
    // The operator also wants the memory of the cores' NUMA nodes.
    let near = (0..64).find(|node| std::path::Path::new(&format!("/sys/devices/system/node/node{node}/cpu1")).exists());
    let near = near.map(|node: u32| node.to_string());
    assert!(near.is_none() || fixtures::process::status_field(init, "Mems_allowed_list") == near);
    assert_eq!(plugin.sh(&task, "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status").await, "1");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// Nomad changes the cores of a task's cgroup while it runs. The task is in that cgroup, so the change applies at once.
#[tokio::test]
async fn a_changed_cpuset_is_followed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).cores("1").build(&mut plugin).await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    let allowed = |pid: i32| fixtures::process::status_field(pid, "Cpus_allowed_list").must("cores");
    for cores in ["0", "0-1", "1"] {
        std::fs::write(task.groups.cpuset.join("cpuset.cpus"), cores).must("other cores");
        assert_eq!(allowed(init), cores);
        // It also applies to later exec commands.
        let command = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";
        assert_eq!(plugin.sh(&task, command).await, cores);
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn limits_of_processes_files_and_shared_memory_are_set() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("pids_limit", json!(20))
        .option("ulimit", json!({"nofile": "1000:2000", "core": "0"}))
        .option("shm_size", json!(8_388_608))
        .option("oom_score_adj", json!(321))
        .option("sysctl", json!({"kernel.msgmax": "12345"}))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    let limits = std::fs::read_to_string(format!("/proc/{init}/limits")).must("limits");
    let files: Vec<&str> =
        limits.lines().find(|line| line.starts_with("Max open files")).must("a line").split_whitespace().collect();
    assert_eq!(files[3..5], ["1000", "2000"]);
    assert_eq!(plugin.sh(&task, "ulimit -n; ulimit -Hn; cat /proc/sys/kernel/msgmax").await, "1000\n2000\n12345");
    assert_eq!(plugin.sh(&task, "df -k /dev/shm | tail -n 1 | sed 's/  */ /g' | cut -d ' ' -f 2").await, "8192");
    let adjust = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).must("oom_score_adj").trim().to_owned()
    };
    assert_eq!(adjust(init), "321");
    assert_eq!(plugin.sh(&task, "cat /proc/self/oom_score_adj").await, "321");
    let many = "i=0; while [ $i -lt 40 ]; do sleep 3 & i=$((i+1)); done 2>&1; echo";
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", many], seconds(10)).await.must("ExecTask");
    assert!(task.groups.members().len() <= 20 * task.groups.own.len(), "{}", String::from_utf8_lossy(&answer.stdout));
    plugin.end(&task).await;
    node.finish(plugin).await;
}
