//! Operations on running jobs: drain the node, roll out a new version, restart. The cases count starts and ends.

use std::time::Duration;

use e2e::{Alloc, Outcome};
use serde_json::{Value, json};

use crate::{Case, Env, Needs::SharedAgent, batch::expect_event, lifecycle};

pub const CASES: &[Case] = &[
    ("survival_node_drained", SharedAgent, node_drained),
    ("survival_canary_promoted", SharedAgent, canary_promoted),
    ("survival_alloc_restarted", SharedAgent, alloc_restarted),
];

const LIMIT: Duration = Duration::from_secs(120);

fn node_drained(env: &Env) -> Outcome {
    let asked = lifecycle::start_one(env, lifecycle::job(env, "service").var("kill_signal", "SIGINT"))?;
    let script = "trap '' TERM; echo start >>/alloc/data/lifecycle; while :; do sleep 1; done";
    let deaf = lifecycle::job(env, "service").var("command", "/bin/sh").list("args", &["-c", script]);
    let deaf = lifecycle::start_one(env, deaf.var("kill_timeout", "1s"))?;
    // Nomad drains healthy services at once, and batch jobs at the deadline.
    let batch = lifecycle::start_one(env, lifecycle::job(env, "batch"))?;
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
    lifecycle::expect(&asked, &["start", "end 2"])?;
    lifecycle::expect(&batch, &["start", "end 15"])?;
    assert_eq!((lifecycle::lines(&deaf), deaf.exit_codes()?), (vec!["start".to_owned()], vec![137]));

    api.put(&format!("{node}/eligibility"), &json!({ "Eligibility": "eligible" }))?;
    // Nomad restarts the services. It does not restart a batch job that the deadline ended.
    let mut allocs = Vec::new();
    for job in [&asked.job, &deaf.job] {
        let next = env.agent.placed(job, 2)?.swap_remove(1);
        next.wait_running()?;
        lifecycle::wait_lines(&next, 1)?;
        allocs.push(next);
    }
    assert_eq!(lifecycle::inits(&allocs)?.len(), 2);
    lifecycle::stop(&allocs)?;
    lifecycle::expect(&allocs[0], &["start", "end 2"])?;
    assert_eq!((lifecycle::lines(&allocs[1]), allocs[1].exit_codes()?), (vec!["start".to_owned()], vec![137]));
    Ok(())
}

fn canary_promoted(env: &Env) -> Outcome {
    let job = |edition: &str| lifecycle::job(env, "service").number("canary", 1).var("edition", edition);
    let old = lifecycle::start(env, job("first"), 2)?;
    let id = old[0].job.clone();
    wait_deployment(env, &id, 0, |deployment| (deployment["Status"] == "successful").then_some(()))?;
    let inits = lifecycle::inits(&old)?;

    env.agent.register(&job("second").number("count", 2), &id)?;
    let canary = env.agent.placed(&id, 3)?.swap_remove(2);
    canary.wait_running()?;
    canary.wait_log("stdout", |log| log == b"alive, edition second\n")?;
    let deployment = wait_deployment(env, &id, 1, |deployment| {
        let healthy = deployment["TaskGroups"]["lifecycle"]["HealthyAllocs"].as_u64()? >= 1;
        healthy.then(|| deployment["ID"].as_str().unwrap_or_default().to_owned())
    })?;
    assert_eq!(lifecycle::inits(&old)?, inits, "nothing happens to the others before the canary is promoted");
    assert_eq!(env.agent.placed(&id, 3)?.len(), 3);

    let promotion = json!({ "DeploymentID": deployment, "All": true });
    env.agent.api().put(&format!("/v1/deployment/promote/{deployment}"), &promotion)?;
    wait_deployment(env, &id, 1, |deployment| (deployment["Status"] == "successful").then_some(()))?;
    for alloc in &old {
        assert_eq!(alloc.wait_exit()?.code, 15, "{:?}", alloc.events()?);
        lifecycle::expect(alloc, &["start", "end 15"])?;
    }
    let all = env.agent.placed(&id, 4)?;
    let new: Vec<Alloc> = all.into_iter().filter(|alloc| !inits.contains_key(&alloc.id)).collect();
    assert_eq!(lifecycle::inits(&new)?.len(), 2);
    lifecycle::stop(&new)?;
    new.iter().try_for_each(|alloc| lifecycle::expect(alloc, &["start", "end 15"]))
}

/// Waits for a condition on the deployment of a job's version.
fn wait_deployment<T>(env: &Env, job: &str, version: u64, ready: impl Fn(&Value) -> Option<T>) -> Outcome<T> {
    let path = format!("/v1/job/{job}/deployments");
    env.agent.api().wait(&path, "the deployment", LIMIT, |all| {
        ready(all.as_array()?.iter().find(|deployment| deployment["JobVersion"] == version)?)
    })
}

fn alloc_restarted(env: &Env) -> Outcome {
    const ROUNDS: usize = 3;
    let allocs = lifecycle::start(env, lifecycle::job(env, "service").number("attempts", 2), 2)?;
    let mut inits = lifecycle::inits(&allocs)?;
    for round in 1..=ROUNDS {
        for alloc in &allocs {
            let output = env.agent.nomad(&["alloc", "restart", &alloc.id])?;
            assert!(output.status.success(), "{output:?}");
            lifecycle::wait_lines(alloc, 1 + 2 * round)?;
        }
        allocs.iter().try_for_each(Alloc::wait_running)?;
        let now = lifecycle::inits(&allocs)?;
        assert!(now.iter().all(|(alloc, init)| inits[alloc].pid != init.pid), "{inits:?}, {now:?}");
        inits = now;
    }
    lifecycle::stop(&allocs)?;
    for alloc in &allocs {
        assert_eq!(lifecycle::lines(alloc), ["start", "end 15"].repeat(ROUNDS + 1), "{:?}", alloc.events()?);
        assert_eq!(alloc.restarts()?, i64::try_from(ROUNDS)?, "{:?}", alloc.events()?);
        assert_eq!(alloc.wait_exit()?.code, 15);
    }
    Ok(())
}
