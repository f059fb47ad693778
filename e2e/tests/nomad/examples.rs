//! The files in `examples/`: each one runs on a real agent, with the test image instead of the default one.

use std::{collections::BTreeSet, fs, path::Path};

use e2e::{Alloc, Context, Failure, Job, Outcome, api::fetch};
use serde_json::json;

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent, WithConsul},
};

pub const CASES: &[Case] = &[
    ("examples_are_all_tested", SharedAgent, are_all_tested),
    ("examples_of_the_documents_are_jobs", SharedAgent, of_the_documents_are_jobs),
    ("examples_hello_prints_its_greeting", SharedAgent, hello_prints_its_greeting),
    ("examples_web_serves_its_page", SharedAgent, web_serves_its_page),
    ("examples_ports_publishes_its_port", SharedAgent, ports_publishes_its_port),
    ("examples_volumes_shares_its_files", SharedAgent, volumes_shares_its_files),
    ("examples_checks_reports_to_consul", WithConsul, checks_reports_to_consul),
    ("examples_plugin_block_is_accepted", OwnAgent, plugin_block_is_accepted),
];

/// The files that the cases of this module run.
const FILES: [&str; 9] = [
    "README.md",
    "cdi",
    "checks.nomad.hcl",
    "hello.nomad.hcl",
    "plugin.hcl",
    "observability",
    "ports.nomad.hcl",
    "volumes.nomad.hcl",
    "web.nomad.hcl",
];

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn example(env: &Env, name: &str) -> Job {
    Job::example(name).var("image", &env.registry.image())
}

fn are_all_tested(_: &Env) -> Outcome {
    let entries = fs::read_dir(directory())?.flatten();
    let found: BTreeSet<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(found, FILES.map(str::to_owned).into());
    Ok(())
}

/// Nomad reads every job, group, task and task block in the README and the documents.
fn of_the_documents_are_jobs(env: &Env) -> Outcome {
    let root = directory().join("..");
    let mut documents = vec![root.join("README.md")];
    documents.extend(fs::read_dir(root.join("docs"))?.flatten().map(|entry| entry.path()));
    let mut jobs = 0;
    for path in documents.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(path)?;
        let blocks = text.split("```hcl\n").skip(1).filter_map(|rest| rest.split("```").next());
        for job in blocks.filter_map(whole_job) {
            let request = json!({ "JobHCL": job, "Canonicalize": true });
            env.agent.api().put("/v1/jobs/parse", &request).context(format!("{}:\n{job}", path.display()))?;
            jobs += 1;
        }
    }
    assert!(jobs > 3, "only {jobs} jobs");
    Ok(())
}

/// The part of a job in a document with the blocks around it. `None` for blocks of the agent's configuration.
fn whole_job(block: &str) -> Option<String> {
    let around = |outer: &str| whole_job(&format!("{outer} {{\n{block}\n}}\n"));
    match block.split_whitespace().next()? {
        "job" => Some(block.to_owned()),
        "group" => around("job \"document\""),
        "task" | "service" => around("group \"document\""),
        _ => None,
    }
}

fn hello_prints_its_greeting(env: &Env) -> Outcome {
    let alloc = env.agent.run(&example(env, "hello").var("name", "examples"))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log == b"hello, examples\n")?;
    alloc.wait_log("stderr", |log| log.starts_with(b"on Linux ") && log.ends_with(b" as root\n"))?;
    Ok(())
}

fn web_serves_its_page(env: &Env) -> Outcome {
    let alloc = env.agent.run(&example(env, "web").var("message", "It works"))?;
    alloc.wait_running()?;
    let page = env.outside.fetch(&format!("http://{}/", alloc.address("http")?))?;
    assert_eq!(page, format!("<h1>It works</h1>\n<p>allocation {}</p>\n", alloc.id));
    // The deployment becomes healthy only after the check has passed.
    alloc.wait("a healthy deployment", |alloc| (alloc["DeploymentStatus"]["Healthy"] == true).then_some(()))?;
    let refused = alloc.exec(&["/bin/sh", "-c", "touch /file"])?;
    assert!(!refused.status.success(), "the root is read-only");
    stop(&alloc)
}

