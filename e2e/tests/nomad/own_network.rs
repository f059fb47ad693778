//! Networks of single tasks: on the driver's bridge, in a CNI network, without a network, on the node's network.

use std::fs;

use e2e::{
    Alloc, Job, Outcome,
    api::fetch,
    network::{self, NODE, NODE6, Namespace, OUTSIDE, OUTSIDE6},
};

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent},
    batch::script,
    invalid_jobs::refused,
    lifecycle,
    recovery::kill,
    service::{PAGE, page},
};

pub const CASES: &[Case] = &[
    ("own_network_publishes_ports", SharedAgent, |env| publishes_ports(env, "bridge")),
    ("own_network_by_cni_configuration_publishes_ports", SharedAgent, |env| publishes_ports(env, "cni/e2e")),
    ("own_network_is_told_to_services", SharedAgent, is_told_to_services),
    ("own_network_is_new_for_each_start", SharedAgent, is_new_for_each_start),
    ("own_network_outlives_agent_and_plugin", OwnAgent, outlives_agent_and_plugin),
    ("own_network_modes", SharedAgent, modes),
];

const ASK: u16 = 7007;

fn own(env: &Env, mode: &str) -> Job {
    let six: &[&str] = if has_ipv6(mode) { &["six"] } else { &[] };
    Job::new("own_network").var("image", &env.registry.image()).var("mode", mode).list("six", six)
}

/// The CNI network of tests has IPv4 only.
fn has_ipv6(mode: &str) -> bool {
    mode == "bridge" && network::has_ipv6()
}

/// The container's address, as the container sees it.
fn address(alloc: &Alloc) -> Outcome<String> {
    Ok(alloc.sh("hostname -i")?.split_whitespace().next().unwrap_or_default().to_owned())
}

fn publishes_ports(env: &Env, mode: &str) -> Outcome {
    let alloc = env.agent.run(&own(env, mode))?;
    alloc.wait_running()?;
    let http = alloc.address("http")?;
    assert!(http.starts_with(&format!("{NODE}:")), "{http}");
    assert_eq!(env.outside.fetch(&format!("http://{http}/"))?, PAGE);
    assert_eq!(page(&alloc)?, PAGE, "from the node itself");
    assert_eq!(alloc.sh(&format!("timeout 5 wget -q -O - http://{http}/"))?, PAGE, "from the container itself");
    for kind in ["interface", "firewall rule", "record"] {
        let traces = env.agent.networks();
        assert!(traces.iter().any(|trace| trace.starts_with(kind)), "no {kind} in {traces:?}");
    }

    let inside = Namespace::open(&format!("/proc/{}/ns/net", alloc.init()?.pid))?;
    let ask = alloc.address("ask")?;
    let answer = inside.answer_udp(ASK, || env.outside.ask_udp(&ask, "marco"))?;
    assert_eq!(answer, format!("ocram to {OUTSIDE}"), "the task sees the client's address");

    let call = |url: String| alloc.sh(&format!("wget -q -O - {url}")).map(drop);
    let came = env.outside.caller(OUTSIDE.into(), |at| call(format!("http://{at}/")))?;
    assert_eq!(came, NODE, "the outside client sees only the node's address");
    if has_ipv6(mode) {
        let six = alloc.address("six")?;
        assert!(six.starts_with(&format!("[{NODE6}]:")), "{six}");
        assert_eq!(env.outside.fetch(&format!("http://{six}/"))?, PAGE);
        let came = env.outside.caller(OUTSIDE6.into(), |at| call(format!("http://{at}/")))?;
        assert_eq!(came, NODE6);
    }
    let hosts = alloc.sh("cat /etc/hosts; hostname")?;
    assert!(hosts.contains(&format!("{}\town-1\n", address(&alloc)?)) && hosts.ends_with("\nown-1\n"), "{hosts}");
    Ok(())
}

fn is_told_to_services(env: &Env) -> Outcome {
    let alloc = env.agent.run(&own(env, "bridge").var("service", "told"))?;
    alloc.wait_running()?;
    let registered = |name: &str| {
        let path = format!("/v1/service/{name}");
        env.agent.api().wait(&path, "the service", lifecycle::LIMIT, |services| {
            let service = services.get(0)?;
            Some(format!("{}:{}", service["Address"].as_str()?, service["Port"]))
        })
    };
    let inner = registered("told-in")?;
    assert_eq!(inner, format!("{}:8080", address(&alloc)?));
    assert_eq!(fetch(&format!("http://{inner}/"))?, PAGE);
    let outer = registered("told-out")?;
    assert_eq!(outer, alloc.address("http")?, "on the bridge, a service has the node's address by default");
    let port = outer.rsplit(':').next().unwrap_or_default();
    assert_eq!(
        alloc.sh("echo $NOMAD_ADDR_http $NOMAD_PORT_http $NOMAD_HOST_PORT_http")?,
        format!("{outer} 8080 {port}\n")
    );
    Ok(())
}

