//! From a plan to a [`ConfinedCommand`].

use std::os::fd::RawFd;

use rustix::{
    process::{Resource, Rlimit, getrlimit},
    thread::{CapabilitySet, capability_is_in_bounding_set},
};

use super::{confined::ConfinedCommand, inherited::OwnLabels};
use crate::{
    capability::CapabilityMask,
    error::StartError,
    plan::{ContainerPlan, Network, Seccomp},
    spec::{self, SpecError},
    user::ResolvedUser,
};

/// The capabilities that this process has in its bounding set.
pub(crate) fn held_capabilities() -> CapabilityMask {
    let held = |bit: u32| capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << bit)).ok();
    // The kernel's capabilities have consecutive numbers: the first unknown one is the end.
    let known = (0..64).map_while(|bit| held(bit).map(|held| (bit, held)));
    CapabilityMask(known.filter(|(_, held)| *held).fold(0, |mask, (bit, _)| mask | 1 << bit))
}

/// The command of a plan with its restrictions. `held` are the capabilities that this process has; `filter` is the
/// plan's [`compiled_filter`]; `report` is the descriptor for a failure.
pub(crate) fn confined_command(
    plan: &ContainerPlan,
    user: &ResolvedUser,
    held: CapabilityMask,
    filter: Option<Vec<u8>>,
    report: RawFd,
) -> Result<ConfinedCommand, StartError> {
    let bounding = spec::capabilities(plan, held).map_err(SpecError::from)?;
    Ok(ConfinedCommand {
        args: plan.args.clone(),
        env: spec::environment(plan, user),
        uid: user.uid,
        terminal: plan.terminal,
        trees: Vec::new(),
        peers: Vec::new(),
        start_hooks: None,
        loopback: plan.namespaces.network == Network::Private,
        init: plan.init,
        init_profile: plan.security.apparmor.clone(),
        own_labels: OwnLabels::default(),
        ends_with_monitor: false,
        rlimits: rlimits(plan, held)?,
        no_new_privileges: plan.security.no_new_privileges,
        filter,
        bounding,
        explicit: None,
        report,
        build_root: None,
    })
}

/// The compiled system call filter of a plan, for a process that has the capabilities `held`.
pub(crate) fn compiled_filter(plan: &ContainerPlan, held: CapabilityMask) -> Result<Option<Vec<u8>>, StartError> {
    let bounding = spec::capabilities(plan, held).map_err(SpecError::from)?;
    let names: Vec<String> = bounding.names().map(str::to_owned).collect();
    let program = match &plan.security.seccomp {
        Seccomp::Unconfined => return Ok(None),
        Seccomp::Default if plan.security.privileged => return Ok(None),
        Seccomp::Default => seccomp::default_program(&names),
        Seccomp::Profile(profile) => seccomp::custom_program(profile, &names, kernel_version()),
    };
    program.map(Some).map_err(|error| StartError::invalid(error.to_string()))
}

/// The first two numbers of the kernel's version.
pub(crate) fn kernel_version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether overlayfs refuses detached mounts as layers. Linux 6.15 takes them.
pub(crate) fn stacks_attached_mounts_only() -> bool {
    kernel_version() < (6, 15)
}

/// The limits to set. A hard limit that this process cannot set is an error.
fn rlimits(plan: &ContainerPlan, held: CapabilityMask) -> Result<Vec<(String, Resource, Rlimit)>, StartError> {
    let may_raise = CapabilityMask::from_names(&["CAP_SYS_RESOURCE"]).is_ok_and(|needed| held.and(needed) == needed);
    plan.rlimits
        .iter()
        .filter_map(|(name, limit)| Some((name, limit, rlimit_resource(name)?)))
        .map(|(name, limit, resource)| {
            let finite = |value: u64| (value != u64::MAX).then_some(value);
            let own = getrlimit(resource).maximum;
            let raises = own.is_some_and(|own| limit.hard > own);
            if raises && !may_raise {
                return Err(StartError::invalid(format!(
                    "ulimit {name}: the hard limit {} is above the driver's own {}, and raising it needs \
                     CAP_SYS_RESOURCE; ask for less, or raise the limit of the Nomad agent",
                    limit.hard,
                    own.unwrap_or(u64::MAX),
                )));
            }
            Ok((name.clone(), resource, Rlimit { current: finite(limit.soft), maximum: finite(limit.hard) }))
        })
        .collect()
}

/// The limit of this name, in lower case without `RLIMIT_`.
pub(crate) fn rlimit_resource(name: &str) -> Option<Resource> {
    Some(match name {
        "as" => Resource::As,
        "core" => Resource::Core,
        "cpu" => Resource::Cpu,
        "data" => Resource::Data,
        "fsize" => Resource::Fsize,
        "locks" => Resource::Locks,
        "memlock" => Resource::Memlock,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "nofile" => Resource::Nofile,
        "nproc" => Resource::Nproc,
        "rss" => Resource::Rss,
        "rtprio" => Resource::Rtprio,
        "rttime" => Resource::Rttime,
        "sigpending" => Resource::Sigpending,
        "stack" => Resource::Stack,
        _ => return None,
    })
}
