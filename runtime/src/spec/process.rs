//! The process of a container: environment, user, capabilities and resource limits.

use std::path::PathBuf;

use oci_spec::runtime::{PosixRlimit, PosixRlimitBuilder, Process, UserBuilder};

use super::{capability::capability_sets, error::SpecError, inputs::SpecInputs, rlimit::RLIMITS};
use crate::{
    capability::{CapabilityError, CapabilityMask},
    plan::{ContainerPlan, SelinuxLabels},
    user::ResolvedUser,
};

/// The plan's environment, with HOME if that is missing.
pub(crate) fn environment(plan: &ContainerPlan, user: &ResolvedUser) -> Vec<(String, String)> {
    let mut env = plan.env.clone();
    if !env.iter().any(|(name, value)| name == "HOME" && !value.is_empty()) {
        env.retain(|(name, _)| name != "HOME");
        env.push(("HOME".to_owned(), user.home.clone()));
    }
    env
}

/// The capabilities of the container's bounding set. `held` are those that this process has.
pub(crate) fn capabilities(plan: &ContainerPlan, held: CapabilityMask) -> Result<CapabilityMask, CapabilityError> {
    if plan.security.privileged {
        return Ok(held);
    }
    Ok(CapabilityMask::from_names(&plan.security.capabilities)?.and(held))
}

/// The process of the spec.
pub(super) fn process(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Process, SpecError> {
    if plan.args.is_empty() {
        return Err(SpecError::NoCommand);
    }
    let user = UserBuilder::default()
        .uid(inputs.user.uid)
        .gid(inputs.user.gid)
        .additional_gids(inputs.user.groups.clone())
        .umask(0o022u32)
        .build()?;
    let env = environment(plan, inputs.user).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let bounding = capabilities(plan, inputs.held)?;
    let mut process = Process::default();
    process
        .set_terminal(Some(plan.terminal))
        .set_user(user)
        .set_args(Some(plan.args.clone()))
        .set_env(Some(env))
        .set_cwd(PathBuf::from(&plan.cwd))
        .set_capabilities(Some(capability_sets(bounding, inputs.user.uid)?))
        .set_rlimits(Some(rlimits(plan)?))
        .set_no_new_privileges(Some(plan.security.no_new_privileges))
        .set_apparmor_profile(plan.security.apparmor.clone())
        .set_selinux_label(plan.selinux.as_ref().map(SelinuxLabels::of_processes))
        .set_oom_score_adj(Some(plan.oom_score_adj));
    Ok(process)
}

fn rlimits(plan: &ContainerPlan) -> Result<Vec<PosixRlimit>, SpecError> {
    plan.rlimits
        .iter()
        .map(|(name, limit)| {
            let (_, typ) = RLIMITS
                .into_iter()
                .find(|(known, _)| known == name)
                .ok_or_else(|| SpecError::UnknownRlimit(name.clone()))?;
            if limit.soft > limit.hard {
                return Err(SpecError::SoftAboveHard(name.clone()));
            }
            Ok(PosixRlimitBuilder::default().typ(typ).soft(limit.soft).hard(limit.hard).build()?)
        })
        .collect()
}
