//! Tests of the compiled default profile.

use seccompiler::sock_filter;

use super::*;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// The return value of a program for one system call. Interprets the instructions that the compiler emits.
pub(super) fn run(program: &[sock_filter], audit: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = Vec::from(number.to_ne_bytes());
    data.extend(audit.to_ne_bytes());
    data.extend([0; 8]);
    data.extend(args.into_iter().flat_map(u64::to_ne_bytes));
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let branch = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            0x20 => {
                let offset = k as usize;
                accumulator = u32::from_ne_bytes(data[offset..offset + 4].try_into().expect("four bytes"));
            }
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x25 => at += branch(accumulator > k),
            0x35 => at += branch(accumulator >= k),
            0x54 => accumulator &= k,
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

/// The return value of the default filter for a system call with this first argument.
fn filtered(arch: Arch, capabilities: &[&str], name: &str, first: u64) -> u32 {
    let capabilities: Vec<String> = capabilities.iter().map(|&name| name.to_owned()).collect();
    let program = default_instructions(arch, &capabilities).expect("a program");
    let number = syscalls::number(arch, name).expect("a system call of this architecture");
    run(&program, arch.audit_value(), number, [first, 0, 0, 0, 0, 0])
}

const ALL: [Arch; 3] = [Arch::X86_64, Arch::I386, Arch::Aarch64];

#[test]
fn the_program_follows_every_permission_of_the_default_profile() {
    for capabilities in
        [vec![], vec!["CAP_SYS_ADMIN".to_owned()], vec!["CAP_SYS_TIME".to_owned(), "CAP_BPF".to_owned()]]
    {
        let profile = default_profile(&capabilities);
        for arch in ALL {
            let program = default_instructions(arch, &capabilities).expect("a program");
            let by_number: std::collections::BTreeMap<_, _> = profile
                .iter()
                .filter_map(|(name, permission)| Some((syscalls::number(arch, name)?, permission)))
                .collect();
            let last = *by_number.keys().max().expect("some");
            for number in 0..=last {
                let expected = match by_number.get(&number) {
                    Some(Permission::Allow) => ALLOW,
                    Some(Permission::Errno(errno)) => libc::SECCOMP_RET_ERRNO | *errno as u32,
                    Some(Permission::AllowIf(_)) => continue,
                    None => EPERM,
                };
                assert_eq!(run(&program, arch.audit_value(), number, [0; 6]), expected, "{arch:?} {number}");
            }
            for number in [last + 1, 600, 0x4000_0000, 0x4000_0000 + 39, u32::MAX] {
                assert_eq!(run(&program, arch.audit_value(), number, [0; 6]), ENOSYS, "{arch:?} {number}");
            }
        }
    }
}

#[test]
fn system_calls_that_affect_the_whole_kernel_fail() {
    for arch in ALL {
        for name in
            ["mount", "unshare", "setns", "bpf", "init_module", "reboot", "perf_event_open", "open_by_handle_at"]
        {
            assert_eq!(filtered(arch, &[], name, 0), EPERM, "{arch:?} {name}");
        }
        for name in ["read", "execve", "futex", "ptrace", "openat2", "statx", "landlock_create_ruleset"] {
            assert_eq!(filtered(arch, &[], name, 0), ALLOW, "{arch:?} {name}");
        }
    }
    // add_key, keyctl, io_uring_setup and userfaultfd on x86_64, by number: the profile does not name them.
    let program = default_instructions(Arch::X86_64, &["CAP_SYS_ADMIN".to_owned()]).expect("a program");
    for number in [248, 250, 425, 323] {
        assert_eq!(run(&program, Arch::X86_64.audit_value(), number, [0; 6]), EPERM, "{number}");
    }
}

#[test]
fn clone_creates_threads_but_no_namespaces() {
    let thread = 0x3d_0f00;
    for arch in ALL {
        assert_eq!(filtered(arch, &[], "clone", thread), ALLOW);
        assert_eq!(filtered(arch, &[], "clone", libc::SIGCHLD as u64), ALLOW);
        assert_eq!(filtered(arch, &[], "clone", libc::CLONE_NEWUSER as u64 | thread), EPERM);
        assert_eq!(filtered(arch, &[], "clone", libc::CLONE_NEWNS as u64), EPERM);
        assert_eq!(filtered(arch, &[], "clone3", 0), ENOSYS);
        assert_eq!(filtered(arch, &["CAP_SYS_ADMIN"], "clone", libc::CLONE_NEWUSER as u64), ALLOW);
        assert_eq!(filtered(arch, &["CAP_SYS_ADMIN"], "clone3", 0), ALLOW);
    }
}

#[test]
fn socket_families_and_personalities_are_restricted() {
    for arch in ALL {
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP] {
            assert_eq!(filtered(arch, &[], "socket", family as u64), ALLOW, "{family}");
        }
        for family in [libc::AF_ALG, libc::AF_VSOCK] {
            assert_eq!(filtered(arch, &["CAP_SYS_ADMIN"], "socket", family as u64), EPERM, "{family}");
            // The kernel uses only the lower half of the argument.
            assert_eq!(filtered(arch, &[], "socket", family as u64 | 1 << 32), EPERM, "{family}");
        }
        for known in [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
            assert_eq!(filtered(arch, &[], "personality", known), ALLOW, "{known:#x}");
        }
        // ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC.
        for other in [0x4_0000, 0x40_0000] {
            assert_eq!(filtered(arch, &[], "personality", other), EPERM, "{other:#x}");
        }
    }
}

#[test]
fn processes_of_other_architectures_are_killed() {
    let program = default_instructions(Arch::Aarch64, &[]).expect("a program");
    assert_eq!(run(&program, Arch::X86_64.audit_value(), 0, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    let program = default_instructions(Arch::X86_64, &[]).expect("a program");
    assert_eq!(run(&program, Arch::Aarch64.audit_value(), 0, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
}

#[test]
#[ignore = "a measurement, for docs/decisions.md"]
fn measure_compiling_and_loading() {
    use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
    let start = std::time::Instant::now();
    let ours = default_instructions(Arch::native().expect("a known architecture"), &[]).expect("a program");
    let compiled = start.elapsed();
    let start = std::time::Instant::now();
    let profile = default_profile(&[]);
    let rules = profile
        .iter()
        .filter_map(|(name, permission)| {
            let rules = match permission {
                Permission::Allow => Vec::new(),
                Permission::AllowIf(rules) => {
                    rules.iter().map(|rule| compile::seccomp_rule(*rule).expect("a rule")).collect()
                }
                Permission::Errno(_) => return None,
            };
            Some((i64::from(syscalls::number(Arch::X86_64, name)?), rules))
        })
        .collect();
    let mismatch = SeccompAction::Errno(libc::EPERM as u32);
    let linear = SeccompFilter::new(rules, mismatch, SeccompAction::Allow, TargetArch::x86_64).expect("a filter");
    let linear = BpfProgram::try_from(linear).expect("a program");
    let linear_compiled = start.elapsed();
    for (name, program, compiled) in [("search", ours, compiled), ("linear", linear, linear_compiled)] {
        let mut loads: Vec<_> = (0..20)
            .map(|_| {
                let program = program.clone();
                let load = move || {
                    let start = std::time::Instant::now();
                    seccompiler::apply_filter(&program).expect("the filter is loaded");
                    start.elapsed()
                };
                std::thread::spawn(load).join().expect("the thread ends")
            })
            .collect();
        loads.sort();
        eprintln!("{name}: {} instructions, compiled in {compiled:?}, loaded in {:?}", program.len(), loads[10]);
    }
}
