//! Addresses of files that another process of ours holds open.
//!
//! A process opens such a file through `/proc/<pid>/fd/<descriptor>`. The holder may have ended, and another process
//! may have its pid. So an address also has a number that identifies the file, and the opener compares it.

use std::{
    fmt, fs,
    ops::Range,
    path::{Path, PathBuf},
    str::FromStr,
};

/// A descriptor of a process, and a number that identifies its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldFile {
    pub descriptor: i32,
    /// The inode or the device of the file: the user of the address defines which.
    pub number: u64,
}

/// The address of a namespace. The number is the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamespaceAddress {
    pub pid: u32,
    pub file: HeldFile,
}

/// The addresses of the mounts of a container's layers, in the order of the layers. The number is the device. Layers
/// that are directories have no mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerMounts {
    pub pid: u32,
    pub mounts: Vec<Option<HeldFile>>,
}

/// A descriptor of a process that cannot be opened by a path. It is copied instead (pidfd_getfd(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorAddress {
    pub pid: u32,
    pub descriptor: i32,
}

/// Whether this entry of `/proc/<pid>/fd` is the group by which fanotify(7) announces reads of files. A descriptor that
/// was just closed is none.
pub(crate) fn is_group(descriptor: &Path) -> bool {
    fs::read_link(descriptor).is_ok_and(|target| target.as_os_str() == "anon_inode:[fanotify]")
}

/// A text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of a descriptor")]
pub(crate) struct InvalidAddress(String);

impl LayerMounts {
    /// The mounts of these layers only.
    pub fn of(&self, layers: Range<usize>) -> Self {
        Self { pid: self.pid, mounts: self.mounts.get(layers).unwrap_or_default().to_vec() }
    }
}

impl HeldFile {
    /// The path by which another process opens the file. `pid` is the holder.
    pub fn path(self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/fd/{}", self.descriptor).into()
    }

    fn parse(text: &str) -> Option<Self> {
        let (descriptor, number) = text.split_once(':')?;
        Some(Self { descriptor: descriptor.parse().ok()?, number: number.parse().ok()? })
    }
}

impl fmt::Display for HeldFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.descriptor, self.number)
    }
}

impl fmt::Display for NamespaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.file)
    }
}

impl FromStr for NamespaceAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (pid, file) = text.split_once(' ')?;
            Some(Self { pid: pid.parse().ok()?, file: HeldFile::parse(file)? })
        };
        parse().ok_or_else(|| InvalidAddress(text.to_owned()))
    }
}

impl fmt::Display for DescriptorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pid, self.descriptor)
    }
}

impl FromStr for DescriptorAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (pid, descriptor) = text.split_once('=')?;
            Some(Self { pid: pid.parse().ok()?, descriptor: descriptor.parse().ok()? })
        };
        parse().ok_or_else(|| InvalidAddress(text.to_owned()))
    }
}

impl fmt::Display for LayerMounts {
    /// Short, because a container may have hundreds of layers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mounts = self.mounts.iter().map(|mount| mount.map(|file| file.to_string()).unwrap_or_default());
        write!(f, "{} {}", self.pid, mounts.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for LayerMounts {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mount = |mount: &str| if mount.is_empty() { Some(None) } else { HeldFile::parse(mount).map(Some) };
        let parse = || {
            let (pid, mounts) = text.split_once(' ')?;
            Some(Self { pid: pid.parse().ok()?, mounts: mounts.split(',').map(mount).collect::<Option<_>>()? })
        };
        parse().ok_or_else(|| InvalidAddress(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_address_survives_its_text() {
        let address = NamespaceAddress { pid: 12, file: HeldFile { descriptor: 3, number: 4_026_531_840 } };
        assert_eq!(address.to_string().parse(), Ok(address));
        assert_eq!(address.file.path(address.pid), PathBuf::from("/proc/12/fd/3"));
        for wrong in ["", "12", "12 3", "3:4", "x 3:4", "12 x:4", "12 3:x", "12 3:4 ", "/proc/12/fd/3:4"] {
            assert!(wrong.parse::<NamespaceAddress>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_address_of_a_descriptor_survives_its_text() {
        let address = DescriptorAddress { pid: 12, descriptor: 3 };
        assert_eq!(address.to_string().parse(), Ok(address));
        for wrong in ["", "12", "12 3", "12:3", "12=", "=3", "x=3"] {
            assert!(wrong.parse::<DescriptorAddress>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn layer_mounts_survive_their_text_with_gaps() {
        let held = |descriptor| Some(HeldFile { descriptor, number: 77 });
        for mounts in [vec![held(3)], vec![None, held(3), None], vec![held(3), held(4)], vec![None]] {
            let address = LayerMounts { pid: 12, mounts };
            assert_eq!(address.to_string().parse(), Ok(address.clone()), "{address}");
        }
        for wrong in ["", "12", "12 3", "12 3:4;5:6", "12 3:4,x"] {
            assert!(wrong.parse::<LayerMounts>().is_err(), "{wrong:?}");
        }
    }
}
