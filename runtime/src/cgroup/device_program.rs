//! The BPF program that restricts the devices of a cgroup v2.
//!
//! libcontainer does not attach one. The program is attached before the container's command runs, and applies to every
//! process in the cgroup.

use std::{fs::File, io, os::fd::AsFd, path::Path};

use super::device_rules::{DeviceRule, standard_rules};
use crate::{
    error::{Context, RuntimeError},
    sys,
};

/// The name by which our programs are recognised.
const NAME: &std::ffi::CStr = c"oci_rs_devices";

/// Restricts a cgroup v2 to the standard devices and those of these rules. Replaces the program of an earlier
/// container.
pub(super) fn restrict_devices(cgroup: &Path, rules: &[DeviceRule]) -> Result<(), RuntimeError> {
    let rules: Vec<DeviceRule> = standard_rules().chain(rules.iter().copied()).collect();
    let apply = || -> io::Result<()> {
        let directory = File::open(cgroup)?;
        let program = sys::load_device_program(&program(&rules), NAME)?;
        sys::detach_device_programs(directory.as_fd(), NAME)?;
        sys::attach_device_program(directory.as_fd(), program.as_fd())
    };
    let action = || format!("restricting devices in {} (needs a kernel with CONFIG_CGROUP_BPF)", cgroup.display());
    apply().context(action)
}

/// Detaches our program from a cgroup that stays.
pub(super) fn release_devices(cgroup: &Path) -> Result<(), RuntimeError> {
    match File::open(cgroup) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => opened
            .and_then(|directory| sys::detach_device_programs(directory.as_fd(), NAME))
            .context(|| format!("releasing the devices of {}", cgroup.display()))?,
    }
    Ok(())
}

// The BPF instructions that the program uses (Documentation/bpf/standardization/instruction-set.rst). Registers: 0 is
// the result, 1 the context, 2 the kind of device, 3 the access, 4 and 5 the major and minor number, 6 is scratch.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const COPY: u8 = 0xbc;
const SET: u8 = 0xb4;
const JUMP_IF_NOT: u8 = 0x55;
const EXIT: u8 = 0x95;

const KIND_BLOCK: i32 = 1;
const KIND_CHARACTER: i32 = 2;

fn instruction(code: u8, target: u8, source: u8, offset: i16, value: i32) -> u64 {
    let [offset_0, offset_1] = offset.to_ne_bytes();
    let [value_0, value_1, value_2, value_3] = value.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") { source << 4 | target } else { target << 4 | source };
    u64::from_ne_bytes([code, registers, offset_0, offset_1, value_0, value_1, value_2, value_3])
}

/// Compiles the program. It allows an access if at least one rule allows it.
fn program(rules: &[DeviceRule]) -> Vec<u64> {
    let mut list = vec![
        instruction(LOAD_WORD, 2, 1, 0, 0),
        instruction(COPY, 3, 2, 0, 0),
        instruction(AND, 2, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, 3, 0, 0, 16),
        instruction(LOAD_WORD, 4, 1, 4, 0),
        instruction(LOAD_WORD, 5, 1, 8, 0),
    ];
    for rule in rules {
        list.extend(rule_instructions(rule));
    }
    list.extend([instruction(SET, 0, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    list
}

fn rule_instructions(rule: &DeviceRule) -> Vec<u64> {
    // The register and the value of each comparison. `None` is the comparison of the access, which must be a subset of
    // the allowed access.
    let kind = if rule.block { KIND_BLOCK } else { KIND_CHARACTER };
    let mut comparisons = vec![Some((2, kind)), None];
    comparisons.extend(rule.major.map(|major| Some((4, major as i32))));
    comparisons.extend(rule.minor.map(|minor| Some((5, minor as i32))));
    let allow = [instruction(SET, 0, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)];
    let length = comparisons.iter().map(|one| if one.is_some() { 1 } else { 3 }).sum::<usize>() + allow.len();
    let mut list = Vec::with_capacity(length);
    for comparison in comparisons {
        let (register, value) = comparison.unwrap_or_else(|| {
            list.push(instruction(COPY, 6, 3, 0, 0));
            list.push(instruction(AND, 6, 0, 0, i32::from(!rule.access.0)));
            (6, 0)
        });
        // The jump skips the rest of this rule. A rule has about a dozen instructions.
        let skipped = (length - list.len() - 1) as i16;
        list.push(instruction(JUMP_IF_NOT, register, 0, skipped, value));
    }
    list.extend(allow);
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::device_rules::Access, *};

    /// Interprets a program: whether it allows the access.
    fn run(program: &[u64], block: bool, access: u8, major: u32, minor: u32) -> bool {
        let kind = if block { KIND_BLOCK } else { KIND_CHARACTER } as u32;
        let context = [u32::from(access) << 16 | kind, major, minor];
        let mut registers = [0u64; 16];
        let mut at = 0;
        loop {
            let [code, pair, offset_0, offset_1, value @ ..] = program[at].to_le_bytes();
            at += 1;
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let (offset, value) = (i16::from_le_bytes([offset_0, offset_1]), i32::from_le_bytes(value));
            match code {
                LOAD_WORD => registers[to] = context[offset as usize / 4].into(),
                AND => registers[to] = u64::from(registers[to] as u32 & value as u32),
                SHIFT_RIGHT => registers[to] = u64::from(registers[to] as u32 >> value),
                COPY => registers[to] = u64::from(registers[from] as u32),
                SET => registers[to] = u64::from(value as u32),
                JUMP_IF_NOT if registers[to] != value as i64 as u64 => at += offset as usize,
                JUMP_IF_NOT => {}
                EXIT => return registers[0] == 1,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn any_rule() -> impl Strategy<Value = DeviceRule> {
        let number = || proptest::option::of(0u32..4);
        (any::<bool>(), number(), number(), 0u8..8).prop_map(|(block, major, minor, access)| DeviceRule {
            block,
            major,
            minor,
            access: Access(access),
        })
    }

    proptest! {
        #[test]
        fn the_program_allows_what_the_rules_allow(
            rules in proptest::collection::vec(any_rule(), 0..8),
            (block, access, major, minor) in (any::<bool>(), 1u8..8, 0u32..4, 0u32..4),
        ) {
            let allowed = rules.iter().any(|rule| {
                rule.block == block
                    && rule.major.is_none_or(|wanted| wanted == major)
                    && rule.minor.is_none_or(|wanted| wanted == minor)
                    && access & !rule.access.0 == 0
            });
            prop_assert_eq!(run(&program(&rules), block, access, major, minor), allowed);
        }
    }

    #[test]
    fn the_standard_devices_are_allowed() {
        let program = program(&standard_rules().collect::<Vec<_>>());
        let (read_write, make) = (Access::from_letters("rw").0, Access::MAKE_NODE);
        assert!(run(&program, false, read_write, 1, 3), "null");
        assert!(run(&program, false, read_write, 136, 7), "a terminal");
        assert!(run(&program, true, make, 8, 0) && !run(&program, true, read_write, 8, 0), "a disk");
        assert!(!run(&program, false, Access::READ, 1, 11), "the kernel's log");
        assert!(!run(&program, false, read_write, 4, 64), "a serial line");
    }

    #[test]
    fn the_kernel_accepts_the_program() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        match sys::load_device_program(&program(&standard_rules().collect::<Vec<_>>()), NAME) {
            Ok(_) => {}
            // Some kernels lack the program type, and some root users may not load programs.
            Err(error) => assert_ne!(error.raw_os_error(), Some(libc::EACCES), "the kernel's verifier refused it"),
        }
    }
}
