//! One scrape: reads the tasks and the node, and renders the text.
//!
//! Scrapes at the same time, and within a second, share one reading: the costs have a bound.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::body::Bytes;
use image_store::HostTraffic;

use super::{
    process,
    sizes::Sizes,
    tasks::{KnownTasks, sample},
};
use crate::{
    blocking::blocking,
    error::TaskError,
    logs,
    metrics::{self, NodeSample, Recorder, TaskSample},
    node::Node,
    task::{Phase, TaskRef, Tasks},
};

/// A reading is used for this time.
const LIFETIME: Duration = Duration::from_secs(1);

/// The formats of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The format 0.0.4 of Prometheus.
    Classic,
}

impl Format {
    /// The media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Reads the metrics.
pub struct Scraper {
    node: Arc<Node>,
    tasks: Tasks,
    sizes: Arc<Sizes>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    known: KnownTasks,
    last: Option<(Instant, Texts)>,
}

#[derive(Clone)]
struct Texts {
    openmetrics: Bytes,
    classic: Option<Bytes>,
}

impl Scraper {
    /// Reads these tasks and this node.
    pub fn new(node: Arc<Node>, tasks: Tasks) -> Self {
        Self { node, tasks, sizes: Arc::default(), state: tokio::sync::Mutex::default() }
    }

    /// The text of a scrape.
    pub async fn scrape(self: &Arc<Self>, format: Format) -> Result<Bytes, TaskError> {
        let mut state = self.state.lock().await;
        let known = state.last.take().filter(|(read_at, _)| read_at.elapsed() < LIFETIME);
        let (read_at, mut texts) = match known {
            Some(known) => known,
            None => (Instant::now(), self.read(&mut state.known).await?),
        };
        let text = match (format, texts.classic.clone()) {
            (Format::OpenMetrics, _) => texts.openmetrics.clone(),
            (Format::Classic, Some(classic)) => classic,
            (Format::Classic, None) => {
                let openmetrics = texts.openmetrics.clone();
                let classic = blocking(move || Ok(Bytes::from(classic(&openmetrics)))).await?;
                texts.classic.insert(classic).clone()
            }
        };
        state.last = Some((read_at, texts));
        Ok(text)
    }

    async fn read(&self, known: &mut KnownTasks) -> Result<Texts, TaskError> {
        let (node, tasks, sizes) = (self.node.clone(), self.tasks.list(), self.sizes.clone());
        // If the reading fails, the next one finds the tasks again.
        let before = std::mem::take(known);
        let (texts, after) = blocking(move || read(&node, &tasks, &sizes, before)).await?;
        *known = after;
        self.sizes.measure_soon(&self.node, &self.tasks);
        Ok(texts)
    }
}

fn classic(openmetrics: &[u8]) -> String {
    metrics::classic(&String::from_utf8_lossy(openmetrics))
}

/// Reads everything and renders it. Blocks.
fn read(
    node: &Arc<Node>,
    tasks: &[TaskRef],
    sizes: &Sizes,
    known: KnownTasks,
) -> Result<(Texts, KnownTasks), TaskError> {
    let began = Instant::now();
    let Some(recorder) = node.recorder() else { return Err(TaskError::internal("metrics are not configured")) };
    let (samples, known) = sample(node, tasks, sizes, known)?;
    let node =
        NodeSample { scrape_seconds: began.elapsed().as_secs_f64(), ..node_sample(node, recorder, tasks, sizes) };
    let text = render(recorder, node, samples)?;
    Ok((Texts { openmetrics: text.into(), classic: None }, known))
}

fn render(recorder: &Recorder, node: NodeSample, samples: Vec<TaskSample>) -> Result<String, TaskError> {
    metrics::openmetrics(recorder, node, samples).map_err(TaskError::internal)
}

fn node_sample(node: &Node, recorder: &Recorder, tasks: &[TaskRef], sizes: &Sizes) -> NodeSample {
    let mut states = [0; 3];
    for task in tasks {
        let view = task.view();
        let state = match view.phase {
            _ if view.exit.is_some() => 2,
            Phase::Starting { .. } => 0,
            _ => 1,
        };
        states[state] += 1;
    }
    NodeSample {
        version: env!("CARGO_PKG_VERSION"),
        healthy: node.is_healthy(),
        tasks: states,
        store: sizes.store(),
        disk: node.store.disk_size().ok(),
        traffic: bounded(recorder, node.store.traffic()),
        removals: node.store.removals().to_vec(),
        lost_bytes: logs::lost_bytes(),
        undelivered_lines: logs::undelivered_lines(),
        process: process::read(),
        scrape_seconds: 0.0,
    }
}

/// The traffic by the registries' label values. Registries beyond the bound are added up.
fn bounded(recorder: &Recorder, traffic: Vec<(String, HostTraffic)>) -> Vec<(String, HostTraffic)> {
    let mut sums: Vec<(String, HostTraffic)> = Vec::new();
    for (host, more) in traffic {
        let label = recorder.registry_label(&host);
        match sums.iter_mut().find(|(known, _)| *known == label) {
            Some((_, sum)) => {
                sum.requests += more.requests;
                sum.retries += more.retries;
                sum.bytes += more.bytes;
            }
            None => sums.push((label, more)),
        }
    }
    sums
}
