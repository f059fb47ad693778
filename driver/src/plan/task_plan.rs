//! The plan of a task.
//!
//! A plan is made once. If the task gets its own network, the plan is completed with
//! [`TaskPlan::with_attachment`] when the network exists, because only then the container's addresses are known.

use std::{fmt, net::IpAddr, path::PathBuf};

use ::network::{Attachment, LendRequest};
use runtime::plan::{BindConfinement, ContainerPlan, InstalledRuntime, RootFs};

use super::{
    cdi::{self, CdiPlan},
    context::TaskContext,
    delivery, devices,
    etc_files::EtcFiles,
    identity::container_id,
    installed_runtime, labels,
    mounts::{self, MountPlan, MountedVolume},
    network::{self, OwnNetwork},
    notes, ports, process, resources,
    root::{self, RootDecision},
    security, selinux,
    user_namespace::{self, UserNamespaceDecision},
    warnings,
};
use crate::{
    config::{ConfigError, ErrorCollector, IpcMode},
    events::Content,
    log_directory,
};

/// Docker's default size of /dev/shm, in bytes.
const DEFAULT_SHM_SIZE: u64 = 64 << 20;

/// A container, and the steps before its start.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    /// The container.
    pub container: ContainerPlan,
    /// The signal that stops the command if the job names none.
    pub stop_signal: i32,
    /// Why the image is copied, which makes the start slow. `None` if it is mounted.
    pub copy_reason: Option<String>,
    /// Why the container gets no user namespace of its own, although the operator wants that.
    pub userns_obstacle: Option<String>,
    /// Why the container will not be able to resolve names, if so.
    pub dns_warning: Option<Content>,
    /// Requests of the job that the node cannot fulfil. The task starts nevertheless, as with docker.
    pub warnings: Vec<Content>,
    /// The allocation directory.
    pub alloc_dir: PathBuf,
    /// Sources of binds that must lie in `alloc_dir` after all links are resolved.
    pub confined_sources: Vec<PathBuf>,
    /// Sources of binds that are made as directories if they are missing.
    pub created_sources: Vec<PathBuf>,
    /// Volumes with options, which must be mounted before the container is made.
    pub mounted_volumes: Vec<MountedVolume>,
    /// The task's own network, which must exist before the container is made.
    pub own_network: Option<OwnNetwork>,
    /// The network namespace of the group, if the container joins it.
    pub group_namespace: Option<PathBuf>,
    /// Interfaces of the node that move to the container's network before the container is made.
    pub lend: Option<LendRequest>,
    /// Sources of the files in /etc.
    pub(super) etc_files: EtcFiles,
}

/// Why a task cannot run on this node; at least one reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PlanErrors(pub Vec<ConfigError>);

