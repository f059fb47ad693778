//! The module of the crate that may use `unsafe`: what no library offers safely.
#![allow(unsafe_code)]

mod bpf;
mod clone;
mod mount;
mod net;
mod pidfd;
mod process;
mod seccomp;

pub(crate) use bpf::{attach_device_program, detach_device_programs, load_device_program};
pub(crate) use clone::fork_sibling;
pub(crate) use mount::{
    PropagationType, make_private, make_readonly, restrict_mount, set_propagation, without_restrictions,
};
pub(crate) use net::loopback_up;
pub(crate) use pidfd::reaped_status;
pub(crate) use process::{
    EndedChild, Fork, block_signals, close_all_fds, close_fds_from, default_signals, execve, exit_now, file_of, fork,
    ignore_signal, join_new_session_keyring, leave_descriptors, peek_ended_child, realtime_signal, unshare_mounts,
    wait_for_any_signal,
};
pub(crate) use seccomp::install_filter;
