//! A web service in a group network.

use std::{
    thread,
    time::{Duration, Instant},
};

use e2e::{Alloc, Job, Outcome, api::fetch, watch};

use crate::{Case, Env, Needs::SharedAgent, lifecycle::LIMIT, templates::wait_file};

pub const CASES: &[Case] = &[
    ("service_on_a_mapped_port", SharedAgent, service_on_a_mapped_port),
    ("service_stops_as_asked", SharedAgent, service_stops_as_asked),
    ("service_is_killed_when_it_does_not_stop", SharedAgent, service_is_killed_when_it_does_not_stop),
    ("service_without_logs_is_stopped_after_its_delay", SharedAgent, without_logs_is_stopped_after_its_delay),
    ("service_gets_signals", SharedAgent, service_gets_signals),
    ("service_has_statistics", SharedAgent, service_has_statistics),
    ("service_restarts_on_request", SharedAgent, service_restarts_on_request),
    ("node_shows_the_driver", SharedAgent, node_shows_the_driver),
];

/// What the image of the tests serves.
pub const PAGE: &str = "<h1>Hello from oci-rs</h1>\n";

/// Starts the web job and waits until it serves.
pub fn web<'a>(env: &Env<'a>) -> Outcome<Alloc<'a>> {
    let alloc = env.agent.run(&Job::new("web").var("image", &env.registry.image()))?;
    alloc.wait_running()?;
    alloc.wait_log("stdout", |log| log.starts_with(b"serving"))?;
    Ok(alloc)
}

/// Fetches the web job's page through the node's address and port.
pub fn page(alloc: &Alloc) -> Outcome<String> {
    fetch(&format!("http://{}/", alloc.address("http")?))
}

/// Repeats a request for a minute at most, until what it needs is there: rules, addresses of proxies, records.
pub fn patiently(ask: impl Fn() -> Outcome<String>) -> Outcome<String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(200)),
            answer => return answer,
        }
    }
}

fn service_on_a_mapped_port(env: &Env) -> Outcome {
    let alloc = web(env)?;
    assert_eq!(page(&alloc)?, PAGE);
    // A CGI script prints the environment of the server's children.
    let seen = fetch(&format!("http://{}/cgi-bin/env", alloc.address("http")?))?;
    assert!(seen.contains("GREETING=hello from the job\n"), "{seen}");
    assert!(seen.contains(&format!("NOMAD_ALLOC_ID={}\n", alloc.id)), "{seen}");
    alloc.wait_log("stdout", |log| log == b"serving /www on port 8080\n")?;
    alloc.wait_log("stderr", |log| log == b"this line goes to stderr\n")?;
    Ok(())
}

fn service_stops_as_asked(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let init = alloc.init()?;
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    assert!(e2e::process::find(|process| process.pid == init.pid).is_empty());
    alloc.wait_log("stdout", |log| log.ends_with(b"stopping\n"))?;
    Ok(())
}

fn service_is_killed_when_it_does_not_stop(env: &Env) -> Outcome {
    let text = "trap '' TERM INT; echo ready; while true; do sleep 1; done";
    let alloc = env.agent.run(&crate::batch::script(env, text))?;
    alloc.wait_log("stdout", |log| log == b"ready\n")?;
    let begin = std::time::Instant::now();
    alloc.stop()?;
    let took = begin.elapsed().as_secs();
    assert!((4..20).contains(&took), "stopping took {took} s with a kill_timeout of 5 s");
    assert_eq!(alloc.wait_exit()?.code, 137, "{:?}", alloc.events()?);
    Ok(())
}

fn without_logs_is_stopped_after_its_delay(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("quiet").var("image", &env.registry.image()))?;
    alloc.wait_running()?;
    let data = alloc.shared_directory().join("data");
    watch::until(&data, "the output", LIMIT, || data.join("written").exists().then_some(()))?;
    // Nomad starts no collector, and no file of the task's output exists.
    wait_file(&alloc, "logs", "0\n")?;
    assert!(alloc.log("stdout").is_err());

    alloc.ask_to_stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    let events = alloc.events()?;
    let order = ["Waiting for shutdown delay", "Terminated", "Killed"]
        .map(|kind| events.iter().position(|event| event.starts_with(kind)));
    assert!(order.is_sorted() && order[0].is_some() && data.join("asked").exists(), "{events:?}");
    Ok(())
}

fn service_gets_signals(env: &Env) -> Outcome {
    let alloc = web(env)?;
    for (signal, word) in [("SIGUSR1", "got SIGUSR1\n"), ("SIGHUP", "got SIGHUP\n")] {
        let output = env.agent.nomad(&["alloc", "signal", "-s", signal, &alloc.id])?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        alloc.wait_log("stdout", |log| log.ends_with(word.as_bytes()))?;
    }
    assert_eq!(alloc.restarts()?, 0);
    page(&alloc).map(drop)
}

fn service_has_statistics(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let path = format!("/v1/client/allocation/{}/stats", alloc.id);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let stats = env.agent.api().get(&path)?;
        let memory = &stats["Tasks"]["web"]["ResourceUsage"]["MemoryStats"];
        let bytes = memory["RSS"].as_u64().unwrap_or(0).max(memory["Usage"].as_u64().unwrap_or(0));
        if bytes > 0 {
            assert!(bytes < 64 << 20, "{stats}");
            return Ok(());
        }
        assert!(std::time::Instant::now() < deadline, "no memory usage in {stats}");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}

fn service_restarts_on_request(env: &Env) -> Outcome {
    let alloc = web(env)?;
    let before = alloc.init()?;
    let output = env.agent.nomad(&["alloc", "restart", &alloc.id])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    alloc.wait_log("stdout", |log| log.ends_with(b"stopping\nserving /www on port 8080\n"))?;
    assert_ne!(alloc.init()?.pid, before.pid);
    page(&alloc).map(drop)
}

fn node_shows_the_driver(env: &Env) -> Outcome {
    let output = env.agent.nomad(&["node", "status", "-self", "-verbose"])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.starts_with("oci-rs "));
    let row = row.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>());
    assert_eq!(row, Some(vec!["oci-rs", "true", "true"]), "{text}");
    for attribute in ["driver.oci-rs ", "driver.oci-rs.version "] {
        assert!(text.lines().any(|line| line.starts_with(attribute)), "no {attribute}in {text}");
    }
    Ok(())
}
