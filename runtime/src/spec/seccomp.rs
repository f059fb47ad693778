//! The `seccomp` section of the OCI spec, for other runtimes than ours.
//!
//! It has the meaning of our own filter, with one exception: for system calls newer than its table, our filter returns
//! ENOSYS; other runtimes do the same with tables of their own. Other runtimes use libseccomp, which compares whole
//! 64-bit arguments. Where the kernel uses only 32 bits of an argument, the rules here have a mask.

use ::seccomp::{Arch, ArgumentRule, Permission, SeccompError, SeccompProfile, default_profile, resolve};
use oci_spec::runtime::{
    Arch as OciArch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

use super::error::SpecError;

/// Address families have numbers below this (`AF_MAX`, with a reserve for later ones).
const FAMILIES: u32 = 64;

/// The rules of a custom profile that apply to a container with these capabilities.
pub(super) fn of_profile(
    profile: &SeccompProfile,
    capabilities: &[String],
    kernel: (u32, u32),
) -> Result<LinuxSeccomp, SpecError> {
    let resolved = resolve(profile, capabilities, kernel).map_err(|error| SpecError::Oci(error.to_string()))?;
    serde_json::from_value(resolved.to_oci()).map_err(|error| SpecError::Oci(error.to_string()))
}

/// The default filter of a container with these capabilities.
pub(super) fn seccomp(capabilities: &[String]) -> Result<LinuxSeccomp, SpecError> {
    let machine = Arch::native().map_err(|error: SeccompError| SpecError::Oci(error.to_string()))?;
    let architectures: Vec<OciArch> = machine
        .family()
        .iter()
        .map(|arch| match arch {
            Arch::X86_64 => OciArch::ScmpArchX86_64,
            Arch::I386 => OciArch::ScmpArchX86,
            Arch::Aarch64 => OciArch::ScmpArchAarch64,
        })
        .collect();
    let permissions = default_profile(capabilities);
    let names = |wanted: &Permission| -> Vec<String> {
        permissions.iter().filter(|(_, permission)| *permission == wanted).map(|(name, _)| (*name).to_owned()).collect()
    };
    let mut syscalls = vec![call(names(&Permission::Allow), LinuxSeccompAction::ScmpActAllow, None, None)?];
    for (name, permission) in &permissions {
        match permission {
            Permission::Allow | Permission::Errno(libc::EPERM) => {}
            Permission::Errno(errno) => {
                let name = vec![(*name).to_owned()];
                syscalls.push(call(name, LinuxSeccompAction::ScmpActErrno, None, Some(errno.unsigned_abs()))?);
            }
            Permission::AllowIf(rules) => {
                for (mask, value) in rules.iter().flat_map(masked) {
                    let name = vec![(*name).to_owned()];
                    let argument = argument(mask, value)?;
                    syscalls.push(call(name, LinuxSeccompAction::ScmpActAllow, Some(argument), None)?);
                }
            }
        }
    }
    Ok(LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(libc::EPERM.unsigned_abs())
        .architectures(architectures)
        .syscalls(syscalls)
        .build()?)
}

/// Pairs of mask and value. The rule matches if the first argument, masked, equals one of the values.
fn masked(rule: &ArgumentRule) -> Vec<(u32, u32)> {
    match rule {
        ArgumentRule::Equals(value) => vec![(u32::MAX, *value)],
        ArgumentRule::NoneOf(values) => {
            (0..FAMILIES).filter(|one| !values.contains(one)).map(|one| (u32::MAX, one)).collect()
        }
        ArgumentRule::BitsClear(bits) => vec![(*bits, 0)],
    }
}

fn argument(mask: u32, value: u32) -> Result<LinuxSeccompArg, SpecError> {
    Ok(LinuxSeccompArgBuilder::default()
        .index(0usize)
        .value(u64::from(mask))
        .value_two(u64::from(value))
        .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
        .build()?)
}

fn call(
    names: Vec<String>,
    action: LinuxSeccompAction,
    argument: Option<LinuxSeccompArg>,
    errno: Option<u32>,
) -> Result<LinuxSyscall, SpecError> {
    let mut call = LinuxSyscallBuilder::default().names(names).action(action).build()?;
    call.set_args(argument.map(|argument| vec![argument]));
    call.set_errno_ret(errno);
    Ok(call)
}
