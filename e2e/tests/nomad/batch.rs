//! Batch jobs: exit codes, restarts, output, and the environment of a task.

use std::{ffi::OsStr, fs};

use e2e::{Alloc, Exit, Failure, Job, Outcome};

use crate::{Case, Env, Needs::SharedAgent};

pub const CASES: &[Case] = &[
    ("raw_exec_job_works_without_the_driver", SharedAgent, raw_exec_job_works_without_the_driver),
    ("batch_exit_0", SharedAgent, |env| exits(env, "exit 0", 0, 0)),
    ("batch_exit_3", SharedAgent, |env| exits(env, "exit 3", 3, 0)),
    ("batch_killed_by_signal", SharedAgent, |env| exits(env, "kill -SEGV $$", 139, 11)),
    ("batch_out_of_memory", SharedAgent, out_of_memory),
    ("batch_memory_max_is_the_limit", SharedAgent, memory_max_is_the_limit),
    ("batch_memory_max_of_minus_one_is_no_limit", SharedAgent, memory_max_of_minus_one_is_no_limit),
    ("batch_restart_then_success", SharedAgent, restart_then_success),
    ("batch_logs_are_byte_exact", SharedAgent, logs_are_byte_exact),
    ("batch_sees_what_nomad_promises", SharedAgent, sees_what_nomad_promises),
    ("batch_runs_as_the_named_user", SharedAgent, runs_as_the_named_user),
    ("batch_image_by_digest", SharedAgent, image_by_digest),
    ("batch_image_loaded_on_the_node", SharedAgent, image_loaded_on_the_node),
];

/// A batch job with a shell script.
pub fn script(env: &Env, script: &str) -> Job {
    Job::new("batch").var("image", &env.registry.image()).list("args", &["-c", script])
}

fn raw_exec_job_works_without_the_driver(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("raw_exec").list("args", &["sh", "-c", "echo hello; exit 4"]))?;
    let exit = alloc.wait_exit()?;
    assert_eq!(exit.code, 4);
    alloc.wait_log("stdout", |log| log == b"hello\n")?;
    Ok(())
}

fn exits(env: &Env, text: &str, code: i64, signal: i64) -> Outcome {
    // The kernel ignores most signals that process 1 of a namespace sends to itself, so the shell runs as a child.
    let text = if signal == 0 { text.to_owned() } else { format!("sh -c '{text}'; exit $?") };
    let alloc = env.agent.run(&script(env, &text))?;
    let exit = alloc.wait_exit()?;
    assert_eq!(exit.code, code, "{exit:?}, events {:?}", alloc.events()?);
    let status = alloc.wait_over()?;
    let expected = if code == 0 { "complete" } else { "failed" };
    assert_eq!(status["ClientStatus"], expected);
    Ok(())
}

