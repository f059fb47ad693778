//! Jobs in the form of Nomad's API, and their docker tasks as a driver will see them.
//!
//! What only a client decides (addresses, host ports, directories) has a plausible value here: no check depends on it.

use std::{collections::BTreeMap, path::PathBuf};

use runtime::plan::Propagation;
use serde_json::Value as Json;

use crate::{
    nomad::job::{self, items, pairs, text},
    plan::{AllocatedPort, GroupDns, HostsEntry, NomadMount, NomadTask, TaskResources},
};

/// The value of a task's `driver` that is checked.
const DOCKER: &str = "docker";
/// The allocation of every task.
const ALLOC: &str = "00000000-0000-0000-0000-000000000000";
/// The host port of a port that the client chooses.
const HOST_PORT: u16 = 20_000;

/// A task with `driver = "docker"`.
#[derive(Debug, Clone)]
pub struct DockerTask {
    /// The file that the job comes from, `None` for a cluster.
    pub file: Option<String>,
    /// The job's namespace.
    pub namespace: String,
    /// The job's id.
    pub job: String,
    /// The group's name.
    pub group: String,
    /// The `config` block, before interpolation.
    pub config: Json,
    /// The task for the driver. Its `driver_config` is empty.
    pub nomad: NomadTask,
    /// The variables that are known before the task is on a node.
    pub variables: BTreeMap<String, String>,
}

/// The docker tasks of a job.
pub fn docker_tasks(job: &Json) -> Vec<DockerTask> {
    let tasks = job::tasks(job).filter(|(_, task)| text(task, "Driver") == DOCKER);
    tasks.map(|(group, task)| docker_task(job, group, task)).collect()
}

fn docker_task(job: &Json, group: &Json, task: &Json) -> DockerTask {
    let network = items(group, "Networks").next().unwrap_or(&Json::Null);
    let nomad = nomad_task(job, group, task, network);
    DockerTask {
        file: None,
        namespace: job::namespace(job).to_owned(),
        job: text(job, "ID").to_owned(),
        group: text(group, "Name").to_owned(),
        config: task["Config"].clone(),
        variables: variables(job, group, task, &nomad),
        nomad,
    }
}

fn nomad_task(job: &Json, group: &Json, task: &Json, network: &Json) -> NomadTask {
    let name = text(task, "Name").to_owned();
    let hostname = text(network, "Hostname");
    let has_namespace = !matches!(text(network, "Mode"), "" | "host");
    NomadTask {
        id: format!("{ALLOC}/{name}/00000000"),
        device_env: nvidia(task),
        env: pairs(&task["Env"]),
        resources: resources(task, network),
        mounts: items(task, "VolumeMounts").map(volume_mount).collect(),
        user: text(task, "User").to_owned(),
        alloc_dir: PathBuf::from("/var/lib/nomad/alloc").join(ALLOC),
        stdout_path: "/dev/null".into(),
        stderr_path: "/dev/null".into(),
        task_group_name: text(group, "Name").to_owned(),
        job_name: text(job, "Name").to_owned(),
        job_id: text(job, "ID").to_owned(),
        alloc_id: ALLOC.to_owned(),
        namespace: text(job, "Namespace").to_owned(),
        network_path: has_namespace.then(|| PathBuf::from("/var/run/netns").join(ALLOC)),
        hosts_entry: (!hostname.is_empty())
            .then(|| HostsEntry { hostname: hostname.to_owned(), address: "172.26.64.2".to_owned() }),
        dns: dns(&network["DNS"]),
        name,
        ..NomadTask::default()
    }
}

fn resources(task: &Json, network: &Json) -> TaskResources {
    let resources = &task["Resources"];
    let own = items(resources, "Networks").next().unwrap_or(&Json::Null);
    TaskResources {
        cpu_shares: resources["CPU"].as_i64().unwrap_or(0),
        memory_mb: resources["MemoryMB"].as_i64().unwrap_or(0),
        memory_max_mb: resources["MemoryMaxMB"].as_i64().unwrap_or(0),
        ports: ports(network),
        task_ports: ports(own),
        ..TaskResources::default()
    }
}

fn ports(network: &Json) -> Vec<AllocatedPort> {
    let port = |(index, port): (usize, &Json)| {
        let number = |name: &str| port[name].as_u64().and_then(|number| u16::try_from(number).ok()).filter(|n| *n > 0);
        let chosen = HOST_PORT.saturating_add(u16::try_from(index).unwrap_or(0));
        let host_port = number("Value").unwrap_or(chosen);
        AllocatedPort {
            label: text(port, "Label").to_owned(),
            host_ip: None,
            host_port,
            container_port: number("To").unwrap_or(host_port),
        }
    };
    items(network, "ReservedPorts").chain(items(network, "DynamicPorts")).enumerate().map(port).collect()
}

fn volume_mount(mount: &Json) -> NomadMount {
    NomadMount {
        task_path: text(mount, "Destination").to_owned(),
        host_path: PathBuf::from("/volumes").join(text(mount, "Volume")),
        readonly: mount["ReadOnly"].as_bool().unwrap_or(false),
        propagation: Propagation::Private,
        selinux_label: String::new(),
    }
}

/// What NVIDIA's device plugin sets in the environment of a task that asks for its devices.
fn nvidia(task: &Json) -> BTreeMap<String, String> {
    let asked = items(&task["Resources"], "Devices").any(|device| text(device, "Name").starts_with("nvidia"));
    asked.then(|| ("NVIDIA_VISIBLE_DEVICES".to_owned(), String::new())).into_iter().collect()
}

