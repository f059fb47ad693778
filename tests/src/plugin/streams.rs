//! The gRPC streams that stay open beside all calls: fingerprints, task events, and go-plugin's own streams.

use std::sync::Arc;

use fixtures::{
    must::Must,
    wait::{seconds, within},
};
use proto::driver::{DriverTaskEvent, FingerprintResponse};
use tokio::sync::watch;

/// The messages of the streams that stay open for the life of the connection.
#[derive(Debug, Clone)]
pub struct HostStreams {
    fingerprints: watch::Receiver<Vec<FingerprintResponse>>,
    events: watch::Receiver<Vec<DriverTaskEvent>>,
    ended: watch::Receiver<Vec<String>>,
    pub(super) senders: Arc<Senders>,
}

#[derive(Debug)]
pub(super) struct Senders {
    pub(super) fingerprints: watch::Sender<Vec<FingerprintResponse>>,
    pub(super) events: watch::Sender<Vec<DriverTaskEvent>>,
    pub(super) ended: watch::Sender<Vec<String>>,
}

impl HostStreams {
    pub(super) fn new() -> Self {
        let (fingerprints, f) = watch::channel(Vec::new());
        let (events, e) = watch::channel(Vec::new());
        let (ended, x) = watch::channel(Vec::new());
        Self { fingerprints: f, events: e, ended: x, senders: Arc::new(Senders { fingerprints, events, ended }) }
    }

    /// The fingerprints so far.
    pub fn fingerprints(&self) -> Vec<FingerprintResponse> {
        self.fingerprints.borrow().clone()
    }

    /// The task events so far.
    pub fn events(&self) -> Vec<DriverTaskEvent> {
        self.events.borrow().clone()
    }

    /// The streams that have ended although they must stay open for the life of the plugin.
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

/// Reads a stream to its end and drops the messages. Returns the reason of the end.
pub(super) async fn drain<T>(mut stream: tonic::Streaming<T>) -> String {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return "end of stream".to_owned(),
            Err(status) => return status.to_string(),
        }
    }
}

/// Appends each message of a stream to a list. Returns the reason of the end.
pub(super) async fn forward<T>(mut stream: tonic::Streaming<T>, to: &watch::Sender<Vec<T>>) -> String {
    loop {
        match stream.message().await {
            Ok(Some(message)) => to.send_modify(|all| all.push(message)),
            Ok(None) => return "end of stream".to_owned(),
            Err(status) => return status.to_string(),
        }
    }
}
