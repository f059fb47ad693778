//! Flat keyed files of cgroups (kernel documentation, cgroup-v2, "Format"): lines of a name and a number.

/// The number in the line `name number`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The numbers in the lines with these names, found in one pass.
pub(super) fn fields<const N: usize>(text: &str, names: [&str; N]) -> [Option<u64>; N] {
    let mut found = [None; N];
    for (name, number) in text.lines().filter_map(|line| line.split_once(' ')) {
        let slots = found.iter_mut().zip(names);
        if let Some((slot, _)) = slots.into_iter().find(|(_, known)| *known == name) {
            *slot = number.trim().parse().ok();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field("low 0\noom 1\noom_kill 2\noom_group_kill 0", "oom_kill"), Some(2));
        assert_eq!(field("", "oom_kill"), None);
        assert_eq!(fields(text, ["oom_kill", "under_oom", "oom"]), [Some(3), Some(0), None]);
        assert_eq!(fields("a x\nb\nc 1 \n", ["a", "b", "c"]), [None, None, Some(1)]);
    }
}
