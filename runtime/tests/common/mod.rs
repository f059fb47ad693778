//! A node with a small image, containers on it, and the means to look at them.

pub mod schema;
pub mod sys;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use runtime::{
    ExitRecord, Running, Runtime, StartError, Status,
    plan::{
        CgroupPlacement, ContainerId, ContainerPlan, IDS_PER_CONTAINER, IdPool, IdRange, Namespaces, Network, Output,
        Resources, RootFs, RootStorage, Seccomp, Security, UserNamespace,
    },
};

/// Whether this machine can run containers at all.
pub fn can_run() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/sys/fs/cgroup").exists()
}

/// Whether the kernel tells the status of a process that another process has reaped: since 6.15.
pub fn kernel_remembers() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 15)
}

const BUSYBOX: [&str; 3] = ["/usr/bin/busybox", "/bin/busybox", "/usr/local/bin/busybox"];
const APPLETS: &[&str] = &[
    "sh", "cat", "echo", "id", "pwd", "sleep", "kill", "env", "ls", "mkdir", "touch", "true", "false", "head", "grep",
    "hostname", "stat", "mount", "umount", "dd", "tail", "yes", "wc", "ps", "sync", "chmod", "rm", "ip", "stty", "tty",
    "mknod", "readlink", "df", "ulimit", "test", "seq", "tr", "ifconfig", "usleep", "cut", "unshare",
];

/// State, data and an image's layer in a temporary directory.
pub struct Node {
    pub runtime: Runtime,
    pub directory: tempfile::TempDir,
    pub cgroup: String,
}

/// Whether all cases run with user namespaces, as tasks do by default (otherwise `OCI_RS_USERNS=off`).
pub fn wants_user_namespaces() -> bool {
    std::env::var_os("OCI_RS_USERNS").is_none_or(|mode| mode != "off")
}

/// A user namespace with ids from a pool for tests.
pub fn user_namespace() -> UserNamespace {
    UserNamespace { pool: IdPool { first: 1 << 30, count: 64 * IDS_PER_CONTAINER }, ids: None }
}

