//! The group's network, made by Nomad: all tasks and hooks of the group share it, other tasks do not, and its ports are
//! published.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use e2e::{
    Alloc, Job, Outcome,
    network::{self, NODE, NODE6, Namespace, OUTSIDE, OUTSIDE6},
    ports::free_port,
    versions::BRIDGE_IPV6,
    watch,
};

use crate::{
    Case, Env,
    Needs::SharedAgent,
    lifecycle,
    recovery::kill,
    service::{PAGE, page},
};

pub const CASES: &[Case] = &[
    ("network_of_a_group_is_shared_by_all_hooks", SharedAgent, |env| hooks(env, "bridge")),
    ("network_of_a_group_by_cni_configuration_is_shared_by_all_hooks", SharedAgent, |env| hooks(env, "cni/e2e")),
    ("network_ports_lead_to_the_group", SharedAgent, |env| ports(env, "bridge")),
    ("network_ports_lead_to_the_group_by_ipv6", SharedAgent, ports_by_ipv6),
    ("network_ports_lead_to_the_group_by_cni_configuration", SharedAgent, |env| ports(env, "cni/e2e")),
    ("network_outlives_restarts_and_plugins", SharedAgent, outlives),
    ("network_of_the_node", SharedAgent, of_the_node),
];

const LIMIT: Duration = Duration::from_secs(60);
/// The group's port for UDP requests.
const ASK: u16 = 7007;

fn group(env: &Env, mode: &str) -> Job {
    Job::new("group").var("image", &env.registry.image()).var("mode", mode)
}

/// The name of the task's network namespace, as the task sees it.
fn name_of(namespace: &str) -> Outcome<String> {
    Ok(format!("net:[{}]\n", fs::metadata(namespace)?.ino()))
}

fn note(alloc: &Alloc, task: &str) -> String {
    fs::read_to_string(alloc.shared_directory().join("data").join(task)).unwrap_or_default()
}

/// Two groups use the same ports on their loopback addresses.
fn hooks(env: &Env, mode: &str) -> Outcome {
    let allocs = env.agent.run_many(&group(env, mode).number("count", 2), 2)?;
    let mut names = Vec::new();
    for alloc in &allocs {
        alloc.task("web").wait_running()?;
        let data = alloc.shared_directory().join("data");
        watch::until(&data, "the answers", LIMIT, || data.join("answers").exists().then_some(()))?;
        let name = name_of(&format!("/run/netns/{}", alloc.id))?;
        for task in ["before", "beside", "web", "after"] {
            assert_eq!(note(alloc, task), name, "{task}");
        }
        assert_eq!(note(alloc, "answers"), format!("{PAGE}{}\n", alloc.id));
        names_inside(&alloc.task("web"), mode)?;
        names.push(name);
    }
    assert_ne!(names[0], names[1]);
    assert!(!names.contains(&name_of("/proc/thread-self/ns/net")?));
    allocs[0].ask_to_stop()?;
    for (alloc, name) in allocs.iter().zip(names) {
        assert_eq!(alloc.task("last").wait_exit()?.code, 0, "{:?}", alloc.task("last").events()?);
        assert_eq!(note(alloc, "last"), name, "the group's network is there until the last hook has ended");
    }
    Ok(())
}

/// Checks host name, hosts file and name servers of the task `web`.
fn names_inside(web: &Alloc, mode: &str) -> Outcome {
    let seen = web.sh("hostname; hostname -i; ip -4 -o address show eth0")?;
    let [name, resolved, own] = seen.lines().collect::<Vec<_>>()[..] else { panic!("{seen}") };
    assert_eq!(name, "web-1");
    assert!(own.contains(&format!("inet {}/", resolved.trim())), "{mode}: its name leads to its address: {seen}");
    let hosts = web.sh("cat /etc/hosts")?;
    for line in ["10.1.2.3\tdb", "fd00::6\tsix", "127.0.0.1\tlocalhost"] {
        assert!(hosts.lines().any(|found| found.starts_with(line)), "{line:?} in {hosts}");
    }
    let servers = web.sh("cat /etc/resolv.conf")?;
    assert_eq!(servers, "search group.test\nnameserver 192.0.2.53\noptions ndots:3\n");
    Ok(())
}

