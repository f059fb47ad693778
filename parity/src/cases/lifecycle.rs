//! Stop signals, timeouts, restarts, hooks and templates.

use e2e::Outcome;
use serde_json::Value;

use crate::{case::Case, observed::Observed, seen::Seen};

/// Prints each signal and ends at the second one.
const SIGNALS: &str = "n=0; for s in HUP INT TERM USR1 USR2 QUIT; do trap \"echo got $s; n=\\$((n + 1))\" $s; done; \
    echo ready; \
    while [ $n -lt 1 ]; do sleep 0.1; done; exit 7";
const STUBBORN: &str = "trap 'echo asked' TERM INT; echo ready; while :; do sleep 0.1; done";
const COUNT: &str = "echo x >>$NOMAD_ALLOC_DIR/data/starts; wc -l <$NOMAD_ALLOC_DIR/data/starts; exit 2";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("stop_by_default", SIGNALS).look(ready),
    Case::script("stop_signal_of_the_image", SIGNALS).on("stop-usr1").look(ready),
    Case::script("stop_signal_as_a_number", SIGNALS).on("stop-number").look(ready),
    Case::script("kill_signal_of_the_task", SIGNALS).task("kill_signal = \"SIGINT\"").look(ready),
    Case::script("kill_signal_of_the_task_and_the_image", SIGNALS)
        .on("stop-usr1")
        .task(
            "kill_signal \
        = \"SIGHUP\"",
        )
        .look(ready),
    Case::script("an_unknown_kill_signal", "true").task("kill_signal = \"SIGNONE\""),
    Case::script("stop_after_the_timeout", STUBBORN).task("kill_timeout = \"1s\"").look(ready).unmarked(),
    Case::script(
        "stop_with_a_long_timeout",
        "trap 'sleep 1; echo done; exit 0' TERM; echo ready; while :; do sleep \
        0.1; done",
    )
    .task("kill_timeout = \"10s\"")
    .look(ready),
    Case::image("stop_of_a_process_without_handler", "plain")
        .config("command = \"/bin/sleep\"\nargs = [\"1000\"]")
        .task("kill_timeout = \"1s\"")
        .look(crate::cases::process::nothing)
        .unmarked(),
    Case::image("stop_of_a_process_under_init", "plain")
        .config("command = \"/bin/sleep\"\nargs = [\"1000\"]\ninit = true")
        .look(crate::cases::process::nothing)
        .unmarked(),
    Case::script(
        "stop_ends_children_too",
        "sleep 1000 & setsid sleep 1000 & trap 'exit 0' TERM; echo ready; \
        wait",
    )
    .look(ready),
    Case::quick_script("restarts", COUNT)
        .group("restart {\nattempts = 2\ninterval = \"1m\"\ndelay = \"0s\"\nmode = \"fail\"\n}"),
    Case::script("no_restart_after_success", "echo once; exit 0")
        .group("restart {\nattempts = 2\ninterval = \"1m\"\ndelay = \"0s\"\nmode = \"fail\"\n}"),
    Case::script("restart_of_a_missing_command", "true")
        .config("entrypoint = [\"/no/such\"]")
        .group("restart {\nattempts = 1\ninterval = \"1m\"\ndelay = \"0s\"\nmode = \"fail\"\n}"),
    Case::script(
        "files_after_a_restart",
        "ls /tmp/left 2>/dev/null; ls $NOMAD_TASK_DIR/left 2>/dev/null; touch \
        /tmp/left $NOMAD_TASK_DIR/left; exit 1",
    )
    .group("restart {\nattempts = 1\ninterval = \"1m\"\ndelay = \"0s\"\nmode = \"fail\"\n}"),
    Case::script("restart_by_the_user", "echo started; trap 'exit 0' TERM; sleep 1000 & wait").look(restart),
    Case::script("signals_of_the_user", SIGNALS).look(signal),
    Case::script(
        "an_unknown_signal_of_the_user",
        "echo ready; trap 'exit 0' TERM; sleep 1000 & \
        wait",
    )
    .look(unknown_signal),
    Case::script("prestart_task", "cat $NOMAD_ALLOC_DIR/data/made").group(
        "task \"before\" {\ndriver = \"@DRIVER@\"\nlifecycle {\nhook = \"prestart\"\nsidecar = false\n}\nconfig \
            {\nimage = \"@IMAGE:plain@\"\n\
         command = \"/bin/sh\"\nargs = [\"-c\", \"echo before >$NOMAD_ALLOC_DIR/data/made\"]\n}\nresources {\ncpu = \
            50\nmemory = 32\n}\n}",
    ),
    Case::script("poststop_task", "exit 0").group(
        "task \"after\" {\ndriver = \"@DRIVER@\"\nlifecycle {\nhook = \"poststop\"\n}\nconfig {\nimage \
            = \"@IMAGE:plain@\"\n\
         command = \"/bin/sh\"\nargs = [\"-c\", \"echo after; sleep 2\"]\n}\nresources {\ncpu = 50\nmemory = 32\n}\n}",
    ),
    Case::script("leader_ends_the_other_task", "sleep 1; exit 0").task("leader = true").group(
        "task \"other\" {\ndriver = \"@DRIVER@\"\nconfig {\nimage = \"@IMAGE:plain@\"\ncommand = \"/bin/sh\"\n\
         args = [\"-c\", \"trap 'exit 0' TERM; sleep 1000 & wait\"]\n}\nresources {\ncpu = 50\nmemory = 32\n}\n}",
    ),
    Case::script("a_failed_task_ends_the_other_task", "sleep 1; exit 5").group(
        "task \"other\" {\ndriver = \"@DRIVER@\"\nkill_timeout = \"1s\"\nconfig {\nimage \
            = \"@IMAGE:plain@\"\ncommand = \"/bin/sh\"\n\
         args = [\"-c\", \"trap 'exit 0' TERM; sleep 1000 & wait\"]\n}\nresources {\ncpu = 50\nmemory = 32\n}\n}",
    ),
    Case::script(
        "template_with_a_file",
        "cat local/t secrets/t; ls -ln local/t secrets/t | awk '{ print $1, $3, $4 }'",
    )
    .config("work_dir = \"/\"")
    .task(
        "template {\ndata = \"{{ env \\\"NOMAD_TASK_NAME\\\" }} a\\n\"\ndestination = \"local/t\"\n}\n\
               template {\ndata = \"secret\\n\"\ndestination = \"secrets/t\"\nperms = \"600\"\nuid = 1000\ngid = \
            50\n}",
    ),
    Case::script(
        "template_with_a_signal",
        "trap 'echo changed; cat local/t; exit 0' HUP; echo ready; while :; do \
        sleep 0.1; done",
    )
    .config("work_dir = \"/\"")
    .task(
        "template {\ndata = \"{{ if nomadVarExists \\\"nomad/jobs/@JOB@\\\" }}set{{ else }}none{{ end }}\\n\"\n\
               destination = \"local/t\"\nchange_mode = \"signal\"\nchange_signal = \"SIGHUP\"\n}",
    )
    .look(ready_for_variable),
    Case::script("shutdown_delay", "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
        .task("shutdown_delay = \"1s\"")
        .look(ready),
    Case::script(
        "dispatched_payload_and_artifact_directories",
        "ls -ldn /local /secrets /alloc | awk '{ print $1, \
        $3, $4, $NF }'",
    ),
    Case::image("healthcheck_of_the_image", "health")
        .config("command = \"/bin/sh\"\nargs = [\"-c\", \"sleep 2; ls /tmp; sleep 2\"]")
        .unmarked(),
    Case::image("healthcheck_switched_off", "health")
        .config(
            "command = \"/bin/sh\"\nargs = [\"-c\", \"sleep 2; ls /tmp; sleep 2\"]\nhealthchecks {\ndisable = \
            true\n}",
        )
        .unmarked(),
];

