//! Seccomp profiles of containers and filters of the driver's own processes, compiled to BPF programs for the kernel.
//!
//! Pure: the same profile, capabilities and kernel version always give the same program. Programs are not kept on disk,
//! because compiling one takes less time than reading a file.

mod arch;
mod compile;
mod custom;
mod default_profile;
mod error;
mod own;
mod syscalls;
#[cfg(test)]
mod tests;

use seccompiler::{BpfProgram, sock_filter};

pub use arch::Arch;
pub use custom::{ResolvedProfile, SeccompProfile};
pub use default_profile::{ArgumentRule, Permission, default_profile};
pub use error::{InvalidProfile, SeccompError};
pub use own::{CheckedCall, OwnCalls, Values, Violation};

/// The most instructions that the kernel accepts in one program (BPF_MAXINSNS).
const MAX_INSTRUCTIONS: usize = 4096;

/// Compiles the default profile of a container with these capabilities (`CAP_SYS_ADMIN` …) for this machine. The result
/// is an array of `struct sock_filter`.
pub fn default_program(capabilities: &[String]) -> Result<Vec<u8>, SeccompError> {
    Ok(bytes(&default_instructions(Arch::native()?, capabilities)?))
}

/// Compiles a custom profile for a container with these capabilities on a kernel of this version (major, minor). The
/// result is an array of `struct sock_filter`.
pub fn custom_program(
    profile: &SeccompProfile,
    capabilities: &[String],
    kernel: (u32, u32),
) -> Result<Vec<u8>, SeccompError> {
    Ok(bytes(&custom_instructions(&resolve(profile, capabilities, kernel)?)?))
}

/// Compiles the filter of a process of the driver for this machine. The result is an array of `struct sock_filter`.
pub fn own_program(calls: &OwnCalls<'_>, violation: Violation) -> Result<Vec<u8>, SeccompError> {
    Ok(bytes(&checked_length(own::instructions(Arch::native()?, calls, violation)?)?))
}

/// The rules of a custom profile that apply to a container with these capabilities on this machine and a kernel of this
/// version (major, minor).
pub fn resolve<'a>(
    profile: &'a SeccompProfile,
    capabilities: &[String],
    kernel: (u32, u32),
) -> Result<ResolvedProfile<'a>, SeccompError> {
    Ok(profile.resolve(Arch::native()?, capabilities, kernel)?)
}

fn default_instructions(arch: Arch, capabilities: &[String]) -> Result<BpfProgram, SeccompError> {
    let permissions = default_profile(capabilities);
    checked_length(compile::compile(arch.family(), &compile::Policy::from_permissions(&permissions)?))
}

fn custom_instructions(resolved: &ResolvedProfile<'_>) -> Result<BpfProgram, SeccompError> {
    checked_length(compile::compile(resolved.architectures(), &resolved.policy()?))
}

fn checked_length(program: BpfProgram) -> Result<BpfProgram, SeccompError> {
    if program.len() > MAX_INSTRUCTIONS { Err(SeccompError::TooLong(program.len())) } else { Ok(program) }
}

fn bytes(program: &[sock_filter]) -> Vec<u8> {
    let instruction_bytes = |instruction: &sock_filter| {
        let ([code_0, code_1], [k_0, k_1, k_2, k_3]) = (instruction.code.to_ne_bytes(), instruction.k.to_ne_bytes());
        [code_0, code_1, instruction.jt, instruction.jf, k_0, k_1, k_2, k_3]
    };
    program.iter().flat_map(instruction_bytes).collect()
}
