//! The text of the default AppArmor profile (apparmor.d(5)).
//!
//! The task's mounts, capabilities and system call filter restrict it too. The profile is the second barrier where one
//! of them is missing: in a task with `CAP_SYS_ADMIN` for example, the kernel's parameters stay unwritable because the
//! task can mount nothing.

/// The name of the default profile.
pub const NAME: &str = "oci-rs-default";

/// The rules of each task. The profile begins to apply when the command is executed, so nothing that builds a container
/// needs a rule.
const RULES: &str = r"
  # Files, programs, sockets: limited by the task's mounts, namespaces and capabilities. A rule that denies comes first.
  file,
  network,
  capability,
  umount,

  # The node's settings. Only the directories of processes are writable in /proc, and only control groups in /sys.
  deny /proc/* w,
  deny /proc/[^0-9]*/** w,
  deny /sys/{[^f]*,f[^s]*}/** wklx,
  deny /sys/fs/{[^c]*,c[^g]*,cg[^r]*}/** wklx,

  # The node's memory, emergency keys, firmware, power meters and security modules.
  deny /proc/{kcore,sysrq-trigger} rwklx,
  deny /sys/{firmware,kernel/security,devices/virtual/powercap}/** rwklx,

  # No mount may hide a rule of this profile.
  deny mount,

  # Tasks that share a pid namespace see each other's processes, and those of the node not at all.
  signal (send, receive) peer=oci-rs-default,
  ptrace (trace, read, tracedby, readby) peer=oci-rs-default,

  # Operators, and the driver.
  signal (receive) peer=unconfined,
  ptrace (tracedby, readby) peer=unconfined,
";

/// The profile. `own` is the profile of this process, from which tasks get their stop signal, if it has one.
pub fn text(own: Option<&str>) -> String {
    // Descriptors that the task inherits, such as its log FIFOs, have no path in its root.
    let mut text = format!("profile {NAME} flags=(attach_disconnected, mediate_deleted) {{{RULES}");
    if let Some(own) = own {
        text.push_str(&format!("  signal (receive) peer=\"{own}\",\n  ptrace (tracedby, readby) peer=\"{own}\",\n"));
    }
    text + "}\n"
}

/// The profile's name in the text of a process's attribute: `name (mode)`. `None` for `unconfined`, and for a name that
/// a rule cannot contain as it is.
pub fn own_profile(attribute: &str) -> Option<&str> {
    let attribute = attribute.trim_end_matches(['\n', '\0']);
    let name = attribute.rsplit_once(" (").map_or(attribute, |(name, _)| name);
    // Others have a meaning in patterns, or name several profiles.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let usable = !name.is_empty() && name != "unconfined" && !name.contains("//") && name.chars().all(is_plain);
    usable.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_names_itself_and_the_profile_of_the_agent() {
        let text = text(None);
        assert!(text.starts_with(&format!("profile {NAME} flags=")) && text.ends_with("peer=unconfined,\n}\n"));
        assert_eq!(text.matches(&format!("peer={NAME},")).count(), 2, "{text}");
        let confined = super::text(Some("/usr/bin/nomad"));
        assert!(confined.contains("signal (receive) peer=\"/usr/bin/nomad\",\n"), "{confined}");
    }

    #[test]
    fn the_agents_profile_is_read_from_its_attribute() {
        for (attribute, expected) in [
            ("unconfined\n", None),
            ("unconfined", None),
            ("", None),
            ("/usr/bin/nomad (enforce)\n", Some("/usr/bin/nomad")),
            ("nomad (complain)\0", Some("nomad")),
            ("one//&two (enforce)\n", None),
            ("odd\"name (enforce)\n", None),
            ("nomad-* (enforce)\n", None),
        ] {
            assert_eq!(own_profile(attribute), expected, "{attribute:?}");
        }
    }
}
