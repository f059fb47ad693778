//! Script checks and template scripts, with a real Consul.

use std::{fs, time::Duration};

use e2e::{Alloc, Job, Outcome, process, watch};

use crate::{Case, Env, Needs::WithConsul};

pub const CASES: &[Case] = &[
    ("checks_reach_consul", WithConsul, checks_reach_consul),
    ("checks_past_their_timeout_are_killed", WithConsul, checks_past_their_timeout_are_killed),
    ("checks_end_with_their_task", WithConsul, checks_end_with_their_task),
    ("template_scripts_run_at_a_change", WithConsul, template_scripts_run_at_a_change),
];

fn run<'a>(env: &Env<'a>, service: &str) -> Outcome<Alloc<'a>> {
    env.consul()?.put(&format!("{service}/word"), "first")?;
    let alloc = env.agent.run(&Job::new("checks").var("image", &env.registry.image()).var("service", service))?;
    alloc.wait_running()?;
    Ok(alloc)
}

fn checks_reach_consul(env: &Env) -> Outcome {
    let (consul, service) = (env.consul()?, "reach");
    let alloc = run(env, service)?;
    let output = consul.wait_check(service, "passing", "passing", "well")?;
    // A check runs with the task's user, environment and directory. Both outputs are in the order of the writes.
    assert_eq!(output, "well: app, hello from the job, /home/app\nas usual\n");
    assert_eq!(consul.wait_check(service, "warning", "warning", "so")?, "so so\n");
    assert_eq!(consul.wait_check(service, "critical", "critical", "bad")?, "bad\n");
    let missing = consul.wait_check(service, "missing", "critical", "not found")?;
    assert!(missing.contains("/no/such/check"), "{missing}");
    consul.wait_check(service, "changing", "warning", "")?;
    fs::write(alloc.shared_directory().join("data/fine"), "")?;
    consul.wait_check(service, "changing", "passing", "")?;
    alloc.stop()
}

fn checks_past_their_timeout_are_killed(env: &Env) -> Outcome {
    let (consul, service) = (env.consul()?, "slow");
    let alloc = run(env, service)?;
    // Nomad stops waiting a moment before the driver has killed the command, and reports its own text.
    let said = consul.wait_check(service, "slow", "critical", "e")?;
    assert!(said.contains("deadline") || said.contains("timeout"), "{said}");
    // The check runs again every three seconds, so a command that is not killed would always be visible.
    let left = e2e::leaks::settle(|| {
        let running = process::of_alloc(&alloc.id).into_iter().map(|process| process.command);
        running.filter(|command| command.contains("sleep 333")).collect()
    });
    assert!(left.is_empty(), "left of the check: {left:?}");
    alloc.stop()
}

fn checks_end_with_their_task(env: &Env) -> Outcome {
    let (consul, service) = (env.consul()?, "ends");
    let alloc = run(env, service)?;
    consul.wait_check(service, "passing", "passing", "well")?;
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    let gone = |checks: &serde_json::Value| checks.as_array().is_some_and(Vec::is_empty).then_some(());
    consul.api().wait(&format!("/v1/health/checks/{service}"), "the service to go", Duration::from_secs(30), gone)
}

fn template_scripts_run_at_a_change(env: &Env) -> Outcome {
    let (consul, service) = (env.consul()?, "template");
    let alloc = run(env, service)?;
    consul.wait_check(service, "passing", "passing", "well")?;
    let words = alloc.shared_directory().join("data/words");
    let wait = |text: &str| {
        let directory = alloc.shared_directory().join("data");
        let seen = || fs::read_to_string(&words).ok().filter(|words| words.contains(text));
        watch::until(&directory, text, Duration::from_secs(30), seen)
    };
    assert!(!words.exists(), "the first rendering does not run the script");
    consul.put(&format!("{service}/word"), "second")?;
    assert_eq!(wait("second")?, "second app hello from the job /home/app\n");
    assert_eq!(alloc.restarts()?, 0);
    // A failed script with `fail_on_error` ends the task.
    consul.put(&format!("{service}/word"), "bad")?;
    wait("bad")?;
    alloc.wait_over()?;
    let events = alloc.events()?;
    // Nomad's versions write "code: 1" and "code code: 1".
    let told = |event: &String| event.contains("exited with code") && event.ends_with("code: 1");
    assert!(events.iter().any(told), "{events:?}");
    Ok(())
}
