//! Files: links out of the allocation, set-user-id programs, the logs of Nomad.

use std::{
    fs,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, PermissionsExt, symlink},
    },
    path::PathBuf,
};

use super::tools::{any, as_user, c, each, given, is_the_nodes, nodes_file_below, writable};
use crate::{
    attempt::{Attempt, Refusal, Tried},
    sys::call,
};

const SET_ONLY: &str = "as with docker; other users of the node must not reach Nomad's directories";

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("read the node's files by their path", || nodes_file_below("")),
    Attempt::new("read the node's files by .. from /alloc", || {
        nodes_file_below(&format!("/alloc/{}", "../".repeat(30)))
    }),
    Attempt::new("read the node's files by .. from /secrets", || {
        nodes_file_below(&format!("/secrets/{}", "../".repeat(30)))
    }),
    Attempt::new("read the node's files by a link in /alloc", || {
        let link = "/alloc/link-to-the-node";
        symlink(given("ESCAPE_FILE"), link)?;
        let read = is_the_nodes(link);
        fs::remove_file(link)?;
        read
    }),
    Attempt::new("read other allocations by .. of the directory of /local", || {
        let above = fs::File::open("/local")?;
        let mut below = call!(libc::SYS_openat, above.as_raw_fd(), c"..", libc::O_PATH)?;
        for _ in 0..4 {
            below = call!(libc::SYS_openat, below, c"..", libc::O_PATH)?;
        }
        nodes_file_below(&format!("/proc/self/fd/{below}"))
    }),
    Attempt::new("read the agent's directory", || -> Tried {
        fs::read_dir(given("ESCAPE_AGENT"))?;
        Ok(0)
    }),
    Attempt::new("link a file of /alloc into the container", || {
        fs::write("/alloc/to-link", "x")?;
        let linked = fs::hard_link("/alloc/to-link", "/tmp/linked");
        fs::remove_file("/alloc/to-link")?;
        Ok(linked.map(|()| 0)?)
    }),
    Attempt::new("link a secret into /alloc", || {
        fs::write("/secrets/to-link", "x")?;
        let linked = fs::hard_link("/secrets/to-link", "/alloc/linked");
        fs::remove_file("/secrets/to-link")?;
        Ok(linked.map(|()| 0)?)
    }),
    Attempt::new("write to Nomad's log files", || any(of_nomad(|kind| kind.is_file()), |path| writable(path))),
    Attempt::new("write to the FIFO of its own output", || any(of_nomad(|kind| kind.is_fifo()), |path| writable(path)))
        .harmless("the task's standard output is this FIFO"),
    Attempt::new("replace a FIFO of Nomad's logs", || {
        any(of_nomad(|kind| kind.is_fifo()), |fifo| {
            let aside = fifo.with_extension("aside");
            fs::rename(fifo, &aside)?;
            fs::rename(&aside, fifo)?;
            Ok(0)
        })
    }),
    Attempt::new("add a file where Nomad looks for logs", || {
        let (nomads, ours) = ("/alloc/logs/.nomad", "/alloc/logs");
        let directory = if fs::exists(nomads)? { nomads } else { ours };
        let link = format!("{directory}/escape.stdout.0");
        symlink(given("ESCAPE_FILE"), &link)?;
        fs::remove_file(link)?;
        Ok(0)
    }),
    Attempt::new("become root by a set-user-id program of the image", || as_user("/bin/set-user-id", "identity")),
    Attempt::new("become root by a set-user-id program in /alloc", || {
        let program = copied("/alloc/set-user-id")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
        let became = as_user(&program, "identity");
        fs::remove_file(&program)?;
        became
    }),
    Attempt::new("mark a program in /alloc with capabilities", || {
        let program = copied("/alloc/capable")?;
        let marked = mark(&program);
        fs::remove_file(&program)?;
        marked
    })
    .harmless(SET_ONLY),
    Attempt::new("gain capabilities by a marked program in /alloc", || {
        let program = copied("/alloc/capable-to-run")?;
        let gained = mark(&program).and_then(|_| as_user(&program, "capable"));
        fs::remove_file(&program)?;
        gained
    }),
    Attempt::new("gain capabilities by a marked program of the image", || {
        let program = copied("/tmp/capable")?;
        let gained = mark(&program).and_then(|_| as_user(&program, "capable"));
        fs::remove_file(&program)?;
        gained
    }),
    Attempt::new("use a device node in /alloc", || {
        let path = "/alloc/null";
        call!(libc::SYS_mknodat, libc::AT_FDCWD, &*c(path), libc::S_IFCHR | 0o666, libc::makedev(1, 3))?;
        let opened = writable(path);
        fs::remove_file(path)?;
        opened
    }),
    Attempt::new("set an attribute of overlays (trusted.overlay.redirect)", || {
        attribute("/tmp/marked", c"trusted.overlay.redirect", *b"/etc")
    }),
    Attempt::new("set a security label of a file (security.selinux)", || {
        attribute("/tmp/marked", c"security.selinux", *b"a:b:")
    })
    .harmless("without a policy, the kernel lets a file's owner label it"),
    Attempt::new("make a file immutable", || {
        fs::write("/tmp/immutable", "x")?;
        let file = fs::File::open("/tmp/immutable")?;
        call!(libc::SYS_ioctl, file.as_raw_fd(), 0x4008_6602_u32, &[0x10_u8, 0, 0, 0])?;
        call!(libc::SYS_ioctl, file.as_raw_fd(), 0x4008_6602_u32, &[0_u8; 4])
    }),
    Attempt::new("replace a file that the driver mounts (/etc/hosts)", || {
        fs::rename("/etc/hosts", "/etc/hosts.aside")?;
        Ok(0)
    }),
    Attempt::new("freeze the file system (FIFREEZE)", || {
        let file = fs::File::open("/tmp/place")?;
        call!(libc::SYS_ioctl, file.as_raw_fd(), 0xc004_5877_u32, 0)?;
        call!(libc::SYS_ioctl, file.as_raw_fd(), 0xc004_5878_u32, 0)
    }),
    Attempt::new("open the standard output again to reach its directory", || {
        let link = fs::read_link("/proc/self/fd/1")?;
        if link.starts_with(given("ESCAPE_AGENT")) { Ok(0) } else { Err(Refusal::Nothing("no path")) }
    }),
];

/// Entries of a kind in the directories of Nomad's logs, with the names that Nomad gives them.
fn of_nomad(kind: impl Fn(fs::FileType) -> bool) -> Vec<PathBuf> {
    let mut paths = [each("/alloc/logs", ""), each("/alloc/logs/.nomad", "")].concat();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name.starts_with("main.") || name.starts_with(".main."))
            && path.symlink_metadata().is_ok_and(|found| kind(found.file_type()))
    });
    paths
}

/// A copy of this program.
fn copied(path: &str) -> Result<String, Refusal> {
    fs::copy("/proc/self/exe", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(path.to_owned())
}

/// Gives a program CAP_CHOWN when it is executed: version 2, effective.
fn mark(program: &str) -> Tried {
    let mut capability = [0_u8; 20];
    (capability[0], capability[3], capability[4]) = (1, 2, 1);
    call!(libc::SYS_setxattr, &*c(program), c"security.capability", &capability, 20, 0)
}

fn attribute<const N: usize>(path: &str, name: &std::ffi::CStr, value: [u8; N]) -> Tried {
    fs::write(path, "x")?;
    call!(libc::SYS_setxattr, &*c(path), name, &value, N, 0)
}
