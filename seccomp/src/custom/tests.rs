//! Tests of custom profiles, by the programs that they are compiled to.

use serde_json::{Value as Json, json};

use super::*;
use crate::{custom_instructions, tests::run};

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KERNEL: (u32, u32) = (6, 1);

fn eperm() -> u32 {
    errno(libc::EPERM as u32)
}

fn read(profile: Json) -> Result<SeccompProfile, InvalidProfile> {
    SeccompProfile::from_json(profile.to_string().as_bytes())
}

/// The return value of the filter of a profile for a system call.
fn filtered(profile: &Json, arch: Arch, capabilities: &[&str], name: &str, args: [u64; 6]) -> u32 {
    let profile = read(profile.clone()).expect("a profile");
    let capabilities: Vec<String> = capabilities.iter().map(|&name| name.to_owned()).collect();
    let machine = if arch == Arch::I386 { Arch::X86_64 } else { arch };
    let resolved = profile.resolve(machine, &capabilities, KERNEL).expect("resolved");
    let program = custom_instructions(&resolved).expect("a program");
    run(&program, arch.audit_value(), number(arch, name).expect("a system call of this architecture"), args)
}

fn first(value: u64) -> [u64; 6] {
    [value, 0, 0, 0, 0, 0]
}

#[test]
fn the_filter_follows_names_actions_and_the_default_action() {
    let mut profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 13,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "syscalls": [
            { "names": ["read", "write", "no_such_call"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "c" },
            { "name": "keyctl", "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": null },
            { "names": ["reboot"], "action": "SCMP_ACT_KILL_PROCESS" },
        ],
    });
    for arch in [Arch::X86_64, Arch::I386] {
        for (name, expected) in [
            ("read", ALLOW),
            ("write", ALLOW),
            ("keyctl", errno(38)),
            ("reboot", libc::SECCOMP_RET_KILL_PROCESS),
            ("open", errno(13)),
            ("io_uring_setup", errno(13)),
        ] {
            assert_eq!(filtered(&profile, arch, &[], name, [0; 6]), expected, "{arch:?} {name}");
        }
    }
    // Processes of an architecture that is not listed are killed.
    profile["architectures"] = json!(["SCMP_ARCH_X86_64"]);
    let killed = libc::SECCOMP_RET_KILL_PROCESS;
    assert_eq!(filtered(&profile, Arch::I386, &[], "read", [0; 6]), killed);
}

#[test]
fn every_operator_compares_arguments() {
    let with = |op: &str, value: u64, two: u64| {
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            { "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
                { "index": 1, "value": value, "valueTwo": two, "op": op },
            ] },
        ] })
    };
    let big = 1 << 40;
    for (op, value, two, holds, fails) in [
        ("SCMP_CMP_EQ", big, 0, vec![big], vec![0, big + 1]),
        ("SCMP_CMP_NE", big, 0, vec![0, big + 1], vec![big]),
        ("SCMP_CMP_LT", big, 0, vec![0, big - 1], vec![big, big + 1]),
        ("SCMP_CMP_LE", big, 0, vec![0, big], vec![big + 1]),
        ("SCMP_CMP_GT", big, 0, vec![big + 1, u64::MAX], vec![big, 0]),
        ("SCMP_CMP_GE", big, 0, vec![big, big + 1], vec![big - 1]),
        ("SCMP_CMP_MASKED_EQ", 0xff0, 0x120, vec![0x120, 0xf_f12f], vec![0x130, 0]),
    ] {
        let profile = with(op, value, two);
        for (values, expected) in [(holds, ALLOW), (fails, eperm())] {
            for value in values {
                assert_eq!(
                    filtered(&profile, Arch::X86_64, &[], "socket", [0, value, 0, 0, 0, 0]),
                    expected,
                    "{op} {value:#x}"
                );
            }
        }
    }
}

#[test]
fn conditions_on_several_arguments_must_all_hold_and_those_on_one_are_alternatives() {
    let profile = json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        { "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
            { "index": 0, "value": 1, "op": "SCMP_CMP_EQ" }, { "index": 1, "value": 2, "op": "SCMP_CMP_EQ" },
        ] },
        { "names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [
            { "index": 0, "value": 0, "op": "SCMP_CMP_EQ" }, { "index": 0, "value": 8, "op": "SCMP_CMP_EQ" },
        ] },
        { "names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": [
            { "index": 0, "value": 1, "op": "SCMP_CMP_EQ" },
        ] },
        { "names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [{ "index": 0, "value": 3, "op": "SCMP_CMP_LT" }] },
    ] });
    let filter = |name: &str, args| filtered(&profile, Arch::Aarch64, &[], name, args);
    assert_eq!(filter("socket", [1, 2, 0, 0, 0, 0]), ALLOW);
    assert_eq!(filter("socket", [1, 3, 0, 0, 0, 0]), eperm());
    assert_eq!(filter("socket", [0, 2, 0, 0, 0, 0]), eperm());
    assert_eq!([0, 8, 9].map(|value| filter("personality", first(value))), [ALLOW, ALLOW, eperm()]);
    assert_eq!([0, 1, 2, 3].map(|value| filter("clone", first(value))), [ALLOW, errno(38), ALLOW, eperm()]);
}

