//! A person at a terminal of `nomad alloc exec`, who expects what a local shell does.

use e2e::{Outcome, leaks, person::Person, process};

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

/// What the shell writes when it is ready for a line. No echo of what is typed contains it.
const PROMPT: &str = "ready$ ";
const SHELL: [&str; 4] = ["/bin/sh", "-c", "PS1='ready''$ ' exec sh -i", "sh"];

fn has_a_name_and_a_size(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut person = Person::sit_down(&alloc, &SHELL, 40, 100)?;
    person.sees(PROMPT)?;
    person.types("tty\n")?;
    person.sees("/dev/pts/")?;
    person.sees(PROMPT)?;
    person.types("stty size\n")?;
    person.sees("40 100")?;
    person.sees(PROMPT)?;
    // A command that runs is told of a new size.
    person.types("sh -c 'trap \"stty size; exit\" WINCH; echo wait''ing; while :; do sleep 0.1; done'\n")?;
    person.sees("waiting\r\n")?;
    person.resizes(50, 120)?;
    person.sees("50 120")?;
    person.sees(PROMPT)?;
    person.types("exit 6\n")?;
    let (_, status) = person.sees_the_end()?;
    assert_eq!(status.code(), Some(6));
    alloc.stop()
}

fn controls_jobs(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut person = Person::sit_down(&alloc, &SHELL, 40, 100)?;
    person.sees(PROMPT)?;
    person.types("sleep 1001\n")?;
    person.sees("1001\r\n")?;
    // Ctrl-C ends the command, not the shell.
    wait_for(&alloc.id, "sleep 1001")?;
    person.types("\x03")?;
    person.sees(PROMPT)?;
    person.types("echo code $?\n")?;
    person.sees("code 130\r\n")?;
    // Ctrl-Z stops it, bg and fg go on with it.
    person.types("sleep 1002\n")?;
    wait_for(&alloc.id, "sleep 1002")?;
    person.types("\x1a")?;
    person.sees("Stopped")?;
    person.sees(PROMPT)?;
    person.types("bg\n")?;
    person.sees(PROMPT)?;
    person.types("jobs\n")?;
    person.sees("Running")?;
    person.sees(PROMPT)?;
    person.types("fg\n")?;
    person.sees("sleep 1002")?;
    person.types("\x03")?;
    person.sees(PROMPT)?;
    // Ctrl-D is the end of what `cat` reads, and of the shell.
    person.types("cat >/tmp/typed; echo cat end''ed\n")?;
    wait_for(&alloc.id, "cat")?;
    person.types("a line\n\x04")?;
    person.sees("cat ended\r\n")?;
    person.sees(PROMPT)?;
    person.types("cat /tmp/typed\n")?;
    person.sees("\na line\r\n")?;
    person.sees(PROMPT)?;
    person.types("(exit 9)\n")?;
    person.sees(PROMPT)?;
    person.types("\x04")?;
    let (_, status) = person.sees_the_end()?;
    assert_eq!(status.code(), Some(9));
    alloc.stop()
}

fn runs_vi_and_top(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut person = Person::sit_down(&alloc, &SHELL, 40, 100)?;
    person.sees(PROMPT)?;
    person.types("vi /tmp/written\n")?;
    // Empty lines down to the last but one of this terminal.
    person.sees("\x1b[39;1H~")?;
    // As fast as a person: what follows an Escape at once is an arrow key to vi.
    person.types("i")?;
    person.sees("I /tmp/written")?;
    person.types("written in vi")?;
    person.sees("written in vi")?;
    person.types("\x1b")?;
    person.sees("- /tmp/written")?;
    person.types(":wq\n")?;
    person.sees(PROMPT)?;
    person.types("cat /tmp/written\n")?;
    person.sees("\nwritten in vi\r\n")?;
    person.sees(PROMPT)?;
    person.types("top -d 1\n")?;
    person.sees("Mem:")?;
    person.sees("COMMAND")?;
    person.sees("/bin/serve")?;
    // It paints again by itself.
    person.sees("Mem:")?;
    person.types("q")?;
    person.sees(PROMPT)?;
    person.types("exit\n")?;
    let (_, status) = person.sees_the_end()?;
    assert!(status.success());
    alloc.stop()
}

fn ends_with_the_task(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut person = Person::sit_down(
        &alloc,
        &["/bin/sh", "-c", "trap '' HUP TERM; echo he''re; while :; do sleep 1; done"],
        24,
        80,
    )?;
    person.sees("here")?;
    alloc.stop()?;
    let (screen, status) = person.sees_the_end()?;
    assert_eq!(status.code(), Some(137), "{screen}");
    Ok(())
}

/// Nobody would be left who could end the command.
fn ends_with_the_agent(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let mut person = Person::sit_down(
        &alloc,
        &["/bin/sh", "-c", "trap '' HUP; echo he''re; while :; do sleep 1 || sleep 1; done"],
        24,
        80,
    )?;
    person.sees("here")?;
    env.agent.kill()?;
    person.sees_the_end()?;
    let left = leaks::settle(|| {
        let running = process::of_alloc(&alloc.id).into_iter().map(|process| process.command);
        running.filter(|command| command.contains("trap '' HUP")).collect()
    });
    assert!(left.is_empty(), "the command outlived the agent: {left:?}");
    env.agent.launch()?;
    alloc.wait_running()?;
    alloc.stop()
}

/// Waits until a command runs in the allocation; a shell does not say when it has started one.
fn wait_for(alloc: &str, command: &str) -> Outcome {
    let missing = leaks::settle(|| {
        let runs = process::of_alloc(alloc).iter().any(|process| process.command == command);
        if runs { Vec::new() } else { vec![format!("{command} does not run")] }
    });
    if missing.is_empty() { Ok(()) } else { Err(e2e::Failure(missing.join(", "))) }
}
