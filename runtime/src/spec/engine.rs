//! The spec that libcontainer gets.

use std::collections::HashMap;

use oci_spec::runtime::{Mount, Spec};

use super::{
    cgroup_view::{CGROUP_DIR, CgroupView},
    prepared_sources::PreparedSources,
};
use crate::{cgroup::Version, plan::IDS_PER_CONTAINER};

/// The parts of a spec that libcontainer cannot make in a user namespace.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct LeftParts {
    /// The spec had a sysfs on /sys.
    pub sysfs: bool,
    /// Kernel parameters of the network.
    pub network_parameters: HashMap<String, String>,
}

/// Changes a complete spec for libcontainer.
///
/// * The last steps before the command are ours: see [`leave_last_steps`].
/// * Prepared mount sources replace those of the plan.
/// * File systems that are made for the container get its SELinux label one by one. libcontainer would also give it to
///   those that exist already (message queues, control groups), and the kernel refuses that.
/// * All mounts are private. Another propagation is ours to set, after all mounts were made (`rootfs::BindSources`).
/// * On version 1 the limits are ours to set ([`MembershipGuard`](crate::cgroup::MembershipGuard)). The view of the
///   cgroups is ours to make if there is one.
pub(crate) fn for_engine(
    mut spec: Spec,
    home: &str,
    sources: &PreparedSources,
    version: Version,
    view: Option<&CgroupView<'_>>,
) -> Spec {
    leave_last_steps(&mut spec, home);
    let label = spec.linux().as_ref().and_then(|linux| linux.mount_label().clone());
    if let Some(linux) = spec.linux_mut() {
        linux.set_mount_label(None);
        if version == Version::V1 {
            linux.set_resources(None);
        }
        linux.set_rootfs_propagation(Some("private".to_owned()));
        if let (Some(_), Some(paths)) = (view, linux.readonly_paths_mut()) {
            paths.retain(|path| path != CGROUP_DIR);
        }
    }
    if let Some(list) = spec.mounts_mut() {
        sources.replace(list);
        if let Some(label) = label {
            let made = |mount: &&mut Mount| matches!(mount.typ().as_deref(), Some("tmpfs" | "devpts"));
            for options in list.iter_mut().filter(made).filter_map(|mount| mount.options_mut().as_mut()) {
                options.push(format!("context={label}"));
            }
        }
        for option in list.iter_mut().filter_map(|mount| mount.options_mut().as_mut()).flatten() {
            if ["rslave", "rshared"].contains(&option.as_str()) {
                "rprivate".clone_into(option);
            }
        }
        list.retain(|mount| view.is_none() || !mount.destination().starts_with(CGROUP_DIR));
    }
    spec
}

/// The parameter with the first and the last group that may ping.
const PING_GROUPS: &str = "net.ipv4.ping_group_range";

/// A range of groups without those that a container's user namespace does not have. The kernel refuses them there.
fn groups_of_the_container(range: &str) -> String {
    let known =
        |group: &str| group.parse().map_or(group.to_owned(), |id: u32| id.min(IDS_PER_CONTAINER - 1).to_string());
    range.split_whitespace().map(known).collect::<Vec<_>>().join(" ")
}

/// Takes out of the spec of a container with a user namespace of its own what its processes may not make: device nodes,
/// and, if the network belongs to the node, the sysfs and the network's kernel parameters.
pub(crate) fn leave_nodes_sysfs_and_network(spec: &mut Spec, own_network: bool) -> LeftParts {
    let mut left = LeftParts::default();
    if let Some(linux) = spec.linux_mut() {
        linux.set_devices(None);
        match linux.sysctl_mut().as_mut() {
            Some(parameters) if own_network => {
                if let Some(groups) = parameters.get_mut(PING_GROUPS) {
                    *groups = groups_of_the_container(groups);
                }
            }
            Some(parameters) => {
                left.network_parameters = parameters.extract_if(|name, _| name.starts_with("net.")).collect();
            }
            None => {}
        }
    }
    if let Some(mounts) = spec.mounts_mut().as_mut().filter(|_| !own_network) {
        let count = mounts.len();
        mounts.retain(|mount| mount.typ().as_deref() != Some("sysfs"));
        left.sysfs = mounts.len() < count;
    }
    left
}

/// Takes the last steps before the command out of a spec. They are ours
/// ([`ConfinedCommand`](crate::command::ConfinedCommand)), because their order matters: libcontainer gets none of them.
pub(crate) fn leave_last_steps(spec: &mut Spec, home: &str) {
    if let Some(process) = spec.process_mut() {
        let no_new_privileges = process.no_new_privileges().filter(|wanted| *wanted);
        process
            .set_env(Some(vec![format!("HOME={home}")]))
            .set_capabilities(None)
            .set_rlimits(None)
            .set_oom_score_adj(None)
            .set_apparmor_profile(None)
            .set_selinux_label(None)
            .set_no_new_privileges(no_new_privileges);
    }
    if let Some(linux) = spec.linux_mut() {
        linux.set_seccomp(None);
    }
}