#[test]
fn a_rule_applies_only_if_its_conditions_match() {
    let profile = |rule: Json| {
        let mut rule = rule;
        rule["names"] = json!(["mount"]);
        rule["action"] = json!("SCMP_ACT_ALLOW");
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule] })
    };
    let both: &[&str] = &["CAP_A", "CAP_B"];
    for (rule, arch, capabilities, expected) in [
        (json!({ "includes": { "caps": ["CAP_A", "CAP_B"] } }), Arch::X86_64, both, ALLOW),
        (json!({ "includes": { "caps": ["CAP_A", "CAP_B"] } }), Arch::X86_64, &both[..1], eperm()),
        (json!({ "excludes": { "caps": ["CAP_A", "CAP_B"] } }), Arch::X86_64, &both[..1], eperm()),
        (json!({ "excludes": { "caps": ["CAP_A"] } }), Arch::X86_64, &both[1..], ALLOW),
        (json!({ "includes": { "arches": ["amd64", "x32"] } }), Arch::X86_64, both, ALLOW),
        (json!({ "includes": { "arches": ["amd64"] } }), Arch::Aarch64, both, eperm()),
        (json!({ "excludes": { "arches": ["arm64"] } }), Arch::Aarch64, both, eperm()),
        (json!({ "includes": { "minKernel": "4.8" } }), Arch::X86_64, both, ALLOW),
        (json!({ "includes": { "minKernel": "6.2" } }), Arch::X86_64, both, eperm()),
        (json!({ "excludes": { "minKernel": "6.1" } }), Arch::X86_64, both, eperm()),
        (json!({ "includes": {}, "excludes": {} }), Arch::X86_64, both, ALLOW),
    ] {
        assert_eq!(filtered(&profile(rule.clone()), arch, capabilities, "mount", [0; 6]), expected, "{rule}");
    }
}

#[test]
fn newer_system_calls_fail_with_enosys_if_the_default_is_an_errno() {
    for (default, expected) in [
        ("SCMP_ACT_ERRNO", errno(libc::ENOSYS as u32)),
        ("SCMP_ACT_ALLOW", ALLOW),
        ("SCMP_ACT_KILL_PROCESS", libc::SECCOMP_RET_KILL_PROCESS),
    ] {
        let profile = read(json!({ "defaultAction": default })).expect("a profile");
        let resolved = profile.resolve(Arch::X86_64, &[], KERNEL).expect("resolved");
        let program = custom_instructions(&resolved).expect("a program");
        assert_eq!(run(&program, Arch::X86_64.audit_value(), 900, [0; 6]), expected, "{default}");
    }
}

#[test]
fn an_architecture_includes_its_sub_architectures() {
    let profile = json!({ "defaultAction": "SCMP_ACT_ALLOW", "archMap": [
        { "architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"] },
        { "architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"] },
    ] });
    assert_eq!(filtered(&profile, Arch::I386, &[], "read", [0; 6]), ALLOW);
    let oci = read(profile).expect("a profile");
    let oci = oci.resolve(Arch::X86_64, &[], KERNEL).expect("resolved").to_oci();
    assert_eq!(oci["architectures"], json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]));
}

#[test]
fn invalid_profiles_are_refused_with_the_reason() {
    let rule = |rule: Json| json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule] });
    for (profile, expected) in [
        (json!([]), "is not of docker's format"),
        (json!({}), "missing field `defaultAction`"),
        (json!({ "defaultAction": "SCMP_ACT_NOTIFY" }), "action \"SCMP_ACT_NOTIFY\" is not supported"),
        (json!({ "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x" }), "unknown field `listenerPath`"),
        (
            json!({ "defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_TSYNC"] }),
            "flags are not supported",
        ),
        (
            json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86"],
                "archMap": [{ "architecture": "x" }],
            }),
            "exclude each other",
        ),
        (rule(json!({ "action": "SCMP_ACT_ALLOW" })), "needs either names or a name"),
        (
            rule(json!({ "names": ["read"], "name": "write", "action": "SCMP_ACT_ALLOW" })),
            "needs either names or a name",
        ),
        (
            rule(json!({
                "names": ["read"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{ "index": 6, "value": 0, "op": "SCMP_CMP_EQ" }],
            })),
            "a rule for read looks at argument 6",
        ),
        (
            rule(json!({ "names": ["read"], "action": "SCMP_ACT_ALLOW", "includes": { "minKernel": "new" } })),
            "minKernel \"new\" is no version",
        ),
    ] {
        let error = read(profile.clone()).expect_err(&profile.to_string()).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let twice = json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        { "names": ["read"], "action": "SCMP_ACT_ALLOW" }, { "names": ["read"], "action": "SCMP_ACT_KILL" },
    ] });
    let profile = read(twice).expect("each rule is valid");
    let error = profile.resolve(Arch::X86_64, &[], KERNEL).expect("resolved").policy().map(drop).expect_err("refused");
    assert_eq!(error.to_string(), "the seccomp profile: two rules for read contradict each other");
}

#[test]
fn a_profile_survives_serialization() {
    let profile = read(json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        { "names": ["read"], "action": "SCMP_ACT_ALLOW", "comment": "c", "includes": { "caps": ["CAP_A"] },
          "args": [{ "index": 0, "value": u64::MAX, "op": "SCMP_CMP_NE" }] },
    ] }))
    .expect("a profile");
    let again: SeccompProfile =
        serde_json::from_slice(&serde_json::to_vec(&profile).expect("text")).expect("a profile");
    assert_eq!(again.syscalls.iter().flatten().count(), 1);
    assert_eq!(read(serde_json::to_value(&again).expect("a value")), Ok(again));
}
