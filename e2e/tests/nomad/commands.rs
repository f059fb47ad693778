//! The operator's commands on a node with a real agent: as typed, without options.

use std::process::Output;

use e2e::{
    Failure, Job, Outcome,
    pty::{MODES_RESTORED, PtyClient},
};
use serde_json::Value;

use crate::{Case, Env, Needs::SharedAgent, service::web};

pub const CASES: &[Case] = &[
    ("commands_show_a_job", SharedAgent, commands_show_a_job),
    ("commands_of_images_and_disks", SharedAgent, of_images_and_disks),
    ("commands_at_a_terminal", SharedAgent, at_a_terminal),
    ("commands_doctor_knows_the_agent", SharedAgent, doctor_knows_the_agent),
];

/// The JSON of a command that must succeed.
pub fn json(env: &Env, args: &[&str]) -> Outcome<Value> {
    Ok(serde_json::from_slice(&oci_rs(env, &[args, &["--json"]].concat())?.stdout)?)
}

/// A command of the driver's executable that must succeed.
pub fn oci_rs(env: &Env, args: &[&str]) -> Outcome<Output> {
    let output = env.agent.operator(args).output()?;
    if output.status.success() {
        return Ok(output);
    }
    Err(Failure(format!("{args:?}: {output:?}")))
}

fn commands_show_a_job(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let shown = line_with(&json(env, &["ps"])?, "allocation", &alloc.id)?;
    assert_eq!((&shown["state"], &shown["plugin"]), (&"running".into(), &"oci-rs".into()), "{shown}");
    assert_eq!(shown["image"], Value::from(env.registry.image()), "{shown}");
    assert_eq!(shown["ports"][0]["label"], "http", "{shown}");
    let task = shown["task"].as_str().unwrap_or_default();
    let name = format!("{}/{task}", &alloc.id[..8]);

    let listed = oci_rs(env, &["ps", "-q", "--filter", "job=job-*", "--filter", &format!("alloc={}", alloc.id)])?;
    assert_eq!(String::from_utf8_lossy(&listed.stdout), format!("{name}\n"));

    let logs = oci_rs(env, &["logs", &name])?;
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "serving /www on port 8080\n");
    assert_eq!(String::from_utf8_lossy(&logs.stderr), "this line goes to stderr\n");
    alloc.sh("kill -HUP 1")?;
    alloc.wait_log("stdout", |log| log.ends_with(b"got SIGHUP\n"))?;
    let logs = oci_rs(env, &["logs", "-n", "1", "--stdout", &name])?;
    assert_eq!((String::from_utf8_lossy(&logs.stdout).as_ref(), logs.stderr.len()), ("got SIGHUP\n", 0));
    let executed = env.agent.operator(&["exec", &name, "sh", "-c", "echo $GREETING; exit 7"]).output()?;
    assert_eq!(executed.status.code(), Some(7), "{executed:?}");
    assert_eq!(String::from_utf8_lossy(&executed.stdout), "hello from the job\n");
    let executed = oci_rs(env, &["exec", "-u", "app:staff", "-w", "/etc", &name, "sh", "-c", "id -un; id -gn; pwd"])?;
    assert_eq!(String::from_utf8_lossy(&executed.stdout), "app\nstaff\n/etc\n");
    let images = oci_rs(env, &["images"])?;
    assert!(String::from_utf8_lossy(&images.stdout).contains(&env.registry.image()), "{images:?}");
    let events = oci_rs(env, &["events", "--filter", &format!("alloc={}", alloc.id)])?;
    assert!(String::from_utf8_lossy(&events.stdout).contains(&format!("{name} started")), "{events:?}");
    Ok(())
}

/// The only line of a list in JSON that has this value.
pub fn line_with(list: &Value, field: &str, value: &str) -> Outcome<Value> {
    let found = list.as_array().and_then(|lines| lines.iter().find(|line| line[field] == value));
    found.cloned().ok_or_else(|| Failure(format!("no {field} {value}: {list}")))
}

