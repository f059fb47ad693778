//! What operators do to running jobs: drain the node, roll out a new version, restart. Starts and ends are counted.

use std::time::Duration;

use e2e::{Alloc, Outcome};
use serde_json::{Value, json};

use crate::{Case, Env, Needs::SharedAgent, batch::expect_event, lives};

pub const CASES: &[Case] = &[
    ("survival_node_drained", SharedAgent, node_drained),
    ("survival_canary_promoted", SharedAgent, canary_promoted),
    ("survival_alloc_restarted", SharedAgent, alloc_restarted),
];

const LIMIT: Duration = Duration::from_secs(120);

fn node_drained(env: &Env) -> Outcome {
    let asked = lives::start_one(env, lives::job(env, "service").var("kill_signal", "SIGINT"))?;
    let script = "trap '' TERM; echo start >>/alloc/data/lives; while :; do sleep 1; done";
    let deaf = lives::job(env, "service").var("command", "/bin/sh").list("args", &["-c", script]);
    let deaf = lives::start_one(env, deaf.var("kill_timeout", "1s"))?;
    // Nomad drains services at once when they are healthy, batch jobs at the deadline.
    let batch = lives::start_one(env, lives::job(env, "batch"))?;
    for alloc in [&asked, &deaf] {
        alloc.wait("its health", |alloc| (alloc["DeploymentStatus"]["Healthy"] == true).then_some(()))?;
    }
    let api = env.agent.api();
    let nodes = api.get("/v1/nodes")?;
    let node = format!("/v1/node/{}", nodes[0]["ID"].as_str().unwrap_or_default());
    let deadline = u64::try_from(Duration::from_secs(5).as_nanos())?;
    api.put(&format!("{node}/drain"), &json!({ "DrainSpec": { "Deadline": deadline }, "MarkEligible": false }))?;
    for (alloc, code, event) in [
        (&asked, 2, "Sent interrupt. Waiting 30s before force killing"),
        (&deaf, 137, "Waiting 1s before force killing"),
        (&batch, 15, "Waiting 30s before force killing"),
    ] {
        assert_eq!(alloc.wait_exit()?.code, code, "{:?}", alloc.events()?);
        expect_event(alloc, event)?;
        assert!(alloc.init().is_err(), "its container is left");
    }
    api.wait(&node, "the drain's end", LIMIT, |node| {
        let drained = node["DrainStrategy"].is_null() && node["LastDrain"]["Status"] == "complete";
        drained.then(|| assert_eq!(node["SchedulingEligibility"], "ineligible", "{node}"))
    })?;
    lives::expect(&asked, &["start", "end 2"])?;
    lives::expect(&batch, &["start", "end 15"])?;
    assert_eq!((lives::book(&deaf), deaf.exit_codes()?), (vec!["start".to_owned()], vec![137]));

    api.put(&format!("{node}/eligibility"), &json!({ "Eligibility": "eligible" }))?;
    // Services come back. A batch job that the deadline ended does not: so Nomad wants it.
    let mut allocs = Vec::new();
    for job in [&asked.job, &deaf.job] {
        let next = env.agent.placed(job, 2)?.swap_remove(1);
        next.wait_running()?;
        lives::wait_book(&next, 1)?;
        allocs.push(next);
    }
    assert_eq!(lives::inits(&allocs)?.len(), 2);
    lives::stop(&allocs)?;
    lives::expect(&allocs[0], &["start", "end 2"])?;
    assert_eq!((lives::book(&allocs[1]), allocs[1].exit_codes()?), (vec!["start".to_owned()], vec![137]));
    Ok(())
}

fn canary_promoted(env: &Env) -> Outcome {
    let job = |edition: &str| lives::job(env, "service").number("canary", 1).var("edition", edition);
    let old = lives::start(env, job("first"), 2)?;
    let id = old[0].job.clone();
    wait_deployment(env, &id, 0, |deployment| (deployment["Status"] == "successful").then_some(()))?;
    let inits = lives::inits(&old)?;

    env.agent.register(&job("second").number("count", 2), &id)?;
    let canary = env.agent.placed(&id, 3)?.swap_remove(2);
    canary.wait_running()?;
    canary.wait_log("stdout", |log| log == b"alive, edition second\n")?;
    let deployment = wait_deployment(env, &id, 1, |deployment| {
        let healthy = deployment["TaskGroups"]["life"]["HealthyAllocs"].as_u64()? >= 1;
        healthy.then(|| deployment["ID"].as_str().unwrap_or_default().to_owned())
    })?;
    assert_eq!(lives::inits(&old)?, inits, "nothing happens to the others before the canary is promoted");
    assert_eq!(env.agent.placed(&id, 3)?.len(), 3);

    let promotion = json!({ "DeploymentID": deployment, "All": true });
    env.agent.api().put(&format!("/v1/deployment/promote/{deployment}"), &promotion)?;
    wait_deployment(env, &id, 1, |deployment| (deployment["Status"] == "successful").then_some(()))?;
    for alloc in &old {
        assert_eq!(alloc.wait_exit()?.code, 15, "{:?}", alloc.events()?);
        lives::expect(alloc, &["start", "end 15"])?;
    }
    let all = env.agent.placed(&id, 4)?;
    let new: Vec<Alloc> = all.into_iter().filter(|alloc| !inits.contains_key(&alloc.id)).collect();
    assert_eq!(lives::inits(&new)?.len(), 2);
    lives::stop(&new)?;
    new.iter().try_for_each(|alloc| lives::expect(alloc, &["start", "end 15"]))
}

/// Waits for something of the deployment of a job's version.
fn wait_deployment<T>(env: &Env, job: &str, version: u64, ready: impl Fn(&Value) -> Option<T>) -> Outcome<T> {
    let path = format!("/v1/job/{job}/deployments");
    env.agent.api().wait(&path, "the deployment", LIMIT, |all| {
        ready(all.as_array()?.iter().find(|deployment| deployment["JobVersion"] == version)?)
    })
}

fn alloc_restarted(env: &Env) -> Outcome {
    const ROUNDS: usize = 3;
    let allocs = lives::start(env, lives::job(env, "service").number("attempts", 2), 2)?;
    let mut inits = lives::inits(&allocs)?;
    for round in 1..=ROUNDS {
        for alloc in &allocs {
            let output = env.agent.nomad(&["alloc", "restart", &alloc.id])?;
            assert!(output.status.success(), "{output:?}");
            lives::wait_book(alloc, 1 + 2 * round)?;
        }
        allocs.iter().try_for_each(Alloc::wait_running)?;
        let now = lives::inits(&allocs)?;
        assert!(now.iter().all(|(alloc, init)| inits[alloc].pid != init.pid), "{inits:?}, {now:?}");
        inits = now;
    }
    lives::stop(&allocs)?;
    for alloc in &allocs {
        assert_eq!(lives::book(alloc), ["start", "end 15"].repeat(ROUNDS + 1), "{:?}", alloc.events()?);
        assert_eq!(alloc.restarts()?, i64::try_from(ROUNDS)?, "{:?}", alloc.events()?);
        assert_eq!(alloc.wait_exit()?.code, 15);
    }
    Ok(())
}
