//! Jobs that cannot run: the task's events must contain the error and the remedy.

use e2e::{Failure, Job, Outcome};

use crate::{
    Case, Env,
    Needs::SharedAgent,
    batch::{expect_event, script},
};

pub const CASES: &[Case] = &[
    ("invalid_job_image_does_not_exist", SharedAgent, image_does_not_exist),
    ("invalid_job_wrong_digest", SharedAgent, wrong_digest),
    ("invalid_job_bad_image_name", SharedAgent, bad_image_name),
    ("invalid_job_command_not_in_image", SharedAgent, command_not_in_image),
    ("invalid_job_command_not_executable", SharedAgent, command_not_executable),
    ("invalid_job_unknown_user", SharedAgent, unknown_user),
    ("invalid_job_mount_source_does_not_exist", SharedAgent, mount_source_does_not_exist),
    ("invalid_job_unknown_option", SharedAgent, unknown_option),
    ("invalid_job_all_reported_together", SharedAgent, all_reported_together),
    ("registry_down_is_retried", SharedAgent, registry_down_is_retried),
];

/// Checks that the job fails permanently without a start, with an event that contains all of `texts`.
pub fn refused(env: &Env, job: &Job, texts: &[&str]) -> Outcome {
    let alloc = env.agent.run(job)?;
    let over = alloc.wait_over()?;
    assert_eq!(over["ClientStatus"], "failed");
    let events = alloc.events()?;
    let failures: Vec<&String> = events
        .iter()
        .filter(|event| event.starts_with("Driver Failure") || event.starts_with("Failed Validation"))
        .collect();
    let lacking = |event: &&String| texts.iter().all(|text| event.contains(text));
    if !failures.iter().any(lacking) {
        return Err(Failure(format!("expected an event with {texts:?}, got:\n  {}", events.join("\n  "))));
    }
    // A retry cannot help, so the task must not be restarted.
    assert_eq!(alloc.restarts()?, 0, "{events:?}");
    assert!(events.iter().any(|event| event.contains("unrecoverable")), "{events:?}");
    // `nomad alloc status` shows the same text.
    let status = env.agent.nomad(&["alloc", "status", &alloc.id])?;
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(texts.iter().all(|text| status.contains(text)), "{status}");
    Ok(())
}

fn with_attempts(job: Job) -> Job {
    job.number("attempts", 2)
}

fn image_does_not_exist(env: &Env) -> Outcome {
    let image = env.registry.reference("test/no-such-image:1.0");
    refused(env, &with_attempts(Job::new("batch").var("image", &image)), &["test/no-such-image:1.0", "not found"])
}

fn wrong_digest(env: &Env) -> Outcome {
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = env.registry.reference(&format!("test/busybox@{digest}"));
    refused(env, &with_attempts(Job::new("batch").var("image", &image)), &[&digest])
}

fn bad_image_name(env: &Env) -> Outcome {
    refused(env, &with_attempts(Job::new("batch").var("image", "Not A Name")), &["Not A Name"])
}

fn command_not_in_image(env: &Env) -> Outcome {
    let job = Job::new("batch").var("image", &env.registry.image()).var("command", "/bin/no-such-command");
    refused(env, &with_attempts(job), &["/bin/no-such-command"])
}

fn command_not_executable(env: &Env) -> Outcome {
    let job = Job::new("batch").var("image", &env.registry.image()).var("command", "/data/not-executable");
    refused(env, &with_attempts(job), &["/data/not-executable"])
}

fn unknown_user(env: &Env) -> Outcome {
    refused(env, &with_attempts(script(env, "true").var("user", "nosuchuser")), &["nosuchuser"])
}

fn mount_source_does_not_exist(env: &Env) -> Outcome {
    let mount = r#"mount {
        type   = "bind"
        source = "local/no-such-directory"
        target = "/mnt"
    }"#;
    refused(env, &with_attempts(script(env, "true").config(mount)), &["no-such-directory"])
}

fn unknown_option(env: &Env) -> Outcome {
    refused(env, &with_attempts(script(env, "true").config("no_such_option = 1")), &["no_such_option"])
}

fn all_reported_together(env: &Env) -> Outcome {
    let lines = r#"
        cap_add       = ["no_such_capability"]
        shm_size      = -5
        oom_score_adj = 2000
    "#;
    refused(env, &with_attempts(script(env, "true").config(lines)), &["cap_add", "shm_size", "oom_score_adj"])
}

/// A registry that does not answer may come back, so the error is recoverable: the restart policy decides.
fn registry_down_is_retried(env: &Env) -> Outcome {
    env.registry.push("test/later:1.0")?;
    env.registry.down();
    let job = Job::new("batch").var("image", &env.registry.reference("test/later:1.0")).var("command", "true");
    let alloc = env.agent.run(&job.number("attempts", 20))?;
    let failed = alloc.wait("a failed try", |_| {
        alloc.events().ok()?.iter().any(|event| event.starts_with("Driver Failure")).then_some(())
    });
    env.registry.up()?;
    failed?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    assert!(alloc.restarts()? > 0);
    expect_event(&alloc, "Restarting")
}