/// Plans ask for a copy of the image instead of an overlay.
pub static COPY: AtomicBool = AtomicBool::new(false);

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Node {
    pub fn new() -> Self {
        Self::on(&std::env::temp_dir())
    }

    /// With all its directories on a file system of the caller's choice.
    pub fn on(place: &Path) -> Self {
        let directory = tempfile::tempdir_in(place).expect("a directory");
        make_layer(&directory.path().join("layer"));
        let runtime =
            Runtime::open(&directory.path().join("state"), &directory.path().join("data")).expect("a runtime");
        let cgroup = format!("/oci-rs-test/{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { runtime, directory, cgroup }
    }

    /// A plan that runs a shell script as root in private namespaces.
    pub fn plan(&self, script: &str) -> ContainerPlan {
        let id: ContainerId = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed)).parse().expect("an id");
        ContainerPlan {
            args: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), "/bin:/usr/bin".to_owned())],
            cwd: "/".to_owned(),
            user: String::new(),
            groups: Vec::new(),
            terminal: false,
            open_stdin: false,
            init: false,
            hostname: None,
            root: RootFs {
                layers: vec![self.directory.path().join("layer")],
                storage: if COPY.load(Ordering::Relaxed) { RootStorage::Copy } else { RootStorage::Overlay },
                readonly: false,
                volumes: Vec::new(),
                empty_volumes: Vec::new(),
                size: None,
            },
            mounts: Vec::new(),
            volumes: Vec::new(),
            confined: None,
            files: Vec::new(),
            devices: Vec::new(),
            hooks: Vec::new(),
            described_devices: Vec::new(),
            mount_restrictions: BTreeMap::new(),
            cache_class: None,
            namespaces: Namespaces {
                network: Network::Private,
                private_pid: true,
                private_ipc: true,
                private_uts: true,
                private_cgroup: true,
            },
            security: Security {
                privileged: false,
                capabilities: ["CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID"].map(str::to_owned).to_vec(),
                no_new_privileges: true,
                seccomp: Seccomp::Default,
                apparmor: None,
            },
            sysctl: BTreeMap::new(),
            rlimits: BTreeMap::new(),
            shm_size: 64 << 20,
            oom_score_adj: 0,
            resources: Resources::default(),
            cgroup: CgroupPlacement { path: format!("{}-{id}", self.cgroup), cpuset_v1: None },
            output: Output { stdout: "/dev/null".into(), stderr: "/dev/null".into() },
            annotations: BTreeMap::new(),
            owner: None,
            shared_names: Vec::new(),
            notes: Default::default(),
            stop_signal: None,
            selinux: None,
            user_namespace: wants_user_namespaces().then(user_namespace),
            runtime: None,
            delivery: None,
            id,
        }
    }

    /// Starts a container with FIFOs that are read to their end.
    pub fn start(&self, plan: ContainerPlan) -> Container<'_> {
        self.try_start(plan).unwrap_or_else(|error| panic!("start: {error}"))
    }

    /// The same for a plan that may be refused.
    pub fn try_start(&self, mut plan: ContainerPlan) -> Result<Container<'_>, StartError> {
        let (stdout, stderr) = (self.fifo(&plan, "out"), self.fifo(&plan, "err"));
        plan.output = Output { stdout: stdout.clone(), stderr: stderr.clone() };
        let (out, err) = (read_fifo(stdout), read_fifo(stderr));
        match self.launch(&mut plan) {
            Ok(running) => Ok(Container { node: self, plan, running, out: Some(out), err: Some(err) }),
            Err(error) => {
                // The FIFOs get no writer: opening and closing them ends the readers.
                for path in [&plan.output.stdout, &plan.output.stderr] {
                    drop(fs::OpenOptions::new().read(true).write(true).open(path));
                }
                self.assert_clean(&plan);
                Err(error)
            }
        }
    }

    /// Runs a container to its end; its record, standard output and standard error.
    pub fn run(&self, plan: ContainerPlan) -> (ExitRecord, String, String) {
        let mut container = self.start(plan);
        let exit = container.wait();
        let output = container.output();
        (exit, output.0, output.1)
    }

    /// Runs a container to its end, if it can be started; its standard output.
    pub fn try_run(&self, mut plan: ContainerPlan) -> Result<String, StartError> {
        let stdout = self.fifo(&plan, "out");
        plan.output = Output { stdout: stdout.clone(), stderr: "/dev/null".into() };
        let out = read_fifo(stdout);
        let running = self.launch(&mut plan)?;
        let mut container = Container { node: self, plan, running, out: Some(out), err: None };
        container.wait();
        Ok(container.out.take().expect("once").join().expect("a reader"))
    }

    /// The error with which a plan cannot be started.
    pub fn refuse(&self, plan: &ContainerPlan) -> StartError {
        let error = self.launch(&mut plan.clone()).map(drop).expect_err("a start that fails");
        self.assert_clean(plan);
        error
    }

    /// Starts a container, in the node's user namespace if it cannot have one of its own in a run of all cases with
    /// user namespaces.
    fn launch(&self, plan: &mut ContainerPlan) -> Result<Running, StartError> {
        if !wants_user_namespaces() {
            return self.runtime.start(plan);
        }
        let (running, obstacle) = self.runtime.start_in_any_user_namespace(plan, runtime::StartOptions::default())?;
        if let Some(obstacle) = obstacle {
            println!("  {}: {obstacle}", plan.id);
            plan.user_namespace = None;
        }
        Ok(running)
    }

    fn fifo(&self, plan: &ContainerPlan, name: &str) -> PathBuf {
        let path = self.directory.path().join(format!("{}.{name}", plan.id));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).expect("a FIFO");
        path
    }

    /// Nothing of a container is left: no directory, no control group, no mount.
    pub fn assert_clean(&self, plan: &ContainerPlan) {
        let id = plan.id.as_str();
        for directory in ["state/tasks", "data/containers"] {
            assert!(!self.directory.path().join(directory).join(id).exists(), "{directory}/{id} is left");
        }
        let groups = control_groups(&plan.cgroup.path);
        assert!(groups.is_empty(), "control groups are left: {groups:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let ours = ["state", "data"].map(|name| self.directory.path().join(name).to_string_lossy().into_owned());
        assert!(!ours.iter().any(|directory| mounts.contains(directory)), "mounts are left: {mounts}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for id in self.runtime.list().unwrap_or_default() {
            if let Err(error) = self.runtime.destroy(&id) {
                println!("clean-up of {id}: {error}");
            }
        }
        // The parent of our cgroups. Removing it fails while another test process uses it.
        for hierarchy in hierarchies() {
            drop(fs::remove_dir(hierarchy.join("oci-rs-test")));
        }
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).chain([PathBuf::from("/sys/fs/cgroup")]).collect()
}

/// The cgroups of this path in all hierarchies.
pub fn control_groups(path: &str) -> Vec<PathBuf> {
    let path = path.trim_start_matches('/');
    let mut found: Vec<_> =
        hierarchies().into_iter().map(|one| one.join(path)).filter(|group| group.exists()).collect();
    found.sort();
    found
}

/// A started container; destroyed, and checked to have left nothing, when it goes.
pub struct Container<'a> {
    node: &'a Node,
    pub plan: ContainerPlan,
    pub running: Running,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

