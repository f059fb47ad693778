//! The system call filter in the words of the OCI spec, for runtimes other than ours.
//!
//! Means what our own filter means, apart from calls that the profile does not name: ours says ENOSYS for those that are younger
//! than it, and so do other runtimes, by a table of their own. A library between them and the kernel compares whole 64-bit arguments, so
//! where the kernel looks at 32 bits, so do these rules, with a mask.

use super::{
    SpecError,
    libcontainer_spec::{
        Arch as OciArch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
        LinuxSeccompBuilder, LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
    },
};
use crate::seccomp::{Arch, Rule, SeccompError, SeccompProfile, Verdict, profile, resolve};

/// Address families are numbered below this (`AF_MAX` with room to grow).
const FAMILIES: u32 = 64;

/// A profile of somebody else's, as far as it is meant for such a container.
pub(super) fn of_profile(
    profile: &SeccompProfile,
    capabilities: &[String],
    kernel: (u32, u32),
) -> Result<LinuxSeccomp, SpecError> {
    let resolved = resolve(profile, capabilities, kernel).map_err(|error| SpecError::Oci(error.to_string()))?;
    serde_json::from_value(resolved.oci()).map_err(|error| SpecError::Oci(error.to_string()))
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
    let calls = profile(capabilities);
    let names = |wanted: &Verdict| -> Vec<String> {
        calls.iter().filter(|(_, verdict)| *verdict == wanted).map(|(name, _)| (*name).to_owned()).collect()
    };
    let mut syscalls = vec![call(names(&Verdict::Allow), LinuxSeccompAction::ScmpActAllow, None, None)?];
    for (name, verdict) in &calls {
        match verdict {
            Verdict::Allow | Verdict::Errno(libc::EPERM) => {}
            Verdict::Errno(errno) => {
                let name = vec![(*name).to_owned()];
                syscalls.push(call(name, LinuxSeccompAction::ScmpActErrno, None, Some(errno.unsigned_abs()))?);
            }
            Verdict::Rules(rules) => {
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

/// Masks and values, one of which must be what the first argument is.
fn masked(rule: &Rule) -> Vec<(u32, u32)> {
    match rule {
        Rule::Is(value) => vec![(u32::MAX, *value)],
        Rule::IsNone(values) => (0..FAMILIES).filter(|one| !values.contains(one)).map(|one| (u32::MAX, one)).collect(),
        Rule::Without(bits) => vec![(*bits, 0)],
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
