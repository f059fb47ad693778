//! Whole plans, from the task block, the image, Nomad's task and the node.

mod installed_runtime;
mod isolation;
mod mounts;
mod network;
mod process;
mod properties;
mod resources;

use std::{collections::BTreeMap, path::PathBuf};

use ::cdi::ContainerEdits;
use ::network::Attachment;
use image_store::{Image, ImageConfig};
use proptest::prelude::*;
use runtime::plan::{CAPABILITIES, ContainerPlan, Device, Mount, MountKind, Propagation, RootStorage, Seccomp};
use serde_json::{Value as Json, json};

use super::{
    Compute, NodeInfo, NomadDevice, NomadMount, NomadTask, TaskContext, TaskPlan, TaskResources,
    path::normalize_container_path, permitted_cdi_names, plan_task,
};
use crate::{
    config::{Policy, TaskSpec, decode_plugin, decode_task, from_json},
    name::DriverName,
};

const ALLOC: &str = "9f7b0c1e-1111-2222-3333-444455556666";

/// The inputs of a plan. Tests change them.
struct Case {
    spec: TaskSpec,
    task: NomadTask,
    image: Image,
    mounted_images: BTreeMap<String, Image>,
    node: NodeInfo,
    policy: Policy,
    attachment: Option<Attachment>,
    edits: Option<ContainerEdits>,
}

impl Case {
    /// A task with this block, on a node whose default network is the host's.
    fn new(block: Json) -> Self {
        Self::under(json!({ "network": { "default_mode": "host" } }), block)
    }

    /// A task with this block, on a node with this plugin block.
    fn under(plugin: Json, mut block: Json) -> Self {
        let policy = decode_plugin(&from_json(&plugin), DriverName::OciRs).unwrap().policy;
        block.as_object_mut().unwrap().insert("image".into(), json!("nginx"));
        let spec = decode_task(&from_json(&block), &policy).unwrap();
        let mounted_images = spec.mounted_images().into_iter().map(|name| (name.to_owned(), image())).collect();
        Self { spec, task: task(), image: image(), mounted_images, node: node(), policy, attachment: None, edits: None }
    }

    fn plan(&self) -> Result<TaskPlan, String> {
        let Self { spec, task, image, mounted_images, node, policy, attachment, edits } = self;
        let plan = plan_task(&TaskContext {
            spec,
            task,
            image,
            mounted_images,
            node,
            policy,
            profile: None,
            edits: edits.as_ref(),
        });
        let plan = plan.and_then(|plan| match attachment {
            Some(attachment) => plan.with_attachment(attachment),
            None => Ok(plan),
        });
        plan.map_err(|errors| errors.to_string())
    }

    fn container(&self) -> ContainerPlan {
        self.plan().unwrap().container
    }

    /// The text of the only error.
    fn error(&self) -> String {
        let text = self.plan().expect_err("the plan must fail");
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
        group: None,
        config,
    }
}

fn node() -> NodeInfo {
    NodeInfo {
        driver: DriverName::OciRs,
        cgroup_v2: false,
        compute: Compute { total_mhz: 8000, cores: 4 },
        held_capabilities: CAPABILITIES.iter().map(|name| (*name).to_owned()).collect(),
        overlay_problem: None,
        state_dir: "/run/oci-rs".into(),
        host_resolv_conf: "# host\nsearch lan\nnameserver 127.0.0.1\nnameserver 10.0.0.1\noptions edns0\n".into(),
        host_name: "node-1".into(),
        hosts: "127.0.0.1\tlocalhost\n10.7.7.7\tnode-1 registry\n".into(),
        apparmor: false,
        default_apparmor: None,
        numa_nodes: vec![(0, "0-1".into()), (1, "2-3".into())],
        swap_uncounted: false,
        limits_pids: true,
        selinux: false,
        container_labels: None,
        volumes_dir: "/data/volumes".into(),
        id_pool: None,
        userns_problem: None,
        first_unprivileged_port: 1024,
        runtime: None,
        volume_options: BTreeMap::new(),
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
fn a_plain_task_gets_the_images_process_and_nomads_directories() {
    let plan = Case::new(json!({})).plan().unwrap();
    let container = &plan.container;
    assert_eq!(container.id.as_str(), format!("{ALLOC}.web.01234567"));
    assert_eq!(container.args, ["/entry", "serve", "-v"]);
    assert_eq!((container.cwd.as_str(), container.user.as_str()), ("/srv", "app"));
    assert_eq!(container.root.layers, image().layers);
    assert_eq!(container.root.volumes, ["/data"]);
    assert_eq!(container.hostname.as_deref(), Some("node-1"), "the name of the node, on its network");
    assert_eq!((plan.stop_signal, container.shm_size), (libc::SIGQUIT, 64 << 20));
    assert_eq!(container.output.stdout, PathBuf::from("/nomad/out.fifo"));
    let private = Propagation::Private;
    assert_eq!(
        container.mounts,
        [
            bind(in_alloc("alloc"), "/alloc", false, private),
            bind(in_alloc("web/local"), "/local", false, private),
            bind(in_alloc("web/secrets"), "/secrets", false, private),
            bind(in_alloc("alloc/logs/tasks"), "/alloc/logs", false, private),
            bind(in_alloc("alloc/logs"), "/alloc/logs/.nomad", true, private),
        ]
    );
    assert_eq!(plan.confined_sources.len(), 5);
    assert!(plan.created_sources.is_empty());
}

#[test]
fn output_goes_to_the_fifos_or_to_dev_null() {
    let output = Case::new(json!({ "logging": { "type": "none" } })).container().output;
    assert_eq!((output.stdout, output.stderr), ("/dev/null".into(), "/dev/null".into()));
    let mut case = Case::new(json!({}));
    case.task.stderr_path = PathBuf::new();
    assert_eq!(case.container().output.stderr, PathBuf::from("/dev/null"));
}

#[test]
fn all_errors_of_a_plan_are_reported_at_once() {
    let mut case =
        Case::new(json!({ "ports": ["a"], "memory_hard_limit": 1, "volumes": ["/etc:/x"], "entrypoint": [""] }));
    case.task.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "a/b".into());
    let text = case.error();
    for part in
        ["[1] ", "[5] ", "ports: ", "memory_hard_limit: ", "volumes[0]: ", "command: ", "NVIDIA_VISIBLE_DEVICES: "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_root_is_copied_if_it_cannot_be_mounted_or_the_operator_asks() {
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
        assert_eq!(plan.copy_reason.is_some(), slow.is_some());
        assert!(plan.copy_reason.unwrap_or_default().contains(slow.unwrap_or_default()), "{rootfs} {problem:?}");
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
