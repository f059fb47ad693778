//! Filters of the driver's own processes: a list of system calls, and nothing else.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use crate::{
    arch::Arch,
    compile::{self, Action, EPERM, Policy},
    error::SeccompError,
};

/// The system calls that a process makes. All others are violations.
#[derive(Debug, Clone, Copy)]
pub struct OwnCalls<'a> {
    /// Those that it makes with any arguments, in groups.
    pub any: &'a [&'a [&'static str]],
    /// Those that it makes with some arguments only.
    pub checked: &'a [CheckedCall],
}

/// A system call with a condition on one argument, of which the lower 32 bits count.
#[derive(Debug, Clone, Copy)]
pub struct CheckedCall {
    /// The name.
    pub name: &'static str,
    /// The index of the argument.
    pub argument: u8,
    /// The values that it may have.
    pub values: Values,
}

/// The values of an argument.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// One of these.
    OneOf(&'static [u32]),
    /// None of these bits is set.
    Without(u32),
}

/// What happens to a process that makes another system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The system call fails with EPERM.
    Refuse,
    /// The process is killed by SIGSYS.
    Kill,
}

pub(crate) fn instructions(arch: Arch, calls: &OwnCalls<'_>, violation: Violation) -> Result<BpfProgram, SeccompError> {
    let refused = match violation {
        Violation::Refuse => EPERM,
        Violation::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    let always = calls.any.iter().copied().flatten().map(|name| (*name, Action::Always(libc::SECCOMP_RET_ALLOW)));
    let mut by_name: BTreeMap<&str, Action> = always.collect();
    for call in calls.checked {
        let rules = rules(call)?.into_iter().map(|rule| (rule, libc::SECCOMP_RET_ALLOW));
        by_name.insert(call.name, Action::Conditional(rules.collect(), refused));
    }
    let policy = Policy { by_name, default: refused, newer: refused, table_is_known: false, foreign: refused };
    Ok(compile::compile(&[arch], &policy))
}

fn rules(call: &CheckedCall) -> Result<Vec<SeccompRule>, SeccompError> {
    let rule = |op, value: u32| -> Result<SeccompRule, SeccompError> {
        let value = u64::from(value);
        Ok(SeccompRule::new(vec![SeccompCondition::new(call.argument, SeccompCmpArgLen::Dword, op, value)?])?)
    };
    match call.values {
        Values::OneOf(values) => values.iter().map(|value| rule(SeccompCmpOp::Eq, *value)).collect(),
        Values::Without(bits) => Ok(vec![rule(SeccompCmpOp::MaskedEq(u64::from(bits)), 0)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{syscalls::number, tests::run};

    const CALLS: OwnCalls<'static> = OwnCalls {
        any: &[&["read", "write"], &["exit_group"]],
        checked: &[
            CheckedCall { name: "mmap", argument: 2, values: Values::Without(libc::PROT_EXEC as u32) },
            CheckedCall { name: "socket", argument: 0, values: Values::OneOf(&[1, 2]) },
        ],
    };

    #[test]
    fn what_is_not_listed_is_a_violation() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            for (violation, refused) in [(Violation::Refuse, EPERM), (Violation::Kill, libc::SECCOMP_RET_KILL_PROCESS)]
            {
                let program = instructions(arch, &CALLS, violation).expect("a program");
                let filtered = |name, args| run(&program, arch.audit_value(), number(arch, name).expect(name), args);
                for (name, args, allowed) in [
                    ("read", [0; 6], true),
                    ("exit_group", [7; 6], true),
                    ("ptrace", [0; 6], false),
                    ("openat", [0; 6], false),
                    ("mmap", [0, 0, 3, 0, 0, 0], true),
                    ("mmap", [0, 0, 5, 0, 0, 0], false),
                    ("socket", [1, 0, 0, 0, 0, 0], true),
                    ("socket", [2, 9, 9, 9, 9, 9], true),
                    ("socket", [16, 0, 0, 0, 0, 0], false),
                ] {
                    let expected = if allowed { libc::SECCOMP_RET_ALLOW } else { refused };
                    assert_eq!(filtered(name, args), expected, "{arch:?} {name} {args:?}");
                }
                assert_eq!(run(&program, arch.audit_value(), 100_000, [0; 6]), refused, "a newer call");
                assert_eq!(run(&program, Arch::I386.audit_value(), 3, [0; 6]), refused, "another architecture");
            }
        }
    }
}
