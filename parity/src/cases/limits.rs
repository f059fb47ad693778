//! Memory, CPU, processes and other limits.

use e2e::Outcome;

use crate::{case::Case, observed::Observed, seen::Seen};

const WAIT: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("limits_by_default", WAIT).look(limits),
    Case::script("memory", WAIT).task("resources {\ncpu = 200\nmemory = 64\n}").look(memory),
    Case::quick_script("memory_max", WAIT).task("resources {\ncpu = 50\nmemory = 32\nmemory_max = 96\n}").look(memory),
    Case::script("memory_max_without_limit", WAIT)
        .task("resources {\ncpu = 50\nmemory = 32\nmemory_max = -1\n}")
        .look(memory),
    Case::quick_script("memory_hard_limit", WAIT).config("memory_hard_limit = 80").look(memory),
    Case::script("memory_hard_limit_above_memory_max", WAIT)
        .config("memory_hard_limit = 128")
        .task("resources {\ncpu = 50\nmemory = 32\nmemory_max = 96\n}")
        .look(memory),
    Case::script("memory_hard_limit_below_memory_max", WAIT)
        .config("memory_hard_limit = 64")
        .task("resources {\ncpu = 50\nmemory = 32\nmemory_max = 96\n}")
        .look(memory),
    Case::script("memory_hard_limit_below_memory", WAIT)
        .config("memory_hard_limit = 20")
        .task("resources {\ncpu = 50\nmemory = 32\n}")
        .look(memory),
    Case::script("cpu_shares", WAIT).task("resources {\ncpu = 333\nmemory = 32\n}").look(cpu),
    Case::script("cpu_hard_limit", WAIT)
        .config("cpu_hard_limit = true")
        .task("resources {\ncpu = 400\nmemory = 32\n}")
        .look(cpu),
    Case::script("cpu_hard_limit_with_a_period", WAIT)
        .config("cpu_hard_limit = true\ncpu_cfs_period = 50000")
        .task("resources {\ncpu = 800\nmemory = 32\n}")
        .look(cpu),
    Case::script("cores", WAIT).task("resources {\ncores = 1\nmemory = 32\n}").look(cores),
    Case::script("cpuset_cpus_has_no_effect", WAIT).config("cpuset_cpus = \"0\"").look(cpu),
    Case::script("pids_limit", WAIT).config("pids_limit = 37").look(limits),
    Case::script(
        "pids_limit_is_reached",
        "sh -c 'for n in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; wait' 2>/dev/null; echo code $?
         n=0; while [ $n -lt 500000 ]; do n=$((n + 1)); done",
    )
    .config("pids_limit = 8"),
    Case::quick_script("rlimits", "tail -n +2 /proc/self/limits | sed 's/   */ = /'"),
    Case::script("rlimits_of_the_task", "ulimit -n; ulimit -Hn; ulimit -p; ulimit -Hc; ulimit -s")
        .config("ulimit {\nnofile = \"2048:4096\"\nnproc = \"200\"\ncore = \"0\"\nstack = \"4194304\"\n}"),
    Case::script("an_unknown_rlimit", "true").config("ulimit {\nno_such = \"1\"\n}"),
    Case::script("a_rlimit_that_is_no_number", "true").config("ulimit {\nnofile = \"many\"\n}"),
    Case::script("a_soft_rlimit_above_the_hard_one", "true").config("ulimit {\nnofile = \"4096:2048\"\n}"),
    Case::script("shm_size_by_default", "df -k /dev/shm | tail -1 | awk '{ print $2 }'"),
    Case::script("shm_size", "df -k /dev/shm | tail -1 | awk '{ print $2 }'").config("shm_size = 8388608"),
    Case::script("oom_score_adj_by_default", "cat /proc/self/oom_score_adj /proc/1/oom_score_adj"),
    Case::script("oom_score_adj", "cat /proc/self/oom_score_adj /proc/1/oom_score_adj").config("oom_score_adj = 500"),
    Case::quick_script("killed_for_memory", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo never")
        .task("resources {\ncpu = 50\nmemory = 24\n}")
        .unmarked(),
    Case::script(
        "a_child_is_killed_for_memory",
        "sh -c 'x=$(head -c 200000000 /dev/zero | tr \"\\0\" x)'; echo code $?",
    )
    .task("resources {\ncpu = 50\nmemory = 24\n}")
    .unmarked(),
    Case::script("limits_of_a_privileged_task", WAIT).config("privileged = true").all_capabilities().look(limits),
    Case::quick_script(
        "sysctls_by_default",
        "for k in net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.ip_forward net.core.somaxconn \
         kernel.msgmax kernel.shmmax fs.mqueue.msg_max net.ipv4.tcp_keepalive_time; do \
         echo \"$k = $(cat /proc/sys/$(echo $k | tr . /))\"; done",
    ),
    Case::script(
        "sysctls_of_the_task",
        "cat /proc/sys/net/core/somaxconn /proc/sys/kernel/msgmax /proc/sys/net/ipv4/ip_local_port_range",
    )
    .config(
        "sysctl = {\n\"net.core.somaxconn\" = \"1234\"\n\"kernel.msgmax\" = \"9000\"\n\
                 \"net.ipv4.ip_local_port_range\" = \"20000 60000\"\n}",
    ),
    Case::script("a_sysctl_of_the_host", "true").config("sysctl = {\n\"vm.swappiness\" = \"1\"\n}"),
    Case::script("statistics", WAIT).look(statistics),
];

