//! Rules on the devices that a container may use, and their form in `devices.allow` of a cgroup v1.

/// A rule that allows some kinds of access to some devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceRule {
    /// A block device; otherwise a character device.
    pub block: bool,
    /// `None`: any major number.
    pub major: Option<u32>,
    /// `None`: any minor number.
    pub minor: Option<u32>,
    pub access: Access,
}

/// Kinds of access to a device, as a set of the kernel's bits (`BPF_DEVCG_ACC_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access(pub(super) u8);

impl Access {
    pub(super) const MAKE_NODE: u8 = 1;
    pub(super) const READ: u8 = 2;
    pub(super) const WRITE: u8 = 4;
    const ALL: Self = Self(Self::MAKE_NODE | Self::READ | Self::WRITE);

    /// Parses the letters `r`, `w` and `m`. Other letters are ignored.
    pub fn from_letters(letters: &str) -> Self {
        Self(letters.bytes().fold(0, |bits, letter| {
            bits | match letter {
                b'm' => Self::MAKE_NODE,
                b'r' => Self::READ,
                b'w' => Self::WRITE,
                _ => 0,
            }
        }))
    }
}

/// The rules of every container. It may use null, zero, full, random, urandom, tty, ptmx and its terminals. It may also
/// create any device node, because it cannot open a node without another rule.
pub(super) fn standard_rules() -> impl Iterator<Item = DeviceRule> {
    let character = |major, minor| DeviceRule { block: false, major: Some(major), minor, access: Access::ALL };
    let make = |block| DeviceRule { block, major: None, minor: None, access: Access(Access::MAKE_NODE) };
    [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)]
        .map(|(major, minor)| character(major, Some(minor)))
        .into_iter()
        .chain([character(136, None), make(false), make(true)])
}

/// The line of a rule for `devices.allow` of a cgroup v1.
pub(super) fn allow_line(rule: &DeviceRule) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
    let kind = if rule.block { 'b' } else { 'c' };
    let letters = [(Access::READ, 'r'), (Access::WRITE, 'w'), (Access::MAKE_NODE, 'm')];
    let access: String = letters.iter().filter(|(bit, _)| rule.access.0 & bit != 0).map(|(_, letter)| letter).collect();
    format!("{kind} {}:{} {access}", number(rule.major), number(rule.minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_lines_of_devices_allow() {
        let kmsg = DeviceRule { block: false, major: Some(1), minor: Some(11), access: Access::from_letters("wr") };
        let lines: Vec<String> = standard_rules().chain([kmsg]).map(|rule| allow_line(&rule)).collect();
        assert_eq!(lines.first().map(String::as_str), Some("c 1:3 rwm"));
        assert_eq!(&lines[7..], ["c 136:* rwm", "c *:* m", "b *:* m", "c 1:11 rw"]);
    }
}
