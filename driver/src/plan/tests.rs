//! Whole plans: what of the task block, the image, Nomad's part and the node arrives where in the container.

mod isolation;
mod network;

use std::{collections::BTreeMap, path::PathBuf};

use ::network::Attachment;
use image_store::{Image, ImageConfig};
use proptest::prelude::*;
use runtime::plan::{CAPABILITIES, ContainerPlan, Device, Mount, MountKind, Propagation, RootStorage, Seccomp};
use serde_json::{Value as Json, json};

use super::{
    Attached, NodeFacts, NomadTask, TaskContext, TaskPlan, container_plan,
    mounts::clean,
    nomad::{NomadDevice, NomadMount, TaskResources},
};
use crate::config::{Policy, TaskSpec, decode_plugin, decode_task, testing::msgpack};

const ALLOC: &str = "9f7b0c1e-1111-2222-3333-444455556666";

/// Everything that a plan is made of, to be changed by a test.
struct Case {
    spec: TaskSpec,
    task: NomadTask,
    image: Image,
    node: NodeFacts,
    policy: Policy,
    attachment: Option<Attachment>,
}

impl Case {
    /// A task with this block on a node where tasks use the host's network unless they say otherwise.
    fn new(block: Json) -> Self {
        Self::under(json!({ "network": { "default_mode": "host" } }), block)
    }

    /// The same with a plugin block.
    fn under(plugin: Json, mut block: Json) -> Self {
        let policy = decode_plugin(&msgpack(&plugin)).unwrap().policy;
        block.as_object_mut().unwrap().insert("image".into(), json!("nginx"));
        let spec = decode_task(&msgpack(&block), &policy).unwrap();
        Self { spec, task: task(), image: image(), node: node(), policy, attachment: None }
    }

    fn plan(&self) -> Result<TaskPlan, String> {
        let Self { spec, task, image, node, policy, attachment } = self;
        let attached = attachment.as_ref().map_or(Attached::Soon, Attached::To);
        container_plan(&TaskContext { spec, task, image, node, policy, profile: None, attached })
            .map_err(|errors| errors.to_string())
    }

    fn container(&self) -> ContainerPlan {
        self.plan().unwrap().container
    }

    /// The text of the only mistake.
    fn error(&self) -> String {
        let text = self.plan().expect_err("a plan although there should be a mistake");
        text.strip_prefix("the task cannot run here: ").unwrap().to_owned()
    }
}

fn task() -> NomadTask {
    NomadTask {
        id: format!("{ALLOC}/web/01234567"),
        name: "web".into(),
        alloc_id: ALLOC.into(),
        alloc_dir: PathBuf::from("/nomad/alloc").join(ALLOC),
        stdout_path: "/nomad/out.fifo".into(),
        stderr_path: "/nomad/err.fifo".into(),
        job_name: "shop".into(),
        job_id: "shop".into(),
        task_group_name: "front".into(),
        resources: TaskResources { cpu_shares: 500, memory_mb: 256, ..TaskResources::default() },
        env: BTreeMap::from([("NOMAD_TASK_NAME".into(), "web".into())]),
        ..NomadTask::default()
    }
}

fn image() -> Image {
    let config = ImageConfig {
        env: vec![("LANG".into(), "C".into())],
        entrypoint: Some(vec!["/entry".into()]),
        cmd: Some(vec!["serve".into(), "-v".into()]),
        user: "app".into(),
        working_dir: "/srv".into(),
        stop_signal: Some("SIGQUIT".into()),
        volumes: vec!["/data/".into()],
        labels: BTreeMap::from([("from".into(), "image".into())]),
        ..ImageConfig::default()
    };
    Image {
        reference: "nginx".parse().unwrap(),
        digest: "sha256:00".into(),
        layers: vec!["/layers/b/fs".into(), "/layers/a/fs".into()],
        copy_only: false,
        config,
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        cgroup_v2: false,
        total_mhz: 8000,
        cores: 4,
        held_capabilities: CAPABILITIES.iter().map(|name| (*name).to_owned()).collect(),
        overlay_problem: None,
        state_dir: "/run/oci-rs".into(),
        host_resolv_conf: "# host\nsearch lan\nnameserver 127.0.0.1\nnameserver 10.0.0.1\noptions edns0\n".into(),
        host_name: "node-1".into(),
        apparmor: false,
        numa_nodes: vec![(0, "0-1".into()), (1, "2-3".into())],
        swap_uncounted: false,
        selinux: false,
        volumes_dir: "/data/volumes".into(),
    }
}