fn ready(seen: &Seen, _: &mut Observed) -> Outcome {
    seen.wait_output("stdout", "ready").map(drop)
}

fn restart(seen: &Seen, observed: &mut Observed) -> Outcome {
    seen.wait_output("stdout", "started")?;
    seen.task.restart()?;
    let twice = |log: &[u8]| String::from_utf8_lossy(log).matches("started").count() == 2;
    seen.task.wait_log("stdout", twice)?;
    // The server hears of the restart after the task has written its output.
    let counted = |alloc: &Value| alloc["TaskStates"]["main"]["Restarts"].as_i64().filter(|count| *count > 0);
    observed.add("restarts while running", seen.task.wait("the server to count the restart", counted)?);
    Ok(())
}

fn signal(seen: &Seen, observed: &mut Observed) -> Outcome {
    seen.wait_output("stdout", "ready")?;
    let output = seen.node.agent.nomad(&["alloc", "signal", "-s", "SIGUSR2", "-task", "main", &seen.task.id])?;
    observed.add("alloc signal", output.status.code().unwrap_or(-1));
    seen.wait_output("stdout", "got USR2")?;
    seen.task.wait_over().map(drop)
}

fn unknown_signal(seen: &Seen, observed: &mut Observed) -> Outcome {
    seen.wait_output("stdout", "ready")?;
    let output = seen.node.agent.nomad(&["alloc", "signal", "-s", "SIGNONE", "-task", "main", &seen.task.id])?;
    observed.add("alloc signal", output.status.code().unwrap_or(-1));
    Ok(())
}

fn ready_for_variable(seen: &Seen, _: &mut Observed) -> Outcome {
    seen.wait_output("stdout", "ready")?;
    let path = format!("nomad/jobs/{}", seen.task.job);
    let variable = serde_json::json!({ "Path": path, "Items": { "key": "value" } });
    seen.node.agent.api().put(&format!("/v1/var/{path}"), &variable)?;
    seen.wait_output("stdout", "changed")?;
    seen.task.wait("the task to end", |alloc| (alloc["ClientStatus"] != "running").then_some(()))?;
    Ok(())
}