fn dns(dns: &Json) -> Option<GroupDns> {
    let list = |name: &str| items(dns, name).filter_map(Json::as_str).map(str::to_owned).collect();
    dns.is_object().then(|| GroupDns { servers: list("Servers"), searches: list("Searches"), options: list("Options") })
}

/// The variables of the job, and those that only a client decides, with a plausible value.
fn variables(job: &Json, group: &Json, task: &Json, nomad: &NomadTask) -> BTreeMap<String, String> {
    let mut known = job::variables(job, group, task);
    let mut add = |name: String, value: String| {
        known.entry(name).or_insert(value);
    };
    for (name, value) in [
        ("NOMAD_ALLOC_DIR", "/alloc"),
        ("NOMAD_TASK_DIR", "/local"),
        ("NOMAD_SECRETS_DIR", "/secrets"),
        ("NOMAD_ALLOC_ID", ALLOC),
        ("NOMAD_SHORT_ALLOC_ID", &ALLOC[..8]),
        ("NOMAD_ALLOC_INDEX", "0"),
        ("NOMAD_ALLOC_NAME", &format!("{}.{}[0]", nomad.job_id, nomad.task_group_name)),
        ("NOMAD_CPU_LIMIT", &nomad.resources.cpu_shares.to_string()),
        ("NOMAD_MEMORY_LIMIT", &nomad.resources.memory_mb.to_string()),
        // The metadata of a node that sets neither. An operator's images are images as well.
        ("meta.connect.sidecar_image", "envoyproxy/envoy"),
        ("meta.connect.gateway_image", "envoyproxy/envoy"),
    ] {
        add(name.to_owned(), value.to_owned());
    }
    for port in nomad.resources.ports.iter().chain(&nomad.resources.task_ports) {
        let (label, inner) = (&port.label, port.container_port.to_string());
        add(format!("NOMAD_PORT_{label}"), inner.clone());
        add(format!("NOMAD_ALLOC_PORT_{label}"), inner);
        add(format!("NOMAD_HOST_PORT_{label}"), port.host_port.to_string());
    }
    known
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::docker_tasks;
    use crate::nomad::job::is_job;

    #[test]
    fn tasks_of_other_drivers_are_left_out() {
        let task = |name: &str, driver: &str| json!({ "Name": name, "Driver": driver, "Config": { "image": "a" } });
        let groups = json!([
            { "Name": "one", "Tasks": [task("a", "docker"), task("b", "exec")], "Networks": null },
            { "Name": "two", "Tasks": [task("c", "docker")] },
            { "Name": "three", "Tasks": null },
        ]);
        let job = json!({ "ID": "shop", "Name": "shop", "TaskGroups": groups });
        assert!(is_job(&job) && !is_job(&json!({ "job": {} })));
        let found = docker_tasks(&job);
        let names: Vec<_> = found.iter().map(|task| (task.group.as_str(), task.nomad.name.as_str())).collect();
        assert_eq!(names, [("one", "a"), ("two", "c")]);
        assert_eq!(found[0].namespace, "default");
    }

    #[test]
    fn networks_ports_and_metadata_are_read() {
        let job = json!({ "ID": "shop", "Namespace": "x", "Meta": { "zone": "b", "host": "${attr.x}" }, "TaskGroups": [{
            "Name": "g",
            "Networks": [{
                "Mode": "bridge",
                "Hostname": "shop.example",
                "DNS": { "Servers": ["10.0.0.2"], "Searches": null },
                "ReservedPorts": [{ "Label": "http", "Value": 80, "To": 8080 }],
                "DynamicPorts": [{ "Label": "admin", "Value": 0, "To": 0 }],
            }],
            "Tasks": [{
                "Name": "t",
                "Driver": "docker",
                "Env": { "A": "1" },
                "Resources": {
                    "CPU": 100, "MemoryMB": 64, "MemoryMaxMB": 128,
                    "Networks": [{ "DynamicPorts": [{ "Label": "old" }] }],
                    "Devices": [{ "Name": "nvidia/gpu" }],
                },
                "VolumeMounts": [{ "Volume": "v", "Destination": "/data", "ReadOnly": true }],
            }],
        }] });
        let task = &docker_tasks(&job)[0];
        let ports: Vec<_> =
            task.nomad.resources.ports.iter().map(|port| (port.label.as_str(), port.container_port)).collect();
        assert_eq!(ports, [("http", 8080), ("admin", 20_001)]);
        assert_eq!(task.nomad.resources.task_ports[0].label, "old");
        assert!(task.nomad.network_path.is_some() && task.nomad.mounts[0].readonly);
        assert_eq!(task.nomad.hosts_entry.as_ref().unwrap().hostname, "shop.example");
        assert_eq!(task.nomad.dns.as_ref().unwrap().servers, ["10.0.0.2"]);
        assert!(task.nomad.device_env.contains_key("NVIDIA_VISIBLE_DEVICES"));
        let known = |name: &str| task.variables.get(name).map(String::as_str);
        assert_eq!([known("NOMAD_META_ZONE"), known("NOMAD_META_zone"), known("A")], [Some("b"), Some("b"), Some("1")]);
        assert_eq!([known("NOMAD_PORT_http"), known("NOMAD_HOST_PORT_http")], [Some("8080"), Some("80")]);
        assert_eq!([known("NOMAD_META_host"), known("attr.x")], [None, None]);
    }
}
