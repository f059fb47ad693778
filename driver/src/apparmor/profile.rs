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

/// The profile. `own` are the profiles of this process, from which tasks get their stop signal.
pub fn text(own: &[&str]) -> String {
    // Descriptors that the task inherits, such as its log FIFOs, have no path in its root.
    let mut text = format!("profile {NAME} flags=(attach_disconnected, mediate_deleted) {{{RULES}");
    for own in own {
        text.push_str(&format!("  signal (receive) peer=\"{own}\",\n  ptrace (tracedby, readby) peer=\"{own}\",\n"));
    }
    text + "}\n"
}

/// The names of the profiles in the text of a process's attribute: `name (mode)`, or `one//&two (mode)` for a stack.
/// The kernel lets a process of a stack do what the rules allow with each of its profiles, so each one needs a rule.
/// The name of a child profile is `parent//child`. Left out are `unconfined`, and names that a rule cannot contain as
/// they are.
pub fn own_profiles(attribute: &str) -> Vec<&str> {
    let attribute = attribute.trim_end_matches(['\n', '\0']);
    let label = attribute.rsplit_once(" (").map_or(attribute, |(name, _)| name);
    // Others have a meaning in patterns, or begin the name of another namespace.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let usable = |name: &&str| !name.is_empty() && *name != "unconfined" && name.chars().all(is_plain);
    label.split("//&").filter(usable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_names_itself_and_the_profile_of_the_agent() {
        let text = text(&[]);
        assert!(text.starts_with(&format!("profile {NAME} flags=")) && text.ends_with("peer=unconfined,\n}\n"));
        assert_eq!(text.matches(&format!("peer={NAME},")).count(), 2, "{text}");
        let confined = super::text(&["/usr/bin/nomad", "agents//plugin"]);
        for own in ["/usr/bin/nomad", "agents//plugin"] {
            for rule in ["signal (receive)", "ptrace (tracedby, readby)"] {
                assert_eq!(confined.matches(&format!("  {rule} peer=\"{own}\",\n")).count(), 1, "{confined}");
            }
        }
    }

    #[test]
    fn the_agents_profile_is_read_from_its_attribute() {
        for (attribute, expected) in [
            ("unconfined\n", &[][..]),
            ("unconfined", &[]),
            ("", &[]),
            ("/usr/bin/nomad (enforce)\n", &["/usr/bin/nomad"]),
            ("nomad (complain)\0", &["nomad"]),
            ("/usr/bin/nomad//plugin (enforce)\n", &["/usr/bin/nomad//plugin"]),
            ("one//&two (enforce)\n", &["one", "two"]),
            ("one//child//&two (mixed)\n", &["one//child", "two"]),
            ("one//&unconfined (mixed)\n", &["one"]),
            ("one//&:space:two (enforce)\n", &["one"]),
            ("odd\"name (enforce)\n", &[]),
            ("nomad-* (enforce)\n", &[]),
        ] {
            assert_eq!(own_profiles(attribute), expected, "{attribute:?}");
        }
    }
}