impl Container<'_> {
    pub fn id(&self) -> &ContainerId {
        &self.plan.id
    }

    /// Waits for the monitor's end; the record it has written.
    pub fn wait(&self) -> ExitRecord {
        assert!(self.running.monitor.wait_for(Some(Duration::from_secs(20))).expect("a poll"), "still running");
        match self.node.runtime.status(self.id()).expect("a status") {
            Status::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    /// All that was written to standard output and standard error.
    pub fn output(&mut self) -> (String, String) {
        let text = |reader: &mut Option<JoinHandle<String>>| reader.take().expect("once").join().expect("a reader");
        (text(&mut self.out), text(&mut self.err))
    }

    /// Lines of a file of the container's first process in /proc.
    pub fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.running.init.pid)).expect("a file of /proc")
    }

    /// The ids of the container's user namespace, if it has one of its own.
    pub fn ids(&self) -> Option<IdRange> {
        let tasks = self.node.directory.path().join("state/tasks");
        let plan = fs::read(tasks.join(self.id().as_str()).join("plan.json")).expect("a plan");
        serde_json::from_slice::<ContainerPlan>(&plan).expect("a plan").id_range()
    }

    /// A field of the first process's status. Ids are the container's.
    pub fn status_field(&self, name: &str) -> String {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("a field");
        let value = line.split_once(':').expect("a field").1.trim().to_owned();
        match self.ids().filter(|_| ["Uid", "Gid", "Groups"].contains(&name)) {
            None => value,
            Some(ids) => {
                let inside = |id: &str| ids.in_container(id.parse().ok()?).map(|id| id.to_string());
                let separator = if name == "Groups" { " " } else { "\t" };
                let inside = value.split(separator).map(|id| inside(id).expect("an id of the container"));
                inside.collect::<Vec<_>>().join(separator)
            }
        }
    }

    /// Makes an empty file in the container's root.
    pub fn touch(&self, path: &str) {
        let ids = self.ids().map_or(0, |ids| ids.first);
        let file = format!("/proc/{}/root{path}", self.running.init.pid);
        // The node's root does not exist in another user namespace.
        let make = move || {
            sys::set_file_user(ids);
            fs::write(file, "").expect("written");
        };
        std::thread::spawn(make).join().expect("a thread");
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let destroyed = self.node.runtime.destroy(&self.plan.id);
        if std::thread::panicking() {
            return;
        }
        destroyed.expect("destroyed");
        self.node.assert_clean(&self.plan);
        // Without its monitor, a process is reaped by the machine's first one, in its own time.
        let ended =
            |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z 1 "));
        assert!(ended(self.running.init.pid), "the first process is left");
        assert!(ended(self.running.monitor.pid), "the monitor is left");
    }
}

/// Reads a FIFO to its end, on a thread. Opened without waiting for a writer, so that a container that never starts
/// leaves no thread behind.
fn read_fifo(path: PathBuf) -> JoinHandle<String> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .expect("a FIFO");
    std::thread::spawn(move || read_to_end(file))
}

fn read_to_end(mut file: File) -> String {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        poll(&mut [PollFd::new(&file, PollFlags::IN)], None).expect("a poll");
        match file.read(&mut buffer) {
            Ok(0) => return String::from_utf8_lossy(&text).into_owned(),
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asks until the answer is yes.
pub fn eventually(what: &str, mut answer: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !answer() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn make_layer(layer: &Path) {
    for directory in ["bin", "etc", "tmp", "home/web", "run"] {
        fs::create_dir_all(layer.join(directory)).expect("a directory");
    }
    let busybox = BUSYBOX.iter().find(|path| Path::new(path).exists()).expect("a static busybox (busybox-static)");
    fs::copy(busybox, layer.join("bin/busybox")).expect("busybox");
    for applet in APPLETS {
        symlink("busybox", layer.join("bin").join(applet)).expect("a link");
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000:web:/home/web:/bin/sh\n";
    fs::write(layer.join("etc/passwd"), passwd).expect("written");
    fs::write(layer.join("etc/group"), "root:x:0:\nweb:x:1000:\nstaff:x:50:web\nvideo:x:44:\n").expect("written");
}

/// The role `start`. Arguments: state directory, data directory and a file with a plan. Starts that container. A
/// failpoint of the environment may kill the process.
pub fn start_from(args: impl IntoIterator<Item = std::ffi::OsString>) -> std::process::ExitCode {
    let args: Vec<PathBuf> = args.into_iter().map(PathBuf::from).collect();
    let [state, data, plan] = &args[..] else { return std::process::ExitCode::from(2) };
    let plan = serde_json::from_slice(&fs::read(plan).expect("a plan")).expect("a plan");
    match Runtime::open(state, data).expect("a runtime").start(&plan) {
        Ok(_) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