fn file(container: &ContainerPlan, path: &str) -> String {
    container.files.iter().find(|(destination, _)| destination == path).unwrap_or_else(|| panic!("no {path}")).1.clone()
}

fn mount_at<'a>(container: &'a ContainerPlan, destination: &str) -> &'a Mount {
    let found = container.mounts.iter().find(|mount| mount.destination == destination);
    found.unwrap_or_else(|| panic!("nothing at {destination}"))
}

fn bind(source: impl Into<PathBuf>, destination: &str, readonly: bool, propagation: Propagation) -> Mount {
    let kind = MountKind::Bind { source: source.into() };
    Mount { destination: destination.into(), kind, readonly, propagation }
}

fn in_alloc(path: &str) -> PathBuf {
    task().alloc_dir.join(path)
}

#[test]
fn a_plain_task_gets_the_images_process_and_nomads_folders() {
    let plan = Case::new(json!({})).plan().unwrap();
    let container = &plan.container;
    assert_eq!(container.id.as_str(), format!("{ALLOC}.web.01234567"));
    assert_eq!(container.args, ["/entry", "serve", "-v"]);
    assert_eq!((container.cwd.as_str(), container.user.as_str()), ("/srv", "app"));
    assert_eq!(container.root.layers, image().layers);
    assert_eq!(container.root.volumes, ["/data"]);
    assert_eq!(container.hostname.as_deref(), Some("9f7b0c1e"));
    assert_eq!((plan.stop_signal, container.shm_size), (libc::SIGQUIT, 64 << 20));
    assert_eq!(container.output.stdout, PathBuf::from("/nomad/out.fifo"));
    let private = Propagation::Private;
    assert_eq!(
        container.mounts,
        [
            bind(in_alloc("alloc"), "/alloc", false, private),
            bind(in_alloc("web/local"), "/local", false, private),
            bind(in_alloc("web/secrets"), "/secrets", false, private),
            bind(in_alloc("alloc/logs"), "/alloc/logs", true, private),
        ]
    );
    assert_eq!(plan.confined.len(), 4);
    assert!(plan.create.is_empty());
}

#[test]
fn the_command_line_is_dockers() {
    for (block, expected) in [
        (json!({ "command": "run" }), "/entry run"),
        (json!({ "command": "run", "args": ["x"] }), "/entry run x"),
        (json!({ "args": ["x"] }), "/entry x"),
        (json!({ "entrypoint": ["/own"] }), "/own"),
        (json!({ "entrypoint": ["/own"], "args": ["x"] }), "/own x"),
        (json!({ "entrypoint": ["/own", "a"], "command": "run" }), "/own a run"),
        (json!({ "entrypoint": [] }), "serve -v"),
        (json!({ "entrypoint": [""], "command": "run" }), "run"),
    ] {
        assert_eq!(Case::new(block.clone()).container().args.join(" "), expected, "{block}");
    }
    for (block, cmd) in
        [(json!({ "entrypoint": [""] }), Some(vec!["x".to_owned()])), (json!({ "entrypoint": [] }), None)]
    {
        let mut case = Case::new(block);
        case.image.config.cmd = cmd;
        assert!(case.error().starts_with("command: is missing"), "{}", case.error());
    }
}

#[test]
fn the_environment_is_layered() {
    let mut case = Case::new(json!({ "tty": true, "hostname": "h" }));
    case.image.config.env =
        vec![("A".into(), "image".into()), ("B".into(), "image".into()), ("A".into(), "again".into())];
    case.task.env = BTreeMap::from([("B".into(), "task".into()), ("TERM".into(), "dumb".into())]);
    let pairs = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOSTNAME", "h"),
        ("TERM", "dumb"),
        ("A", "again"),
        ("B", "task"),
    ];
    let expected: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    assert_eq!(case.container().env, expected);

    case.image.config.env.push(("PATH".into(), "/bin".into()));
    assert_eq!(case.container().env[0].1, "/bin");
    case.task.env.insert("BAD".into(), "a\0b".into());
    assert!(case.error().starts_with("env: \"BAD\" is not a variable"));
}

