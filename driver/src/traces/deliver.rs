//! The queue of traces, and the requests to the collector.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Client, header, redirect::Policy};
use tokio::sync::mpsc;

use super::{
    otlp,
    span::{Attribute, Trace},
};
use crate::{config::TraceOptions, error::with_causes, metrics::Recorder};

/// Traces that wait to be sent. A start makes one.
const QUEUE: usize = 512;
/// Traces in one request.
const BATCH: usize = 64;
/// The time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failed request. Traces wait in the queue meanwhile.
const PAUSE: Duration = Duration::from_secs(5);

/// Takes traces, and never waits.
pub struct Tracer {
    options: TraceOptions,
    sender: mpsc::Sender<Trace>,
    queue: Mutex<Option<mpsc::Receiver<Trace>>>,
}

impl Tracer {
    /// A tracer whose traces wait until [`deliver`] runs.
    pub fn new(options: TraceOptions) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        Self { options, sender, queue: Mutex::new(Some(queue)) }
    }

    /// Puts a trace into the queue. If the queue is full, the trace is dropped.
    pub fn send(&self, trace: Trace, recorder: Option<&Recorder>) {
        let spans = trace.spans.len();
        if self.sender.try_send(trace).is_err() {
            count(recorder, "dropped", spans);
        }
    }
}

fn count(recorder: Option<&Recorder>, outcome: &'static str, spans: usize) {
    if let Some(recorder) = recorder {
        recorder.spans(outcome, spans as u64);
    }
}

/// Sends the traces of the queue, for ever. Only the first call has an effect. A collector that cannot be reached is
/// one line in the log, and another one when it is back.
pub async fn deliver(tracer: &Tracer, resource: &[Attribute], recorder: Option<&Recorder>) {
    let queue = tracer.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut queue) = queue else { return };
    let endpoint = &tracer.options.endpoint;
    let client = match client(&tracer.options) {
        Ok(client) => client,
        Err(error) => {
            tracing::warn!(endpoint, %error, "traces are not sent (traces.endpoint)");
            return;
        }
    };
    let mut reachable = true;
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let spans = batch.iter().map(|trace| trace.spans.len()).sum();
        let sent = post(&client, endpoint, otlp::encode(resource, &batch)).await;
        batch.clear();
        count(recorder, if sent.is_ok() { "sent" } else { "dropped" }, spans);
        match &sent {
            Ok(()) if !reachable => tracing::info!(endpoint, "traces are sent again"),
            Err(error) if reachable => {
                tracing::warn!(
                    endpoint,
                    error,
                    "traces are dropped: the collector does not take them (traces.endpoint)"
                );
            }
            _ => {}
        }
        reachable = sent.is_ok();
        if !reachable {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn client(options: &TraceOptions) -> Result<Client, String> {
    let mut headers = header::HeaderMap::new();
    for (name, value) in &options.headers {
        let known: header::HeaderName =
            name.parse().map_err(|_| format!("header {name:?}: that is no header's name"))?;
        let text = value.expose().parse::<header::HeaderValue>();
        let mut value = text.map_err(|_| format!("header {name:?}: its value cannot be sent"))?;
        value.set_sensitive(true);
        headers.append(known, value);
    }
    let builder = Client::builder().timeout(TIMEOUT).redirect(Policy::none()).default_headers(headers);
    builder.build().map_err(|error| error.to_string())
}

async fn post(client: &Client, endpoint: &str, body: Vec<u8>) -> Result<(), String> {
    let request = client.post(endpoint).header(header::CONTENT_TYPE, "application/json").body(body);
    let answer = request.send().await.map_err(|error| with_causes(&error.without_url()))?;
    let status = answer.status();
    if status.is_success() { Ok(()) } else { Err(format!("HTTP status {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_traces_and_does_not_wait() {
        let tracer = Tracer::new(TraceOptions { endpoint: "http://127.0.0.1:9/".into(), headers: Vec::new() });
        let trace = Trace { id: 1, spans: Vec::new() };
        (0..QUEUE + 10).for_each(|_| tracer.send(trace.clone(), None));
        let mut queue = tracer.queue.lock().unwrap().take().unwrap();
        assert_eq!(std::iter::from_fn(|| queue.try_recv().ok()).count(), QUEUE);
    }
}
