//! Jobs that compute on an NVIDIA GPU, with the spec that NVIDIA's own tool writes for this machine.
//!
//! `scripts/test-gpu.sh` runs them on a machine with a GPU. On other machines they do nothing.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e::{Failure, Job, Outcome, process::succeed};
use serde_json::Value;

use crate::{
    Case, Env,
    Needs::OwnAgent,
    devices::{add_our_plugin, configure},
    warn,
};

pub const CASES: &[Case] = &[
    ("gpu_of_a_spec_computes", OwnAgent, of_a_spec_computes),
    ("gpu_of_nomads_plugin_computes", OwnAgent, of_nomads_plugin_computes),
];

const LIMIT: Duration = Duration::from_secs(60);

/// The memory of a task in MiB: NVIDIA's library needs some hundred on the node.
const MEMORY: i64 = 2048;

/// What the program `sums` of the image prints on one GPU, before the name of the GPU.
const RIGHT: &str = "1 GPU, 1048576 sums on ";

/// The GPU's nodes as a task sees them, and the result of the program.
const COMPUTE: &str = "ls -d /dev/nvidia* 2> /dev/null | xargs; sums 2>&1";

/// Whether this machine has a GPU. With `OCI_RS_GPU=1` it must have one.
fn is_there() -> Outcome<bool> {
    let is_there = Path::new("/dev/nvidiactl").exists();
    if !is_there && env::var_os("OCI_RS_GPU").is_some_and(|value| value == "1") {
        return Err(Failure("OCI_RS_GPU=1, and this machine has no /dev/nvidiactl".to_owned()));
    }
    if !is_there {
        warn("skipped: this machine has no NVIDIA GPU (/dev/nvidiactl)");
    }
    Ok(is_there)
}

/// A program of NVIDIA or of Nomad's NVIDIA plugin, in the directory `OCI_RS_NVIDIA`.
fn tool(name: &str) -> Outcome<PathBuf> {
    let directory = env::var_os("OCI_RS_NVIDIA");
    let directory = directory.ok_or_else(|| Failure("OCI_RS_NVIDIA must name the directory of nvidia-ctk".into()))?;
    let tool = Path::new(&directory).join(name);
    if tool.exists() { Ok(tool) } else { Err(Failure(format!("{} is missing", tool.display()))) }
}

/// Writes the spec of this machine's GPUs. Returns its directory.
fn write_spec(env: &Env) -> Outcome<PathBuf> {
    let directory = env.agent.path().join("specs");
    fs::create_dir(&directory)?;
    let mut generate = Command::new(tool("nvidia-ctk")?);
    generate.args(["cdi", "generate"]);
    generate.arg(format!("--nvidia-cdi-hook-path={}", tool("nvidia-cdi-hook")?.display()));
    generate.arg(format!("--output={}", directory.join("nvidia.yaml").display()));
    succeed(&mut generate)?;
    Ok(directory)
}

/// Waits for the only healthy device of a vendor, and returns the group of devices and the id.
fn wait_device(env: &Env, vendor: &str) -> Outcome<(Value, String)> {
    env.agent.api().wait("/v1/nodes?resources=true", "the GPU", LIMIT, |nodes| {
        let groups = nodes[0]["NodeResources"]["Devices"].as_array()?;
        let group = groups.iter().find(|group| group["Vendor"] == vendor)?;
        let [device] = group["Instances"].as_array()?.as_slice() else { return None };
        (device["Healthy"] == true).then_some((group.clone(), device["ID"].as_str()?.to_owned()))
    })
}

/// The output of a batch job that succeeds.
fn output(env: &Env, job: &Job) -> Outcome<String> {
    let alloc = env.agent.run(job)?;
    let exit = alloc.wait_exit()?;
    let output = alloc.wait_log("stdout", |log| log.ends_with(b"\n"))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    alloc.wait_over()?;
    if exit.code == 0 { Ok(output) } else { Err(Failure(format!("{}: {output}", exit.code))) }
}

/// A job that reserves a GPU.
fn reserving(image: &str, device: &str, script: &str) -> Job {
    let job = Job::new("devices").var("image", image).var("device", device).var("script", script);
    job.number("memory", MEMORY)
}

