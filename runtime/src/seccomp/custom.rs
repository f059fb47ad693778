//! Profiles of somebody else's, in docker's JSON format: the runtime specification's `seccomp` with conditions for rules.
//!
//! Rules mean what they mean there. Those whose conditions (`includes`, `excludes`) do not fit the container, the machine or the kernel are
//! left out. A rule without arguments decides for its calls whatever rules with arguments say; among these the first that holds decides.
//! Names of calls that the machine does not have are skipped. Calls that are younger than any we know by name are answered with
//! ENOSYS where the profile would have them fail with another errno, because programs take only that for a reason to do without.

use std::collections::BTreeMap;

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use serde::{Deserialize, Serialize};

use super::{
    Arch, SeccompError,
    compile::{Answer, Answers, errno},
    numbers::number,
};

/// A profile that cannot become a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProfile {
    /// It is not of docker's format.
    #[error("{0}")]
    Json(String),
    /// An action that is none, or that needs a process which decides.
    #[error("action {0:?} is not supported")]
    Action(String),
    /// Flags change how the filter is loaded.
    #[error("flags are not supported")]
    Flags,
    /// Both ways to list architectures at once.
    #[error("architectures and archMap exclude each other")]
    Architectures,
    /// A rule without the name of a call, or with both forms of it.
    #[error("a rule needs either names or a name")]
    Names,
    /// System calls have six arguments.
    #[error("a rule for {0} looks at argument {1}, and there are six, counted from 0")]
    Argument(String, u32),
    /// Not of the form `4.8`.
    #[error("minKernel {0:?} is no version of a kernel, as in \"4.8\"")]
    Kernel(String),
    /// Two rules without arguments say different things.
    #[error("two rules for {0} contradict each other")]
    Contradiction(String),
}

