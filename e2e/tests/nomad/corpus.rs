//! Jobs with the options and features of the jobs that HashiCorp publishes with Nomad, under docker's name.
//!
//! `conformance/corpus` holds `jobs/corpus` against the published jobs: it fails if one of them uses what no job here
//! uses. Each job checks the effect of its options itself, as far as a task can see it.

use std::{fs, time::Duration};

use e2e::{Alloc, Failure, Job, Outcome, api::fetch, ports::free_port, versions::GROUP_HOST_NAME};
use serde_json::{Value, json};

use crate::{
    Case, Env,
    Needs::{OwnAgent, WithConsul},
    csi,
    mesh::through_the_mesh,
    service::{PAGE, patiently, web},
};

pub const CASES: &[Case] = &[
    ("docker_corpus", OwnAgent, corpus),
    ("docker_corpus_of_nomad_1_11", OwnAgent, newer),
    ("docker_corpus_with_a_csi_volume", OwnAgent, |env| csi::of_a_plugin_task(env, "docker")),
    ("docker_corpus_with_consul", WithConsul, with_consul),
];

/// Those that Nomad's docker driver allows by default, and two more.
const CAPABILITIES: &str = "\"audit_write\", \"chown\", \"dac_override\", \"fowner\", \"fsetid\", \"kill\", \"mknod\", \
    \"net_bind_service\", \"setfcap\", \"setgid\", \"setpcap\", \"setuid\", \"sys_chroot\", \"net_raw\", \"sys_time\"";
const LIMIT: Duration = Duration::from_secs(60);

/// A job of `jobs/corpus`.
fn job(env: &Env, name: &str) -> Job {
    Job::new(&format!("corpus/{name}")).var("image", &env.registry.image())
}

/// All jobs that need no Consul, at once: on a node whose operator allows what published jobs need.
fn corpus(env: &Env) -> Outcome {
    configure(env)?;
    let directory = env.agent.path().join("host");
    let directory = directory.to_string_lossy();
    let server = file_server(env)?;
    let source = format!("http://{}", server.address("http")?);
    let port = || free_port().map(i64::from);
    let services = job(env, "services").number("port", port()?).number("other_port", port()?);
    for (id, job) in [
        ("options", job(env, "options").var("directory", &directory).var("server", &source)),
        ("features", job(env, "features").var("server", &source)),
        ("services", services),
        ("system", job(env, "system").number("port", port()?)),
        ("sysbatch", job(env, "sysbatch")),
        ("periodic", job(env, "periodic")),
        ("init", init(env, &["-short"])?),
        ("init-long", init(env, &[])?),
    ] {
        env.agent.submit(&job, id)?;
    }
    let api = env.agent.api();
    let dispatched = api.put("/v1/job/sysbatch/dispatch", &json!({ "Meta": { "KEY": "value" } }))?;
    let forced = api.put("/v1/job/periodic/periodic/force", &json!({}))?;
    let forced = api.get(&format!("/v1/evaluation/{}", text(&forced["EvalID"])))?;
    for id in ["options", "features", text(&dispatched["DispatchedJobID"]), text(&forced["JobID"])] {
        ends_well(env, id)?;
    }
    serve(env)?;
    for id in ["init", "init-long"] {
        let alloc = only(env, id)?;
        alloc.wait_running()?;
        assert_eq!(patiently(|| fetch(&format!("http://{}/", alloc.address("db")?)))?, PAGE, "{id}");
    }
    Ok(())
}

