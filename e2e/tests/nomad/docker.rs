//! Unchanged jobs with `driver = "docker"`: the plugin runs under docker's name, beside `oci-rs` and with the same
//! directories.

use std::{fs, path::Path, process::Command, time::Duration};

use e2e::{Alloc, Failure, Job, Outcome};
use serde_json::json;

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent, WithConsul},
    mesh::through_the_mesh,
    service::{PAGE, page, patiently},
};

pub const CASES: &[Case] = &[
    ("docker_job_of_type_service", SharedAgent, service),
    ("docker_job_of_type_batch", SharedAgent, batch),
    ("docker_group_has_its_host_name", SharedAgent, group_with_a_host_name),
    ("docker_and_oci_rs_share_a_group", SharedAgent, share_a_group),
    ("docker_group_outlives_agent_and_plugin", OwnAgent, outlives),
    ("docker_job_with_injected_sidecars_and_a_gateway", WithConsul, injected_proxies),
    ("docker_job_with_a_transparent_proxy", WithConsul, transparent_proxy),
];

const LIMIT: Duration = Duration::from_secs(60);

fn service(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("web").driver("docker").var("image", &env.registry.image()))?;
    alloc.wait_log("stdout", |log| log == b"serving /www on port 8080\n")?;
    assert_eq!(page(&alloc)?, PAGE);
    let node = env.agent.api().get("/v1/nodes?resources=false")?;
    let node = env.agent.api().get(&format!("/v1/node/{}", node[0]["ID"].as_str().unwrap_or_default()))?;
    let attributes = &node["Attributes"];
    for (name, value) in [
        ("driver.docker.os_type", "linux"),
        ("driver.docker.volumes.enabled", "true"),
        ("driver.docker.runtimes", "io.containerd.runc.v2,runc"),
    ] {
        assert_eq!(attributes[name], value, "{name} in {attributes}");
    }
    assert!(attributes["driver.docker.oci_rs_version"].is_string() && attributes["driver.oci-rs.version"].is_string());
    Ok(())
}

fn batch(env: &Env) -> Outcome {
    let job = Job::new("batch").driver("docker").var("image", &env.registry.image());
    let alloc = env.agent.run(&job.list("args", &["-c", "echo from a docker job; exit 3"]))?;
    assert_eq!(alloc.wait_exit()?.code, 3);
    alloc.wait_log("stdout", |log| log == b"from a docker job\n")?;
    Ok(())
}

fn with_a_host_name<'a>(env: &Env<'a>) -> Outcome<Alloc<'a>> {
    let alloc = env.agent.run(&Job::new("docker_group").var("image", &env.registry.image()))?;
    alloc.task("web").wait_running()?;
    Ok(alloc)
}

fn note(alloc: &Alloc, name: &str) -> Outcome<String> {
    Ok(fs::read_to_string(alloc.shared_directory().join("data").join(name))?)
}

fn group_with_a_host_name(env: &Env) -> Outcome {
    let alloc = with_a_host_name(env)?;
    let web = alloc.task("web");
    assert_eq!(note(&alloc, "name")?, "shop.example\n");
    assert_eq!(note(&alloc, "before")?, note(&alloc, "web")?, "one namespace");
    let seen = web.sh("hostname; hostname -i; ip -4 -o address show eth0")?;
    let [name, resolved, own] = seen.lines().collect::<Vec<_>>()[..] else { panic!("{seen}") };
    assert_eq!(name, "shop.example");
    assert!(own.contains(&format!("inet {}/", resolved.trim())), "its name leads to its address: {seen}");
    assert!(web.sh("cat /etc/hosts")?.contains("\tshop.example shop\n"), "also the name without the domain");
    assert_eq!(patiently(|| page(&alloc))?, PAGE);
    Ok(())
}

fn share_a_group(env: &Env) -> Outcome {
    let alloc = env.agent.run(&Job::new("docker_pair").var("image", &env.registry.image()))?;
    let namespace = |task: &str| -> Outcome<Vec<u8>> {
        let task = alloc.task(task);
        assert_eq!(task.wait_exit()?.code, 0, "{:?}", task.events()?);
        task.wait_log("stdout", |log| log.starts_with(b"net:["))
    };
    assert_eq!(namespace("one")?, namespace("two")?);
    Ok(())
}

