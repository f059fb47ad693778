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
    numbers::{last, number},
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

/// What a filter says to a call, in the kernel's words (`SECCOMP_RET_…`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Always(u32),
    /// The first rule that holds decides; if none does, the second.
    Cases(Vec<(SeccompRule, u32)>, u32),
}

/// What a filter says to every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answers<'a> {
    pub by_name: BTreeMap<&'a str, Answer>,
    /// To calls that are not among them.
    pub others: u32,
    /// To calls that are younger than all that are known.
    pub younger: u32,
    /// Those are calls younger than any that has a name at all, not only among these.
    pub all_known: bool,
}

impl<'a> Answers<'a> {
    /// A profile's verdicts; what it does not name is refused, and what is younger does not exist: programs fall back to what they
    /// did before.
    pub fn of_verdicts(verdicts: &BTreeMap<&'a str, Verdict>) -> Result<Self, BackendError> {
        let by_name = verdicts.iter().map(|(name, verdict)| Ok((*name, answer(verdict)?)));
        Ok(Self { by_name: by_name.collect::<Result<_, _>>()?, others: REFUSED, younger: UNKNOWN, all_known: false })
    }
}

fn answer(verdict: &Verdict) -> Result<Answer, BackendError> {
    Ok(match verdict {
        Verdict::Allow => Answer::Always(libc::SECCOMP_RET_ALLOW),
        Verdict::Errno(number) => Answer::Always(errno(number.unsigned_abs())),
        Verdict::Rules(rules) => {
            let allowed = rules.iter().map(|rule| Ok((seccomp_rule(*rule)?, libc::SECCOMP_RET_ALLOW)));
            Answer::Cases(allowed.collect::<Result<_, _>>()?, REFUSED)
        }
    })
}

/// The program for processes of these architectures. Others are killed: no number means the same there.
pub(super) fn compile(architectures: &[Arch], answers: &Answers<'_>) -> BpfProgram {
    let mut program = vec![statement(LOAD, ARCHITECTURE)];
    for arch in architectures {
        let mut part = vec![statement(LOAD, NUMBER)];
        part.extend(search(&ranges(*arch, answers)));
        program.push(jump_if(JUMP_IF_EQUAL, arch.audit_value(), 1, 0));
        program.push(statement(JUMP, part.len() as u32));
        program.extend(part);
    }
    program.push(statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS));
    program
}

const REFUSED: u32 = errno(libc::EPERM.unsigned_abs());
const UNKNOWN: u32 = errno(libc::ENOSYS.unsigned_abs());

/// What holds for the numbers from `start` to the next range.
struct Range {
    start: u32,
    answer: Answer,
}

/// All numbers in order, neighbours with the same answer in one range.
fn ranges(arch: Arch, answers: &Answers<'_>) -> Vec<Range> {
    let mut named: Vec<_> =
        answers.by_name.iter().filter_map(|(name, answer)| Some((number(arch, name)?, answer))).collect();
    named.sort_unstable_by_key(|(number, _)| *number);
    let mut ranges: Vec<Range> = Vec::new();
    let mut add = |start, answer: &Answer| {
        if ranges.last().is_none_or(|last| last.answer != *answer) {
            ranges.push(Range { start, answer: answer.clone() });
        }
    };
    let others = Answer::Always(answers.others);
    let mut next = 0;
    for (number, answer) in named {
        if number > next {
            add(next, &others);
        }
        add(number, answer);
        next = number + 1;
    }
    if answers.all_known && next <= last(arch) {
        add(next, &others);
        next = last(arch) + 1;
    }
    // x32 calls are here too.
    add(next, &Answer::Always(answers.younger));
    ranges
}

fn code(answer: &Answer) -> BpfProgram {
    match answer {
        Answer::Always(value) => vec![statement(RETURN, *value)],
        Answer::Cases(cases, otherwise) => {
            let mut code = BpfProgram::new();
            for (rule, value) in cases {
                // Goes on behind the next instruction if the rule does not hold.
                code.extend(BpfProgram::from(rule.clone()));
                code.push(statement(RETURN, *value));
            }
            code.push(statement(RETURN, *otherwise));
            code
        }
    }
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
fn search(ranges: &[Range]) -> BpfProgram {
    if let [only] = ranges {
        return code(&only.answer);
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

/// The call fails with this errno.
pub(super) const fn errno(number: u32) -> u32 {
    libc::SECCOMP_RET_ERRNO | (number & libc::SECCOMP_RET_DATA)
}
