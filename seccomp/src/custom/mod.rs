//! Custom profiles in docker's JSON format: the `seccomp` section of the OCI runtime specification, plus conditions on
//! rules.
//!
//! Rules have the meaning that docker gives them:
//!
//! - A rule applies only if its conditions (`includes`, `excludes`) match the container, the machine and the kernel.
//! - A rule without arguments overrides the rules with arguments for the same system call.
//! - Among the rules with arguments, the first one that matches decides.
//! - Names of system calls that the machine does not have are ignored.
//! - System calls newer than the table of known ones fail with ENOSYS if the default action is an errno, because
//!   programs fall back to an older system call only after ENOSYS.

use std::collections::BTreeMap;

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use serde::{Deserialize, Serialize};

use crate::{
    arch::Arch,
    compile::{Action, Policy, errno},
    error::{InvalidProfile, SeccompError},
    syscalls::number,
};

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
    /// The older form of `names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    errno_ret: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<Vec<Arg>>,
    /// A remark for human readers.
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
    /// `value` is the mask, `value_two` the expected result.
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

/// The rules of a profile that apply to one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedProfile<'a> {
    architectures: Vec<Arch>,
    profile: &'a SeccompProfile,
    rules: Vec<&'a Syscall>,
}

impl SeccompProfile {
    /// Parses a profile and checks everything that does not depend on a container.
    pub fn from_json(text: &[u8]) -> Result<Self, InvalidProfile> {
        let profile: Self = serde_json::from_slice(text)
            .map_err(|error| InvalidProfile::Json(format!("is not of docker's format: {error}")))?;
        return_value(&profile.default_action, profile.default_errno_ret)?;
        if profile.flags.iter().flatten().next().is_some() {
            return Err(InvalidProfile::Flags);
        }
        let has_architectures = profile.architectures.iter().flatten().next().is_some();
        let has_arch_map = profile.arch_map.iter().flatten().next().is_some();
        if has_architectures && has_arch_map {
            return Err(InvalidProfile::Architectures);
        }
        for rule in profile.syscalls.iter().flatten() {
            return_value(&rule.action, rule.errno_ret)?;
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

    /// Selects the rules that apply to a container with these capabilities on this machine and kernel.
    pub(crate) fn resolve(
        &self,
        machine: Arch,
        capabilities: &[String],
        kernel: (u32, u32),
    ) -> Result<ResolvedProfile<'_>, InvalidProfile> {
        let mut rules = Vec::new();
        for rule in self.syscalls.iter().flatten() {
            let included = rule
                .includes
                .as_ref()
                .map_or(Ok(true), |conditions| conditions.all_hold(machine, capabilities, kernel))?;
            let excluded = rule
                .excludes
                .as_ref()
                .map_or(Ok(false), |conditions| conditions.any_holds(machine, capabilities, kernel))?;
            if included && !excluded {
                rules.push(rule);
            }
        }
        Ok(ResolvedProfile { architectures: self.architectures_on(machine), profile: self, rules })
    }

    /// The architecture of the machine, and the other ones of its family that the profile lists.
    fn architectures_on(&self, machine: Arch) -> Vec<Arch> {
        let mapped = self.arch_map.iter().flatten().filter(|entry| entry.architecture == machine.oci_name());
        let sub_architectures = mapped.flat_map(|entry| entry.sub_architectures.iter().flatten());
        let listed: Vec<&String> = self.architectures.iter().flatten().chain(sub_architectures).collect();
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

    /// The rules on arguments, of which one must match. An empty list matches always.
    fn argument_rules(&self) -> Result<Vec<SeccompRule>, SeccompError> {
        let args: Vec<&Arg> = self.args.iter().flatten().collect();
        let repeated = args.iter().any(|arg| args.iter().filter(|other| other.index == arg.index).count() > 1);
        // Several conditions on the same argument are alternatives, as in runc.
        let sets: Vec<Vec<&Arg>> = match args.is_empty() {
            true => Vec::new(),
            false if repeated => args.into_iter().map(|arg| vec![arg]).collect(),
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
        // `from_json` has checked that it is at most 5.
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

    /// Whether all conditions hold.
    fn all_hold(&self, machine: Arch, capabilities: &[String], kernel: (u32, u32)) -> Result<bool, InvalidProfile> {
        let mut arches = self.arches.iter().flatten().peekable();
        let arch = arches.peek().is_none() || arches.any(|name| name == machine.go_name());
        let caps = self.caps.iter().flatten().all(|name| capabilities.contains(name));
        Ok(arch && caps && self.min_kernel()?.is_none_or(|least| kernel >= least))
    }

    /// Whether at least one condition holds.
    fn any_holds(&self, machine: Arch, capabilities: &[String], kernel: (u32, u32)) -> Result<bool, InvalidProfile> {
        let arch = self.arches.iter().flatten().any(|name| name == machine.go_name());
        let caps = self.caps.iter().flatten().any(|name| capabilities.contains(name));
        Ok(arch || caps || self.min_kernel()?.is_some_and(|least| kernel >= least))
    }
}

impl ResolvedProfile<'_> {
    /// The architectures that the profile covers.
    pub(crate) fn architectures(&self) -> &[Arch] {
        &self.architectures
    }

    /// The actions of the filter for all system calls.
    pub(crate) fn policy(&self) -> Result<Policy<'_>, SeccompError> {
        let default = return_value(&self.profile.default_action, self.profile.default_errno_ret)?;
        let mut always: BTreeMap<&str, u32> = BTreeMap::new();
        let mut cases: BTreeMap<&str, Vec<(SeccompRule, u32)>> = BTreeMap::new();
        for rule in &self.rules {
            let action = return_value(&rule.action, rule.errno_ret)?;
            let rules = rule.argument_rules()?;
            for name in rule.names()?.into_iter().filter(|name| self.has_syscall(name)) {
                if !rules.is_empty() {
                    cases.entry(name).or_default().extend(rules.iter().cloned().map(|rule| (rule, action)));
                } else if always.insert(name, action).is_some_and(|earlier| earlier != action) {
                    return Err(InvalidProfile::Contradiction(name.to_owned()).into());
                }
            }
        }
        let mut by_name: BTreeMap<&str, Action> =
            cases.into_iter().map(|(name, cases)| (name, Action::Conditional(cases, default))).collect();
        by_name.extend(always.into_iter().map(|(name, action)| (name, Action::Always(action))));
        let fails = default & !libc::SECCOMP_RET_DATA == libc::SECCOMP_RET_ERRNO;
        let newer = if fails { errno(libc::ENOSYS.unsigned_abs()) } else { default };
        Ok(Policy { by_name, default, newer, table_is_known: true, foreign: libc::SECCOMP_RET_KILL_PROCESS })
    }

    fn has_syscall(&self, name: &str) -> bool {
        self.architectures.iter().any(|arch| number(*arch, name).is_some())
    }

    /// The `seccomp` section of an OCI spec with the same meaning. The OCI format has no conditions.
    pub fn to_oci(&self) -> serde_json::Value {
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

/// The return value of a filter (`SECCOMP_RET_…`) for an action of a profile.
fn return_value(name: &str, errno_ret: Option<u32>) -> Result<u32, InvalidProfile> {
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
