//! `nomad alloc exec`, with and without a terminal.

use e2e::{Outcome, pty::PtyClient};

use crate::{
    case::Case,
    observed::Observed,
    seen::{Seen, shown},
};

const WAIT: &str = "trap 'exit 0' TERM; sleep 1000 & wait";
const STATUS: &str = "grep -E '^(Uid|Gid|Groups|Cap|Seccomp:|Umask)' /proc/self/status | sed 's/:\\s*/ = /'";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("exec_output_and_exit_code", WAIT).look(output),
    Case::script("exec_environment", WAIT).look(environment).task("env {\nOWN = \"x\"\n}"),
    Case::script("exec_status", WAIT).look(status),
    Case::script("exec_status_of_a_user", WAIT).look(status).task("user = \"app\""),
    Case::script("exec_status_of_the_image_user", WAIT).look(status).on("user-group"),
    Case::script("exec_status_with_more_groups", WAIT).look(status).config("group_add = [\"audio\"]"),
    Case::script("exec_status_with_a_capability", WAIT).look(status).config("cap_add = [\"net_admin\"]"),
    Case::script("exec_status_without_capabilities", WAIT).look(status).config("cap_drop = [\"all\"]"),
    Case::script("exec_status_in_a_privileged_task", WAIT).look(status).config("privileged = true").all_capabilities(),
    Case::script("exec_directory", WAIT).look(directory).config("work_dir = \"/data\""),
    Case::script("exec_limits", WAIT).look(rlimits).config("ulimit {\nnofile = \"2048:4096\"\n}"),
    Case::script("exec_namespaces_and_cgroup", WAIT).look(namespaces),
    Case::script("exec_of_a_missing_command", WAIT).look(missing),
    Case::script("exec_killed_by_a_signal", WAIT).look(killed),
    Case::script("exec_in_a_terminal", WAIT).look(terminal),
    Case::script("exec_of_much_output", WAIT).look(much),
    Case::script("exec_of_many_commands", WAIT).look(many),
    Case::script("exec_descriptors", WAIT).look(descriptors),
    Case::script("exec_in_a_read_only_task", WAIT).look(writes).config("readonly_rootfs = true"),
    Case::script("exec_path_of_the_image", WAIT).look(path),
];

fn look_at(seen: &Seen, observed: &mut Observed, script: &str) -> Outcome {
    observed.add_lines("output", &seen.sh(script)?);
    Ok(())
}

fn output(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "echo out; echo err >&2; echo more; exit 7")
}

fn environment(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "env | sort | grep -v NOMAD_ | sed 's/=/ = /'; env | grep -c NOMAD_")
}

fn status(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, STATUS)
}

fn directory(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "pwd; umask")
}

fn rlimits(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "tail -n +2 /proc/self/limits | sed 's/   */ = /'")
}

fn namespaces(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(
        seen,
        observed,
        "for n in cgroup ipc mnt net pid user uts; do \
         [ $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) ] && echo \"$n = same\" || echo \"$n = other\"; \
            done; \
         cmp -s /proc/self/cgroup /proc/1/cgroup && echo same cgroup || echo other cgroup; echo $PPID",
    )
}

fn missing(seen: &Seen, observed: &mut Observed) -> Outcome {
    let output = seen.exec(&["/no/such/program"])?;
    observed.add("missing", output.status.code().unwrap_or(-1));
    let output = seen.exec(&["/data/not-executable"])?;
    observed.add("not executable", output.status.code().unwrap_or(-1));
    Ok(())
}

fn killed(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "kill -9 $$")?;
    look_at(seen, observed, "kill -TERM $$")
}

fn terminal(seen: &Seen, observed: &mut Observed) -> Outcome {
    let script = "tty | sed 's/[0-9]//'; sleep 1; stty size; echo $TERM; read line; echo got $line; exit 6";
    let mut client = PtyClient::start(&seen.task, &["/bin/sh", "-c", script], 40, 100)?;
    client.wait_for("40 100")?;
    client.type_text("typed\n")?;
    client.wait_for("got typed")?;
    let (_, status) = client.wait_end()?;
    observed.add("exit", status.code().unwrap_or(-1));
    let output = seen.task.exec_in_terminal("/bin/sh", "echo $((6 * 7))\nexit 5\n")?;
    observed.add("exit", output.status.code().unwrap_or(-1));
    observed.add("printed", String::from_utf8_lossy(&output.stdout).contains("42"));
    Ok(())
}

fn much(seen: &Seen, observed: &mut Observed) -> Outcome {
    let output = seen.exec(&["/bin/sh", "-c", "seq 1 100000"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    observed.add("complete and in order", text == expected);
    Ok(())
}

fn many(seen: &Seen, observed: &mut Observed) -> Outcome {
    for number in 0..5 {
        let output = seen.exec(&["/bin/sh", "-c", &format!("exit {number}")])?;
        observed.add_lines("each", &shown(&output));
    }
    Ok(())
}

fn descriptors(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "set -- /proc/self/fd/*; echo \"$@\"; readlink /proc/$$/fd/0 | tr -d 0-9")
}

fn writes(seen: &Seen, observed: &mut Observed) -> Outcome {
    look_at(seen, observed, "touch /x; echo code $?; touch $NOMAD_TASK_DIR/x; echo code $?")
}

fn path(seen: &Seen, observed: &mut Observed) -> Outcome {
    observed.add_lines("found in PATH", &shown(&seen.exec(&["id", "-u"])?));
    Ok(())
}