/// The group keeps its network, and Nomad its description, when the agent is restarted, and when agent and plugin are
/// killed. A killed agent may have lost the description of a young network, so the restart comes first.
fn outlives(env: &Env) -> Outcome {
    let alloc = with_a_host_name(env)?;
    let web = alloc.task("web");
    let init = web.init()?;
    let seen = || web.sh("readlink /proc/self/ns/net; hostname");
    let first = seen()?;
    for killed in [false, true] {
        if killed {
            env.agent.kill()?;
            env.agent.kill_plugins()?;
        } else {
            env.agent.stop()?;
        }
        env.agent.launch()?;
        web.wait_running()?;
        assert_eq!(web.init()?.pid, init.pid);
        assert_eq!(patiently(|| page(&alloc))?, PAGE);
        assert_eq!(seen()?, first);
    }
    web.restart()?;
    web.wait("another process", |_| (web.init().ok()?.pid != init.pid).then_some(()))?;
    assert_eq!(seen()?, first);
    assert_eq!(patiently(|| page(&alloc))?, PAGE);
    Ok(())
}

/// Nomad adds the proxies to the job. The node tells their image, as on a node without access to the internet.
fn injected_proxies(env: &Env) -> Outcome {
    let envoy = env.registry.make("envoy")?;
    let meta = json!({ "connect.sidecar_image": envoy, "connect.gateway_image": envoy });
    env.agent.set_metadata(&meta)?;
    let allocs = env.agent.run_many(&Job::new("docker_mesh").var("image", &env.registry.image()), 3)?;
    let of_group = |group| Alloc::of_group(&allocs, group);
    let (api, web, gateway) = (of_group("api")?, of_group("web")?, of_group("gateway")?);
    let proxies = [api.task("connect-proxy-docker-api"), gateway.task("connect-ingress-docker-gateway")];
    for task in proxies.iter().chain([&api.task("api"), &web.task("web")]) {
        task.wait_running()?;
    }
    assert!(proxies[0].init()?.command.starts_with("/bin/envoy -c /secrets/envoy_bootstrap.json"));
    let web = web.task("web");
    assert_eq!(through_the_mesh(env, &web, "http://127.0.0.1:9191/", &allocs)?, PAGE);
    let inlet = format!("http://{}/", gateway.address("in")?);
    assert_eq!(patiently(|| e2e::api::fetch(&inlet))?, PAGE);
    Ok(())
}

/// Gives the agent the CNI plugin consul-cni: `OCI_RS_CONSUL_CNI`, or the one of `e2e/conformance`.
fn add_consul_cni(env: &Env) -> Outcome {
    let directory = env.agent.path().join("cni-plugins");
    if directory.exists() {
        return Ok(());
    }
    env.agent.stop()?;
    fs::create_dir(&directory)?;
    let plugin = directory.join("consul-cni");
    if let Some(given) = std::env::var_os("OCI_RS_CONSUL_CNI") {
        fs::copy(given, &plugin)?;
    } else {
        let mut build = Command::new("go");
        build.args(["build", "-trimpath", "-buildvcs=false", "-o"]).arg(&plugin).arg("./consulcni");
        let output = build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")).output()?;
        assert!(output.status.success(), "go build: {}", String::from_utf8_lossy(&output.stderr));
    }
    let file = env.agent.path().join("client.hcl");
    let config = fs::read_to_string(&file)?;
    // Only Nomad's own path, the first one.
    let (before, after) =
        config.split_once("cni_path ").ok_or_else(|| Failure("no cni_path of the client".to_owned()))?;
    let after = after.replacen('"', &format!("\"{}:", directory.display()), 1);
    fs::write(&file, format!("{before}cni_path {after}"))?;
    env.agent.launch()
}

/// A task reaches a service at its virtual address, without an upstream in its job.
fn transparent_proxy(env: &Env) -> Outcome {
    add_consul_cni(env)?;
    env.agent.set_metadata(&json!({ "connect.sidecar_image": env.registry.make("envoy")? }))?;
    // A proxy knows the services that its own may reach.
    let allowed = [json!({ "Name": "transparent-web", "Action": "allow" })];
    let intention = json!({ "Kind": "service-intentions", "Name": "transparent-api", "Sources": allowed });
    env.consul()?.api().put("/v1/config", &intention)?;
    let job = Job::new("docker_transparent").var("image", &env.registry.image());
    let allocs = env.agent.run_many(&job, 2)?;
    let api = env.consul()?.api().wait(
        "/v1/catalog/service/transparent-api-sidecar-proxy",
        "the address",
        LIMIT,
        |found| Some(found[0]["ServiceTaggedAddresses"]["consul-virtual"]["Address"].as_str()?.to_owned()),
    )?;
    let web = allocs.iter().find(|alloc| alloc.get().is_ok_and(|alloc| alloc["TaskGroup"] == "web"));
    let web = web.ok_or_else(|| Failure("no allocation of group web".to_owned()))?.task("serve");
    web.wait_running()?;
    assert_eq!(through_the_mesh(env, &web, &format!("http://{api}:8080/"), &allocs)?, PAGE);
    Ok(())
}
