//! The decision which call of mount(2) a volume needs: flags, data and device are those that dockerd passes.
//!
//! Docker resolves the name of a server for `nfs` and `cifs`, because the kernel knows addresses only. The same happens
//! here for the other names of these file systems.

use std::net::IpAddr;

use super::options::VolumeOptions;

/// The arguments of mount(2), except for the target.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountCall {
    pub device: String,
    pub kind: String,
    /// `MS_` flags.
    pub flags: u32,
    pub data: String,
}

/// The mount options that are flags: name, whether it clears the flag, flag.
const FLAGS: [(&str, bool, u64); 24] = [
    ("ro", false, libc::MS_RDONLY),
    ("rw", true, libc::MS_RDONLY),
    ("suid", true, libc::MS_NOSUID),
    ("nosuid", false, libc::MS_NOSUID),
    ("dev", true, libc::MS_NODEV),
    ("nodev", false, libc::MS_NODEV),
    ("exec", true, libc::MS_NOEXEC),
    ("noexec", false, libc::MS_NOEXEC),
    ("sync", false, libc::MS_SYNCHRONOUS),
    ("async", true, libc::MS_SYNCHRONOUS),
    ("dirsync", false, libc::MS_DIRSYNC),
    ("mand", false, libc::MS_MANDLOCK),
    ("nomand", true, libc::MS_MANDLOCK),
    ("atime", true, libc::MS_NOATIME),
    ("noatime", false, libc::MS_NOATIME),
    ("diratime", true, libc::MS_NODIRATIME),
    ("nodiratime", false, libc::MS_NODIRATIME),
    ("bind", false, libc::MS_BIND),
    ("rbind", false, libc::MS_BIND | libc::MS_REC),
    ("relatime", false, libc::MS_RELATIME),
    ("norelatime", true, libc::MS_RELATIME),
    ("strictatime", false, libc::MS_STRICTATIME),
    ("nostrictatime", true, libc::MS_STRICTATIME),
    ("remount", false, libc::MS_REMOUNT),
];

/// The propagation of the mount on the node. It means nothing: containers bind volumes privately, also with docker.
const PROPAGATION: [&str; 8] =
    ["private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable", "runbindable"];

/// File systems of servers: the kernel needs the server's address.
const OF_SERVERS: [&str; 4] = ["nfs", "nfs4", "cifs", "smb3"];

/// Why a volume cannot be mounted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallProblem {
    /// The name of the server cannot be resolved.
    Server(String),
    /// An option that only changes existing mounts.
    Remount,
}

impl MountCall {
    /// Decides the call. `resolve` finds the addresses of a server by its name.
    pub fn decide(
        options: &VolumeOptions,
        mut resolve: impl FnMut(&str) -> Option<Vec<IpAddr>>,
    ) -> Result<Self, CallProblem> {
        let (flags, data) = parse(&options.mount_options);
        if flags & libc::MS_REMOUNT != 0 {
            return Err(CallProblem::Remount);
        }
        let (mut device, mut data) = (options.device.clone(), data);
        if OF_SERVERS.contains(&options.kind.as_str()) {
            let mut address = |name: &str| best(resolve(name)).ok_or_else(|| CallProblem::Server(name.to_owned()));
            match options.value_of("addr") {
                // As with docker, an address of version 6 is written in its short form.
                Some(name) if !name.is_empty() && name.parse::<std::net::Ipv4Addr>().is_err() => {
                    let resolved = match name.parse::<IpAddr>() {
                        Ok(literal) => literal,
                        Err(_) => address(name)?,
                    };
                    data = data.replacen(&format!("addr={name}"), &format!("addr={resolved}"), 1);
                }
                _ if options.kind.starts_with("nfs") => {}
                _ => {
                    if let Some((host, path)) = share(&device)
                        && host.parse::<IpAddr>().is_err()
                    {
                        device = format!("//{}{path}", address(host)?);
                    }
                }
            }
        }
        Ok(Self { device, kind: options.kind.clone(), flags: flags as u32, data })
    }
}

/// Splits mount options into flags and the data of the file system.
fn parse(options: &str) -> (u64, String) {
    let mut flags = 0;
    let mut data = Vec::new();
    for option in options.split(',') {
        match FLAGS.iter().find(|(name, ..)| *name == option) {
            Some((_, true, flag)) => flags &= !flag,
            Some((_, false, flag)) => flags |= flag,
            None if PROPAGATION.contains(&option) => {}
            None => data.push(option),
        }
    }
    (flags, data.join(","))
}

/// The server and the rest of a device `//server/share`.
fn share(device: &str) -> Option<(&str, &str)> {
    let rest = device.strip_prefix("//")?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (!host.is_empty()).then_some((host, path))
}