fn is_new_for_each_start(env: &Env) -> Outcome {
    let allocs = env.agent.run_many(&own(env, "bridge").number("count", 3), 3)?;
    let mut addresses = Vec::new();
    for alloc in &allocs {
        alloc.wait_running()?;
        assert_eq!(page_outside(env, alloc)?, PAGE);
        addresses.push(address(alloc)?);
    }
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    let alloc = &allocs[0];
    for round in 1..=2 {
        let before = alloc.init()?;
        alloc.restart()?;
        alloc.wait("the restart", |_| {
            (alloc.restarts().ok()? == round && alloc.init().ok()?.pid != before.pid).then_some(())
        })?;
        assert_eq!(page_outside(env, alloc)?, PAGE);
        kill(env.agent.plugin_pid()?)?;
        assert_eq!(page_outside(env, alloc)?, PAGE);
        lifecycle::wait_exec(alloc)?;
    }
    let networks = env.agent.networks().into_iter().filter(|trace| trace.starts_with("record")).count();
    assert_eq!(networks, 3, "{:?}", env.agent.networks());
    lifecycle::stop(&allocs)
}

fn page_outside(env: &Env, alloc: &Alloc) -> Outcome<String> {
    env.outside.fetch(&format!("http://{}/", alloc.address("http")?))
}

/// Agent and plugin are killed together, so that no process that made the network is left.
fn outlives_agent_and_plugin(env: &Env) -> Outcome {
    let alloc = env.agent.run(&own(env, "bridge"))?;
    alloc.wait_running()?;
    assert_eq!(page_outside(env, &alloc)?, PAGE);
    let (init, inner) = (alloc.init()?, address(&alloc)?);
    let plugin = env.agent.plugin_pid()?;
    let url = format!("http://{}/", alloc.address("http")?);
    env.agent.kill()?;
    kill(plugin)?;
    assert_eq!(env.outside.fetch(&url)?, PAGE, "without an agent");
    env.agent.launch()?;
    lifecycle::wait_exec(&alloc)?;
    assert_eq!((alloc.init()?, address(&alloc)?), (init, inner));
    assert_eq!(env.outside.fetch(&url)?, PAGE);
    assert_eq!(alloc.restarts()?, 0, "{:?}", alloc.events()?);
    let service = env.agent.api().get("/v1/service/own-in")?;
    assert_eq!(service[0]["Address"], address(&alloc)?);
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    Ok(())
}

fn modes(env: &Env) -> Outcome {
    let look = "readlink /proc/self/ns/net; ip -o link show | cut -d: -f2 | cut -d@ -f1; ip -4 -o address show";
    let names = |alloc: &Alloc, done: &str| {
        assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
        let log = alloc.wait_log("stdout", |log| String::from_utf8_lossy(log).contains(done))?;
        Outcome::Ok(String::from_utf8_lossy(&log).into_owned())
    };
    let with = |mode: &str| env.agent.run(&script(env, look).config(&format!("network_mode = \"{mode}\"")));
    let node = fs::read_link("/proc/thread-self/ns/net")?.display().to_string();

    let (none, host, named, bridge) = (with("none")?, with("host")?, with("cni/e2e")?, with("bridge")?);
    let seen = names(&none, "lo")?;
    assert!(!seen.contains(&node) && !seen.contains("eth0"), "none: {seen}");
    let seen = names(&host, "lo")?;
    assert!(seen.contains(&node) && seen.contains(network::INTERFACE), "host: {seen}");
    let seen = names(&named, "eth0")?;
    assert!(!seen.contains(&node) && seen.contains("inet 172.29."), "cni/e2e: {seen}");
    let seen = names(&bridge, "eth0")?;
    assert!(!seen.contains(&node) && seen.contains("inet 172.28."), "bridge: {seen}");
    for (mode, texts) in [
        ("cni/no-such-network", ["no CNI network", "no-such-network"]),
        ("container:other", ["network_mode", "container:other"]),
    ] {
        let job = script(env, "true").number("attempts", 2).config(&format!("network_mode = \"{mode}\""));
        refused(env, &job, &texts)?;
    }
    Ok(())
}