fn ports(env: &Env, mode: &str) -> Outcome {
    let alloc = env.agent.run(&group(env, mode))?;
    let web = alloc.task("web");
    web.wait_running()?;
    let address = alloc.address("http")?;
    assert!(address.starts_with(&format!("{NODE}:")), "{address}");
    assert_eq!(env.outside.fetch(&format!("http://{address}/"))?, PAGE);
    assert_eq!(page(&alloc)?, PAGE, "from the node itself");

    // The leak check must find these resources while the job runs.
    let traces = env.agent.networks();
    for kind in ["network namespace", "interface", "firewall rule", "lease"] {
        assert!(traces.iter().any(|trace| trace.starts_with(kind)), "no {kind} in {traces:?}");
    }

    let inside = Namespace::open(&format!("/proc/{}/ns/net", web.init()?.pid))?;
    let ask = alloc.address("ask")?;
    let answer = inside.answer_udp(ASK, || env.outside.ask_udp(&ask, "marco"))?;
    assert_eq!(answer, format!("ocram to {OUTSIDE}"), "who asks is seen");

    let call = |url: String| web.sh(&format!("wget -q -O - {url}")).map(drop);
    let came = env.outside.caller(OUTSIDE.into(), |at| call(format!("http://{at}/")))?;
    assert_eq!(came, NODE, "the outside client sees only the node's address");
    Ok(())
}

/// The CNI network of the tests has no IPv6, so this is for Nomad's bridge only.
fn ports_by_ipv6(env: &Env) -> Outcome {
    // A machine without IPv6 shows nothing. A Nomad without the feature must fail.
    if !network::has_ipv6() && env.agent.version().has(&BRIDGE_IPV6) {
        return Ok(());
    }
    let alloc = env.agent.run(&group(env, "bridge").list("six", &["six"]))?;
    let web = alloc.task("web");
    web.wait_running()?;
    let address = alloc.address("six")?;
    assert!(address.starts_with(&format!("[{NODE6}]:")), "{address}");
    assert_eq!(env.outside.fetch(&format!("http://{address}/"))?, PAGE);
    let call = |at: std::net::SocketAddr| web.sh(&format!("wget -q -O - http://{at}/")).map(drop);
    assert_eq!(env.outside.caller(OUTSIDE6.into(), call)?, NODE6);
    Ok(())
}

fn outlives(env: &Env) -> Outcome {
    let alloc = env.agent.run(&group(env, "bridge"))?;
    let (web, beside) = (alloc.task("web"), alloc.task("beside"));
    web.wait_running()?;
    let page_outside = || env.outside.fetch(&format!("http://{}/", alloc.address("http")?));
    let page_beside = || beside.sh("wget -q -O - http://127.0.0.1:8080/");
    assert_eq!(page_outside()?, PAGE);
    let name = name_of(&format!("/run/netns/{}", alloc.id))?;
    let neighbour = beside.init()?;
    for round in 1..=2 {
        let before = web.init()?;
        web.restart()?;
        web.wait("the restart", |_| {
            (web.restarts().ok()? == round && web.init().ok()?.pid != before.pid).then_some(())
        })?;
        assert_eq!(page_outside()?, PAGE);
        assert_eq!(page_beside()?, PAGE);
        assert_eq!(web.sh("readlink /proc/1/ns/net")?, name);
        let plugin = env.agent.plugin_pid()?;
        kill(plugin)?;
        assert_eq!(page_outside()?, PAGE);
        assert_ne!(env.agent.plugin_pid()?, plugin);
        lifecycle::wait_exec(&beside)?;
        assert_eq!(page_beside()?, PAGE);
    }
    assert_eq!(beside.init()?, neighbour, "the others of the group are left alone");
    assert_eq!(beside.restarts()?, 0);
    Ok(())
}

fn of_the_node(env: &Env) -> Outcome {
    // Labels of ports on the node's IPv6 address.
    let six: &[&str] = if network::has_ipv6() { &["six"] } else { &[] };
    let port = free_port()?;
    let job = Job::new("host").var("image", &env.registry.image()).number("port", port.into()).list("six", six);
    let alloc = env.agent.run(&job)?;
    alloc.wait_running()?;
    assert_eq!(alloc.address("http")?, format!("{NODE}:{port}"));
    assert_eq!(env.outside.fetch(&format!("http://{NODE}:{port}/"))?, PAGE);
    assert_eq!(alloc.sh("readlink /proc/1/ns/net")?, name_of("/proc/thread-self/ns/net")?);
    assert_eq!(alloc.sh("echo $NOMAD_ADDR_http $NOMAD_HOST_PORT_http")?, format!("{NODE}:{port} {port}\n"));
    if !six.is_empty() {
        let address = alloc.address("six")?;
        assert_eq!(alloc.sh("echo $NOMAD_ADDR_six")?, format!("{address}\n"));
        assert!(address.starts_with(&format!("[{NODE6}]:")), "{address}");
    }
    // A task cannot change the node's host name.
    assert_ne!(alloc.sh("readlink /proc/1/ns/uts")?, format!("uts:[{}]\n", fs::metadata("/proc/self/ns/uts")?.ino()));
    Ok(())
}
