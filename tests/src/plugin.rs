//! The plugin process, launched, watched and ended as go-plugin's host does it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use fixtures::{
    must::Must,
    wait::{patient, seconds, within},
};
use proto::{
    base::{
        ClientTopology, ClientTopologyCore, NomadConfig, NomadDriverConfig, SetConfigRequest,
        base_plugin_client::BasePluginClient,
    },
    driver::{
        DriverTaskEvent, FingerprintRequest, FingerprintResponse, TaskEventsRequest, driver_client::DriverClient,
    },
    go_plugin::{
        ConnInfo, Empty, grpc_broker_client::GrpcBrokerClient, grpc_controller_client::GrpcControllerClient,
        grpc_stdio_client::GrpcStdioClient,
    },
    hclspec::Spec,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tonic::transport::{Channel, Endpoint};

use crate::{hcl, node::Node};

/// What Nomad sets so that a plugin knows its host.
pub const COOKIE: (&str, &str) =
    ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");

/// The path of the binary under test: `OCI_RS_BIN`, or where cargo puts it beside the test that runs.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("OCI_RS_BIN") {
        return path.into();
    }
    // target/<triple>/<profile>/deps/<test> → target/<triple>/<profile>/oci-rs
    let test = std::env::current_exe().must("the path of this test");
    let profile = test.parent().and_then(Path::parent).must("the target directory of this test");
    let path = profile.join("oci-rs");
    assert!(
        path.is_file(),
        "there is no {}: build it first (cargo build -p oci-rs), or name another one in OCI_RS_BIN",
        path.display()
    );
    path
}

/// How a process of the plugin is to be started.
#[derive(Debug, Clone)]
pub struct Launch {
    binary: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    dir: PathBuf,
    deaf: bool,
}

impl Launch {
    /// As a Nomad agent starts it: cookie, ports, protocol versions, and otherwise the agent's environment.
    pub fn new(node: &Node) -> Self {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", "/root".to_owned()),
            ("TMPDIR", text(node.temp_dir())),
            (COOKIE.0, COOKIE.1.to_owned()),
            ("PLUGIN_MIN_PORT", "10000".to_owned()),
            ("PLUGIN_MAX_PORT", "25000".to_owned()),
            ("PLUGIN_PROTOCOL_VERSIONS", "2".to_owned()),
        ];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { binary: binary(), args: Vec::new(), env, dir: node.root().to_owned(), deaf: false }
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Takes a variable away.
    pub fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    /// Adds arguments (`plugin.<name>.args` of an agent, or an operator's command).
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Runs another file than the one under test, e.g. a copy of it.
    pub fn binary(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.binary);
        self
    }

    /// Nobody reads its standard error: writing there fails, as after an agent's death.
    pub fn deaf(mut self) -> Self {
        self.deaf = true;
        self
    }

    /// Starts the process.
    pub fn spawn(self) -> Process {
        let mut command = Command::new(&self.binary);
        command.args(&self.args).env_clear().envs(&self.env).current_dir(&self.dir).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.deaf {
            let (reader, writer) = std::io::pipe().must("a pipe");
            drop(reader);
            command.stderr(writer);
        }
        let mut child = command.spawn().must(&format!("start {}", self.binary.display()));
        let stdout = Lines::collect(child.stdout.take().must("stdout of the child"));
        let stderr = child.stderr.take().map_or_else(Lines::none, Lines::collect);
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).must("the child's process id");
        Process { child, pid, stdout, stderr }
    }

    /// Starts the process and connects to it, without configuring it.
    pub async fn connect(self) -> Plugin {
        Plugin::connect(self.spawn()).await
    }
}

/// Lines that a process writes, collected while it runs.
#[derive(Debug, Clone)]
pub struct Lines {
    state: watch::Receiver<LinesState>,
}

#[derive(Debug, Default)]
struct LinesState {
    lines: Vec<String>,
    ended: bool,
}

