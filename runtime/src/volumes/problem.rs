//! Why a volume cannot be used, in the words that the job's author reads: the volume, the option, the kernel's answer
//! and the remedy. No text contains the mount options, which may have a password.

use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::options::VolumeOptions;
use crate::error::RuntimeError;

/// Why a volume with options cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct VolumeError {
    /// The whole text.
    pub text: String,
    /// The same may work later.
    pub passing: bool,
}

impl VolumeError {
    pub(super) fn lasting(text: impl Into<String>) -> Self {
        Self { text: text.into(), passing: false }
    }

    pub(super) fn passing(text: impl Into<String>) -> Self {
        Self { text: text.into(), passing: true }
    }

    /// The same error with the name of the volume in front.
    pub(super) fn of(self, volume: &str) -> Self {
        Self { text: format!("{volume}: {}", self.text), ..self }
    }
}

impl From<RuntimeError> for VolumeError {
    fn from(error: RuntimeError) -> Self {
        Self::passing(error.to_string())
    }
}

/// The error of mount(2). `unknown` is the kernel's own word about a wrong option, if there is one.
pub(super) fn mount_failed(options: &VolumeOptions, errno: Errno, unknown: Option<&str>) -> VolumeError {
    let VolumeOptions { kind, device, .. } = options;
    let of_server = kind.starts_with("nfs") || kind == "cifs" || kind == "smb3";
    let (remedy, passing) = match errno {
        Errno::NODEV => (
            format!(
                "the node's kernel has no file system {kind:?} (option `type`): load its module, as with `modprobe \
                 {kind}`, or install a kernel that has it"
            ),
            false,
        ),
        Errno::INVAL => (invalid(options, unknown), false),
        Errno::NOENT if options.is_bind() => {
            (format!("{device:?} (option `device`) does not exist on the node: make the directory first"), false)
        }
        Errno::NOENT if of_server => {
            (format!("the server has no directory {device:?} (option `device`), or does not export it"), false)
        }
        Errno::NOENT | Errno::NXIO => (format!("there is no device {device:?} (option `device`) on the node"), false),
        Errno::NOTBLK => (format!("{device:?} (option `device`) is no block device, which {kind} needs"), false),
        Errno::ACCESS | Errno::PERM if kind.starts_with("nfs") => {
            (format!("the server refuses this node: export {device:?} to the node's address"), false)
        }
        Errno::ACCESS | Errno::PERM if of_server => (
            "the server refuses the user: see `username`, `password`, `domain` and `sec` in option `o`".to_owned(),
            false,
        ),
        Errno::ACCESS | Errno::ROFS => ("the device is read-only: write `ro` in option `o`".to_owned(), false),
        Errno::BUSY => ("the device is in use, or mounted with other options".to_owned(), true),
        Errno::TIMEDOUT
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::CONNREFUSED
        | Errno::HOSTDOWN
        | Errno::CONNRESET
        | Errno::AGAIN
        | Errno::CONNABORTED
            if of_server =>
        {
            (
                "the server does not answer: see `addr` and `port` in option `o`, the server and the firewall"
                    .to_owned(),
                true,
            )
        }
        Errno::PROTONOSUPPORT | Errno::OPNOTSUPP | Errno::PFNOSUPPORT => {
            ("the server does not speak this version: see `vers` and `nfsvers` in option `o`".to_owned(), false)
        }
        _ => ("the kernel's log of the node (dmesg) may say more".to_owned(), true),
    };
    let text = format!("mounting {options} failed with {}: {remedy}", described(errno));
    VolumeError { text, passing }
}