fn out_of_memory(env: &Env) -> Outcome {
    let alloc = env.agent.run(&script(env, "dd if=/dev/zero of=/dev/null bs=200M count=1").number("memory", 32))?;
    let exit = alloc.wait_exit()?;
    assert_ne!(exit.code, 0);
    let direct = Job::new("batch").var("image", &env.registry.image()).var("command", "dd");
    let direct = direct.list("args", &["if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]).number("memory", 32);
    let alloc = env.agent.run(&direct)?;
    let exit = alloc.wait_exit()?;
    assert_eq!((exit.code, exit.oom), (137, true), "{exit:?}, events {:?}", alloc.events()?);
    Ok(())
}

/// Uses more than `memory`, then prints the cgroup's hard limit and reservation, of version 1 or 2.
const USE_MEMORY: &str = "dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null && cd /sys/fs/cgroup && \
                          (cat memory/memory.limit_in_bytes memory/memory.soft_limit_in_bytes 2>/dev/null || \
                          cat memory.max memory.low)";

/// Memory oversubscription is switched on in the test's server, as operators do who use `memory_max`.
fn memory_max_is_the_limit(env: &Env) -> Outcome {
    let job = script(env, USE_MEMORY).number("memory", 32).number("memory_max", 256);
    let alloc = env.agent.run(&job)?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    let expected = format!("{}\n{}\n", 256 << 20, 32 << 20);
    alloc.wait_log("stdout", |log| log == expected.as_bytes())?;
    Ok(())
}

fn memory_max_of_minus_one_is_no_limit(env: &Env) -> Outcome {
    let job = script(env, USE_MEMORY).number("memory", 32).number("memory_max", -1);
    let alloc = env.agent.run(&job)?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    let reservation = format!("\n{}\n", 32 << 20);
    alloc.wait_log("stdout", |log| {
        let log = String::from_utf8_lossy(log);
        // Version 1 shows the largest number of whole pages.
        let unlimited = log.starts_with("max\n") || log.starts_with("9223372036854771712\n");
        unlimited && log.ends_with(&reservation)
    })?;
    Ok(())
}

fn restart_then_success(env: &Env) -> Outcome {
    let job =
        Job::new("batch").var("image", &env.registry.image()).var("command", "once-then-ok").number("attempts", 2);
    let alloc = env.agent.run(&job)?;
    assert_eq!(alloc.wait_exit()?, Exit { code: 0, signal: 0, oom: false });
    assert_eq!(alloc.restarts()?, 1, "{:?}", alloc.events()?);
    expect_event(&alloc, "Exit Code: 1")?;
    alloc.wait_log("stdout", |log| log == b"first try fails\nsecond try\n")?;
    Ok(())
}

fn logs_are_byte_exact(env: &Env) -> Outcome {
    let alloc = env.agent.run(&script(env, "pattern out 30000 & pattern err 20000 >&2; wait"))?;
    assert_eq!(alloc.wait_exit()?.code, 0);
    let stdout = pattern("out", 30_000);
    alloc.wait_log("stdout", |log| log == stdout)?;
    let stderr = pattern("err", 20_000);
    alloc.wait_log("stderr", |log| log == stderr)?;
    Ok(())
}

/// The output of `e2e/image/bin/pattern`.
fn pattern(word: &str, lines: usize) -> Vec<u8> {
    let mut text: String = (1..lines).map(|line| format!("{word} {line:08}\n")).collect();
    text.push_str(word);
    text.push_str(" end");
    text.into_bytes()
}

fn sees_what_nomad_promises(env: &Env) -> Outcome {
    let text = r#"
        echo "job: $FROM_JOB; image: $GREETING; task: $NOMAD_TASK_NAME"
        echo "template: $(cat /local/template.txt)"
        for dir in /alloc/data /alloc/tmp /local /secrets "$NOMAD_ALLOC_DIR" "$NOMAD_TASK_DIR" "$NOMAD_SECRETS_DIR"; do
            echo x > "$dir/probe" && rm "$dir/probe" || echo "$dir is not writable"
        done
        [ -e /private ] && echo "the private directory is visible"
        [ -s /etc/hosts ] && [ -s /etc/resolv.conf ] || echo "no hosts or resolv.conf"
        echo "pid $$, directory $(pwd), user $(id -un)"
    "#;
    let alloc = env.agent.run(&script(env, text))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    let expected = "job: set by the job; image: hello from the image; task: batch\n\
                    template: from a template\npid 1, directory /www, user root\n";
    alloc.wait_log("stdout", |log| log == expected.as_bytes())?;
    Ok(())
}

fn runs_as_the_named_user(env: &Env) -> Outcome {
    let alloc = env
        .agent
        .run(&script(env, "id -un; id -gn; id -Gn; touch /etc/x 2>/dev/null || echo refused").var("user", "app"))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log == b"app\napp\napp staff\nrefused\n")?;
    Ok(())
}

fn image_by_digest(env: &Env) -> Outcome {
    let digest = env.registry.digest()?;
    for name in [format!("test/busybox@{digest}"), format!("test/busybox:1.0@{digest}")] {
        let job = Job::new("batch").var("image", &env.registry.reference(&name)).var("command", "true");
        assert_eq!(env.agent.run(&job)?.wait_exit()?.code, 0);
    }
    Ok(())
}

/// The image's registry does not exist: the node's administrator loaded the image from a file.
fn image_loaded_on_the_node(env: &Env) -> Outcome {
    let name = "registry.invalid/team/app:1";
    let (file, data) = (env.agent.path().join("image.tar"), env.agent.path().join("data"));
    env.registry.save(&file, name)?;
    let image = |args: &[&OsStr]| -> Outcome {
        let mut command = env.agent.command(env.agent.driver());
        let output = command.arg("image").args(args).arg("--data-dir").arg(&data).output()?;
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    image(&["load".as_ref(), file.as_os_str(), name.as_ref()])?;
    let alloc = env.agent.run(&Job::new("batch").var("image", name).list("args", &["-c", "exit 5"]))?;
    assert_eq!(alloc.wait_exit()?.code, 5);
    expect_event(&alloc, "Image is on this node: sha256:")?;
    image(&["rm".as_ref(), name.as_ref()])?;
    fs::remove_file(file)?;
    Ok(())
}

/// Checks that an event's text contains `text`.
pub fn expect_event(alloc: &Alloc, text: &str) -> Outcome {
    let events = alloc.events()?;
    if events.iter().any(|event| event.contains(text)) {
        return Ok(());
    }
    Err(Failure(format!("no event says {text:?}; events:\n  {}", events.join("\n  "))))
}