impl Lines {
    fn collect(stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let (sender, state) = watch::channel(LinesState::default());
        tokio::spawn(async move {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line).await, Ok(count) if count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                sender.send_modify(|state| state.lines.push(text));
                line.clear();
            }
            sender.send_modify(|state| state.ended = true);
        });
        Self { state }
    }

    /// The lines of a stream that nobody reads.
    fn none() -> Self {
        let (_, state) = watch::channel(LinesState { ended: true, ..Default::default() });
        Self { state }
    }

    /// What has arrived so far.
    pub fn so_far(&self) -> Vec<String> {
        self.state.borrow().lines.clone()
    }

    /// Waits for a line that fulfils the condition.
    pub async fn find(&self, limit: Duration, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut state = self.state.clone();
        let reached = |state: &LinesState| state.ended || state.lines.iter().any(|line| condition(line));
        // Whether it came or not is seen below.
        drop(tokio::time::timeout(patient(limit), state.wait_for(reached)).await);
        let lines = self.so_far();
        lines.iter().find(|line| condition(line)).cloned().must(&format!("{what} among {lines:#?}"))
    }

    /// All lines, once the other side has closed the stream.
    pub async fn all(&self, limit: Duration) -> Vec<String> {
        let mut state = self.state.clone();
        within(limit, "the end of the stream", state.wait_for(|state| state.ended)).await.must("the stream's reader");
        self.so_far()
    }
}

/// A started process of the binary.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    /// Its standard output.
    pub stdout: Lines,
    /// Its standard error.
    pub stderr: Lines,
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Its end, which must come within the limit.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        within(limit, "the end of the plugin process", self.child.wait()).await.must("wait for the plugin process")
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).must("signal the plugin process");
    }

    /// SIGKILL, and its end.
    pub async fn kill(&mut self) {
        self.child.kill().await.must("kill the plugin process");
    }
}

/// What a plugin says of itself in its first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The line as it stands.
    pub line: String,
    /// The socket.
    pub socket: PathBuf,
}

impl Handshake {
    /// Reads the line as go-plugin's host does; the text says what the host would refuse.
    pub fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split('|').collect();
        match fields.as_slice() {
            ["1", "2", "unix", socket, "grpc", ..] if socket.starts_with('/') => {
                Ok(Self { line: line.to_owned(), socket: socket.into() })
            }
            _ => Err(format!("not 1|2|unix|<socket>|grpc|: {line:?}")),
        }
    }
}

/// A connection to a running plugin, and the process when we started it.
#[derive(Debug)]
pub struct Plugin {
    /// The process.
    pub process: Process,
    /// Its handshake.
    pub handshake: Handshake,
    /// What it told in the background.
    pub told: Told,
    channel: Channel,
    background: Vec<JoinHandle<()>>,
    schema: Option<Arc<Spec>>,
}

/// Messages of the streams that stay open beside all calls.
#[derive(Debug, Clone)]
pub struct Told {
    fingerprints: watch::Receiver<Vec<FingerprintResponse>>,
    events: watch::Receiver<Vec<DriverTaskEvent>>,
    ended: watch::Receiver<Vec<String>>,
    senders: Arc<Senders>,
}

#[derive(Debug)]
struct Senders {
    fingerprints: watch::Sender<Vec<FingerprintResponse>>,
    events: watch::Sender<Vec<DriverTaskEvent>>,
    ended: watch::Sender<Vec<String>>,
}

impl Told {
    fn new() -> Self {
        let (fingerprints, f) = watch::channel(Vec::new());
        let (events, e) = watch::channel(Vec::new());
        let (ended, x) = watch::channel(Vec::new());
        Self { fingerprints: f, events: e, ended: x, senders: Arc::new(Senders { fingerprints, events, ended }) }
    }

    /// Fingerprints so far.
    pub fn fingerprints(&self) -> Vec<FingerprintResponse> {
        self.fingerprints.borrow().clone()
    }

    /// Task events so far.
    pub fn events(&self) -> Vec<DriverTaskEvent> {
        self.events.borrow().clone()
    }

    /// Streams that ended although they must stay open for the life of the plugin.
    pub fn ended(&self) -> Vec<String> {
        self.ended.borrow().clone()
    }

