//! Consul's service mesh: the driver runs sidecars with the real Envoy.

use std::time::Duration;

use e2e::{Alloc, Failure, Job, Outcome};
use serde_json::Value;

use crate::{
    Case, Env,
    Needs::WithConsul,
    service::{PAGE, patiently},
};

pub const CASES: &[Case] = &[("mesh_sidecars_carry_the_traffic", WithConsul, sidecars_carry_the_traffic)];

/// Where Nomad lets a proxy answer for its administrator, in the network namespace of the group.
const ADMIN: &str = "127.0.0.2:19001";
/// What tells why a proxy closes a connection: certificates, intentions, and addresses that it lacks or does not reach.
const COUNTERS: &str = "cx_connect_fail|cx_total|health_flags|membership_|none_healthy|rbac|ssl\\.";
/// Longer than Consul's agent takes to compare its checks with the catalog.
const CATALOG: Duration = Duration::from_secs(150);
/// `mesh-api` on the loopback of `web`.
const UPSTREAM: &str = "http://127.0.0.1:9191/";

fn sidecars_carry_the_traffic(env: &Env) -> Outcome {
    let job = Job::new("mesh").var("image", &env.registry.image()).var("envoy", &env.registry.make("envoy")?);
    let allocs = env.agent.run_many(&job, 2)?;
    let of_group = |group| Alloc::of_group(&allocs, group);
    let (api, web) = (of_group("api")?, of_group("web")?);
    let (proxy, web) = (api.task("connect-proxy-mesh-api"), web.task("web"));
    for task in [&proxy, &api.task("api"), &web] {
        task.wait_running()?;
    }
    assert!(proxy.init()?.command.starts_with("/bin/envoy -c /secrets/envoy_bootstrap.json"), "{:?}", proxy.init()?);
    assert_eq!(through_the_mesh(env, &web, UPSTREAM, &allocs)?, PAGE);

    // The connection works again after a restart of the sidecar.
    let before = proxy.init()?;
    proxy.restart()?;
    proxy.wait("another sidecar", |_| (proxy.init().ok()?.pid != before.pid).then_some(()))?;
    assert_eq!(through_the_mesh(env, &web, UPSTREAM, &allocs)?, PAGE);
    assert_eq!(api.task("api").restarts()?, 0);
    Ok(())
}

/// What `task` gets from `url` through the proxies, as soon as they have the addresses from Consul.
///
/// # Errors
/// After the limits, with what Consul and the proxies of these allocations tell.
pub fn through_the_mesh(env: &Env, task: &Alloc, url: &str, allocs: &[Alloc]) -> Outcome<String> {
    let fetch = || patiently(|| task.sh(&format!("timeout 5 wget -q -O - {url}")));
    fetch().or_else(|_| await_catalog(env, allocs).and_then(|()| fetch())).map_err(|Failure(text)| {
        let consul = told_by_consul(env).unwrap_or_else(|Failure(text)| text);
        Failure([text, consul, told_by_proxies(allocs)].join("\n"))
    })
}

/// Waits until Consul's catalog knows that the sidecars of these allocations are healthy. Consul's agent sometimes does
/// not tell the catalog that a check which aliases a service passes. Proxies learn from the catalog, and the agent
/// corrects it when it compares all of it, within two minutes.
fn await_catalog(env: &Env, allocs: &[Alloc]) -> Outcome {
    env.consul()?.api().wait("/v1/health/state/critical", "healthy sidecars", CATALOG, |critical| {
        let is_sidecar = |check: &Value| check["Name"].as_str().is_some_and(|name| name.starts_with("Connect Sidecar"));
        let is_of = |check: &Value, alloc: &Alloc| check["ServiceID"].as_str().is_some_and(|id| id.contains(&alloc.id));
        let mut sidecars = critical.as_array()?.iter().filter(|check| is_sidecar(check));
        (!sidecars.any(|check| allocs.iter().any(|alloc| is_of(check, alloc)))).then_some(())
    })
}

/// The checks of all services: as the agent has them, and as the catalog has them, from which the proxies learn.
fn told_by_consul(env: &Env) -> Outcome<String> {
    let mut told = Vec::new();
    for path in ["/v1/agent/checks", "/v1/health/state/any"] {
        told.push(format!("--- {path}"));
        // The agent names its checks, the catalog lists them.
        let checks = match env.consul()?.api().get(path)? {
            Value::Object(named) => named.into_iter().map(|(_, check)| check).collect(),
            Value::Array(listed) => listed,
            _ => Vec::new(),
        };
        let line = |check: &Value| {
            format!("{} {}: {} {}", check["ServiceID"], check["Name"], check["Status"], check["Output"])
        };
        told.extend(checks.iter().map(line));
    }
    Ok(told.join("\n"))
}

/// States and logs of all proxies, and the clusters and counters of those beside a task with a shell.
fn told_by_proxies(allocs: &[Alloc]) -> String {
    let tasks = allocs.iter().flat_map(|alloc| alloc.tasks().unwrap_or_default());
    let told = tasks.map(|task| {
        let is_proxy = task.name().starts_with("connect-");
        let seen = if is_proxy {
            let log = task.log("stderr").unwrap_or_default();
            format!("{:#?}\n{}", task.events(), String::from_utf8_lossy(&log[log.len().saturating_sub(4_000)..]))
        } else {
            let ask = |path| format!("wget -q -O - http://{ADMIN}/{path} | grep -E '{COUNTERS}'; ");
            task.sh(&[ask("clusters"), ask("stats?usedonly")].concat()).unwrap_or_else(|Failure(text)| text)
        };
        format!("--- {} of {}\n{seen}", task.name(), task.id)
    });
    told.collect::<Vec<_>>().join("\n")
}
