//! What tests run inside containers: one static busybox, and the files that give users and groups names.

use std::{fs, path::PathBuf};

use crate::must::Must;

/// The static busybox of this machine.
pub fn busybox() -> Vec<u8> {
    let candidates = ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"].map(PathBuf::from);
    let found = candidates.into_iter().find(|path| path.is_file());
    let path = found.must("a static busybox (on Debian: apt-get install busybox-static)");
    fs::read(path).must("read busybox")
}

/// Commands that the image offers, each a link to busybox.
pub const APPLETS: [&str; 44] = [
    "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "echo", "env", "false", "grep", "head", "hostname", "id", "ip", "kill",
    "ln", "ls", "mkdir", "mknod", "mktemp", "mount", "mv", "nc", "nslookup", "ping", "ps", "pwd", "readlink", "rm", "sed", "seq",
    "sh", "sleep", "sort", "stat", "stty", "sync", "tail", "touch", "true", "umount", "yes",
];

/// `/etc/passwd` of the image.
pub const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nuser:x:1000:1000::/home/user:/bin/sh\n\
                          nobody:x:65534:65534::/:/bin/false\n";

/// `/etc/group` of the image.
pub const GROUP: &str = "root:x:0:\ndaemon:x:1:\naudio:x:29:user\nuser:x:1000:\nstaff:x:50:\nnogroup:x:65534:\n";
