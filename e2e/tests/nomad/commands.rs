//! The operator's commands on a node with a real agent: as typed, without options.

use std::process::Output;

use e2e::{Failure, Outcome};
use serde_json::Value;

use crate::{Case, Env, Needs::SharedAgent, service::web};

pub const CASES: &[Case] = &[
    ("commands_show_a_job", SharedAgent, commands_show_a_job),
    ("commands_doctor_knows_the_agent", SharedAgent, doctor_knows_the_agent),
];

/// A command of the driver's executable that must succeed.
fn oci_rs(env: &Env, args: &[&str]) -> Outcome<Output> {
    let output = env.agent.operator(args).output()?;
    if output.status.success() {
        return Ok(output);
    }
    Err(Failure(format!("{args:?}: {output:?}")))
}

fn commands_show_a_job(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let listed: Value = serde_json::from_slice(&oci_rs(env, &["ps", "--json"])?.stdout)?;
    let shown = listed.as_array().and_then(|tasks| tasks.iter().find(|task| task["allocation"] == *alloc.id));
    let shown = shown.ok_or_else(|| Failure(format!("the job's task is not listed: {listed}")))?;
    assert_eq!((&shown["state"], &shown["plugin"]), (&"running".into(), &"oci-rs".into()), "{shown}");
    assert_eq!(shown["image"], Value::from(env.registry.image()), "{shown}");
    assert_eq!(shown["ports"][0]["label"], "http", "{shown}");
    let task = shown["task"].as_str().unwrap_or_default();
    let name = format!("{}/{task}", &alloc.id[..8]);

    let logs = oci_rs(env, &["logs", &name])?;
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "serving /www on port 8080\n");
    assert_eq!(String::from_utf8_lossy(&logs.stderr), "this line goes to stderr\n");
    let executed = env.agent.operator(&["exec", &name, "sh", "-c", "echo $GREETING; exit 7"]).output()?;
    assert_eq!(executed.status.code(), Some(7), "{executed:?}");
    assert_eq!(String::from_utf8_lossy(&executed.stdout), "hello from the job\n");
    let images = oci_rs(env, &["images"])?;
    assert!(String::from_utf8_lossy(&images.stdout).contains(&env.registry.image()), "{images:?}");
    let events = oci_rs(env, &["events", "--filter", &format!("alloc={}", alloc.id)])?;
    assert!(String::from_utf8_lossy(&events.stdout).contains(&format!("{name} started")), "{events:?}");
    Ok(())
}

/// The doctor reads the version from the executable file of the agent, whose name has the version in it.
fn doctor_knows_the_agent(env: &Env) -> Outcome {
    let output = env.agent.operator(&["doctor", "--json"]).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let expected = Value::from(format!("Nomad {}", env.agent.version()));
    let mut findings = report["findings"].as_array().into_iter().flatten();
    assert!(
        findings.any(|finding| finding["check"] == "nomad" && finding["reason"] == expected),
        "{expected}: {report:#}"
    );
    Ok(())
}