#[test]
fn user_folder_and_stop_signal_have_their_order() {
    let mut case = Case::new(json!({ "work_dir": "/own/./x/.." }));
    case.task.user = "1000:100".into();
    case.image.config.stop_signal = Some("SIGNONSENSE".into());
    let plan = case.plan().unwrap();
    assert_eq!((plan.container.user.as_str(), plan.container.cwd.as_str()), ("1000:100", "/own"));
    assert_eq!(plan.stop_signal, libc::SIGTERM);
    let mut case = Case::new(json!({}));
    case.image.config.working_dir = "rel".into();
    assert_eq!(case.container().cwd, "/rel");
    case.image.config.working_dir = String::new();
    assert_eq!(case.container().cwd, "/");
}

#[test]
fn labels_become_annotations() {
    let mut case = Case::under(json!({ "extra_labels": ["job*", "node_id"] }), json!({ "labels": { "from": "task" } }));
    case.task.env.insert("NOMAD_JOB_PARENT_ID".into(), "parent".into());
    let annotations = case.container().annotations;
    let expected = [
        ("com.hashicorp.nomad.alloc_id", ALLOC),
        ("com.hashicorp.nomad.job_id", "shop"),
        ("com.hashicorp.nomad.job_name", "shop"),
        ("from", "task"),
    ];
    assert_eq!(annotations.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expected);
    case.policy.extra_labels = vec!["parent_job_id".into()];
    assert_eq!(case.container().annotations["com.hashicorp.nomad.parent_job_id"], "parent");
}

/// CVE-2024-3154, CVE-2026-53488: programs around a container act upon annotations, so an image must not set them.
#[test]
fn labels_of_images_only_describe() {
    let mut case = Case::new(json!({ "labels": { "run.oci.handler": "the job's own word" } }));
    for name in [
        "org.systemd.property.ExecStartPre",
        "run.oci.handler",
        "run.oci.hooks.stderr",
        "io.kubernetes.cri-o.userns-mode",
        "com.hashicorp.nomad.alloc_id",
        "org.opencontainers.imageX",
        "org.opencontainers.image.title",
    ] {
        case.image.config.labels.insert(name.into(), "the image's".into());
    }
    let expected = [
        ("com.hashicorp.nomad.alloc_id", ALLOC),
        ("org.opencontainers.image.title", "the image's"),
        ("run.oci.handler", "the job's own word"),
    ];
    let annotations = case.container().annotations;
    assert_eq!(annotations.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expected);
}

#[test]
fn volumes_are_bound_where_docker_binds_them() {
    let mut case = Case::new(json!({
        "volumes": ["local/a:/srv/a/", "../alloc/data:/data:ro"],
        "mount": [{ "type": "bind", "source": "secrets/x", "target": "/run/x" },
                  { "type": "tmpfs", "target": "/tmp/t", "tmpfs_options": { "size": 9 } }],
    }));
    case.task.mounts = vec![NomadMount {
        task_path: "/vol".into(),
        host_path: "/host/vol".into(),
        readonly: true,
        propagation: Propagation::HostToContainer,
        selinux_label: String::new(),
    }];
    let plan = case.plan().unwrap();
    let container = &plan.container;
    let private = Propagation::Private;
    assert_eq!(*mount_at(container, "/srv/a"), bind(in_alloc("web/local/a"), "/srv/a", false, private));
    assert_eq!(*mount_at(container, "/data"), bind(in_alloc("alloc/data"), "/data", true, private));
    assert_eq!(*mount_at(container, "/run/x"), bind(in_alloc("web/secrets/x"), "/run/x", false, private));
    assert_eq!(*mount_at(container, "/vol"), bind("/host/vol", "/vol", true, Propagation::HostToContainer));
    assert_eq!(
        mount_at(container, "/tmp/t").kind,
        MountKind::Tmpfs { size: Some(9), mode: None, uid: None, gid: None }
    );
    assert_eq!(plan.confined[4..], [in_alloc("web/local/a"), in_alloc("alloc/data"), in_alloc("web/secrets/x")]);
    assert_eq!(plan.create, [in_alloc("web/local/a"), in_alloc("alloc/data")]);
    assert!(container.root.volumes.is_empty(), "the task's mount takes the place of the image's volume");
}

