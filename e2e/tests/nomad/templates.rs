//! Templates with Nomad variables: a change restarts the task, sends it a signal, or runs a script in it.

use std::fs;

use e2e::{Alloc, Job, Outcome, watch};
use serde_json::json;

use crate::{Case, Env, Needs::SharedAgent, batch::expect_event, lifecycle::LIMIT};

pub const CASES: &[Case] = &[("templates_change_restarts_signals_and_runs_scripts", SharedAgent, change_modes)];

const JOB: &str = "templates";

/// Sets the job's variable.
fn set(env: &Env, word: &str) -> Outcome {
    let path = format!("nomad/jobs/{JOB}");
    let variable = json!({ "Namespace": "default", "Path": path, "Items": { "word": word } });
    env.agent.api().put(&format!("/v1/var/{path}"), &variable).map(drop)
}

/// Waits until a file that a task writes to `/alloc/data` has this content.
pub fn wait_file(alloc: &Alloc, file: &str, expected: &str) -> Outcome {
    let data = alloc.shared_directory().join("data");
    let content = || fs::read_to_string(data.join(file)).unwrap_or_default();
    let waited = watch::until(&data, file, LIMIT, || (content() == expected).then_some(()));
    waited.map_err(|failure| e2e::Failure(format!("{}: {file} contains {:?}", failure.0, content())))
}

fn change_modes(env: &Env) -> Outcome {
    set(env, "first")?;
    env.agent.register(&Job::new("templates").var("image", &env.registry.image()), JOB)?;
    let alloc = env.agent.placed(JOB, 1)?.swap_remove(0);
    let [restarted, signalled, scripted] = ["restarted", "signalled", "scripted"].map(|task| alloc.task(task));
    for task in [&restarted, &signalled, &scripted] {
        task.wait_running()?;
    }
    wait_file(&alloc, "restarted", "first\n")?;
    wait_file(&alloc, "listens", "")?;
    let (before, signalled_before) = (restarted.init()?, signalled.init()?);

    set(env, "second")?;
    wait_file(&alloc, "restarted", "first\nsecond\n")?;
    wait_file(&alloc, "signalled", "second\n")?;
    // The environment does not change in a running task.
    wait_file(&alloc, "scripted", "second app first ")?;
    assert_ne!(restarted.init()?, before);
    assert_eq!(signalled.init()?, signalled_before);
    assert_eq!([&signalled, &scripted].map(|task| task.restarts().unwrap_or(-1)), [0, 0]);
    // Nomad reports events with a delay.
    restarted.wait("the event", |_| expect_event(&restarted, "Template with change_mode restart re-rendered").ok())?;
    alloc.ask_to_stop()?;
    for task in [&restarted, &signalled, &scripted] {
        assert_eq!(task.wait_exit()?.code, 0, "{:?}", task.events()?);
    }
    Ok(())
}
