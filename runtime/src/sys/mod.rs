//! System calls that no library offers safely. This is the only module of the crate with unsafe code.
//!
//! System calls that other crates need too are in `host::sys`.
#![allow(unsafe_code)]

mod bpf;
mod descriptor;
mod device_mapper;
mod grow;
mod huge_pages;
mod loop_device;
mod mount;
mod pidfd;
mod process;
mod quota;
mod read_signal;
mod signal;
mod user_namespace;

pub(crate) use bpf::{attach_device_program, detach_device_programs, load_device_program};
pub(crate) use descriptor::{file_of, leave_descriptors};
pub(crate) use device_mapper::remove_mapping;
pub(crate) use grow::{grow_ext4, grow_xfs};
pub(crate) use host::sys::{close_descriptors, ignore_signal, loopback_up};
pub(crate) use huge_pages::{HUGE_PAGE, gather_in_huge_pages};
pub(crate) use loop_device::{attach_loop_device, follow_file_size, loop_device_of};
pub(crate) use mount::{
    PropagationType, kernel_joins_groups, make_private, make_readonly, map_ids, restrict_mount, set_propagation,
    unrestrict_mount,
};
pub(crate) use pidfd::reaped_status;
pub(crate) use process::{
    EndedChild, Fork, end_with_parent, execve, exit_now, fork, fork_sibling, join_new_session_keyring,
    peek_ended_child, rejoin_own_pids, replace_command_line, unshare_children_pids, unshare_mounts,
};
pub use quota::ProjectUsage;
pub(crate) use quota::{enforces_projects, project_of, project_usage, set_project, set_project_limits};
pub(crate) use read_signal::{announce_no_reads, announce_reads, take_signal};
pub(crate) use signal::{block_signals, default_signals, realtime_signal, wait_for_any_signal};
pub(crate) use user_namespace::{
    fork_sibling_in_user_namespace, set_file_ids, try_proc_in_user_namespace, with_user_namespace,
};
