//! A task as a Nomad client prepares it: alloc dir, secrets mount, log FIFOs with their reader, cgroups, environment.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use fixtures::{must::Must, random::uuid, wait::patient};
use proto::driver::{
    AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources, Device, DnsConfig, LinuxResources, Mount,
    NetworkIsolationSpec, PortMapping, Resources, TaskConfig, network_isolation_spec::NetworkIsolationMode,
};
use rustix::{
    fs::{Mode, mkfifoat},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};
use serde_json::{Map, Value as Json, json};
use tokio::sync::watch;

use crate::{cgroup::TaskGroups, hcl, node::Node, plugin::Plugin};

/// The user that owns what tasks may write.
const NOBODY: u32 = 65534;

/// An allocation's directories and groups.
#[derive(Debug)]
pub struct Alloc {
    /// Its id, a UUID.
    pub id: String,
    /// `<alloc_dir>/<id>`.
    pub dir: PathBuf,
    mounts: Mutex<Vec<PathBuf>>,
    groups: Mutex<BTreeMap<String, TaskGroups>>,
    readers: Mutex<Vec<PathBuf>>,
    network: OnceLock<PathBuf>,
}

fn make_dir(path: &Path, mode: u32, owner: u32) {
    fs::create_dir_all(path).must("make a directory of an allocation");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).must("set a directory's mode");
    chown(path, Some(owner), Some(owner)).must("give a directory to its owner");
}

impl Alloc {
    pub(crate) fn make(root: &Path) -> Self {
        let id = uuid();
        let dir = root.join(&id);
        for name in ["data", "logs", "tmp"] {
            make_dir(&dir.join("alloc").join(name), 0o777, NOBODY);
        }
        make_dir(&dir.join("alloc"), 0o777, NOBODY);
        Self {
            id,
            dir,
            mounts: Mutex::default(),
            groups: Mutex::default(),
            readers: Mutex::default(),
            network: OnceLock::new(),
        }
    }

    /// The directory of a task, made as for image isolation when it is missing.
    pub fn task_dir(&self, task: &str) -> PathBuf {
        let dir = self.dir.join(task);
        if !dir.exists() {
            make_dir(&dir.join("local"), 0o777, NOBODY);
            make_dir(&dir.join("tmp"), 0o1777, 0);
            for name in ["secrets", "private"] {
                let point = dir.join(name);
                make_dir(&point, 0o700, 0);
                let flags = MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
                mount("tmpfs", &point, "tmpfs", flags, Some(c"size=1m,mode=0777")).must("mount a tmpfs for secrets");
                self.mounts.lock().unwrap_or_else(PoisonError::into_inner).push(point);
            }
            fs::write(dir.join("secrets/.nomad-mount"), "").must("mark the secrets mount");
        }
        dir
    }

    /// The groups of a task, made when they are missing; the client keeps them over restarts.
    pub fn task_groups(&self, task: &str, reserve: bool) -> TaskGroups {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || TaskGroups::make(&self.id, task, reserve).must("make the cgroups of a task");
        groups.entry(task.to_owned()).or_insert_with(made).clone()
    }

    /// The group's network namespace as a client makes it for bridge mode, with loopback up and nothing else.
    pub fn network(&self) -> NetworkIsolationSpec {
        let path = self.network.get_or_init(|| {
            ip(&["netns", "add", &self.id]).must("make a network namespace");
            ip(&["-n", &self.id, "link", "set", "lo", "up"]).must("loopback");
            Path::new("/run/netns").join(&self.id)
        });
        NetworkIsolationSpec {
            mode: NetworkIsolationMode::Group.into(),
            path: path.to_string_lossy().into_owned(),
            ..Default::default()
        }
    }

    fn remove_network(&self) -> Result<(), String> {
        if self.network.get().is_some_and(|path| path.exists()) { ip(&["netns", "delete", &self.id]) } else { Ok(()) }
    }

