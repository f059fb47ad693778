//! A terminal of `nomad alloc exec` behaves like the terminal of a local shell.

use e2e::{Outcome, leaks, process, pty::PtyClient};

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent},
    service::web,
};

pub const CASES: &[Case] = &[
    ("terminal_has_a_name_and_a_size", SharedAgent, has_a_name_and_a_size),
    ("terminal_controls_jobs", SharedAgent, controls_jobs),
    ("terminal_runs_vi_and_top", SharedAgent, runs_vi_and_top),
    ("terminal_ends_with_the_task", SharedAgent, ends_with_the_task),
    ("terminal_ends_with_the_agent", OwnAgent, ends_with_the_agent),
];

/// The shell's prompt. The echo of the typed text never contains it.
const PROMPT: &str = "ready$ ";
const SHELL: [&str; 4] = ["/bin/sh", "-c", "PS1='ready''$ ' exec sh -i", "sh"];

fn has_a_name_and_a_size(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut client = PtyClient::start(&alloc, &SHELL, 40, 100)?;
    client.wait_for(PROMPT)?;
    client.type_text("tty\n")?;
    client.wait_for("/dev/pts/")?;
    client.wait_for(PROMPT)?;
    client.type_text("stty size\n")?;
    client.wait_for("40 100")?;
    client.wait_for(PROMPT)?;
    // A running command gets SIGWINCH for a new size.
    client.type_text("sh -c 'trap \"stty size; exit\" WINCH; echo wait''ing; while :; do sleep 0.1; done'\n")?;
    client.wait_for("waiting\r\n")?;
    client.resize(50, 120)?;
    client.wait_for("50 120")?;
    client.wait_for(PROMPT)?;
    client.type_text("exit 6\n")?;
    let (_, status) = client.wait_end()?;
    assert_eq!(status.code(), Some(6));
    alloc.stop()
}

fn controls_jobs(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut client = PtyClient::start(&alloc, &SHELL, 40, 100)?;
    client.wait_for(PROMPT)?;
    client.type_text("sleep 1001\n")?;
    client.wait_for("1001\r\n")?;
    // Ctrl-C ends the command, not the shell.
    wait_for(&alloc.id, "sleep 1001")?;
    client.type_text("\x03")?;
    client.wait_for(PROMPT)?;
    client.type_text("echo code $?\n")?;
    client.wait_for("code 130\r\n")?;
    // Ctrl-Z stops the command, bg and fg continue it.
    client.type_text("sleep 1002\n")?;
    wait_for(&alloc.id, "sleep 1002")?;
    client.type_text("\x1a")?;
    client.wait_for("Stopped")?;
    client.wait_for(PROMPT)?;
    client.type_text("bg\n")?;
    // BusyBox's shell sometimes prints no prompt here, in a terminal without our driver too: once in 300 times.
    client.wait_for("[1] sleep 1002\r\n")?;
    client.type_text("jobs\n")?;
    client.wait_for("Running")?;
    client.wait_for(PROMPT)?;
    client.type_text("fg\n")?;
    client.wait_for("sleep 1002")?;
    client.type_text("\x03")?;
    client.wait_for(PROMPT)?;
    // Ctrl-D ends the input of `cat`, and then the shell.
    client.type_text("cat >/tmp/typed; echo cat end''ed\n")?;
    wait_for(&alloc.id, "cat")?;
    client.type_text("a line\n\x04")?;
    client.wait_for("cat ended\r\n")?;
    client.wait_for(PROMPT)?;
    client.type_text("cat /tmp/typed\n")?;
    client.wait_for("\na line\r\n")?;
    client.wait_for(PROMPT)?;
    client.type_text("(exit 9)\n")?;
    client.wait_for(PROMPT)?;
    client.type_text("\x04")?;
    let (_, status) = client.wait_end()?;
    assert_eq!(status.code(), Some(9));
    alloc.stop()
}

fn runs_vi_and_top(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut client = PtyClient::start(&alloc, &SHELL, 40, 100)?;
    client.wait_for(PROMPT)?;
    client.type_text("vi /tmp/written\n")?;
    // vi marks empty lines down to the line before the last.
    client.wait_for("\x1b[39;1H~")?;
    // Waits as a human typist does: vi takes bytes directly after an Escape for an arrow key.
    client.type_text("i")?;
    client.wait_for("I /tmp/written")?;
    client.type_text("written in vi")?;
    client.wait_for("written in vi")?;
    client.type_text("\x1b")?;
    client.wait_for("- /tmp/written")?;
    client.type_text(":wq\n")?;
    client.wait_for(PROMPT)?;
    client.type_text("cat /tmp/written\n")?;
    client.wait_for("\nwritten in vi\r\n")?;
    client.wait_for(PROMPT)?;
    client.type_text("top -d 1\n")?;
    client.wait_for("Mem:")?;
    client.wait_for("COMMAND")?;
    client.wait_for("/bin/serve")?;
    // top refreshes the screen by itself.
    client.wait_for("Mem:")?;
    client.type_text("q")?;
    client.wait_for(PROMPT)?;
    client.type_text("exit\n")?;
    let (_, status) = client.wait_end()?;
    assert!(status.success());
    alloc.stop()
}

fn ends_with_the_task(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut client = PtyClient::start(
        &alloc,
        &["/bin/sh", "-c", "trap '' HUP TERM; echo he''re; while :; do sleep 1; done"],
        24,
        80,
    )?;
    client.wait_for("here")?;
    alloc.stop()?;
    let (screen, status) = client.wait_end()?;
    assert_eq!(status.code(), Some(137), "{screen}");
    Ok(())
}

/// Without the agent, no process could end the command.
fn ends_with_the_agent(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut client = PtyClient::start(
        &alloc,
        &["/bin/sh", "-c", "trap '' HUP; echo he''re; while :; do sleep 1 || sleep 1; done"],
        24,
        80,
    )?;
    client.wait_for("here")?;
    env.agent.kill()?;
    client.wait_end()?;
    let left = leaks::settle(|| {
        let running = process::of_alloc(&alloc.id).into_iter().map(|process| process.command);
        running.filter(|command| command.contains("trap '' HUP")).collect()
    });
    assert!(left.is_empty(), "the command outlived the agent: {left:?}");
    env.agent.launch()?;
    alloc.wait_running()?;
    alloc.stop()
}

/// Waits until a command runs in the allocation. The shell does not report that it has started one.
fn wait_for(alloc: &str, command: &str) -> Outcome {
    let missing = leaks::settle(|| {
        let runs = process::of_alloc(alloc).iter().any(|process| process.command == command);
        if runs { Vec::new() } else { vec![format!("{command} does not run")] }
    });
    if missing.is_empty() { Ok(()) } else { Err(e2e::Failure(missing.join(", "))) }
}
