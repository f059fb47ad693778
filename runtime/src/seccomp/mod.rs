//! The system call filter of a container, as a BPF program for the kernel.
//!
//! Pure: the same capabilities always give the same program. `profile` says what is allowed by default, `custom` reads profiles of
//! somebody else's, `numbers` says what a call is called on a machine, `compile` makes the program. It is not kept on disk: making
//! it takes less time than reading a file.

mod compile;
mod custom;
mod numbers;
mod profile;
#[cfg(test)]
mod tests;

use seccompiler::{BackendError, BpfProgram};

pub(crate) use custom::Resolved;
pub use custom::{InvalidProfile, SeccompProfile};
pub(crate) use profile::{Rule, Verdict, profile};

/// A filter that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The profile does not know this machine.
    #[error("the default seccomp profile does not know this machine's architecture ({0}); use seccomp=unconfined")]
    UnknownArchitecture(&'static str),
    /// The library refused a rule.
    #[error("compiling the default seccomp profile: {0}")]
    Compile(#[from] BackendError),
    /// The kernel takes no program of this length.
    #[error("the seccomp profile makes a filter of {0} instructions; the kernel takes 4096")]
    TooLong(usize),
    /// A profile of somebody else's makes no sense for this container.
    #[error("the seccomp profile: {0}")]
    Profile(#[from] InvalidProfile),
}

/// What a process can be compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    /// 32-bit processes on x86_64.
    I386,
    Aarch64,
}

impl Arch {
    /// What we are compiled for.
    pub fn native() -> Result<Self, SeccompError> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            other => Err(SeccompError::UnknownArchitecture(other)),
        }
    }

    /// All that runs on such a machine and has a profile.
    pub fn family(self) -> &'static [Self] {
        match self {
            Self::X86_64 | Self::I386 => &[Self::X86_64, Self::I386],
            Self::Aarch64 => &[Self::Aarch64],
        }
    }

    /// What the runtime specification calls it.
    pub fn oci_name(self) -> &'static str {
        match self {
            Self::X86_64 => "SCMP_ARCH_X86_64",
            Self::I386 => "SCMP_ARCH_X86",
            Self::Aarch64 => "SCMP_ARCH_AARCH64",
        }
    }

    /// What conditions in docker's profiles call it.
    fn go_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::I386 => "386",
            Self::Aarch64 => "arm64",
        }
    }

    /// How the kernel names it to a filter (`AUDIT_ARCH_…`).
    fn audit_value(self) -> u32 {
        const LITTLE_ENDIAN: u32 = 0x4000_0000;
        const BITS_64: u32 = 0x8000_0000;
        match self {
            Self::X86_64 => u32::from(libc::EM_X86_64) | LITTLE_ENDIAN | BITS_64,
            Self::I386 => u32::from(libc::EM_386) | LITTLE_ENDIAN,
            Self::Aarch64 => u32::from(libc::EM_AARCH64) | LITTLE_ENDIAN | BITS_64,
        }
    }
}

/// The default filter for a container with these capabilities (`CAP_SYS_ADMIN` …): an array of `struct sock_filter` for
/// this machine.
pub fn program(capabilities: &[String]) -> Result<Vec<u8>, SeccompError> {
    Ok(bytes(&instructions(Arch::native()?, capabilities)?))
}

/// The filter of a profile of somebody else's, for a container with these capabilities on a kernel of this version.
pub fn program_of(
    profile: &SeccompProfile,
    capabilities: &[String],
    kernel: (u32, u32),
) -> Result<Vec<u8>, SeccompError> {
    let resolved = resolve(profile, capabilities, kernel)?;
    Ok(bytes(&checked(compile::compile(&resolved.architectures, &resolved.answers()?))?))
}

/// What of a profile is meant for such a container on this machine.
pub(crate) fn resolve<'a>(
    profile: &'a SeccompProfile,
    capabilities: &[String],
    kernel: (u32, u32),
) -> Result<Resolved<'a>, SeccompError> {
    Ok(profile.resolve(Arch::native()?, capabilities, kernel)?)
}

fn instructions(arch: Arch, capabilities: &[String]) -> Result<BpfProgram, SeccompError> {
    let verdicts = profile::profile(capabilities);
    checked(compile::compile(arch.family(), &compile::Answers::of_verdicts(&verdicts)?))
}

fn checked(program: BpfProgram) -> Result<BpfProgram, SeccompError> {
    const LONGEST: usize = 4096;
    if program.len() > LONGEST { Err(SeccompError::TooLong(program.len())) } else { Ok(program) }
}

fn bytes(program: &[seccompiler::sock_filter]) -> Vec<u8> {
    let one = |instruction: &seccompiler::sock_filter| {
        let ([code_0, code_1], [k_0, k_1, k_2, k_3]) = (instruction.code.to_ne_bytes(), instruction.k.to_ne_bytes());
        [code_0, code_1, instruction.jt, instruction.jf, k_0, k_1, k_2, k_3]
    };
    program.iter().flat_map(one).collect()
}
