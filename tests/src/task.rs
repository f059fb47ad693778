//! A task as a Nomad client prepares it for StartTask: configuration, environment, resources.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use fixtures::{must::Must, random::uuid};
use prost::Message;
use proto::driver::{
    AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources, Device, DnsConfig, LinuxResources, Mount,
    NetworkIsolationSpec, PortMapping, Resources, TaskConfig,
};
use serde_json::{Map, Value as Json, json};

use crate::{
    alloc::{Alloc, Allocs},
    cgroup::TaskGroups,
    hcl,
    log::Log,
    plugin::Plugin,
};

/// How a task's configuration is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As a Nomad client does: every key of the schema.
    Nomad,
    /// As Go's test harness does: only what was written.
    Harness,
}

/// Describes a task; [`TaskBuilder::build`] makes what a client would have made by the time of StartTask.
#[derive(Debug, Clone)]
pub struct TaskBuilder<'a> {
    allocs: &'a Allocs,
    name: String,
    alloc: Option<Arc<Alloc>>,
    options: Map<String, Json>,
    style: Style,
    id: Option<String>,
    cores: Option<String>,
    log_collection: bool,
    config: TaskConfig,
}

impl<'a> TaskBuilder<'a> {
    pub(crate) fn new(allocs: &'a Allocs, image: &str) -> Self {
        let mut options = Map::new();
        options.insert("image".to_owned(), json!(image));
        let config = TaskConfig {
            task_group_name: "group".into(),
            job_name: "kit".into(),
            job_id: "kit".into(),
            namespace: "default".into(),
            node_name: "kit-node".into(),
            node_id: "00000000-0000-4000-8000-000000000001".into(),
            resources: Some(resources(100, 64, 0)),
            ..Default::default()
        };
        Self {
            allocs,
            name: "main".into(),
            alloc: None,
            options,
            style: Style::Nomad,
            id: None,
            cores: None,
            log_collection: true,
            config,
        }
    }

    /// The task's name, `main` otherwise.
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The task id, of Nomad's form otherwise.
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// Lives in an allocation that exists: a second task of a group, or a restart.
    pub fn in_alloc(mut self, alloc: &Arc<Alloc>) -> Self {
        self.alloc = Some(Arc::clone(alloc));
        self
    }

    /// An option of the task's `config` block.
    pub fn option(mut self, name: &str, value: Json) -> Self {
        self.options.insert(name.to_owned(), value);
        self
    }

    /// Runs a shell script.
    pub fn sh(self, script: &str) -> Self {
        self.option("command", json!("/bin/sh")).option("args", json!(["-c", script]))
    }

    /// Runs a command.
    pub fn command(self, command: &str, args: &[&str]) -> Self {
        self.option("command", json!(command)).option("args", json!(args))
    }

    /// Encodes the `config` block in this style.
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// A variable of the task's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.config.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A variable that a device plugin sets.
    pub fn device_env(mut self, name: &str, value: &str) -> Self {
        self.config.device_env.insert(name.to_owned(), value.to_owned());
        self.env(name, value)
    }

    /// The job's `user`.
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.config.user);
        self
    }

    /// CPU in MHz, memory and memory_max in MiB, as Nomad translates them.
    pub fn resources(mut self, cpu: i64, memory: i64, memory_max: i64) -> Self {
        self.config.resources = Some(resources(cpu, memory, memory_max));
        self
    }

    /// Cores of its own (`resources.cores`).
    pub fn cores(mut self, cores: &str) -> Self {
        self.cores = Some(cores.to_owned());
        self
    }

    /// A mount that the client adds (volume_mount, device plugins), with the field that Nomad 2.0.1 adds.
    pub fn mount(mut self, host: &Path, task: &str, readonly: bool, propagation: &str) -> Self {
        self.config.mounts.push(Mount {
            task_path: task.to_owned(),
            host_path: host.to_string_lossy().into_owned(),
            readonly,
            propagation_mode: propagation.to_owned(),
            request_name: "requested".to_owned(),
            ..Default::default()
        });
        self
    }

    /// A device that a device plugin adds.
    pub fn device(mut self, host: &str, task: &str, permissions: &str) -> Self {
        let device = Device { host_path: host.into(), task_path: task.into(), cgroup_permissions: permissions.into() };
        self.config.devices.push(device);
        self
    }

    /// The group's `network { dns {} }` block.
    pub fn dns(mut self, servers: &[&str], searches: &[&str], options: &[&str]) -> Self {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        self.config.dns =
            Some(DnsConfig { servers: texts(servers), searches: texts(searches), options: texts(options) });
        self
    }

    /// The group's network namespace.
    pub fn network(mut self, spec: NetworkIsolationSpec) -> Self {
        self.config.network_isolation_spec = Some(spec);
        self
    }

    /// A port of the group's `network` block, on this address of the host; also an entry of the task's `ports`.
    pub fn port(mut self, label: &str, host_ip: &str, host: u16, to: u16) -> Self {
        let mapping =
            PortMapping { label: label.to_owned(), value: host.into(), to: to.into(), host_ip: host_ip.to_owned() };
        if let Some(resources) = &mut self.config.resources {
            resources.ports.push(mapping);
        }
        let listed = self.options.entry("ports").or_insert_with(|| json!([]));
        if let Json::Array(listed) = listed {
            listed.push(json!(label));
        }
        self
    }

    /// `logs { disabled = true }`.
    pub fn without_logs(mut self) -> Self {
        self.log_collection = false;
        self
    }

    /// Makes directories, mounts, FIFOs and cgroups, and encodes the configuration.
    pub async fn build(mut self, plugin: &mut Plugin) -> Task {
        let written = Json::Object(std::mem::take(&mut self.options));
        let packed = match self.style {
            Style::Nomad => hcl::decode(&*plugin.task_schema().await, &written).must("the task's config block"),
            Style::Harness => hcl::plain(&written),
        };
        self.build_packed(packed)
    }

    /// The same with a configuration that is encoded already.
    pub fn build_packed(self, packed: Vec<u8>) -> Task {
        let Self { allocs, name, alloc, id, cores, log_collection, mut config, .. } = self;
        let alloc = alloc.unwrap_or_else(|| allocs.make());
        alloc.task_dir(&name);
        let groups = alloc.task_groups(&name, cores.is_some());
        config.id = id.unwrap_or_else(|| format!("{}/{name}/{}", alloc.id, &uuid()[..8]));
        config.msgpack_driver_config = packed;
        config.alloc_dir = alloc.dir.to_string_lossy().into_owned();
        config.alloc_id.clone_from(&alloc.id);
        if let Some(linux) = config.resources.as_mut().and_then(|all| all.linux_resources.as_mut()) {
            linux.cpuset_cgroup = groups.cpuset.to_string_lossy().into_owned();
            linux.cpuset_cpus = cores.unwrap_or_default();
        }
        client_env(&mut config, &alloc.id, &name);
        config.name = name;
        let mut logs = None;
        config.stdout_path = "/dev/null".into();
        config.stderr_path = "/dev/null".into();
        if log_collection {
            let (stdout_path, stdout) = alloc.logmon(&config.name, "stdout");
            let (stderr_path, stderr) = alloc.logmon(&config.name, "stderr");
            config.stdout_path = stdout_path.to_string_lossy().into_owned();
            config.stderr_path = stderr_path.to_string_lossy().into_owned();
            logs = Some((stdout, stderr));
        }
        Task { config, alloc, groups, logs }
    }
}

