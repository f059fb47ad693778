//! Which devices a container may use: lines for a file of the group on v1, a BPF program in the group on v2.
//!
//! libcontainer leaves the program out. It is put into the group before the container's command runs and covers all that
//! ever runs in it.

use std::{fs::File, io, os::fd::AsFd, path::Path};

use super::{Groups, Mode};
use crate::{
    error::{Context, RuntimeError},
    sys,
};

/// Our programs are known by this name.
const NAME: &std::ffi::CStr = c"oci_rs_devices";

/// Something that may be done with some devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceRule {
    pub block: bool,
    /// `None`: any.
    pub major: Option<u32>,
    /// `None`: any.
    pub minor: Option<u32>,
    pub access: Access,
}

/// What may be done: a set of bits as the kernel has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access(u8);

impl Access {
    const MAKE: u8 = 1;
    const READ: u8 = 2;
    const WRITE: u8 = 4;
    const ALL: Self = Self(Self::MAKE | Self::READ | Self::WRITE);

    /// Out of `r`, `w` and `m`.
    pub fn from_letters(letters: &str) -> Self {
        Self(letters.bytes().fold(0, |bits, letter| {
            bits | match letter {
                b'm' => Self::MAKE,
                b'r' => Self::READ,
                b'w' => Self::WRITE,
                _ => 0,
            }
        }))
    }
}

/// What every container may use: null, zero, full, random, urandom, tty, ptmx and its terminals; and it may make any node,
/// which is of no use without being allowed to open it.
fn standard_rules() -> impl Iterator<Item = DeviceRule> {
    let character = |major, minor| DeviceRule { block: false, major: Some(major), minor, access: Access::ALL };
    let make = |block| DeviceRule { block, major: None, minor: None, access: Access(Access::MAKE) };
    [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)]
        .map(|(major, minor)| character(major, Some(minor)))
        .into_iter()
        .chain([character(136, None), make(false), make(true)])
}

/// Lines for `devices.allow` of a group of version 1 that allows nothing: the standard devices and these.
pub(super) fn allow_lines(rules: &[DeviceRule]) -> impl Iterator<Item = String> {
    standard_rules().chain(rules.iter().copied()).map(|rule| {
        let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let kind = if rule.block { 'b' } else { 'c' };
        let letters = [(Access::READ, 'r'), (Access::WRITE, 'w'), (Access::MAKE, 'm')];
        let access: String =
            letters.iter().filter(|(bit, _)| rule.access.0 & bit != 0).map(|(_, letter)| letter).collect();
        format!("{kind} {}:{} {access}", number(rule.major), number(rule.minor))
    })
}

/// Restricts a group of version 2 to the standard devices and these, in place of what an earlier container left in it.
pub(crate) fn restrict_devices(groups: &Groups, rules: &[DeviceRule]) -> Result<(), RuntimeError> {
    let Some(group) = groups.of("devices").filter(|_| groups.mode == Mode::V2) else { return Ok(()) };
    let rules: Vec<DeviceRule> = standard_rules().chain(rules.iter().copied()).collect();
    let apply = || -> io::Result<()> {
        let group = File::open(group)?;
        let program = sys::load_device_program(&program(&rules), NAME)?;
        sys::detach_device_programs(group.as_fd(), NAME)?;
        sys::attach_device_program(group.as_fd(), program.as_fd())
    };
    apply().context(|| format!("restricting devices in {} (needs a kernel with CONFIG_CGROUP_BPF)", group.display()))
}

/// Takes our restriction off a group that stays.
pub(crate) fn release_devices(group: &Path) -> Result<(), RuntimeError> {
    match File::open(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened
            .and_then(|group| sys::detach_device_programs(group.as_fd(), NAME))
            .context(|| format!("releasing the devices of {}", group.display())),
    }
}

// Instructions of the kernel's BPF machine, in the little that is needed. Registers: 1 the context, 2 the kind of device,
// 3 the access, 4 and 5 its numbers, 6 scratch, 0 the verdict.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const COPY: u8 = 0xbc;
const SET: u8 = 0xb4;
const JUMP_IF_NOT: u8 = 0x55;
const EXIT: u8 = 0x95;

const KIND_BLOCK: i32 = 1;
const KIND_CHARACTER: i32 = 2;

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let [offset_0, offset_1] = offset.to_ne_bytes();
    let [value_0, value_1, value_2, value_3] = value.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    u64::from_ne_bytes([code, registers, offset_0, offset_1, value_0, value_1, value_2, value_3])
}

/// The program: allowed if any rule allows it.
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
    // Register and value of each comparison; `None` is the access, which must lie within what is allowed.
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
        // Over what is left of this rule; rules are a dozen instructions long.
        let over = (length - list.len() - 1) as i16;
        list.push(instruction(JUMP_IF_NOT, register, 0, over, value));
    }
    list.extend(allow);
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the kernel makes of a program.
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
        fn the_program_says_what_the_rules_say(
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
    fn the_standard_devices() {
        let program = program(&standard_rules().collect::<Vec<_>>());
        let (read_write, make) = (Access::from_letters("rw").0, Access::MAKE);
        assert!(run(&program, false, read_write, 1, 3), "null");
        assert!(run(&program, false, read_write, 136, 7), "a terminal");
        assert!(run(&program, true, make, 8, 0) && !run(&program, true, read_write, 8, 0), "a disk");
        assert!(!run(&program, false, Access::READ, 1, 11), "the kernel's log");
        assert!(!run(&program, false, read_write, 4, 64), "a serial line");
    }

    #[test]
    fn the_same_in_lines() {
        let kmsg = DeviceRule { block: false, major: Some(1), minor: Some(11), access: Access::from_letters("wr") };
        let lines: Vec<String> = allow_lines(&[kmsg]).collect();
        assert_eq!(lines.first().map(String::as_str), Some("c 1:3 rwm"));
        assert_eq!(&lines[7..], ["c 136:* rwm", "c *:* m", "b *:* m", "c 1:11 rw"]);
    }

    #[test]
    fn the_kernel_takes_the_program() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        match sys::load_device_program(&program(&standard_rules().collect::<Vec<_>>()), NAME) {
            Ok(_) => {}
            // Not every kernel has it, and not every root may.
            Err(error) => assert_ne!(error.raw_os_error(), Some(libc::EACCES), "the kernel's verifier refused it"),
        }
    }
}
