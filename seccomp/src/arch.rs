//! The architectures of system calls, and their names in profiles and in the kernel.

use crate::error::SeccompError;

/// The architecture of a process. It decides what a system call number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit processes on x86_64.
    X86_64,
    /// 32-bit processes on x86_64.
    I386,
    /// 64-bit processes on aarch64.
    Aarch64,
}

impl Arch {
    /// The architecture that this program is compiled for.
    pub fn native() -> Result<Self, SeccompError> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            other => Err(SeccompError::UnknownArchitecture(other)),
        }
    }

    /// All architectures of processes that run on a machine of this architecture.
    pub fn family(self) -> &'static [Self] {
        match self {
            Self::X86_64 | Self::I386 => &[Self::X86_64, Self::I386],
            Self::Aarch64 => &[Self::Aarch64],
        }
    }

    /// The name in the OCI runtime specification.
    pub fn oci_name(self) -> &'static str {
        match self {
            Self::X86_64 => "SCMP_ARCH_X86_64",
            Self::I386 => "SCMP_ARCH_X86",
            Self::Aarch64 => "SCMP_ARCH_AARCH64",
        }
    }

    /// The name in the conditions of docker's profiles (Go's GOARCH).
    pub(crate) fn go_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::I386 => "386",
            Self::Aarch64 => "arm64",
        }
    }

    /// The value that the kernel passes to a filter (`AUDIT_ARCH_…`).
    pub(crate) fn audit_value(self) -> u32 {
        const LITTLE_ENDIAN: u32 = 0x4000_0000;
        const BITS_64: u32 = 0x8000_0000;
        match self {
            Self::X86_64 => u32::from(libc::EM_X86_64) | LITTLE_ENDIAN | BITS_64,
            Self::I386 => u32::from(libc::EM_386) | LITTLE_ENDIAN,
            Self::Aarch64 => u32::from(libc::EM_AARCH64) | LITTLE_ENDIAN | BITS_64,
        }
    }
}