/// What a client sends for these resources.
fn resources(cpu: i64, memory: i64, memory_max: i64) -> Resources {
    const MIB: i64 = 1024 * 1024;
    Resources {
        allocated_resources: Some(AllocatedTaskResources {
            cpu: Some(AllocatedCpuResources { cpu_shares: cpu }),
            memory: Some(nomads_memory(memory, memory_max)),
            networks: Vec::new(),
        }),
        linux_resources: Some(LinuxResources {
            cpu_shares: cpu,
            memory_limit_bytes: memory.max(memory_max) * MIB,
            // Two cores of 2000 MHz, as the kit tells the plugin.
            percent_ticks: cpu as f64 / 4000.0,
            ..Default::default()
        }),
        ports: Vec::new(),
    }
}

/// The message as Nomad's client encodes it, with the field numbers of Nomad's own file: 2 and 3. Encoding it with the
/// numbers of our file would hide a wrong number in that file.
fn nomads_memory(memory_mb: i64, memory_max_mb: i64) -> AllocatedMemoryResources {
    let mut bytes = Vec::new();
    for (number, value) in [(2_u8, memory_mb), (3, memory_max_mb)] {
        // The key of a field with a varint: its number, and wire type 0.
        bytes.push(number << 3);
        prost::encoding::encode_varint(value.cast_unsigned(), &mut bytes);
    }
    AllocatedMemoryResources::decode(bytes.as_slice()).must("Nomad's message")
}

/// The environment that every task gets; what the test has set already stays.
fn client_env(config: &mut TaskConfig, alloc: &str, task: &str) {
    let defaults = [
        ("NOMAD_ALLOC_DIR", "/alloc"),
        ("NOMAD_TASK_DIR", "/local"),
        ("NOMAD_SECRETS_DIR", "/secrets"),
        ("NOMAD_ALLOC_ID", alloc),
        ("NOMAD_SHORT_ALLOC_ID", &alloc[..8]),
        ("NOMAD_TASK_NAME", task),
        ("NOMAD_GROUP_NAME", "group"),
        ("NOMAD_JOB_ID", "kit"),
        ("NOMAD_JOB_NAME", "kit"),
        ("NOMAD_ALLOC_INDEX", "0"),
        ("NOMAD_ALLOC_NAME", "kit.group[0]"),
        ("NOMAD_NAMESPACE", "default"),
        ("NOMAD_REGION", "global"),
        ("NOMAD_DC", "dc1"),
        ("NOMAD_CPU_CORES", " "),
    ];
    for (name, value) in defaults {
        config.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
}

/// A task that a client has prepared.
#[derive(Debug)]
pub struct Task {
    /// What StartTask gets.
    pub config: TaskConfig,
    /// Its allocation.
    pub alloc: Arc<Alloc>,
    /// Its cgroups.
    pub groups: TaskGroups,
    logs: Option<(Log, Log)>,
}

impl Task {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// What it wrote to its standard output.
    pub fn stdout(&self) -> &Log {
        &self.logs.as_ref().must("log collection of this task").0
    }

    /// What it wrote to its standard error.
    pub fn stderr(&self) -> &Log {
        &self.logs.as_ref().must("log collection of this task").1
    }

    /// The task's directory on the host.
    pub fn dir(&self) -> PathBuf {
        self.alloc.task_dir(&self.config.name)
    }

    /// The same task once more, as a client restarts it: a new id in the same allocation, and new log readers.
    pub fn restarted(&self) -> Self {
        let mut config = self.config.clone();
        config.id = format!("{}/{}/{}", self.alloc.id, config.name, &uuid()[..8]);
        let logs = self.logs.as_ref().map(|_| {
            let (_, stdout) = self.alloc.logmon(&config.name, "stdout");
            let (_, stderr) = self.alloc.logmon(&config.name, "stderr");
            (stdout, stderr)
        });
        Self { config, alloc: Arc::clone(&self.alloc), groups: self.groups.clone(), logs }
    }
}
