//! Users, groups, capabilities, filters and namespaces of the task's process.

use crate::case::Case;

/// The lines of the first process's status that the driver decides. The suite's C library lets dockerd ignore signals
/// 32 to 34, which are its own; a container inherits that.
const STATUS: &str = "grep -E '^(Uid|Gid|Groups|Cap|Seccomp:|Umask|Sig(Ign|Blk|Cgt))' /proc/self/status \
                      | sed -E 's/:\\s*/ = /; /^SigIgn/s/= .{8}[08]/= 000000000/'";
const NO_NEW: &str = "grep NoNewPrivs /proc/self/status | sed 's/:\\s*/ = /'";
const IDS: &str = "id -u; id -g; id -G; touch /tmp/x && ls -ln /tmp/x | awk '{ print $1, $3, $4 }'";
const WRITES: &str = "for path in / /tmp /data $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR $NOMAD_ALLOC_DIR \
    $NOMAD_ALLOC_DIR/data \
    $NOMAD_ALLOC_DIR/tmp $NOMAD_ALLOC_DIR/logs /dev /dev/shm; do touch $path/w 2>/dev/null && r=yes || r=no; \
    echo \"$path = $r\"; rm -f $path/w; done";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("status_of_the_default_user", STATUS),
    Case::quick_script("status_of_a_named_user", STATUS).task("user = \"app\""),
    Case::script("status_of_a_number", STATUS).task("user = \"1000\""),
    Case::script("status_of_numbers", STATUS).task("user = \"1000:50\""),
    Case::script("status_of_an_unknown_number", STATUS).task("user = \"4711\""),
    Case::script("status_of_a_name_and_a_group", STATUS).task("user = \"app:staff\""),
    Case::script("status_of_the_image_user", STATUS).on("user"),
    Case::script("status_of_the_image_user_and_group", STATUS).on("user-group"),
    Case::script("status_of_the_image_number", STATUS).on("user-id"),
    Case::script("status_of_the_image_numbers", STATUS).on("user-ids"),
    Case::script("status_of_unknown_numbers_of_the_image", STATUS).on("user-unknown-id"),
    Case::script("status_without_passwd", STATUS).on("no-passwd"),
    Case::script("user_of_the_task_wins", IDS).on("user").task("user = \"0\""),
    Case::script("unknown_user", IDS).task("user = \"stranger\""),
    Case::script("unknown_user_of_the_image", IDS).on("user-unknown-name"),
    Case::quick_script("groups_by_name_and_number", STATUS).config("group_add = [\"audio\", \"4711\"]"),
    Case::script("groups_of_another_user", STATUS).config("group_add = [\"staff\"]").task("user = \"nobody\""),
    Case::script("unknown_group", IDS).config("group_add = [\"strangers\"]"),
    Case::script("no_capabilities", STATUS).config("cap_drop = [\"all\"]"),
    Case::script("one_capability_less", STATUS).config("cap_drop = [\"CHOWN\", \"cap_kill\"]"),
    Case::quick_script("one_capability_more", STATUS).config("cap_add = [\"net_admin\"]"),
    Case::script("a_capability_by_its_long_name", STATUS).config("cap_add = [\"CAP_SYS_PTRACE\"]"),
    Case::script("one_capability_of_none", STATUS).config("cap_drop = [\"all\"]\ncap_add = [\"net_bind_service\"]"),
    Case::script("a_capability_for_a_user", STATUS).config("cap_add = [\"net_admin\"]").task("user = \"app\""),
    Case::script("a_capability_that_is_not_allowed", STATUS).config("cap_add = [\"sys_admin\"]"),
    Case::script("an_unknown_capability", STATUS).config("cap_add = [\"no_such\"]"),
    Case::script("status_of_a_privileged_task", STATUS).config("privileged = true").all_capabilities(),
    Case::script("status_of_a_privileged_user", STATUS).config("privileged = true").all_capabilities().task(
        "user \
        = \"app\"",
    ),
    Case::script("no_new_privileges_by_default", NO_NEW),
    Case::script("no_new_privileges", NO_NEW).config("security_opt = [\"no-new-privileges\"]"),
    Case::script("no_new_privileges_switched_off", NO_NEW).config("security_opt = [\"no-new-privileges=false\"]"),
    Case::script("seccomp_unconfined", STATUS).config("security_opt = [\"seccomp=unconfined\"]"),
    Case::script("seccomp_profile_of_the_node", "mkdir /tmp/a; echo code $?; touch /tmp/b; echo code $?")
        .config("security_opt = [\"seccomp=@SCRATCH@/seccomp.json\"]"),
    Case::script("seccomp_profile_that_is_missing", STATUS).config("security_opt = [\"seccomp=/no/such/file\"]"),
    Case::script("apparmor_unconfined", STATUS).config("security_opt = [\"apparmor=unconfined\"]"),
    Case::script("label_disable", STATUS).config("security_opt = [\"label=disable\"]"),
    Case::quick_script(
        "forbidden_calls",
        "mount -t tmpfs none /tmp; echo mount $?; unshare -m true; echo unshare $?; chroot / true; echo chroot $?
         mknod /tmp/n c 1 3; echo mknod $?; chown 5 /tmp; echo chown $?; nice -n -5 true; echo nice $?
         hostname other; echo hostname $?; date -s 2020-01-01 >/dev/null; echo date $?",
    ),
    Case::quick_script("writable_places_of_root", WRITES),
    Case::script("writable_places_of_a_user", WRITES).task("user = \"app\""),
    Case::script(
        "owners_in_the_task_directories",
        "ls -ldn $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR $NOMAD_ALLOC_DIR $NOMAD_ALLOC_DIR/* | awk '{ print $1, $3, $4, \
            $9 }'",
    ),
    Case::script(
        "owners_in_the_task_directories_of_a_user",
        "ls -ldn $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR $NOMAD_ALLOC_DIR $NOMAD_ALLOC_DIR/* | awk '{ print $1, $3, $4, \
            $9 }'",
    )
    .task("user = \"app\""),
    Case::script(
        "namespaces",
        "for n in cgroup ipc mnt net pid user uts; do echo \"$n = $(readlink /proc/self/ns/$n | tr -dc a-z:)\"; done",
    ),
    Case::script("processes_of_the_host", "[ $(ps | wc -l) -gt 20 ] && echo host || echo own").config(
        "pid_mode \
        = \"host\"",
    ),
    Case::script("uts_namespace_of_the_host", "[ \"$(hostname)\" = \"$(cat /proc/sys/kernel/hostname)\" ] && hostname")
        .config("uts_mode = \"host\""),
    Case::script("ipc_namespace_of_the_host", "trap 'exit 0' TERM; sleep 1000 & wait")
        .config(
            "ipc_mode \
        = \"host\"",
        )
        .look(namespaces),
    Case::script("own_namespaces", "trap 'exit 0' TERM; sleep 1000 & wait").look(namespaces),
    Case::script("own_cgroup_namespace", "trap 'exit 0' TERM; sleep 1000 & wait")
        .config(
            "cgroupns \
        = \"private\"",
        )
        .look(namespaces),
    Case::script("cgroup_namespace_of_the_host", "trap 'exit 0' TERM; sleep 1000 & wait")
        .config(
            "cgroupns \
        = \"host\"",
        )
        .look(namespaces),
    Case::script("ipc_mode_none", "ls -ld /dev/shm; touch /dev/shm/x").config("ipc_mode = \"none\""),
    Case::script("ipc_mode_shareable", "df -k /dev/shm | tail -1").config("ipc_mode = \"shareable\""),
    Case::script("cgroup_namespace_private", "cut -d: -f3 /proc/self/cgroup | sort -u").config(
        "cgroupns \
        = \"private\"",
    ),
    Case::script(
        "init_process",
        "echo \"comm = $(cat /proc/1/comm)\"; echo \"command = $(tr '\\0\\n' '  ' </proc/1/cmdline | cut -d' ' -f1)\"
         echo \"parent = $PPID\"; sh -c 'sleep 0.1 &'; sleep 0.4; echo \"zombies = $(ps -o stat,comm | grep -c '^Z')\"",
    )
    .config("init = true"),
    Case::script("children_without_init", "cat /proc/1/comm; echo $$"),
    Case::script(
        "terminal",
        "tty; echo \"size = $(stty size 2>&1)\"; [ -t 0 ]; echo in $?; [ -t 1 ]; echo out $?; [ -t 2 ]; echo err $?; \
            ls \
        -l /dev/console | cut -c1-10",
    )
    .config("tty = true"),
    Case::script("interactive_without_a_terminal", "head -c 1 | wc -c")
        .config(
            "interactive = \
        true",
        )
        .task("kill_timeout = \"1s\"")
        .look(crate::cases::process::nothing)
        .unmarked(),
    Case::script("input_without_interactive", "readlink /proc/self/fd/0; head -c 1 | wc -c"),
    Case::script("descriptors", "set -- /proc/self/fd/*; echo \"$@\""),
    Case::script(
        "kinds_of_descriptors",
        "for n in 0 1 2; do echo \"$n = $(readlink /proc/$$/fd/$n | tr -d 0-9)\"; \
        done",
    ),
    Case::script("owners_of_descriptors", "for n in 1 2; do chmod 600 /proc/$$/fd/$n; echo code $?; done"),
    Case::script("output_can_be_opened_again", "echo again >/dev/stdout; echo again >/dev/stderr; echo code $?"),
    Case::script(
        "output_can_be_opened_again_by_a_user",
        "echo again >/dev/stdout; echo code $?; echo again \
        >/proc/self/fd/2; echo code $?",
    )
    .task("user = \"app\""),
    Case::script(
        "scheduling",
        "cut -d' ' -f18,19,40,41 /proc/self/stat; cat /proc/self/oom_score_adj; cat \
        /proc/self/personality",
    ),
    Case::script("sessions", "cut -d' ' -f1,4,5,6,7,8 /proc/1/stat"),
];

/// Compares the namespaces of the task with those of the node.
fn namespaces(seen: &crate::seen::Seen, observed: &mut crate::observed::Observed) -> e2e::Outcome {
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/{name}"));
        let shared = of(&seen.pid()?.to_string())? == of("self")?;
        observed.add(name, if shared { "the node's" } else { "the task's" });
    }
    Ok(())
}

/// Looks at nothing: the job is stopped while it runs.
pub fn nothing(_: &crate::seen::Seen, _: &mut crate::observed::Observed) -> e2e::Outcome {
    Ok(())
}