    /// What a client does at an allocation's end: groups and mounts go. Returns what resisted.
    pub fn take_away(&self) -> Vec<String> {
        let mut resistance = Vec::new();
        for groups in self.groups.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let left = groups.remove();
            resistance.extend(left.iter().map(|group| format!("cgroup {} cannot be removed", group.display())));
        }
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).retain(|point| {
            match unmount(point, UnmountFlags::empty()) {
                Ok(()) => false,
                Err(error) => {
                    resistance.push(format!("{} cannot be unmounted: {error}", point.display()));
                    true
                }
            }
        });
        resistance.extend(self.remove_network().err());
        resistance
    }

    /// Takes everything away by force.
    pub(crate) fn destroy(&self) {
        self.remove_network().ok();
        for fifo in self.readers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            wake_reader(&fifo);
        }
        for point in self.mounts.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            unmount(&point, UnmountFlags::DETACH).ok();
        }
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        // Killed processes leave their group a moment later.
        for _ in 0..100 {
            groups.values().for_each(TaskGroups::destroy);
            let left = fixtures::cgroup::find(&self.id);
            if left.is_empty() {
                break;
            }
            left.iter().rev().for_each(|group| drop(fs::remove_dir(group)));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// FIFO for one stream of a task, and its reader: what logmon does before each start of a task.
    fn logmon(&self, task: &str, stream: &str) -> (PathBuf, Log) {
        let fifo = self.dir.join("alloc/logs").join(format!(".{task}.{stream}.fifo"));
        if !fifo.exists() {
            mkfifoat(rustix::fs::CWD, &fifo, Mode::from_raw_mode(0o600)).must("make a log FIFO");
        }
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(fifo.clone());
        (fifo.clone(), Log::read(fifo))
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output =
        std::process::Command::new("ip").args(args).output().map_err(|error| format!("ip (iproute2): {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Lets a reader that waits for its first writer come to its end.
fn wake_reader(fifo: &Path) {
    const NONBLOCK: i32 = 0o4000;
    drop(fs::OpenOptions::new().write(true).custom_flags(NONBLOCK).open(fifo));
}

/// What a task wrote to one of its streams.
#[derive(Debug, Clone)]
pub struct Log {
    state: watch::Receiver<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    bytes: Vec<u8>,
    ended: bool,
}

impl Log {
    /// Reads as logmon does: blocks until a writer comes, then until the last one is gone.
    fn read(fifo: PathBuf) -> Self {
        let (sender, state) = watch::channel(LogState::default());
        std::thread::spawn(move || {
            if let Ok(mut file) = fs::File::open(&fifo) {
                let mut buffer = [0; 65536];
                loop {
                    match file.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(count) => sender.send_modify(|state| state.bytes.extend_from_slice(&buffer[..count])),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
            }
            sender.send_modify(|state| state.ended = true);
        });
        Self { state }
    }

    /// What has arrived so far.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.state.borrow().bytes).into_owned()
    }

    /// Waits for a text.
    pub async fn contains(&self, text: &str, limit: Duration) -> String {
        let mut state = self.state.clone();
        let reached = |state: &LogState| state.ended || String::from_utf8_lossy(&state.bytes).contains(text);
        let waited = tokio::time::timeout(patient(limit), state.wait_for(reached)).await.is_ok();
        let all = self.so_far();
        assert!(
            all.contains(text),
            "no {text:?} in the log ({}): {all:?}",
            if waited { "ended" } else { "still open" }
        );
        all
    }

    /// Everything, once the last writer has closed the FIFO.
    pub async fn all(&self, limit: Duration) -> String {
        String::from_utf8_lossy(&self.all_bytes(limit).await).into_owned()
    }

    /// The same for output that is no text.
    pub async fn all_bytes(&self, limit: Duration) -> Vec<u8> {
        let mut state = self.state.clone();
        let ended = tokio::time::timeout(patient(limit), state.wait_for(|state| state.ended)).await.is_ok();
        assert!(ended, "the log FIFO is still held open by a writer after {limit:?}; so far {:?}", self.so_far());
        self.state.borrow().bytes.clone()
    }
}

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
    node: &'a Node,
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
    pub(crate) fn new(node: &'a Node, image: &str) -> Self {
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
            node,
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

    /// A mount that the client adds (volume_mount, device plugins).
    pub fn mount(mut self, host: &Path, task: &str, readonly: bool, propagation: &str) -> Self {
        self.config.mounts.push(Mount {
            task_path: task.to_owned(),
            host_path: host.to_string_lossy().into_owned(),
            readonly,
            propagation_mode: propagation.to_owned(),
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
        let Self { node, name, alloc, id, cores, log_collection, mut config, .. } = self;
        let alloc = alloc.unwrap_or_else(|| node.alloc());
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
            memory: Some(AllocatedMemoryResources { memory_mb: memory, memory_max_mb: memory_max }),
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
