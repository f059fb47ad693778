//! bpf(2), for the device programs of cgroups v2.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

const PROG_LOAD: i32 = 5;
const PROG_ATTACH: i32 = 8;
const PROG_DETACH: i32 = 9;
const PROG_GET_FD_BY_ID: i32 = 13;
const OBJ_GET_INFO_BY_FD: i32 = 15;
const PROG_QUERY: i32 = 16;

const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Programs that other processes have attached to the same cgroup stay in force.
const ALLOW_MULTI: u32 = 2;

/// The most programs of a cgroup that are inspected.
const MAX_PROGRAMS: usize = 64;

#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct AttachAttributes {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct QueryAttributes {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Default)]
struct IdAttributes {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttributes {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first fields of `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    before: [u64; 8],
    name: [u8; 16],
}

fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: each caller passes the structure of its command, with its size. The memory behind its pointers outlives
    // the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just created the descriptor (close-on-exec) for this caller, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn name_bytes(name: &CStr) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.to_bytes().iter().take(15)) {
        *to = *from;
    }
    bytes
}

/// Loads a program that decides whether a device may be used.
pub(crate) fn load_device_program(instructions: &[u64], name: &CStr) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut attributes = LoadAttributes {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name: name_bytes(name),
        ..LoadAttributes::default()
    };
    bpf(PROG_LOAD, &mut attributes).map(owned)
}

/// Attaches a loaded program to a cgroup.
pub(crate) fn attach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = AttachAttributes {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: program.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: ALLOW_MULTI,
    };
    bpf(PROG_ATTACH, &mut attributes).map(drop)
}

/// Detaches the programs of this name from a cgroup.
pub(crate) fn detach_device_programs(cgroup: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let mut ids = [0u32; MAX_PROGRAMS];
    let mut query = QueryAttributes {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: MAX_PROGRAMS as u32,
        ..QueryAttributes::default()
    };
    bpf(PROG_QUERY, &mut query)?;
    for id in &ids[..(query.prog_cnt as usize).min(MAX_PROGRAMS)] {
        let program = match bpf(PROG_GET_FD_BY_ID, &mut IdAttributes { id: *id, ..IdAttributes::default() }) {
            Ok(fd) => owned(fd),
            // It was detached and freed after the query.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut info = ProgramInfo::default();
        let mut attributes = InfoAttributes {
            bpf_fd: program.as_raw_fd() as u32,
            info_len: size_of::<ProgramInfo>() as u32,
            info: &raw mut info as u64,
        };
        bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
        if info.name == name_bytes(name) {
            let mut attributes = AttachAttributes {
                target_fd: cgroup.as_raw_fd() as u32,
                attach_bpf_fd: program.as_raw_fd() as u32,
                attach_type: ATTACH_CGROUP_DEVICE,
                ..AttachAttributes::default()
            };
            bpf(PROG_DETACH, &mut attributes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct bpf_prog_info`: type, id, tag (8), jited_prog_len, xlated_prog_len, two pointers, load_time,
    /// created_by_uid, nr_map_ids, map_ids, name.
    #[test]
    fn the_name_is_where_the_kernel_writes_it() {
        assert_eq!(std::mem::offset_of!(ProgramInfo, name), 4 + 4 + 8 + 4 + 4 + 8 + 8 + 8 + 4 + 4 + 8);
        assert_eq!(std::mem::offset_of!(LoadAttributes, prog_name), 48);
    }
}