/// The remedies of EINVAL.
fn invalid(options: &VolumeOptions, unknown: Option<&str>) -> String {
    if let Some(unknown) = unknown {
        return format!("the kernel refuses option `o`: {unknown}");
    }
    if options.kind.starts_with("nfs") && options.value_of("addr").is_none() {
        return "option `o` has no `addr=`, the server's name or address".to_owned();
    }
    let of_windows = options.kind == "cifs" || options.kind == "smb3";
    if of_windows && options.value_of("username").or(options.value_of("user")).is_none() {
        return "option `o` has no `username=`, which the kernel needs".to_owned();
    }
    format!(
        "the kernel refuses a value in option `o`, or {:?} (option `device`) has another file system than {}; the \
         kernel's log of the node (dmesg) may name it",
        options.device, options.kind
    )
}

/// The error that no answer came in time.
pub(super) fn timed_out(doing: &str, options: &VolumeOptions, limit: Duration) -> VolumeError {
    let seconds = limit.as_secs();
    VolumeError::passing(format!(
        "{doing} {options} took longer than {seconds} seconds: the server or the device does not answer; see `addr` in \
         option `o`, or raise `mount_timeout` in the plugin block `volumes`"
    ))
}

/// The text of an errno, with its number.
fn described(errno: Errno) -> String {
    // "Connection refused (os error 111)"
    std::io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str, device: &str, mount_options: &str) -> VolumeOptions {
        VolumeOptions {
            kind: kind.to_owned(),
            device: device.to_owned(),
            mount_options: mount_options.to_owned(),
            forgotten: Vec::new(),
        }
    }

    #[test]
    fn an_error_names_the_option_and_the_remedy_and_no_password() {
        let nfs = options("nfs", ":/data", "addr=nas,soft");
        let cifs = options("cifs", "//nas/data", "username=app,password=hunter2");
        let tmpfs = options("tmpfs", "tmpfs", "sizze=1");
        let bind = options("none", "/srv/data", "bind");
        let ext4 = options("ext4", "/dev/sdb", "password=hunter2");
        for (options, errno, unknown, expected, passing) in [
            (
                &nfs,
                Errno::NODEV,
                None,
                "no file system \"nfs\" (option `type`): load its module, as with `modprobe nfs`",
                false,
            ),
            (&nfs, Errno::CONNREFUSED, None, "the server does not answer: see `addr`", true),
            (&nfs, Errno::ACCESS, None, "export \":/data\" to the node's address", false),
            (&nfs, Errno::NOENT, None, "the server has no directory \":/data\"", false),
            (&options("nfs", ":/data", "soft"), Errno::INVAL, None, "option `o` has no `addr=`", false),
            (&cifs, Errno::ACCESS, None, "the server refuses the user", false),
            (&cifs, Errno::INVAL, None, "the kernel refuses a value in option `o`", false),
            (&options("cifs", "//nas/data", "guest"), Errno::INVAL, None, "option `o` has no `username=`", false),
            (&tmpfs, Errno::INVAL, Some("Unknown parameter 'sizze'"), "option `o`: Unknown parameter 'sizze'", false),
            (&bind, Errno::NOENT, None, "\"/srv/data\" (option `device`) does not exist on the node", false),
            (&ext4, Errno::NOTBLK, None, "is no block device, which ext4 needs", false),
            (&ext4, Errno::NOENT, None, "there is no device \"/dev/sdb\"", false),
            (&ext4, Errno::BUSY, None, "the device is in use", true),
            (&ext4, Errno::IO, None, "dmesg", true),
        ] {
            let error = mount_failed(options, errno, unknown).of("volume \"data\"");
            assert!(error.text.contains(expected), "{}", error.text);
            assert!(error.text.starts_with("volume \"data\": mounting ") && !error.text.contains("hunter2"), "{error}");
            assert_eq!(error.passing, passing, "{error}");
        }
        assert!(mount_failed(&nfs, Errno::CONNREFUSED, None).text.contains("Connection refused (os error 111)"));
        assert!(
            timed_out("mounting", &cifs, Duration::from_secs(60))
                .text
                .starts_with("mounting cifs //nas/data took longer than 60 s")
        );
    }
}