fn ports_publishes_its_port(env: &Env) -> Outcome {
    let alloc = env.agent.run(&example(env, "ports"))?;
    alloc.wait_running()?;
    let url = format!("http://{}/", alloc.address("http")?);
    assert_eq!(env.outside.fetch(&url)?, "ports-example\n");
    assert_eq!(service_address(env, "ports")?, alloc.address("http")?);
    // The container's address works on the node, too.
    assert_eq!(fetch(&format!("http://{}/", service_address(env, "ports-internal")?))?, "ports-example\n");
    stop(&alloc)
}

/// Address and port of a service with one instance in Nomad's service discovery.
fn service_address(env: &Env, name: &str) -> Outcome<String> {
    let services = env.agent.api().get(&format!("/v1/service/{name}"))?;
    let address = services[0]["Address"].as_str().ok_or_else(|| Failure(format!("no service {name}: {services}")))?;
    Ok(format!("{address}:{}", services[0]["Port"]))
}

fn volumes_shares_its_files(env: &Env) -> Outcome {
    let alloc = env.agent.run(&example(env, "volumes"))?;
    let (writer, reader) = (alloc.task("writer"), alloc.task("reader"));
    writer.wait_running()?;
    reader.wait_running()?;
    let line = format!("written by allocation {}\n", alloc.id);
    reader.wait_log("stdout", |log| log.starts_with(line.as_bytes()))?;
    let script = "test -e /cache/seen && grep -c ' /cache tmpfs ' /proc/mounts; touch /etc/writer.conf 2>&1 || true";
    let output = writer.sh(script)?;
    assert!(output.starts_with("1\n") && output.contains("Read-only file system"), "{output}");
    alloc.ask_to_stop()?;
    for task in [writer, reader] {
        task.wait_over()?;
    }
    Ok(())
}

fn checks_reports_to_consul(env: &Env) -> Outcome {
    let (consul, service) = (env.consul()?, "examples-checks");
    let alloc = env.agent.run(&example(env, "checks").var("service", service))?;
    alloc.wait_running()?;
    let output = consul.wait_check(service, "ready", "passing", "ready since")?;
    assert!(output.contains(&alloc.sh("cat /tmp/ready")?.trim().to_owned()), "{output}");
    alloc.sh("rm /tmp/ready")?;
    consul.wait_check(service, "ready", "warning", "")?;
    stop(&alloc)
}

/// The agent starts with the example's plugin block, and the driver runs a job with it.
fn plugin_block_is_accepted(env: &Env) -> Outcome {
    let block = fs::read_to_string(directory().join("plugin.hcl"))?;
    // Only the directories differ, so that the test stays inside its own directory.
    let own = env.agent.path();
    let block = block
        .replace("/var/lib/oci-rs", &own.join("data").to_string_lossy())
        .replace("/run/oci-rs", &own.join("state").to_string_lossy());
    let file = own.join("client.hcl");
    let config = fs::read_to_string(&file)?;
    let (rest, old) = config.split_once("plugin \"oci-rs\" {").ok_or_else(|| Failure("no plugin block".to_owned()))?;
    // The agent may have the driver under docker's name as well.
    let docker = old.find("plugin \"docker\" {").map_or("", |start| &old[start..]);
    env.agent.stop()?;
    fs::write(&file, format!("{rest}\n{block}\n{docker}"))?;
    env.agent.launch()?;
    let alloc = env.agent.run(&example(env, "hello"))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log == b"hello, world\n")?;
    Ok(())
}

fn stop(alloc: &Alloc) -> Outcome {
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 143, "{:?}", alloc.events()?);
    Ok(())
}
