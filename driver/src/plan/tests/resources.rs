//! Memory, processors and the control group.

use super::*;

#[test]
fn memory_follows_nomads_rules() {
    let mib = |number: u64| Some(number << 20);
    for (memory, max, own, expected) in [
        (256, 0, 0, (mib(256), None)),
        (256, 512, 0, (mib(512), mib(256))),
        (256, -1, 0, (None, mib(256))),
        (256, -1, 300, (None, mib(256))),
        (256, 0, 300, (mib(300), mib(256))),
        (256, 512, 300, (mib(512), mib(256))),
        (0, 0, 0, (Some(77), None)),
    ] {
        let mut case = Case::new(json!({ "memory_hard_limit": own }));
        case.task.resources.memory_mb = memory;
        case.task.resources.memory_max_mb = max;
        case.task.resources.memory_limit_bytes = 77;
        let resources = case.container().resources;
        assert_eq!((resources.memory_limit, resources.memory_reservation), expected, "{memory} {max} {own}");
    }
    let text = Case::new(json!({ "memory_hard_limit": 100 })).error();
    assert!(text.starts_with("memory_hard_limit: is 100 MiB, less than the 256 MiB of `memory`"), "{text}");
}

#[test]
fn memory_that_the_kernel_cannot_count_is_refused() {
    for (memory, max, option) in [(1 << 44, 0, "memory"), (i64::MAX, 0, "memory"), (256, 1 << 44, "memory_max")] {
        let mut case = Case::new(json!({}));
        (case.task.resources.memory_mb, case.task.resources.memory_max_mb) = (memory, max);
        let text = case.error();
        assert!(text.starts_with(&format!("{option}: ")) && text.contains("more than the kernel can count"), "{text}");
    }
}

#[test]
fn tasks_without_a_limit_on_processes_get_the_nodes() {
    let limit = |plugin: Json, block: Json| Case::under(plugin, block).container().resources.pids_limit;
    for (plugin, block, expected) in [
        (json!({}), json!({}), Some(16_384)),
        (json!({}), json!({ "pids_limit": 100_000 }), Some(100_000)),
        (json!({ "pids_limit": 7 }), json!({}), Some(7)),
        (json!({ "pids_limit": -1 }), json!({}), None),
        (json!({ "pids_limit": -1 }), json!({ "pids_limit": 5 }), Some(5)),
    ] {
        assert_eq!(limit(plugin.clone(), block.clone()), expected, "{plugin} {block}");
    }
    let mut case = Case::under(json!({}), json!({}));
    case.node.limits_pids = false;
    assert_eq!(case.container().resources.pids_limit, None, "the kernel has no such limit");
}

#[test]
fn cpu_follows_nomads_rules() {
    let mut case = Case::new(json!({ "cpu_hard_limit": true, "cpu_cfs_period": 50000, "pids_limit": 9 }));
    case.task.resources.percent_ticks = 0.25;
    case.task.resources.cpuset_cpus = "1,3".into();
    let resources = case.container().resources;
    assert_eq!((resources.cpu_period, resources.cpu_quota), (Some(50_000), Some(50_000)));
    assert_eq!((resources.cpu_shares, resources.pids_limit), (Some(500), Some(9)));
    assert_eq!(resources.cpuset_cpus.as_deref(), Some("1,3"));

    let plain = Case::new(json!({})).container().resources;
    assert_eq!((plain.cpu_period, plain.cpu_quota, plain.cpuset_cpus), (None, None, None));
    for (mhz, total, expected) in [
        (1, 8000, Some(2)),
        (0, 8000, None),
        (524_288, 524_288, Some(262_144)),
        (1000, 524_288, Some(500)),
        (9, 0, Some(9)),
    ] {
        let mut case = Case::new(json!({}));
        case.task.resources.cpu_shares = mhz;
        case.node.compute.total_mhz = total;
        assert_eq!(case.container().resources.cpu_shares, expected, "{mhz} of {total}");
    }
}

#[test]
fn the_cgroup_is_the_one_that_nomad_made() {
    let at = |v2: bool, given: &str| {
        let mut case = Case::new(json!({}));
        case.node.cgroup_v2 = v2;
        case.task.resources.cpuset_cgroup = given.into();
        case.plan().map(|plan| plan.container.cgroup)
    };
    let v1 = at(false, "/sys/fs/cgroup/cpuset/nomad/share").unwrap();
    assert_eq!(v1.path, format!("/nomad/{ALLOC}.web"));
    assert_eq!(v1.cpuset_v1, Some("/sys/fs/cgroup/cpuset/nomad/share".into()));
    assert_eq!(at(false, "").unwrap().cpuset_v1, None);
    let scope = format!("/nomad.slice/reserve.slice/{ALLOC}.web.scope");
    let v2 = at(true, &format!("/sys/fs/cgroup{scope}")).unwrap();
    assert_eq!((v2.path, v2.cpuset_v1), (scope, None));
    assert_eq!(at(true, "").unwrap().path, format!("/nomad.slice/share.slice/{ALLOC}.web.scope"));
    for given in ["/etc", "/sys/fs/cgroup/../../etc", "relative"] {
        assert!(at(true, given).is_err() && at(false, given).is_err(), "{given}");
    }
}
