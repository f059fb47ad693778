//! Compiles the actions of a policy to one BPF program for several architectures.
//!
//! `seccompiler` compiles the rules on arguments. The program finds the action of a system call by a binary search over
//! the numbers, which is our own code. `seccompiler` compares the number with each system call in turn. Such a program
//! is too long for two architectures, and when the kernel loads a program it walks it once for every system call
//! (docs/decisions.md has the measurement).

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, sock_filter,
};

use crate::{
    arch::Arch,
    default_profile::{ArgumentRule, Permission},
    syscalls::{newest_number, number},
};

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The action of a filter for one system call. A number is a return value of the filter (`SECCOMP_RET_…`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Always(u32),
    /// The first rule that matches decides. If no rule matches, the action is the last number.
    Conditional(Vec<(SeccompRule, u32)>, u32),
}

/// The actions of a filter for all system calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy<'a> {
    pub by_name: BTreeMap<&'a str, Action>,
    /// The action for system calls that are not in `by_name`.
    pub default: u32,
    /// The action for system calls with a number above the newest known one.
    pub newer: u32,
    /// Whether the newest known number is that of the table of system calls. If not, it is the newest one in `by_name`.
    pub table_is_known: bool,
    /// The action for processes of other architectures, where the numbers have other meanings.
    pub foreign: u32,
}

impl<'a> Policy<'a> {
    /// The policy of a profile with these permissions. System calls without a name in the profile fail with EPERM.
    /// Newer system calls fail with ENOSYS, so that programs fall back to older ones.
    pub fn from_permissions(permissions: &BTreeMap<&'a str, Permission>) -> Result<Self, BackendError> {
        let by_name = permissions.iter().map(|(name, permission)| Ok((*name, action(permission)?)));
        let by_name = by_name.collect::<Result<_, _>>()?;
        let foreign = libc::SECCOMP_RET_KILL_PROCESS;
        Ok(Self { by_name, default: EPERM, newer: ENOSYS, table_is_known: false, foreign })
    }
}

fn action(permission: &Permission) -> Result<Action, BackendError> {
    Ok(match permission {
        Permission::Allow => Action::Always(libc::SECCOMP_RET_ALLOW),
        Permission::Errno(number) => Action::Always(errno(number.unsigned_abs())),
        Permission::AllowIf(rules) => {
            let allowed = rules.iter().map(|rule| Ok((seccomp_rule(*rule)?, libc::SECCOMP_RET_ALLOW)));
            Action::Conditional(allowed.collect::<Result<_, _>>()?, EPERM)
        }
    })
}

/// Compiles the program for processes of these architectures.
pub(crate) fn compile(architectures: &[Arch], policy: &Policy<'_>) -> BpfProgram {
    let mut program = vec![statement(LOAD, ARCHITECTURE)];
    for arch in architectures {
        let mut part = vec![statement(LOAD, NUMBER)];
        part.extend(search(&ranges(*arch, policy)));
        program.push(jump_if(JUMP_IF_EQUAL, arch.audit_value(), 1, 0));
        program.push(statement(JUMP, part.len() as u32));
        program.extend(part);
    }
    program.push(statement(RETURN, policy.foreign));
    program
}

pub(crate) const EPERM: u32 = errno(libc::EPERM.unsigned_abs());
const ENOSYS: u32 = errno(libc::ENOSYS.unsigned_abs());

/// The numbers from `start` to the start of the next range. All have the same action.
struct Range {
    start: u32,
    action: Action,
}

/// All numbers in ascending order. Neighbours with the same action share a range.
fn ranges(arch: Arch, policy: &Policy<'_>) -> Vec<Range> {
    let mut named: Vec<_> =
        policy.by_name.iter().filter_map(|(name, action)| Some((number(arch, name)?, action))).collect();
    named.sort_unstable_by_key(|(number, _)| *number);
    let mut ranges: Vec<Range> = Vec::new();
    let mut add = |start, action: &Action| {
        if ranges.last().is_none_or(|last| last.action != *action) {
            ranges.push(Range { start, action: action.clone() });
        }
    };
    let default = Action::Always(policy.default);
    let mut next = 0;
    for (number, action) in named {
        if number > next {
            add(next, &default);
        }
        add(number, action);
        next = number + 1;
    }
    if policy.table_is_known && next <= newest_number(arch) {
        add(next, &default);
        next = newest_number(arch) + 1;
    }
    // The numbers of x32 system calls are in this range too.
    add(next, &Action::Always(policy.newer));
    ranges
}

fn instructions(action: &Action) -> BpfProgram {
    match action {
        Action::Always(value) => vec![statement(RETURN, *value)],
        Action::Conditional(cases, otherwise) => {
            let mut code = BpfProgram::new();
            for (rule, value) in cases {
                // If the rule does not match, it skips the next instruction.
                code.extend(BpfProgram::from(rule.clone()));
                code.push(statement(RETURN, *value));
            }
            code.push(statement(RETURN, *otherwise));
            code
        }
    }
}

/// The rule in the form of `seccompiler`.
pub(crate) fn seccomp_rule(rule: ArgumentRule) -> Result<SeccompRule, BackendError> {
    let condition = |op, value: u32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, u64::from(value));
    let conditions = match rule {
        ArgumentRule::Equals(value) => vec![condition(SeccompCmpOp::Eq, value)?],
        ArgumentRule::NoneOf(values) => {
            values.iter().map(|value| condition(SeccompCmpOp::Ne, *value)).collect::<Result<_, _>>()?
        }
        ArgumentRule::BitsClear(bits) => vec![condition(SeccompCmpOp::MaskedEq(u64::from(bits)), 0)?],
    };
    SeccompRule::new(conditions)
}

/// A binary search for the range of the loaded number, followed by the action of the range.
fn search(ranges: &[Range]) -> BpfProgram {
    if let [only] = ranges {
        return instructions(&only.action);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let first = upper.first().map_or(0, |range| range.start);
    let (lower, upper) = (search(lower), search(upper));
    let mut program = match u8::try_from(lower.len()) {
        Ok(distance) => vec![jump_if(JUMP_IF_AT_LEAST, first, distance, 0)],
        Err(_) => vec![jump_if(JUMP_IF_AT_LEAST, first, 0, 1), statement(JUMP, lower.len() as u32)],
    };
    program.extend(lower);
    program.extend(upper);
    program
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump_if(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The return value of a filter that makes the system call fail with this errno.
pub(crate) const fn errno(number: u32) -> u32 {
    libc::SECCOMP_RET_ERRNO | (number & libc::SECCOMP_RET_DATA)
}