    /// Waits for the first fingerprint.
    pub async fn fingerprint(&self) -> FingerprintResponse {
        let mut receiver = self.fingerprints.clone();
        let all = within(seconds(10), "the first fingerprint", receiver.wait_for(|all| !all.is_empty()))
            .await
            .must("fingerprints");
        all[0].clone()
    }

    /// Waits for a task event.
    pub async fn event(&self, what: &str, condition: impl Fn(&DriverTaskEvent) -> bool) -> DriverTaskEvent {
        let mut receiver = self.events.clone();
        let all =
            within(seconds(20), what, receiver.wait_for(|all| all.iter().any(&condition))).await.must("task events");
        all.iter().find(|event| condition(event)).cloned().must(what)
    }
}

impl Plugin {
    /// Reads the handshake and opens the connection with the two streams that a host always opens.
    pub async fn connect(process: Process) -> Self {
        let line = process.stdout.find(seconds(10), "the handshake", |_| true).await;
        let handshake = Handshake::parse(&line).must("the handshake");
        let channel = dial(&handshake.socket).await;
        let mut plugin = Self { process, handshake, told: Told::new(), channel, background: Vec::new(), schema: None };
        plugin.open_host_streams();
        plugin
    }

    /// Leaves the connection as a dying agent does and connects as the next agent: a probe that says nothing, then a new channel.
    pub async fn reattach(&mut self) {
        self.background.drain(..).for_each(|task| task.abort());
        self.told = Told::new();
        drop(tokio::net::UnixStream::connect(&self.handshake.socket).await.must("probe the plugin's socket"));
        self.channel = dial(&self.handshake.socket).await;
        self.open_host_streams();
        self.base().plugin_info(proto::base::PluginInfoRequest {}).await.must("PluginInfo");
        self.watch();
    }

    fn open_host_streams(&mut self) {
        let ended = self.told.clone();
        let mut stdio = GrpcStdioClient::new(self.channel.clone());
        self.background.push(tokio::spawn(async move {
            let end = match stdio.stream_stdio(()).await {
                Ok(stream) => drain(stream.into_inner()).await,
                Err(status) => status.to_string(),
            };
            ended.senders.ended.send_modify(|all| all.push(format!("StreamStdio: {end}")));
        }));
        let ended = self.told.clone();
        let mut broker = GrpcBrokerClient::new(self.channel.clone());
        self.background.push(tokio::spawn(async move {
            // The host keeps its side open and sends nothing.
            let (hold, requests) = mpsc::channel::<ConnInfo>(1);
            let end = match broker.start_stream(tokio_stream::wrappers::ReceiverStream::new(requests)).await {
                Ok(stream) => drain(stream.into_inner()).await,
                Err(status) => status.to_string(),
            };
            drop(hold);
            ended.senders.ended.send_modify(|all| all.push(format!("StartStream: {end}")));
        }));
    }

    /// Opens the fingerprint and task event streams, as the agent does with the instance that stays.
    pub fn watch(&mut self) {
        let told = self.told.clone();
        let mut driver = self.driver();
        self.background.push(tokio::spawn(async move {
            let end = match driver.fingerprint(FingerprintRequest {}).await {
                Ok(stream) => forward(stream.into_inner(), &told.senders.fingerprints).await,
                Err(status) => status.to_string(),
            };
            told.senders.ended.send_modify(|all| all.push(format!("Fingerprint: {end}")));
        }));
        let told = self.told.clone();
        let mut driver = self.driver();
        self.background.push(tokio::spawn(async move {
            let end = match driver.task_events(TaskEventsRequest {}).await {
                Ok(stream) => forward(stream.into_inner(), &told.senders.events).await,
                Err(status) => status.to_string(),
            };
            told.senders.ended.send_modify(|all| all.push(format!("TaskEvents: {end}")));
        }));
    }

    /// The connection, for clients of one's own.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The service that every Nomad plugin has.
    pub fn base(&self) -> BasePluginClient<Channel> {
        BasePluginClient::new(self.channel())
    }

    /// The task driver. Messages may be as large as Go's client allows.
    pub fn driver(&self) -> DriverClient<Channel> {
        DriverClient::new(self.channel()).max_decoding_message_size(i32::MAX as usize)
    }