fn has_computed(output: &str) {
    let mut lines = output.lines();
    let nodes = lines.next().unwrap_or_default();
    for node in ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"] {
        assert!(nodes.split(' ').any(|found| found == node), "{node}: {output}");
    }
    let result = lines.next().unwrap_or_default();
    assert!(result.starts_with(RIGHT) && result.len() > RIGHT.len(), "{output}");
}

fn of_a_spec_computes(env: &Env) -> Outcome {
    if !is_there()? {
        return Ok(());
    }
    let image = env.registry.make("gpu")?;
    env.agent.stop()?;
    let specs = write_spec(env)?;
    let ours = add_our_plugin(env, &specs, "")?;
    let permissions = "    allow_devices  = [\"nvidia.com/gpu=*\"]\n    allow_runtimes = [\"nvidia\"]\n";
    configure(env, &specs, permissions, &ours)?;
    env.agent.launch()?;
    let (group, id) = wait_device(env, "nvidia.com")?;
    assert_eq!((&group["Type"], &group["Name"]), (&"gpu".into(), &"cdi".into()));
    let uuid = id.strip_prefix("nvidia.com/gpu=").unwrap_or_default();
    assert!(uuid.starts_with("GPU-"), "{id}");
    let bus = group["Instances"][0]["Locality"]["PciBusID"].as_str().unwrap_or_default();
    let vendor = fs::read_to_string(Path::new("/sys/bus/pci/devices").join(bus).join("vendor"));
    assert!(vendor.is_ok_and(|vendor| vendor.trim() == "0x10de"), "{group}");
    assert!(group["Attributes"]["pci_id"]["String"].as_str().is_some_and(|id| id.starts_with("10de:")), "{group}");

    // Reserved, as root and as another user.
    for user in ["", "app"] {
        has_computed(&output(env, &reserving(&image, "nvidia.com/gpu", COMPUTE).var("user", user))?);
    }
    // Named by the job, and by the image's variable with NVIDIA's runtime.
    let job = |config: &str| {
        let job = Job::new("batch").var("image", &image).list("args", &["-c", COMPUTE]);
        job.number("memory", MEMORY).config(config)
    };
    for name in ["0", "all", uuid] {
        has_computed(&output(env, &job(&format!("devices {{\n  cdi = \"nvidia.com/gpu={name}\"\n}}")))?);
    }
    has_computed(&output(env, &job("runtime = \"nvidia\""))?);
    // A task without a device has no node of the GPU, and cannot make one.
    let attempt = "ls -d /dev/nvidia* 2> /dev/null; mknod /tmp/gpu c 195 255 && : < /tmp/gpu; sums";
    let without = Job::new("batch").var("image", &image).list("args", &["-c", attempt]);
    let alloc = env.agent.run(&without)?;
    assert_eq!(alloc.wait_exit()?.code, 3, "{:?}", alloc.log("stdout"));
    let errors = alloc.wait_log("stderr", |log| log.ends_with(b"\n"))?;
    let errors = String::from_utf8_lossy(&errors).into_owned();
    assert!(errors.contains("no GPU") && errors.contains("ermitted"), "{errors}");
    assert_eq!(alloc.log("stdout")?, b"");

    // A command in a running task computes too.
    let idle = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let alloc = env.agent.run(&reserving(&image, "nvidia.com/gpu", idle))?;
    alloc.wait_running()?;
    has_computed(&alloc.sh(COMPUTE)?);
    alloc.stop()
}

/// The device plugin of Nomad for NVIDIA's GPUs reserves a device by a variable alone.
fn of_nomads_plugin_computes(env: &Env) -> Outcome {
    if !is_there()? {
        return Ok(());
    }
    let image = env.registry.make("gpu")?;
    env.agent.stop()?;
    let specs = write_spec(env)?;
    fs::copy(tool("nomad-device-nvidia")?, env.agent.driver().with_file_name("nomad-device-nvidia"))?;
    let theirs = "plugin \"nomad-device-nvidia\" {\n  config {\n    enabled = true\n  }\n}\n";
    configure(env, &specs, "", theirs)?;
    env.agent.launch()?;
    let (_, id) = wait_device(env, "nvidia")?;
    assert!(id.starts_with("GPU-"), "{id}");
    for user in ["", "app"] {
        has_computed(&output(env, &reserving(&image, "nvidia/gpu", COMPUTE).var("user", user))?);
    }
    Ok(())
}