/// Allows capabilities and privileged tasks, gives the node a host volume and docker's default for the network mode.
fn configure(env: &Env) -> Outcome {
    let directory = env.agent.path().join("host");
    fs::create_dir(&directory)?;
    fs::write(directory.join("word"), "host\n")?;
    env.agent.stop()?;
    let file = env.agent.path().join("client.hcl");
    let text = fs::read_to_string(&file)?;
    let (client, docker) =
        text.split_once("plugin \"docker\"").ok_or_else(|| Failure("no plugin block of docker".to_owned()))?;
    let added = format!(
        "client {{\n  meta {{\n    foo = \"bar\"\n  }}\n  host_volume \"corpus\" {{\n    path = {directory:?}\n  }}\n  \
         host_volume \"shared\" {{\n    path = {directory:?}\n  }}\n"
    );
    let client = client.replacen("client {\n", &added, 1);
    let docker = docker.replace("allow_privileged = false", "allow_privileged = true");
    let docker = docker.replacen("config {\n", &format!("config {{\n    allow_caps = [{CAPABILITIES}]\n"), 1);
    let docker = docker.replace("default_mode = \"host\"", "default_mode = \"bridge\"");
    fs::write(&file, format!("{client}plugin \"docker\"{docker}"))?;
    env.agent.launch()
}

/// A task that serves the artifacts.
fn file_server<'a>(env: &Env<'a>) -> Outcome<Alloc<'a>> {
    let server = web(env)?;
    env.registry.save(&server.shared_directory().join("data/image.tar"), "loaded:1")?;
    server.sh("cd /www && cp /alloc/data/image.tar . && echo word >word && tar -czf word.tar.gz word")?;
    Ok(server)
}

/// The job that `nomad job init` writes, with an image of ours. Its programs listen where those of the named images do.
fn init(env: &Env, options: &[&str]) -> Outcome<Job> {
    let file = env.agent.path().join(format!("init{}.nomad.hcl", options.concat()));
    let path = file.to_string_lossy();
    let output = env.agent.nomad(&[&["job", "init"], options, &[&path]].concat())?;
    assert!(output.status.success(), "{output:?}");
    let ours = [
        ("redis:7", env.registry.image()),
        ("hashicorpdev/counter-dashboard:v3", env.registry.image()),
        ("hashicorpdev/counter-api:v3", env.registry.make("counter")?),
    ];
    let text = ours.iter().fold(fs::read_to_string(&file)?, |text, (name, ours)| text.replace(name, ours));
    fs::write(&file, text)?;
    Ok(Job::at(&file))
}

/// The only allocation of a job.
fn only<'a>(env: &Env<'a>, id: &str) -> Outcome<Alloc<'a>> {
    let mut allocs = env.agent.placed(id, 1).map_err(|Failure(text)| Failure(format!("{id}: {text}")))?;
    assert_eq!(allocs.len(), 1, "{id} was not rescheduled");
    Ok(allocs.swap_remove(0))
}

/// All tasks of a job end with exit code 0.
fn ends_well(env: &Env, id: &str) -> Outcome {
    let alloc = only(env, id)?;
    alloc.wait("the job's end", |alloc| matches!(text(&alloc["ClientStatus"]), "complete" | "failed").then_some(()))?;
    let failed = alloc.tasks()?.into_iter().filter(|task| !task.wait_exit().is_ok_and(|exit| exit.code == 0));
    let told: Vec<String> = failed
        .map(|task| {
            let output = ["stdout", "stderr"].map(|stream| task.log(stream).unwrap_or_default()).concat();
            let events = task.events().unwrap_or_default();
            format!("{}: {events:#?}\n{}", task.name(), String::from_utf8_lossy(&output))
        })
        .collect();
    if told.is_empty() { Ok(()) } else { Err(Failure(format!("{id}:\n{}", told.join("\n")))) }
}