/// A profile in docker's format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SeccompProfile {
    default_action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default_errno_ret: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    architectures: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arch_map: Option<Vec<ArchMap>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flags: Option<Vec<String>>,
    #[serde(default)]
    syscalls: Option<Vec<Syscall>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchMap {
    architecture: String,
    #[serde(default)]
    sub_architectures: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Syscall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    /// The older form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    errno_ret: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<Vec<Arg>>,
    /// For people.
    #[serde(default, skip_serializing)]
    comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    includes: Option<Conditions>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    excludes: Option<Conditions>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Arg {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: Operator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Operator {
    #[serde(rename = "SCMP_CMP_NE")]
    Ne,
    #[serde(rename = "SCMP_CMP_LT")]
    Lt,
    #[serde(rename = "SCMP_CMP_LE")]
    Le,
    #[serde(rename = "SCMP_CMP_EQ")]
    Eq,
    #[serde(rename = "SCMP_CMP_GE")]
    Ge,
    #[serde(rename = "SCMP_CMP_GT")]
    Gt,
    /// `value` is the mask, `value_two` what is left.
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEq,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Conditions {
    #[serde(default)]
    caps: Option<Vec<String>>,
    #[serde(default)]
    arches: Option<Vec<String>>,
    #[serde(default)]
    min_kernel: Option<String>,
}

/// What is left of a profile for one container, and what the specification calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved<'a> {
    pub(super) architectures: Vec<Arch>,
    profile: &'a SeccompProfile,
    rules: Vec<&'a Syscall>,
}

impl SeccompProfile {
    /// Reads a profile and checks all that does not depend on a container.
    pub fn from_json(text: &[u8]) -> Result<Self, InvalidProfile> {
        let profile: Self = serde_json::from_slice(text)
            .map_err(|error| InvalidProfile::Json(format!("is not of docker's format: {error}")))?;
        action(&profile.default_action, profile.default_errno_ret)?;
        if profile.flags.iter().flatten().next().is_some() {
            return Err(InvalidProfile::Flags);
        }
        let listed = |list: usize| list > 0;
        if listed(profile.architectures.iter().flatten().count()) && listed(profile.arch_map.iter().flatten().count()) {
            return Err(InvalidProfile::Architectures);
        }
        for rule in profile.syscalls.iter().flatten() {
            action(&rule.action, rule.errno_ret)?;
            let names = rule.names()?;
            if let Some(wrong) = rule.args.iter().flatten().find(|arg| arg.index > 5) {
                return Err(InvalidProfile::Argument(names.join(", "), wrong.index));
            }
            for conditions in rule.includes.iter().chain(&rule.excludes) {
                conditions.min_kernel()?;
            }
        }
        Ok(profile)
    }

    /// Leaves out what is not meant for such a container.
    pub(super) fn resolve(
        &self,
        machine: Arch,
        capabilities: &[String],
        kernel: (u32, u32),
    ) -> Result<Resolved<'_>, InvalidProfile> {
        let mut rules = Vec::new();
        for rule in self.syscalls.iter().flatten() {
            let included = rule.includes.as_ref().map_or(Ok(true), |all| all.hold(machine, capabilities, kernel))?;
            let excluded =
                rule.excludes.as_ref().map_or(Ok(false), |any| any.one_holds(machine, capabilities, kernel))?;
            if included && !excluded {
                rules.push(rule);
            }
        }
        Ok(Resolved { architectures: self.machines(machine), profile: self, rules })
    }

    /// The machine's own architecture, and what else of its family the profile lists.
    fn machines(&self, machine: Arch) -> Vec<Arch> {
        let mapped = self.arch_map.iter().flatten().filter(|entry| entry.architecture == machine.oci_name());
        let below = mapped.flat_map(|entry| entry.sub_architectures.iter().flatten());
        let listed: Vec<&String> = self.architectures.iter().flatten().chain(below).collect();
        let wanted = |arch: &Arch| *arch == machine || listed.iter().any(|name| *name == arch.oci_name());
        machine.family().iter().copied().filter(wanted).collect()
    }
}

impl Syscall {
    fn names(&self) -> Result<Vec<&str>, InvalidProfile> {
        let names: Vec<&str> = self.names.iter().flatten().chain(&self.name).map(String::as_str).collect();
        let both = self.name.is_some() && self.names.as_ref().is_some_and(|names| !names.is_empty());
        if both || names.is_empty() { Err(InvalidProfile::Names) } else { Ok(names) }
    }

    /// The conditions of which one set must hold; none at all is always.
    fn rules(&self) -> Result<Vec<SeccompRule>, SeccompError> {
        let args: Vec<&Arg> = self.args.iter().flatten().collect();
        let twice = args.iter().any(|arg| args.iter().filter(|other| other.index == arg.index).count() > 1);
        // Several conditions on one argument are alternatives, as they were before a rule could hold more than one.
        let sets: Vec<Vec<&Arg>> = match args.is_empty() {
            true => Vec::new(),
            false if twice => args.into_iter().map(|arg| vec![arg]).collect(),
            false => vec![args],
        };
        let rule = |set: Vec<&Arg>| {
            let conditions = set.into_iter().map(Arg::condition).collect::<Result<_, _>>()?;
            Ok(SeccompRule::new(conditions)?)
        };
        sets.into_iter().map(rule).collect()
    }
}

impl Arg {
    fn condition(&self) -> Result<SeccompCondition, SeccompError> {
        let (op, value) = match self.op {
            Operator::Ne => (SeccompCmpOp::Ne, self.value),
            Operator::Lt => (SeccompCmpOp::Lt, self.value),
            Operator::Le => (SeccompCmpOp::Le, self.value),
            Operator::Eq => (SeccompCmpOp::Eq, self.value),
            Operator::Ge => (SeccompCmpOp::Ge, self.value),
            Operator::Gt => (SeccompCmpOp::Gt, self.value),
            Operator::MaskedEq => (SeccompCmpOp::MaskedEq(self.value), self.value_two),
        };
        // Checked to be below six.
        let index = u8::try_from(self.index).unwrap_or(u8::MAX);
        Ok(SeccompCondition::new(index, SeccompCmpArgLen::Qword, op, value)?)
    }
}

impl Conditions {
    fn min_kernel(&self) -> Result<Option<(u32, u32)>, InvalidProfile> {
        let Some(text) = self.min_kernel.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Some((major, minor))),
            _ => Err(InvalidProfile::Kernel(text.to_owned())),
        }
    }

    /// Whether all of them hold.
    fn hold(&self, machine: Arch, capabilities: &[String], kernel: (u32, u32)) -> Result<bool, InvalidProfile> {
        let mut arches = self.arches.iter().flatten().peekable();
        let arch = arches.peek().is_none() || arches.any(|name| name == machine.go_name());
        let caps = self.caps.iter().flatten().all(|name| capabilities.contains(name));
        Ok(arch && caps && self.min_kernel()?.is_none_or(|least| kernel >= least))
    }

    /// Whether any of them holds.
    fn one_holds(&self, machine: Arch, capabilities: &[String], kernel: (u32, u32)) -> Result<bool, InvalidProfile> {
        let arch = self.arches.iter().flatten().any(|name| name == machine.go_name());
        let caps = self.caps.iter().flatten().any(|name| capabilities.contains(name));
        Ok(arch || caps || self.min_kernel()?.is_some_and(|least| kernel >= least))
    }
}

