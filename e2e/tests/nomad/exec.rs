//! `nomad alloc exec` on the command line.

use e2e::Outcome;

use crate::{
    Case, Env,
    Needs::SharedAgent,
    service::{PAGE, web},
};

pub const CASES: &[Case] = &[
    ("exec_without_terminal", SharedAgent, exec_without_terminal),
    ("exec_in_a_terminal", SharedAgent, exec_in_a_terminal),
    ("exec_passes_input", SharedAgent, exec_passes_input),
    ("exec_of_a_missing_command", SharedAgent, exec_of_a_missing_command),
    ("exec_ends_with_its_client", SharedAgent, exec_ends_with_its_client),
    ("exec_with_a_prefix", SharedAgent, exec_with_a_prefix),
];

fn exec_without_terminal(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let output =
        alloc.exec(&["/bin/sh", "-c", "echo out; echo err >&2; echo $GREETING; pwd; cat /proc/1/cmdline; exit 7"])?;
    assert_eq!(output.status.code(), Some(7));
    let stdout = String::from_utf8_lossy(&output.stdout).replace('\0', " ");
    assert!(stdout.starts_with("out\nhello from the job\n/www\n"), "{stdout}");
    assert!(stdout.contains("/bin/serve"), "it must see the container's processes: {stdout}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "err\n");
    Ok(())
}

fn exec_in_a_terminal(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let output = alloc.exec_in_terminal("/bin/sh", "tty; sleep 1; stty size; echo $((6 * 7))\nexit 5\n")?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("/dev/"), "tty: {text}");
    assert!(text.contains("40 100"), "size: {text}");
    assert!(text.contains("\n42\r\n"), "{text}");
    Ok(())
}

fn exec_passes_input(env: &Env) -> Outcome {
    let alloc = web(env)?;
    // Input and output through a pipe, as in `nomad alloc exec … tar -x`.
    let line = format!(
        "head -c 100M /dev/urandom > in; \"$NOMAD\" alloc exec -i -t=false {} cat < in > out; cmp in out",
        alloc.id
    );
    let directory = tempfile::tempdir()?;
    let output = env.agent.command("sh").args(["-c", &line]).current_dir(directory.path()).output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

fn exec_of_a_missing_command(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let output = alloc.exec(&["/no/such/command"])?;
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let output = alloc.exec(&["/data/not-executable"])?;
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    Ok(())
}

/// Nomad's client notices a disconnect only when it forwards output, so the command writes output.
fn exec_ends_with_its_client(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let command = "while sleep 0.1; do echo still here; done";
    let line = format!("timeout -s KILL 2 \"$NOMAD\" alloc exec -i=false -t=false {} sh -c '{command}'", alloc.id);
    env.agent.command("sh").args(["-c", &line]).output()?;
    let left = e2e::leaks::settle(|| {
        let running = e2e::process::of_alloc(&alloc.id).into_iter();
        running.filter(|process| process.command.contains("still here")).map(|process| process.command).collect()
    });
    assert!(left.is_empty(), "the command outlived its client: {left:?}");
    Ok(())
}

/// Nomad's command line passes the options unchanged.
fn exec_with_a_prefix(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let output = alloc.exec(&[
        "oci-rs://",
        "user=app",
        "cwd=/data",
        "--",
        "sh",
        "-c",
        "id -un; pwd; echo \"$@\"",
        "sh",
        "--",
        "-t",
    ])?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "app\n/data\n-- -t\n", "{output:?}");
    let image = format!("image={}", env.registry.image());
    let output = alloc.exec(&[
        "oci-rs://",
        &image,
        "--",
        "sh",
        "-c",
        "cat /task/www/index.html; tr '\\0' ' ' </proc/1/cmdline",
    ])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with(PAGE) && text.contains("/bin/serve"), "{output:?}");
    let output = alloc.exec(&["oci-rs://", "image=elsewhere.example/tools:1", "--", "true"])?;
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("exec.debug_images"), "{output:?}");
    Ok(())
}