/// The services are healthy and are reached from outside at the addresses that Nomad tells.
fn serve(env: &Env) -> Outcome {
    let api = env.agent.api();
    api.wait("/v1/job/services/deployment", "the deployment", LIMIT * 2, |deployment| {
        let status = text(&deployment["Status"]);
        (status == "successful").then_some(()).or_else(|| {
            assert_ne!(status, "failed", "{deployment}");
            None
        })
    })?;
    for (service, count) in
        [("corpus-cache", 2), ("corpus-static", 1), ("corpus-host", 1), ("corpus-bridge", 1), ("corpus-system", 1)]
    {
        let found = api.get(&format!("/v1/service/{service}"))?;
        let found = found.as_array().cloned().unwrap_or_default();
        assert_eq!(found.len(), count, "{service}: {found:?}");
        for one in found {
            let url = format!("http://{}:{}/", text(&one["Address"]), one["Port"]);
            let expected = if service == "corpus-system" { "host\n" } else { PAGE };
            assert_eq!(patiently(|| env.outside.fetch(&url))?, expected, "{service}");
        }
    }
    // The container's own addresses. One is of IPv6 where the machine has it.
    for service in ["corpus-driver", "corpus-old"] {
        let own = api.get(&format!("/v1/service/{service}"))?;
        let address = text(&own[0]["Address"]);
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let url = format!("http://{host}:{}/", own[0]["Port"]);
        assert_eq!(patiently(|| fetch(&url))?, PAGE, "{service}");
    }
    let allocs = env.agent.placed("services", 7)?;
    let bridge = allocs.iter().find(|alloc| alloc.get().is_ok_and(|alloc| alloc["TaskGroup"] == "bridge"));
    let bridge = bridge.ok_or_else(|| Failure("no group bridge".to_owned()))?;
    let data = bridge.shared_directory().join("data");
    assert_eq!(fs::read_to_string(data.join("page"))?, PAGE);
    if env.agent.version().has(&GROUP_HOST_NAME) {
        assert_eq!(fs::read_to_string(data.join("name"))?, "corpus-0\n");
    }
    Ok(())
}

fn newer(env: &Env) -> Outcome {
    let volume = env.agent.path().join("sticky.volume.hcl");
    let capability =
        "capability {\n  access_mode = \"single-node-single-writer\"\n  attachment_mode = \"file-system\"\n}\n";
    fs::write(&volume, format!("name = \"sticky\"\ntype = \"host\"\nplugin_id = \"mkdir\"\n{capability}"))?;
    let output = env.agent.nomad(&["volume", "create", &volume.to_string_lossy()])?;
    assert!(output.status.success(), "{output:?}");
    let path = "nomad/jobs/corpus_newer";
    let secret = json!({ "Namespace": "default", "Path": path, "Items": { "word": "secret" } });
    env.agent.api().put(&format!("/v1/var/{path}"), &secret)?;
    // A workload may read the variables of its own job.
    env.agent.submit(&job(env, "newer"), "corpus_newer")?;
    ends_well(env, "corpus_newer")
}

/// With the job of `nomad job init -connect`.
fn with_consul(env: &Env) -> Outcome {
    let (consul, envoy) = (env.consul()?, env.registry.make("envoy")?);
    // The image of the sidecars that Nomad adds.
    env.agent.set_metadata(&json!({ "connect.sidecar_image": envoy }))?;
    env.agent.submit(&init(env, &["-connect"])?, "init-connect")?;
    let allocs = env.agent.run_many(&job(env, "consul").var("envoy", &envoy), 5)?;
    consul.wait_check("corpus-task", "errs", "critical", "this check errors")?;
    consul.wait_check("corpus-task", "warns", "warning", "this check warns")?;
    consul.wait_check("corpus-api", "api-health", "passing", "")?;
    let native = consul.api().wait("/v1/catalog/service/corpus-native", "the service", LIMIT, |found| {
        Some(format!("http://127.0.0.1:{}/", found[0]["ServicePort"].as_u64()?))
    })?;
    assert_eq!(patiently(|| fetch(&native))?, PAGE);
    consul.wait_check("corpus-driver", "driver", "passing", "")?;
    for allocs in [allocs, env.agent.placed("init-connect", 2)?] {
        let dashboard = Alloc::of_group(&allocs, "dashboard")?.task("dashboard");
        dashboard.wait_running()?;
        assert_eq!(through_the_mesh(env, &dashboard, "$COUNTING_SERVICE_URL", &allocs)?, PAGE);
        assert_eq!(patiently(|| fetch(&format!("http://{}/", dashboard.address("http")?)))?, PAGE);
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