#[test]
fn host_paths_need_permission() {
    for block in [
        json!({ "volumes": ["/etc:/x"] }),
        json!({ "volumes": ["../../other:/x"] }),
        json!({ "mount": [{ "type": "bind", "source": "local/../../../../etc", "target": "/x" }] }),
    ] {
        let case = Case::new(block.clone());
        assert!(case.error().contains("lies outside the allocation's folder"), "{}", case.error());
        let allowed = Case::under(json!({ "volumes": { "enabled": true } }), block);
        let plan = allowed.plan().unwrap();
        assert_eq!(plan.confined.len(), 4, "only Nomad's own folders");
        mount_at(&plan.container, "/x");
    }
    // A neighbour whose name begins like the allocation's.
    let neighbour = format!("{}-2/x:/x", task().alloc_dir.display());
    assert!(Case::new(json!({ "volumes": [neighbour] })).plan().is_err());
    let absolute = format!("{}/alloc/data:/x", task().alloc_dir.display());
    assert!(Case::new(json!({ "volumes": [absolute] })).plan().is_ok());
}

#[test]
fn the_logs_stay_read_only_by_every_way() {
    for (source, logs) in [("../alloc", "/x/logs"), ("..", "/x/alloc/logs"), ("../alloc/logs", "/x")] {
        let container = Case::new(json!({ "volumes": [format!("{source}:/x")] })).container();
        assert_eq!(
            *mount_at(&container, logs),
            bind(in_alloc("alloc/logs"), logs, true, Propagation::Private),
            "{source}"
        );
    }
    let container = Case::new(json!({ "volumes": ["../alloc/logs/old:/x"] })).container();
    assert!(mount_at(&container, "/x").readonly);
}

#[test]
fn one_destination_holds_one_mount() {
    for (target, earlier) in
        [("/local", "the task's local folder"), ("/a", "volumes[0]"), ("/alloc/logs/", "the task's logs folder")]
    {
        let case = Case::new(json!({
            "volumes": ["local/a:/a"],
            "mount": [{ "type": "tmpfs", "target": target }],
        }));
        assert!(case.error().contains(&format!("is already the destination of {earlier}")), "{}", case.error());
    }
    let mut case = Case::new(json!({}));
    case.task.mounts = vec![NomadMount {
        task_path: "/".into(),
        host_path: "/x".into(),
        readonly: false,
        propagation: Propagation::Private,
        selinux_label: String::new(),
    }];
    assert!(case.error().contains("would cover the container's root"));
}

#[test]
fn folders_move_with_nomads_variables() {
    let mut case = Case::new(json!({}));
    case.task.env.insert("NOMAD_ALLOC_DIR".into(), "/shared/".into());
    case.task.env.insert("NOMAD_TASK_DIR".into(), "relative".into());
    let container = case.container();
    assert!(mount_at(&container, "/shared/logs").readonly);
    mount_at(&container, "/local");
}

#[test]
fn devices_come_from_the_task_and_from_plugins() {
    let mut case = Case::new(
        json!({ "devices": [{ "host_path": "/dev/a" }, { "host_path": "/dev/b", "container_path": "/dev/x" }] }),
    );
    case.task.devices =
        vec![NomadDevice { task_path: "/dev/x".into(), host_path: "/dev/c".into(), permissions: "r".into() }];
    let device = |host: &str, container: &str, permissions: &str| Device {
        host_path: host.into(),
        container_path: container.into(),
        permissions: permissions.into(),
    };
    assert_eq!(case.container().devices, [device("/dev/a", "/dev/a", "rwm"), device("/dev/c", "/dev/x", "r")]);
    case.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "0".into());
    assert!(case.error().starts_with("device: NVIDIA devices are not supported"));
}

#[test]
fn files_give_way_to_the_tasks_own() {
    let container =
        Case::new(json!({ "volumes": ["local/hosts:/etc/hosts", "local/r:/etc//resolv.conf"] })).container();
    let paths: Vec<&str> = container.files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/etc/hostname"]);
}

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
        case.node.total_mhz = total;
        assert_eq!(case.container().resources.cpu_shares, expected, "{mhz} of {total}");
    }
}