impl fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task cannot run here: ")?;
        for (index, error) in self.0.iter().enumerate() {
            if self.0.len() > 1 {
                write!(f, "{}[{}] ", if index > 0 { " " } else { "" }, index + 1)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// Decides which container a task becomes.
///
/// A plan with an `own_network` is complete only after [`TaskPlan::with_attachment`].
pub fn plan_task(context: &TaskContext) -> Result<TaskPlan, PlanErrors> {
    let errors = ErrorCollector::default();
    let plan = decide(context, &errors);
    refuse(errors, plan)
}

impl TaskPlan {
    /// Completes the plan of a task in the network of its group, whose address Nomad does not always say.
    #[must_use]
    pub fn with_group_address(mut self, address: Option<IpAddr>) -> Self {
        if let Some(address) = address
            && self.etc_files.learn_address(address)
        {
            // The same files were rendered before, so this finds no error.
            self.container.files = self.etc_files.render(None, &ErrorCollector::default());
            self.container.shared_names = self.etc_files.shared_names(None);
        }
        self
    }

    /// Completes the plan of a task with its own network: host names and name servers follow from the attachment.
    ///
    /// Fails if the task asks for an address that the network does not have.
    pub fn with_attachment(mut self, attachment: &Attachment) -> Result<Self, PlanErrors> {
        let errors = ErrorCollector::default();
        self.container.files = self.etc_files.render(Some(attachment), &errors);
        self.container.shared_names = self.etc_files.shared_names(Some(attachment));
        refuse(errors, self)
    }
}

fn refuse(errors: ErrorCollector, plan: TaskPlan) -> Result<TaskPlan, PlanErrors> {
    let errors = errors.into_inner();
    if errors.is_empty() { Ok(plan) } else { Err(PlanErrors(errors)) }
}

fn decide(context: &TaskContext, errors: &ErrorCollector) -> TaskPlan {
    let own_network = network::own_network(context, errors);
    let cdi = context.edits.map(|edits| cdi::decide(edits, errors)).unwrap_or_default();
    let mounts = mounts::decide(context, &cdi.mounts, errors);
    let lend = network::lend(context, own_network.as_ref(), &cdi.interfaces, errors);
    let namespace = network::namespace(context, own_network.as_ref(), lend.as_ref());
    network::check_aliases(context, &namespace, errors);
    let etc_files = EtcFiles::new(context, &namespace, own_network.is_some(), &mounts.mounts);
    let dns_warning = network::dns_warning(own_network.as_ref(), &etc_files);
    let root = root::decide(context, errors);
    let runtime = installed_runtime::decide(context, &mounts, errors);
    let copy_reason = root.copy_reason.clone();
    let (size, unlimited) = root::size(context, &root, errors);
    let (confined_sources, created_sources) = (mounts.confined.clone(), mounts.create.clone());
    let mounted_volumes = mounts.mounted.clone();
    let of_mounts = mounts.warnings.clone();
    let group_namespace = network::group_namespace(context, &namespace);
    let userns = user_namespace::decide(context, &namespace, errors);
    let userns_obstacle = userns.obstacle.clone();
    if runtime.is_some() {
        cdi::refuse_with_installed_runtime(&cdi, errors);
    }
    let parts = Parts {
        own_network: own_network.as_ref(),
        namespace,
        userns,
        etc_files: &etc_files,
        root,
        size,
        mounts,
        runtime,
        cdi,
    };
    let container = container(context, parts, errors);
    TaskPlan {
        warnings: warnings::warnings(context, &container).into_iter().chain(of_mounts).chain(unlimited).collect(),
        container,
        copy_reason,
        userns_obstacle,
        dns_warning,
        stop_signal: process::stop_signal(&context.image.config),
        alloc_dir: context.task.alloc_dir.clone(),
        confined_sources,
        created_sources,
        mounted_volumes,
        own_network,
        group_namespace,
        lend,
        etc_files,
    }
}

/// Decisions that several fields of a container depend on.
struct Parts<'a> {
    own_network: Option<&'a OwnNetwork>,
    namespace: runtime::plan::Network,
    userns: UserNamespaceDecision,
    etc_files: &'a EtcFiles,
    root: RootDecision,
    size: Option<u64>,
    mounts: MountPlan,
    runtime: Option<InstalledRuntime>,
    cdi: CdiPlan,
}

fn container(context: &TaskContext, parts: Parts, errors: &ErrorCollector) -> ContainerPlan {
    let TaskContext { spec, task, image, node, .. } = *context;
    let Parts { own_network, namespace, userns, etc_files, root, size, mounts, runtime, cdi } = parts;
    let hostname = etc_files.hostname();
    let port_env = ports::env(spec);
    let mut plan = ContainerPlan {
        id: container_id(&task.id, node.driver),
        args: process::args(spec, &image.config, errors),
        env: process::env(context, hostname, &port_env, &cdi.env, errors),
        cwd: process::cwd(spec, &image.config),
        user: if task.user.is_empty() { image.config.user.clone() } else { task.user.clone() },
        groups: spec.group_add.iter().cloned().chain(cdi.groups.iter().cloned()).collect(),
        terminal: spec.tty,
        open_stdin: spec.interactive,
        init: spec.init,
        root: RootFs {
            layers: image.layers.clone(),
            storage: root.storage,
            readonly: spec.readonly_rootfs,
            volumes: mounts::anonymous_volumes(&image.config, &mounts.anonymous, &mounts.mounts),
            empty_volumes: mounts::empty_volumes(&mounts.anonymous),
            size,
        },
        files: etc_files.render(None, errors),
        shared_names: etc_files.shared_names(None),
        stop_signal: Some(process::stop_signal(&context.image.config)),
        devices: devices::decide(context, errors),
        mount_restrictions: cdi::restrictions(&cdi),
        described_devices: cdi.devices,
        hooks: cdi.hooks,
        cache_class: cdi.cache_class,
        sysctl: network::sysctl(context, security::sysctl(spec, &namespace, errors), &namespace),
        namespaces: security::namespaces(spec, namespace),
        user_namespace: userns.namespace,
        security: security::decide(context, errors),
        selinux: selinux::decide(context, mounts.relabelled, errors),
        rlimits: spec.rlimits.clone(),
        shm_size: if spec.namespaces.ipc == IpcMode::None { 0 } else { spec.shm_size.unwrap_or(DEFAULT_SHM_SIZE) },
        oom_score_adj: spec.oom_score_adj,
        resources: resources::limits(context, errors),
        cgroup: resources::cgroup(task, node, errors),
        output: process::output(spec, task),
        runtime,
        delivery: None,
        annotations: labels::labels(context),
        notes: notes::notes(context, own_network.is_some()),
        owner: Some(task.node_id.clone()).filter(|node| !node.is_empty()),
        confined: Some(BindConfinement {
            directory: task.alloc_dir.clone(),
            restricted: context.policy.alloc_nosuid && !context.spec.privileged,
            sources: mounts.confined,
            no_links_to: Some(log_directory::of_nomad(&task.alloc_dir)),
            // Nomad mounts `alloc` again in the directories of tasks whose drivers use a chroot.
            propagated: vec![task.alloc_dir.join("alloc"), task.alloc_dir.join(&task.name)],
        }),
        mounts: mounts.mounts,
        volumes: mounts.volumes,
        hostname: (!spec.namespaces.host_uts).then(|| hostname.to_owned()),
    };
    plan.delivery = delivery::decide(context, &plan, errors);
    plan
}
