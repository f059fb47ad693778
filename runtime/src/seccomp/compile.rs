//! From verdicts on system calls to a BPF program.
//!
//! The rules on arguments are compiled by `seccompiler`. The choice among the calls is our own binary search: that
//! library compares the number with one call after the other, which makes a program too long to serve two architectures, and
//! the kernel walks the program for every call when it is loaded (docs/decisions.md has the measurement).

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, sock_filter,
};

use super::{
    Arch,
    numbers::number,
    profile::{Rule, Verdict},
};

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The program for processes of these architectures. Others are killed: no number means the same there.
pub(super) fn compile(architectures: &[Arch], verdicts: &BTreeMap<&str, Verdict>) -> Result<BpfProgram, BackendError> {
    let mut program = vec![statement(LOAD, ARCHITECTURE)];
    for arch in architectures {
        let mut part = vec![statement(LOAD, NUMBER)];
        part.extend(search(&ranges(*arch, verdicts))?);
        program.push(jump_if(JUMP_IF_EQUAL, arch.audit_value(), 1, 0));
        program.push(statement(JUMP, part.len() as u32));
        program.extend(part);
    }
    program.push(statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS));
    Ok(program)
}

const REFUSED: Verdict = Verdict::Errno(libc::EPERM);
const UNKNOWN: Verdict = Verdict::Errno(libc::ENOSYS);

/// What holds for the numbers from `start` to the next range.
struct Range<'a> {
    start: u32,
    verdict: &'a Verdict,
}

/// All numbers in order, neighbours with the same verdict in one range.
fn ranges<'a>(arch: Arch, verdicts: &'a BTreeMap<&str, Verdict>) -> Vec<Range<'a>> {
    let mut named: Vec<_> =
        verdicts.iter().filter_map(|(name, verdict)| Some((number(arch, name)?, verdict))).collect();
    named.sort_unstable_by_key(|(number, _)| *number);
    let mut ranges: Vec<Range<'_>> = Vec::new();
    let mut add = |start, verdict| {
        if ranges.last().is_none_or(|last| last.verdict != verdict) {
            ranges.push(Range { start, verdict });
        }
    };
    let mut next = 0;
    for (number, verdict) in named {
        if number > next {
            add(next, &REFUSED);
        }
        add(number, verdict);
        next = number + 1;
    }
    // Calls younger than the profile: programs fall back to what they did before there were any. x32 calls are here too.
    add(next, &UNKNOWN);
    ranges
}

fn code(verdict: &Verdict) -> Result<BpfProgram, BackendError> {
    Ok(match verdict {
        Verdict::Allow => vec![statement(RETURN, libc::SECCOMP_RET_ALLOW)],
        Verdict::Errno(number) => vec![errno(*number)],
        Verdict::Rules(rules) => {
            let mut code = BpfProgram::new();
            for rule in rules {
                // Allows the call if the rule holds, else goes on behind.
                code.extend(BpfProgram::from(seccomp_rule(*rule)?));
                code.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
            }
            code.push(errno(libc::EPERM));
            code
        }
    })
}

/// The rule as the library has it.
pub(super) fn seccomp_rule(rule: Rule) -> Result<SeccompRule, BackendError> {
    let condition = |op, value: u32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, u64::from(value));
    let conditions = match rule {
        Rule::Is(value) => vec![condition(SeccompCmpOp::Eq, value)?],
        Rule::IsNone(values) => {
            values.iter().map(|value| condition(SeccompCmpOp::Ne, *value)).collect::<Result<_, _>>()?
        }
        Rule::Without(bits) => vec![condition(SeccompCmpOp::MaskedEq(u64::from(bits)), 0)?],
    };
    SeccompRule::new(conditions)
}

/// A binary search for the range of the loaded number.
fn search(ranges: &[Range<'_>]) -> Result<BpfProgram, BackendError> {
    if let [only] = ranges {
        return code(only.verdict);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let first = upper.first().map_or(0, |range| range.start);
    let (lower, upper) = (search(lower)?, search(upper)?);
    let mut program = match u8::try_from(lower.len()) {
        Ok(distance) => vec![jump_if(JUMP_IF_AT_LEAST, first, distance, 0)],
        Err(_) => vec![jump_if(JUMP_IF_AT_LEAST, first, 0, 1), statement(JUMP, lower.len() as u32)],
    };
    program.extend(lower);
    program.extend(upper);
    Ok(program)
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump_if(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn errno(number: i32) -> sock_filter {
    statement(RETURN, libc::SECCOMP_RET_ERRNO | (number as u32 & libc::SECCOMP_RET_DATA))
}