fn add(seen: &Seen, observed: &mut Observed, files: &[(&str, &str)]) -> Outcome {
    for (controller, file) in files {
        observed.add(file, seen.limit(controller, file)?);
    }
    Ok(())
}

fn memory(seen: &Seen, observed: &mut Observed) -> Outcome {
    add(
        seen,
        observed,
        &[
            ("memory", "memory.limit_in_bytes"),
            ("memory", "memory.soft_limit_in_bytes"),
            ("memory", "memory.memsw.limit_in_bytes"),
            ("memory", "memory.swappiness"),
        ],
    )
}

fn cpu(seen: &Seen, observed: &mut Observed) -> Outcome {
    add(seen, observed, &[("cpu", "cpu.shares"), ("cpu", "cpu.cfs_quota_us"), ("cpu", "cpu.cfs_period_us")])
}

fn cores(seen: &Seen, observed: &mut Observed) -> Outcome {
    let status = seen.proc("status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    // Which core it is depends on the other tasks.
    observed.add("number of cores", allowed.split(',').map(|part| if part.contains('-') { 2 } else { 1 }).sum::<i32>());
    cpu(seen, observed)
}

fn limits(seen: &Seen, observed: &mut Observed) -> Outcome {
    memory(seen, observed)?;
    cpu(seen, observed)?;
    add(
        seen,
        observed,
        &[
            ("pids", "pids.max"),
            ("memory", "memory.oom_control"),
            ("memory", "memory.kmem.limit_in_bytes"),
            ("blkio", "blkio.weight"),
            ("freezer", "freezer.state"),
        ],
    )?;
    let devices = seen.limit("devices", "devices.list")?;
    let mut devices: Vec<&str> = devices.lines().collect();
    devices.sort_unstable();
    devices.iter().for_each(|device| {
        let (device, rights) = device.rsplit_once(' ').unwrap_or((device, ""));
        observed.add(&format!("device {device}"), rights);
    });
    Ok(())
}

/// The statistics that Nomad gets from the driver; their values change all the time.
fn statistics(seen: &Seen, observed: &mut Observed) -> Outcome {
    let path = format!("/v1/client/allocation/{}/stats", seen.task.id);
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(15);
    let usage = loop {
        let usage = seen.node.agent.api().get(&path)?["Tasks"]["main"]["ResourceUsage"].clone();
        let there = usage["MemoryStats"]["RSS"].as_u64().is_some_and(|bytes| bytes > 0)
            || usage["MemoryStats"]["Usage"].as_u64().is_some_and(|bytes| bytes > 0);
        if there || std::time::Instant::now() > limit {
            break usage;
        }
        // Nomad samples once a second and does not notify.
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    for (part, values) in usage.as_object().into_iter().flatten() {
        for (key, value) in values.as_object().into_iter().flatten() {
            let shown = match value.as_f64() {
                // A page of the image counts for the container that read it first since the image was mounted.
                Some(_) if key == "Cache" => "a number".to_owned(),
                Some(number) if number > 0.0 => "more than 0".to_owned(),
                _ => value.to_string(),
            };
            observed.add(&format!("{part}.{key}"), shown);
        }
    }
    Ok(())
}