#[test]
fn the_cgroup_is_nomads() {
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

#[test]
fn rights_are_few_unless_asked_for() {
    let plain = Case::new(json!({})).container().security;
    assert!(!plain.privileged && plain.no_new_privileges && plain.seccomp == Seccomp::Default);
    assert_eq!(plain.capabilities.len(), 13);
    let open =
        Case::new(json!({ "security_opt": ["no-new-privileges=false"], "cap_drop": ["all"] })).container().security;
    assert!(!open.no_new_privileges && open.capabilities.is_empty());

    let mut case = Case::under(json!({ "allow_privileged": true }), json!({ "privileged": true }));
    case.node.held_capabilities = ["CAP_CHOWN".to_owned(), "CAP_SYS_ADMIN".to_owned()].into();
    let all = case.container().security;
    assert!(all.privileged && !all.no_new_privileges && all.seccomp == Seccomp::Unconfined);
    assert_eq!(all.capabilities, ["CAP_CHOWN", "CAP_SYS_ADMIN"]);
}

#[test]
fn a_container_gets_no_more_than_the_agent_holds() {
    let mut case = Case::under(json!({ "allow_caps": ["all"] }), json!({ "cap_add": ["all"] }));
    case.node.held_capabilities = ["CAP_CHOWN".to_owned()].into();
    assert_eq!(case.container().security.capabilities, ["CAP_CHOWN"]);
    let mut case = Case::under(json!({ "allow_caps": ["all"] }), json!({ "cap_add": ["bpf"] }));
    case.node.held_capabilities.remove("CAP_BPF");
    assert!(case.error().starts_with("cap_add: the agent itself lacks CAP_BPF"));
}

#[test]
fn the_cgroup_namespace_is_the_hosts_unless_asked_for() {
    for (block, expected) in
        [(json!({}), false), (json!({ "cgroupns": "host" }), false), (json!({ "cgroupns": "private" }), true)]
    {
        assert_eq!(Case::new(block).container().namespaces.private_cgroup, expected);
    }
}

#[test]
fn output_goes_to_the_fifos_or_nowhere() {
    let output = Case::new(json!({ "logging": { "type": "none" } })).container().output;
    assert_eq!((output.stdout, output.stderr), ("/dev/null".into(), "/dev/null".into()));
    let mut case = Case::new(json!({}));
    case.task.stderr_path = PathBuf::new();
    assert_eq!(case.container().output.stderr, PathBuf::from("/dev/null"));
}

#[test]
fn all_mistakes_of_a_plan_come_at_once() {
    let mut case =
        Case::new(json!({ "ports": ["a"], "memory_hard_limit": 1, "volumes": ["/etc:/x"], "entrypoint": [""] }));
    case.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "0".into());
    let text = case.error();
    for part in ["[1] ", "[5] ", "ports: ", "memory_hard_limit: ", "volumes[0]: ", "command: ", "device: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Paths from few letters, so that they collide and nest.
fn path() -> impl Strategy<Value = String> {
    "(/?(a|b|\\.|\\.\\.)){1,4}/?"
}

proptest! {
    #[test]
    fn clean_paths_are_absolute_and_have_no_dots(path in path()) {
        let cleaned = clean(&path);
        prop_assert!(cleaned.starts_with('/'));
        prop_assert!(cleaned == "/" || !cleaned.ends_with('/'));
        prop_assert!(cleaned.split('/').skip(1).all(|part| part != "." && part != ".."));
        prop_assert_eq!(clean(&cleaned), cleaned.clone());
    }

    #[test]
    fn mounts_never_hide_earlier_ones_and_never_leave_the_allocation(
        volumes in prop::collection::vec((path(), path()), 0..6),
    ) {
        let volumes: Vec<String> = volumes.into_iter().map(|(source, target)| format!("{source}:/t/{target}")).collect();
        let policy = Policy::default();
        // Targets that climb to the root are refused when the block is read.
        let Ok(spec) = decode_task(&msgpack(&json!({ "image": "nginx", "volumes": volumes })), &policy) else { return Ok(()) };
        let case = Case { spec, task: task(), image: image(), node: node(), policy, attachment: None };
        let Ok(plan) = case.plan() else { return Ok(()) };
        let mounts = &plan.container.mounts;
        for (index, mount) in mounts.iter().enumerate() {
            let below = format!("{}/", mount.destination);
            prop_assert!(mounts[..index].iter().all(|earlier| !earlier.destination.starts_with(&below)));
            prop_assert!(mounts[..index].iter().all(|earlier| earlier.destination != mount.destination));
            let MountKind::Bind { source } = &mount.kind else { continue };
            prop_assert!(source.starts_with(&case.task.alloc_dir));
            prop_assert!(plan.confined.contains(source));
            let logs = in_alloc("alloc/logs");
            prop_assert!(!source.starts_with(&logs) || mount.readonly);
            if let Ok(rest) = logs.strip_prefix(source) {
                let logs = PathBuf::from(&mount.destination).join(rest);
                prop_assert!(mounts.iter().any(|mount| std::path::Path::new(&mount.destination) == logs && mount.readonly));
            }
        }
    }

    #[test]
    fn the_environment_has_every_name_once_and_the_last_value(
        image_env in prop::collection::vec(("[ab]{1,2}", "[a-z]{0,3}"), 0..6),
        task_env in prop::collection::btree_map("[ab]{1,2}", "[a-z]{0,3}", 0..6),
    ) {
        let mut case = Case::new(json!({}));
        case.image.config.env = image_env.clone();
        case.task.env = task_env.clone();
        let env = case.container().env;
        let map: BTreeMap<String, String> = env.iter().cloned().collect();
        prop_assert_eq!(map.len(), env.len());
        let mut expected: BTreeMap<String, String> = image_env.into_iter().collect();
        expected.extend(task_env);
        for (name, value) in expected {
            prop_assert_eq!(&map[&name], &value);
        }
    }

    #[test]
    fn the_images_command_runs_only_with_its_own_entrypoint(
        entrypoint in prop::option::of(prop::collection::vec("[e-f]", 1..3)),
        command in prop::option::of("[c-d]"),
        args in prop::collection::vec("[x-z]", 0..3),
    ) {
        let mut case = Case::new(json!({}));
        case.spec.entrypoint = entrypoint.clone();
        case.spec.command = command.clone();
        case.spec.args = args.clone();
        let line = case.container().args;
        let first = entrypoint.clone().unwrap_or_else(|| vec!["/entry".into()]);
        prop_assert_eq!(&line[..first.len()], &first[..]);
        let rest: Vec<String> = command.into_iter().chain(args).collect();
        let image_cmd = vec!["serve".to_owned(), "-v".to_owned()];
        let expected = if rest.is_empty() && entrypoint.is_none() { image_cmd } else { rest };
        prop_assert_eq!(&line[first.len()..], &expected[..]);
    }

    #[test]
    fn every_plan_survives_json(memory in 0_i64..1 << 40, mhz in any::<i64>(), percent in any::<f64>(), host in any::<String>()) {
        let mut case = Case::new(json!({ "cpu_hard_limit": true, "extra_hosts": ["a:::1"] }));
        case.task.resources.memory_mb = memory;
        case.task.resources.cpu_shares = mhz;
        case.task.resources.percent_ticks = percent;
        case.node.host_resolv_conf = host;
        let container = case.container();
        let text = serde_json::to_string(&container).unwrap();
        prop_assert_eq!(serde_json::from_str::<ContainerPlan>(&text).unwrap(), container);
    }
}

#[test]
fn roots_are_copied_only_where_they_cannot_be_mounted_or_when_the_operator_says_so() {
    let case = |rootfs: &str, problem: Option<&str>, copy_only: bool, layers: usize| {
        let mut case = Case::under(json!({ "rootfs": rootfs }), json!({}));
        case.node.overlay_problem = problem.map(str::to_owned);
        case.image.copy_only = copy_only;
        case.image.layers = (0..layers).map(|number| format!("/layers/{number}/fs").into()).collect();
        case
    };
    for (rootfs, problem, copy_only, layers, storage, slow) in [
        ("auto", None, false, 500, RootStorage::Overlay, None),
        ("overlay", None, false, 500, RootStorage::Overlay, None),
        ("copy", None, false, 501, RootStorage::Copy, Some("option rootfs")),
        ("copy", Some("data_dir is on NFS"), true, 1, RootStorage::Copy, Some("option rootfs")),
        ("auto", Some("data_dir is on NFS"), false, 501, RootStorage::Copy, Some("data_dir is on NFS")),
        ("auto", None, true, 1, RootStorage::Copy, Some("unpacked on a file system")),
    ] {
        let plan = case(rootfs, problem, copy_only, layers).plan().unwrap();
        assert_eq!(plan.container.root.storage, storage, "{rootfs} {problem:?}");
        assert_eq!(plan.slow.is_some(), slow.is_some());
        assert!(plan.slow.unwrap_or_default().contains(slow.unwrap_or_default()), "{rootfs} {problem:?}");
    }
    for (rootfs, problem, copy_only, layers, text) in [
        ("auto", None, false, 501, "image: has 501 layers, and the kernel mounts at most 500 over one another"),
        ("overlay", None, false, 501, "image: has 501 layers, and the kernel mounts at most 500 over one another"),
        ("overlay", Some("data_dir is on NFS"), false, 1, "image: cannot be mounted: data_dir is on NFS"),
        ("overlay", None, true, 1, "image: cannot be mounted: its layers were unpacked"),
    ] {
        let error = case(rootfs, problem, copy_only, layers).error();
        assert!(error.starts_with(text), "{error}");
    }
}
