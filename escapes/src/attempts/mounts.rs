//! Mounts: new ones, changed ones, and other roots.

use std::{fs, os::fd::AsRawFd};

use super::tools::{PLACE, block, c, disk, given, nodes_file_below};
use crate::{
    attempt::{Attempt, Refusal, Tried},
    sys::call,
};

/// listmount(2), which libc does not have for musl.
const LISTMOUNT: i64 = 458;

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("mount a tmpfs", || file_system(c"tmpfs", c"")),
    Attempt::new("mount a proc", || file_system(c"proc", c"")),
    Attempt::new("mount a sysfs", || file_system(c"sysfs", c"")),
    Attempt::new("mount a devtmpfs with the node's devices", || file_system(c"devtmpfs", c"")),
    Attempt::new("mount a devpts", || file_system(c"devpts", c"newinstance")),
    Attempt::new("mount a hierarchy of cgroups v1", || file_system(c"cgroup", c"memory")),
    Attempt::new("mount cgroups v2", || file_system(c"cgroup2", c"")),
    Attempt::new("mount debugfs", || file_system(c"debugfs", c"")),
    Attempt::new("mount tracefs", || file_system(c"tracefs", c"")),
    Attempt::new("mount securityfs", || file_system(c"securityfs", c"")),
    Attempt::new("mount bpffs", || file_system(c"bpf", c"")),
    Attempt::new("mount binfmt_misc", || file_system(c"binfmt_misc", c"")),
    Attempt::new("mount an mqueue", || file_system(c"mqueue", c"")),
    Attempt::new("mount an overlay", || {
        for name in ["upper", "work"] {
            fs::create_dir_all(format!("/tmp/overlay/{name}"))?;
        }
        file_system(c"overlay", c"lowerdir=/etc,upperdir=/tmp/overlay/upper,workdir=/tmp/overlay/work")
    }),
    Attempt::new("mount the node's disk", || {
        let (major, minor) = disk();
        let path = c("/tmp/disk");
        call!(libc::SYS_mknodat, libc::AT_FDCWD, &*path, libc::S_IFBLK | 0o600, libc::makedev(major, minor))?;
        let mounted = call!(libc::SYS_mount, &*path, PLACE, c"ext4", libc::MS_RDONLY, 0);
        fs::remove_file("/tmp/disk")?;
        mounted
    }),
    Attempt::new("read the node's disk", || {
        let (major, minor) = disk();
        block(major, minor)
    }),
    Attempt::new("bind the root directory", || bind(c"/")),
    Attempt::new("bind the root of process 1", || bind(c"/proc/1/root")),
    Attempt::new("bind /proc over itself without its covers", || bind(c"/proc")),
    Attempt::new("make the root writable again", || change(c"/", libc::MS_REMOUNT | libc::MS_BIND)),
    Attempt::new("make /proc/sys writable", || change(c"/proc/sys", libc::MS_REMOUNT | libc::MS_BIND)),
    Attempt::new("make /sys writable", || change(c"/sys", libc::MS_REMOUNT | libc::MS_BIND)),
    Attempt::new("make /sys/fs/cgroup writable", || change(c"/sys/fs/cgroup", libc::MS_REMOUNT | libc::MS_BIND)),
    Attempt::new("allow set-user-id programs in /alloc again", || change(c"/alloc", libc::MS_REMOUNT | libc::MS_BIND)),
    Attempt::new("share mounts with the node", || change(c"/", libc::MS_SHARED | libc::MS_REC)),
    Attempt::new("receive mounts of the node", || change(c"/", libc::MS_SLAVE | libc::MS_REC)),
    Attempt::new("uncover /proc/sys", || uncover(c"/proc/sys")),
    Attempt::new("uncover /proc/kcore", || uncover(c"/proc/kcore")),
    Attempt::new("uncover /proc/sysrq-trigger", || uncover(c"/proc/sysrq-trigger")),
    Attempt::new("uncover /sys/firmware", || uncover(c"/sys/firmware")),
    Attempt::new("unmount the root", || uncover(c"/")),
    Attempt::new("move /sys", || call!(libc::SYS_mount, c"/sys", PLACE, 0, libc::MS_MOVE, 0)),
    Attempt::new("open a new file system (fsopen)", || call!(libc::SYS_fsopen, c"tmpfs", 0)),
    Attempt::new("open a new proc (fsopen)", || call!(libc::SYS_fsopen, c"proc", 0)),
    Attempt::new("open the root for changes (fspick)", || call!(libc::SYS_fspick, libc::AT_FDCWD, c"/", 0)),
    Attempt::new("copy the root's mounts (open_tree)", || {
        call!(libc::SYS_open_tree, libc::AT_FDCWD, c"/", 1 | libc::O_CLOEXEC | libc::AT_RECURSIVE)
    }),
    Attempt::new("attach a directory elsewhere (move_mount)", || {
        let place = fs::File::open("/tmp")?;
        call!(libc::SYS_move_mount, place.as_raw_fd(), c"", libc::AT_FDCWD, PLACE, 4)
    }),
    Attempt::new("make every mount writable (mount_setattr)", || {
        let attributes: [u64; 4] = [0, 1, 0, 0];
        call!(libc::SYS_mount_setattr, libc::AT_FDCWD, c"/", libc::AT_RECURSIVE, &words(attributes), 32)
    }),
    Attempt::new("map the ids of a mount (mount_setattr)", || {
        let user = fs::File::open("/proc/self/ns/user")?;
        let attributes = [0x0010_0000, 0, 0, user.as_raw_fd() as u64];
        call!(libc::SYS_mount_setattr, libc::AT_FDCWD, c"/", 0, &words(attributes), 32)
    }),
    Attempt::new("reach the node's files below the root (umount, setns)", || {
        let own = fs::File::open("/proc/self/ns/mnt")?;
        uncover(c"/")?;
        call!(libc::SYS_setns, own.as_raw_fd(), libc::CLONE_NEWNS)?;
        nodes_file_below("")
    }),
    Attempt::new("exchange the root (pivot_root)", || call!(libc::SYS_pivot_root, PLACE, PLACE)),
    Attempt::new("leave the root by chroot and an open directory", || {
        let outside = fs::File::open("/")?;
        call!(libc::SYS_chroot, PLACE)?;
        call!(libc::SYS_fchdir, outside.as_raw_fd())?;
        nodes_file_below(&"../".repeat(40))
    }),
    Attempt::new("reach the node's files by chroot to /proc/1/root", || {
        call!(libc::SYS_chroot, c"/proc/1/root")?;
        nodes_file_below("")
    }),
    Attempt::new("find mounts of the node (listmount)", || {
        // The size of the request, and LSMT_ROOT: the root of the own namespace.
        let request = words([24, u64::MAX, 0]);
        let ids = [0_u8; 64 * 8];
        call!(LISTMOUNT, &request, &ids, 64, 0)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let directory = given("ESCAPE_FILE");
        let directory = directory.rsplit_once('/').map_or("", |(directory, _)| directory);
        let seen = mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| point.starts_with(directory)));
        if seen { Ok(0) } else { Err(Refusal::Nothing("none of the node")) }
    }),
];

fn file_system(kind: &std::ffi::CStr, options: &std::ffi::CStr) -> Tried {
    call!(libc::SYS_mount, c"none", PLACE, kind, 0, options)
}

fn bind(source: &std::ffi::CStr) -> Tried {
    call!(libc::SYS_mount, source, PLACE, 0, libc::MS_BIND, 0)
}

fn change(place: &std::ffi::CStr, flags: u64) -> Tried {
    call!(libc::SYS_mount, c"none", place, 0, flags, 0)
}

fn uncover(place: &std::ffi::CStr) -> Tried {
    call!(libc::SYS_umount2, place, libc::MNT_DETACH)
}

/// The bytes of a structure of four numbers.
fn words<const N: usize>(numbers: [u64; N]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}