fn of_images_and_disks(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let json = |args: &[&str]| json(env, args);
    let image = env.registry.image();
    let task = json(&["inspect", &alloc.id])?;
    assert_eq!((&task[0]["type"], &task[0]["state"]), (&"task".into(), &"running".into()), "{task}");
    let usage = line_with(&json(&["stats", "--no-stream"])?, "allocation", &alloc.id)?;
    assert!(usage["memory_bytes"].as_u64() > Some(0) && usage["pids"].as_u64() > Some(0), "{usage}");
    let network =
        line_with(&json(&["network", "ls"])?, "container", task[0]["container"].as_str().unwrap_or_default())?;
    assert_eq!(network["kind"], "group", "{network}");
    assert!(json(&["volume", "ls"])?.is_array());
    let used = json(&["df"])?;
    assert!(
        used["summary"][0]["active"].as_u64() > Some(0) && used["summary"][1]["bytes"].as_u64() > Some(0),
        "{used}"
    );

    let pulled = json(&["pull", "--unpinned", &image])?;
    let known = line_with(&json(&["image", "ls"])?, "reference", &image)?;
    assert_eq!((&pulled["digest"], &pulled["pinned"]), (&known["digest"], &false.into()), "{pulled}");
    let id = known["id"].as_str().unwrap_or_default();
    // A second name of the image, which no task uses. The cases share an agent, and some of them pull by digest.
    let second = format!("{image}@{}", known["digest"].as_str().unwrap_or_default());
    json(&["pull", "--unpinned", &second])?;
    for name in [image.as_str(), id, &id[..19]] {
        let steps = json(&["image", "history", name])?;
        assert!(steps.as_array().is_some_and(|steps| !steps.is_empty()), "{name}: {steps}");
    }
    assert!(json(&["image", "tree"])?[0]["layer"].as_str().is_some_and(|layer| layer.starts_with("sha256:")));
    let foreseen = json(&["image", "prune", "--dry-run"])?;
    let names = foreseen["would_remove"].as_array().cloned().unwrap_or_default();
    assert!(names.contains(&second.as_str().into()), "{foreseen}");
    assert!(!names.contains(&image.as_str().into()), "a task uses it: {foreseen}");
    assert_eq!(foreseen["layers"], 0, "a task uses its layers: {foreseen}");
    let refused = env.agent.operator(&["rmi", &image]).output()?;
    assert_eq!(refused.status.code(), Some(5), "a task uses it: {refused:?}");
    json(&["rmi", &second])?;
    let version = json(&["version"])?;
    assert!(version["kernel"].is_string() && version["libcontainer"].is_string(), "{version}");
    alloc.stop()
}

/// The commands that need a terminal, typed at one.
fn at_a_terminal(env: &Env) -> Outcome {
    const JOB: &str = "a-shop-whose-job-has-a-name-that-is-much-too-long-for-a-column";
    env.agent.register(&Job::new("web").var("image", &env.registry.image()), JOB)?;
    let alloc = env.agent.placed(JOB, 1)?.swap_remove(0);
    alloc.wait_log("stdout", |log| log.starts_with(b"serving"))?;
    let name = format!("{}/web", &alloc.id[..8]);
    for args in [&["ps"][..], &["stats", "--no-stream"]] {
        let shown = |more: &[&str]| -> Outcome<String> {
            let (screen, status) = PtyClient::start_operator(env.agent, &[args, more].concat(), 30, 100)?.wait_end()?;
            assert!(status.success() && screen.contains(&alloc.id[..8]), "{screen}");
            Ok(screen)
        };
        let width = |screen: &str| screen.lines().map(|line| line.trim_end().chars().count()).max();
        let fitted = shown(&[])?;
        assert!(width(&fitted) <= Some(100) && fitted.contains("a-shop-") && fitted.contains('…'), "{fitted}");
        let whole = shown(&["--no-trunc"])?;
        assert!(width(&whole) > Some(100) && whole.contains(JOB) && whole.contains(&alloc.id), "{whole}");
    }

    let mut shell = PtyClient::start_operator(env.agent, &["exec", "-it", &name, "sh"], 30, 100)?;
    shell.type_text("stty size; echo $((6 * 7)); exit 3\n")?;
    shell.wait_for("30 100")?;
    shell.wait_for("42")?;
    let (rest, status) = shell.wait_end()?;
    assert!(status.code() == Some(3) && rest.ends_with(MODES_RESTORED), "{status}: {rest:?}");

    let mut live = PtyClient::start_operator(env.agent, &["top", "--interval", "200ms", &name], 30, 100)?;
    for _ in 0..2 {
        live.wait_for("MEMORY / LIMIT")?;
        live.wait_for(&alloc.id[..8])?;
    }
    live.type_text("\x03")?;
    let (rest, _) = live.wait_end()?;
    assert!(rest.ends_with(MODES_RESTORED), "{rest:?}");

    let mut log = PtyClient::start_operator(env.agent, &["logs", "-f", &name], 30, 100)?;
    log.wait_for("serving /www on port 8080")?;
    let filter = format!("alloc={}", alloc.id);
    let mut events = PtyClient::start_operator(env.agent, &["events", "-f", "--filter", &filter], 30, 100)?;
    events.wait_for(" started")?;
    alloc.stop()?;
    events.wait_for(" removed")?;
    events.type_text("\x03")?;
    events.wait_end()?;
    assert!(log.wait_end()?.1.success(), "the log ends with its task");
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