    /// go-plugin's controller.
    pub fn controller(&self) -> GrpcControllerClient<Channel> {
        GrpcControllerClient::new(self.channel())
    }

    /// Encodes the plugin block of an agent's configuration with the plugin's own schema.
    pub async fn encode_config(&self, config: &Json) -> Vec<u8> {
        let answer =
            self.base().config_schema(proto::base::ConfigSchemaRequest {}).await.must("ConfigSchema").into_inner();
        hcl::decode(&answer.spec.must("the schema of the plugin block"), config).must("the plugin block")
    }

    /// The names of the plugin block's options.
    pub async fn config_options(&self) -> BTreeSet<String> {
        let answer =
            self.base().config_schema(proto::base::ConfigSchemaRequest {}).await.must("ConfigSchema").into_inner();
        hcl::keys(&answer.spec.must("the schema of the plugin block"))
    }

    /// The schema of a task's configuration, asked for once.
    pub async fn task_schema(&mut self) -> Arc<Spec> {
        if let Some(schema) = &self.schema {
            return Arc::clone(schema);
        }
        let answer =
            self.driver().task_config_schema(proto::driver::TaskConfigSchemaRequest {}).await.must("TaskConfigSchema");
        let schema = Arc::new(answer.into_inner().spec.must("the schema of the task block"));
        self.schema = Some(Arc::clone(&schema));
        schema
    }

    /// SetConfig as an agent sends it: to validate (without the agent's part), or for good.
    pub async fn set_config(&self, msgpack: Vec<u8>, nomad: Option<NomadConfig>) -> Result<(), tonic::Status> {
        let request =
            SetConfigRequest { msgpack_config: msgpack, nomad_config: nomad, plugin_api_version: "v0.1.0".to_owned() };
        self.base().set_config(request).await.map(|_| ())
    }

    /// Asks the process to end as an agent does when it stops. An agent grants two seconds and then kills; how long the disk takes for what is
    /// being synced then is not what is tested.
    pub async fn shutdown(&mut self) -> ExitStatus {
        within(seconds(20), "the answer to Shutdown", self.controller().shutdown(Empty {})).await.must("Shutdown");
        self.background.drain(..).for_each(|task| task.abort());
        self.process.ended(seconds(30)).await
    }

    /// The process's open file descriptors, by what they point to.
    pub fn descriptors(&self) -> Vec<String> {
        let directory =
            std::fs::read_dir(format!("/proc/{}/fd", self.process.pid())).must("list the plugin's descriptors");
        let targets = directory.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.map(|target| target.to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.background.drain(..).for_each(|task| task.abort());
        if std::thread::panicking() {
            let lines = self.process.stderr.so_far();
            let last = lines.len().saturating_sub(60);
            // The test's own output is the one place where its reader looks.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("the plugin's log (last {} lines):\n{}", lines.len() - last, lines[last..].join("\n"));
            }
        }
    }
}

/// What an agent tells a plugin of its node: ports and two cores of 2000 MHz.
pub fn nomad_config() -> NomadConfig {
    let core = |id| ClientTopologyCore { core_id: id, base_speed: 2000, ..Default::default() };
    let topology = ClientTopology { node_ids: vec![0], cores: vec![core(0), core(1)], ..Default::default() };
    NomadConfig {
        driver: Some(NomadDriverConfig { client_max_port: 14512, client_min_port: 14000, topology: Some(topology) }),
    }
}

async fn dial(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).must("the socket as an address");
    within(seconds(10), "a connection", endpoint.connect()).await.must("connect to the plugin")
}

async fn drain<T>(mut stream: tonic::Streaming<T>) -> String {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return "end of stream".to_owned(),
            Err(status) => return status.to_string(),
        }
    }
}

async fn forward<T>(mut stream: tonic::Streaming<T>, to: &watch::Sender<Vec<T>>) -> String {
    loop {
        match stream.message().await {
            Ok(Some(message)) => to.send_modify(|all| all.push(message)),
            Ok(None) => return "end of stream".to_owned(),
            Err(status) => return status.to_string(),
        }
    }
}