impl Resolved<'_> {
    /// What the filter says to every call.
    pub(super) fn answers(&self) -> Result<Answers<'_>, SeccompError> {
        let default = action(&self.profile.default_action, self.profile.default_errno_ret)?;
        let mut always: BTreeMap<&str, u32> = BTreeMap::new();
        let mut cases: BTreeMap<&str, Vec<(SeccompRule, u32)>> = BTreeMap::new();
        for rule in &self.rules {
            let answer = action(&rule.action, rule.errno_ret)?;
            let rules = rule.rules()?;
            for name in rule.names()?.into_iter().filter(|name| self.has(name)) {
                if !rules.is_empty() {
                    cases.entry(name).or_default().extend(rules.iter().cloned().map(|rule| (rule, answer)));
                } else if always.insert(name, answer).is_some_and(|earlier| earlier != answer) {
                    return Err(InvalidProfile::Contradiction(name.to_owned()).into());
                }
            }
        }
        let mut by_name: BTreeMap<&str, Answer> =
            cases.into_iter().map(|(name, cases)| (name, Answer::Cases(cases, default))).collect();
        by_name.extend(always.into_iter().map(|(name, answer)| (name, Answer::Always(answer))));
        let fails = default & !libc::SECCOMP_RET_DATA == libc::SECCOMP_RET_ERRNO;
        let younger = if fails { errno(libc::ENOSYS.unsigned_abs()) } else { default };
        Ok(Answers { by_name, others: default, younger, all_known: true })
    }

    fn has(&self, name: &str) -> bool {
        self.architectures.iter().any(|arch| number(*arch, name).is_some())
    }

    /// The same in the words of the runtime specification, which knows no conditions.
    pub(crate) fn oci(&self) -> serde_json::Value {
        let rule = |rule: &&Syscall| {
            serde_json::json!({
                "names": rule.names().unwrap_or_default(),
                "action": rule.action,
                "errnoRet": rule.errno_ret,
                "args": rule.args,
            })
        };
        serde_json::json!({
            "defaultAction": self.profile.default_action,
            "defaultErrnoRet": self.profile.default_errno_ret,
            "architectures": self.architectures.iter().map(|arch| arch.oci_name()).collect::<Vec<_>>(),
            "syscalls": self.rules.iter().map(rule).collect::<Vec<_>>(),
        })
    }
}

/// An action in the kernel's words.
fn action(name: &str, errno_ret: Option<u32>) -> Result<u32, InvalidProfile> {
    let data = errno_ret.unwrap_or(libc::EPERM.unsigned_abs());
    Ok(match name {
        "SCMP_ACT_ALLOW" => libc::SECCOMP_RET_ALLOW,
        "SCMP_ACT_ERRNO" => errno(data),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => libc::SECCOMP_RET_KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => libc::SECCOMP_RET_KILL_PROCESS,
        "SCMP_ACT_TRAP" => libc::SECCOMP_RET_TRAP,
        "SCMP_ACT_TRACE" => libc::SECCOMP_RET_TRACE | data & libc::SECCOMP_RET_DATA,
        "SCMP_ACT_LOG" => libc::SECCOMP_RET_LOG,
        _ => return Err(InvalidProfile::Action(name.to_owned())),
    })
}

#[cfg(test)]
mod tests;
