//! Consul's service mesh: the driver runs sidecars with the real Envoy.

use std::{
    thread,
    time::{Duration, Instant},
};

use e2e::{Alloc, Failure, Job, Outcome};

use crate::{Case, Env, Needs::WithConsul};

pub const CASES: &[Case] = &[("mesh_sidecars_carry_the_traffic", WithConsul, sidecars_carry_the_traffic)];

const LIMIT: Duration = Duration::from_secs(60);
const PAGE: &str = "<h1>Hello from oci-rs</h1>\n";

fn sidecars_carry_the_traffic(env: &Env) -> Outcome {
    let job = Job::new("mesh").var("image", &env.registry.image()).var("envoy", &env.registry.make("envoy")?);
    let allocs = env.agent.run_many(&job, 2)?;
    let of_group = |group: &str| {
        let found = allocs.iter().find(|alloc| alloc.get().is_ok_and(|alloc| alloc["TaskGroup"] == group));
        found.ok_or_else(|| Failure(format!("no allocation of group {group}")))
    };
    let (api, web) = (of_group("api")?, of_group("web")?);
    let (proxy, web) = (api.task("connect-proxy-mesh-api"), web.task("web"));
    for task in [&proxy, &api.task("api"), &web] {
        task.wait_running()?;
    }
    assert!(proxy.init()?.command.starts_with("/bin/envoy -c /secrets/envoy_bootstrap.json"), "{:?}", proxy.init()?);
    assert_eq!(ask(&web)?, PAGE);

    // The connection works again after a restart of the sidecar.
    let before = proxy.init()?;
    proxy.restart()?;
    proxy.wait("another sidecar", |_| (proxy.init().ok()?.pid != before.pid).then_some(()))?;
    assert_eq!(ask(&web)?, PAGE);
    assert_eq!(api.task("api").restarts()?, 0);
    Ok(())
}

/// Requests `mesh-api` on the loopback of `web` until the sidecars have its address from Consul.
fn ask(web: &Alloc) -> Outcome<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match web.sh("timeout 5 wget -q -O - http://127.0.0.1:9191/") {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(200)),
            answer => return answer,
        }
    }
}
