//! A connection to a running plugin: configuration, schemas, clients of the services, shutdown.

use std::{collections::BTreeSet, path::Path, process::ExitStatus, sync::Arc};

use fixtures::{
    must::Must,
    wait::{seconds, within},
};
use proto::{
    base::{
        ClientTopology, ClientTopologyCore, NomadConfig, NomadDriverConfig, SetConfigRequest,
        base_plugin_client::BasePluginClient,
    },
    driver::{FingerprintRequest, TaskEventsRequest, driver_client::DriverClient},
    go_plugin::{
        ConnInfo, Empty, grpc_broker_client::GrpcBrokerClient, grpc_controller_client::GrpcControllerClient,
        grpc_stdio_client::GrpcStdioClient,
    },
    hclspec::Spec,
};
use serde_json::Value as Json;
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::transport::{Channel, Endpoint};

use super::{
    handshake::Handshake,
    process::Process,
    streams::{HostStreams, drain, forward},
};
use crate::hcl;

/// A running plugin and the connection to it.
#[derive(Debug)]
pub struct Plugin {
    /// The process.
    pub process: Process,
    /// Its handshake.
    pub handshake: Handshake,
    /// The messages of the streams that stay open.
    pub streams: HostStreams,
    channel: Channel,
    background: Vec<JoinHandle<()>>,
    schema: Option<Arc<Spec>>,
}

impl Plugin {
    /// Reads the handshake and opens the connection with the two streams that a host always opens.
    pub async fn connect(process: Process) -> Self {
        let line = process.stdout.find(seconds(10), "the handshake", |_| true).await;
        let handshake = Handshake::parse(&line).must("the handshake");
        let channel = dial(&handshake.socket).await;
        let mut plugin =
            Self { process, handshake, streams: HostStreams::new(), channel, background: Vec::new(), schema: None };
        plugin.open_host_streams();
        plugin
    }

    /// Closes the connection as a dying agent does and connects as the next agent does: a probe without data, then a
    /// new channel.
    pub async fn reattach(&mut self) {
        self.background.drain(..).for_each(|task| task.abort());
        self.streams = HostStreams::new();
        drop(tokio::net::UnixStream::connect(&self.handshake.socket).await.must("probe the plugin's socket"));
        self.channel = dial(&self.handshake.socket).await;
        self.open_host_streams();
        self.base().plugin_info(proto::base::PluginInfoRequest {}).await.must("PluginInfo");
        self.watch();
    }

    fn open_host_streams(&mut self) {
        let ended = self.streams.clone();
        let mut stdio = GrpcStdioClient::new(self.channel.clone());
        self.background.push(tokio::spawn(async move {
            let end = match stdio.stream_stdio(()).await {
                Ok(stream) => drain(stream.into_inner()).await,
                Err(status) => status.to_string(),
            };
            ended.senders.ended.send_modify(|all| all.push(format!("StreamStdio: {end}")));
        }));
        let ended = self.streams.clone();
        let mut broker = GrpcBrokerClient::new(self.channel.clone());
        self.background.push(tokio::spawn(async move {
            // The host keeps its side open without sending anything.
            let (hold, requests) = mpsc::channel::<ConnInfo>(1);
            let end = match broker.start_stream(tokio_stream::wrappers::ReceiverStream::new(requests)).await {
                Ok(stream) => drain(stream.into_inner()).await,
                Err(status) => status.to_string(),
            };
            drop(hold);
            ended.senders.ended.send_modify(|all| all.push(format!("StartStream: {end}")));
        }));
    }

    /// Opens the streams of fingerprints and task events. The agent opens them for the instance that it keeps.
    pub fn watch(&mut self) {
        let streams = self.streams.clone();
        let mut driver = self.driver();
        self.background.push(tokio::spawn(async move {
            let end = match driver.fingerprint(FingerprintRequest {}).await {
                Ok(stream) => forward(stream.into_inner(), &streams.senders.fingerprints).await,
                Err(status) => status.to_string(),
            };
            streams.senders.ended.send_modify(|all| all.push(format!("Fingerprint: {end}")));
        }));
        let streams = self.streams.clone();
        let mut driver = self.driver();
        self.background.push(tokio::spawn(async move {
            let end = match driver.task_events(TaskEventsRequest {}).await {
                Ok(stream) => forward(stream.into_inner(), &streams.senders.events).await,
                Err(status) => status.to_string(),
            };
            streams.senders.ended.send_modify(|all| all.push(format!("TaskEvents: {end}")));
        }));
    }

    /// The connection, for another client.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The client of the base service, which every Nomad plugin has.
    pub fn base(&self) -> BasePluginClient<Channel> {
        BasePluginClient::new(self.channel())
    }

    /// The client of the task driver.
    pub fn driver(&self) -> DriverClient<Channel> {
        Self::driver_of(self.channel())
    }

    /// The driver service by a connection of its own, for streams that are not read. What is not read fills the window
    /// of its connection (RFC 9113, section 5.2), and then all answers by that connection wait.
    pub async fn driver_of_another_connection(&self) -> DriverClient<Channel> {
        Self::driver_of(dial(&self.handshake.socket).await)
    }

    /// Its limit for messages is that of Go's client.
    fn driver_of(channel: Channel) -> DriverClient<Channel> {
        DriverClient::new(channel).max_decoding_message_size(i32::MAX as usize)
    }

    /// The client of go-plugin's controller.
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

    /// The schema of a task's configuration. The plugin is asked only once.
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

    /// SetConfig as an agent sends it: without the agent's part to validate the configuration, with it to apply it.
    pub async fn set_config(&self, msgpack: Vec<u8>, nomad: Option<NomadConfig>) -> Result<(), tonic::Status> {
        let request =
            SetConfigRequest { msgpack_config: msgpack, nomad_config: nomad, plugin_api_version: "v0.1.0".to_owned() };
        self.base().set_config(request).await.map(|_| ())
    }

    /// Ends the process as a stopping agent does. An agent kills the process after two seconds. The limit here is
    /// longer, because a slow disk may delay the plugin's last sync.
    pub async fn shutdown(&mut self) -> ExitStatus {
        within(seconds(20), "the answer to Shutdown", self.controller().shutdown(Empty {})).await.must("Shutdown");
        self.background.drain(..).for_each(|task| task.abort());
        self.process.ended(seconds(30)).await
    }

    /// The targets of the process's open file descriptors.
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
            // The reader of a failed test looks only at the test's output.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("the plugin's log (last {} lines):\n{}", lines.len() - last, lines[last..].join("\n"));
            }
        }
    }
}

/// The agent's part of the configuration: ports, and a node with two cores of 2000 MHz.
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
