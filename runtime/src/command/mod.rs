//! The command of a container: from its plan to execve(2).
//!
//! [`ConfinedCommand`] is a command with every restriction under which it is executed. [`confined_command`] derives it
//! from a plan. The container's first process and the processes of exec both end with it, so both get the same
//! restrictions. [`apply_oom_score`], [`apply_apparmor`] and [`apply_selinux`] change the calling process; its forks
//! and their commands inherit the change.

mod confined;
mod inherited;
mod init;
mod lookup;
mod of_plan;
mod propagation;

pub(crate) use confined::{ConfinedCommand, raise_hard_limits};
pub(crate) use inherited::{OwnLabels, apply_apparmor, apply_oom_score, apply_selinux, label_keys};
#[cfg(feature = "bundle")]
pub(crate) use of_plan::rlimit_resource;
pub(crate) use of_plan::{
    compiled_filter, confined_command, held_capabilities, kernel_version, stacks_attached_mounts_only,
};