/// The address that docker would use: the first one of version 4, or the first one.
fn best(addresses: Option<Vec<IpAddr>>) -> Option<IpAddr> {
    let addresses = addresses?;
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}

#[cfg(test)]
mod tests {
    use libc::{MS_BIND, MS_NOATIME, MS_NODEV, MS_NOSUID, MS_RDONLY, MS_REC};

    use super::*;

    fn options(kind: &str, device: &str, mount_options: &str) -> VolumeOptions {
        VolumeOptions {
            kind: kind.to_owned(),
            device: device.to_owned(),
            mount_options: mount_options.to_owned(),
            forgotten: Vec::new(),
        }
    }

    fn resolve(name: &str) -> Option<Vec<IpAddr>> {
        let addresses: &[&str] = match name {
            "nas.example" => &["fd00::5", "10.0.0.5"],
            "six.example" => &["fd00::6"],
            "empty.example" => &[],
            _ => return None,
        };
        Some(addresses.iter().map(|address| address.parse().expect("an address")).collect())
    }

    fn call(kind: &str, device: &str, mount_options: &str) -> Result<(String, u64, String), CallProblem> {
        let call = MountCall::decide(&options(kind, device, mount_options), resolve)?;
        assert_eq!(call.kind, kind);
        Ok((call.device, u64::from(call.flags), call.data))
    }

    #[test]
    fn the_call_is_that_of_dockerd() {
        for (kind, device, given, expected_device, flags, data) in [
            ("tmpfs", "tmpfs", "size=100m,uid=1000", "tmpfs", 0, "size=100m,uid=1000"),
            ("tmpfs", "tmpfs", "", "tmpfs", 0, ""),
            ("none", "/srv/data", "bind", "/srv/data", MS_BIND, ""),
            ("none", "/srv/data", "ro,bind", "/srv/data", MS_BIND | MS_RDONLY, ""),
            ("none", "/srv/data", "rbind,rslave", "/srv/data", MS_BIND | MS_REC, ""),
            (
                "ext4",
                "/dev/sdb1",
                "noatime,nodev,nosuid,data=ordered",
                "/dev/sdb1",
                MS_NOATIME | MS_NODEV | MS_NOSUID,
                "data=ordered",
            ),
            ("ext4", "/dev/sdb1", "ro,rw", "/dev/sdb1", 0, ""),
            ("nfs", ":/export", "addr=10.0.0.9,rw,nfsvers=4,soft", ":/export", 0, "addr=10.0.0.9,nfsvers=4,soft"),
            ("nfs", ":/export", "addr=nas.example,ro", ":/export", MS_RDONLY, "addr=10.0.0.5"),
            ("nfs", ":/export", "vers=3,addr=six.example", ":/export", 0, "vers=3,addr=fd00::6"),
            ("nfs", ":/export", "addr=fd00:0:0:0::7", ":/export", 0, "addr=fd00::7"),
            ("nfs", "nas.example:/export", "nfsvers=4", "nas.example:/export", 0, "nfsvers=4"),
            ("nfs4", ":/", "addr=nas.example", ":/", 0, "addr=10.0.0.5"),
            ("cifs", "//nas.example/a b", "username=u,password=p", "//10.0.0.5/a b", 0, "username=u,password=p"),
            ("cifs", "//10.0.0.9/share", "username=u", "//10.0.0.9/share", 0, "username=u"),
            ("cifs", "//nas.example/share", "addr=nas.example", "//nas.example/share", 0, "addr=10.0.0.5"),
            ("cifs", "//nas.example/share", "addr=10.0.0.9", "//10.0.0.5/share", 0, "addr=10.0.0.9"),
            ("cifs", "//nas.example", "guest", "//10.0.0.5", 0, "guest"),
            // Docker passes on what it does not know, with empty parts.
            ("ext4", "/dev/sdb1", "defaults,,x", "/dev/sdb1", 0, "defaults,,x"),
            ("overlay", "overlay", "lowerdir=/a:/b", "overlay", 0, "lowerdir=/a:/b"),
            // The other file systems have no servers.
            ("ext4", "//nas.example/x", "addr=nas.example", "//nas.example/x", 0, "addr=nas.example"),
        ] {
            let expected = (expected_device.to_owned(), flags, data.to_owned());
            assert_eq!(call(kind, device, given), Ok(expected), "{kind} {device} {given}");
        }
    }

    #[test]
    fn a_server_without_an_address_is_named() {
        for (kind, device, given, name) in [
            ("nfs", ":/export", "addr=no.example", "no.example"),
            ("nfs", ":/export", "addr=empty.example", "empty.example"),
            ("cifs", "//no.example/share", "guest", "no.example"),
        ] {
            assert_eq!(call(kind, device, given), Err(CallProblem::Server(name.to_owned())));
        }
        assert_eq!(call("tmpfs", "tmpfs", "remount"), Err(CallProblem::Remount));
    }
}
