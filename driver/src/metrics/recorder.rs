//! The metrics of the node that count events of this process.
//!
//! All label values that do not come from others exist from the beginning, so that a rate is right from the first event
//! on. Labels that others choose are bounded in number.

use std::time::Duration;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Metric, Registry},
};

use super::{labels::BoundedLabel, spec::MetricSpec};

/// Registries with a label value of their own.
const REGISTRIES: usize = 64;

/// From half a millisecond to 16 s: starts and calls.
const FAST_BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];
/// From ten milliseconds to ten minutes: pulls.
const PULL_BUCKETS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];

const STARTS: MetricSpec = MetricSpec::counter("oci_rs_starts", &["outcome"], "StartTask calls by their outcome");
const START_SECONDS: MetricSpec =
    MetricSpec::histogram("oci_rs_start_seconds", &[], "time of a successful start, from the call to the answer");
const START_PHASE_SECONDS: MetricSpec = MetricSpec::histogram(
    "oci_rs_start_phase_seconds",
    &["phase"],
    "time of one phase of a start, also of one that failed",
);
const PULLS: MetricSpec = MetricSpec::counter(
    "oci_rs_pulls",
    &["registry", "outcome"],
    "images that a start or a debug image needed, by their outcome; cached: nothing was fetched",
);
const PULL_SECONDS: MetricSpec = MetricSpec::histogram(
    "oci_rs_pull_seconds",
    &["registry", "outcome"],
    "time until an image was ready, or until its pull failed",
);
const RPCS: MetricSpec =
    MetricSpec::counter("oci_rs_rpcs", &["method", "code"], "calls of the agent, by their gRPC status code");
const RPC_SECONDS: MetricSpec = MetricSpec::histogram(
    "oci_rs_rpc_seconds",
    &["method"],
    "time until the answer to a call began. WaitTask, which lasts as long as its task, is left out",
);
const DANGLING: MetricSpec =
    MetricSpec::counter("oci_rs_dangling_containers_removed", &[], "removed containers that no task knew");
const PREFETCHES: MetricSpec = MetricSpec::counter(
    "oci_rs_prefetches",
    &["registry", "outcome"],
    "images that were prefetched for jobs, by their outcome; cached: nothing was fetched",
);
const PREFETCH_SKIPS: MetricSpec = MetricSpec::counter(
    "oci_rs_prefetch_skips",
    &["reason"],
    "images of jobs that were left to the starts of their tasks",
);
const PREFETCH_STREAMS: MetricSpec = MetricSpec::counter(
    "oci_rs_prefetch_streams",
    &["outcome"],
    "streams of events of Nomad that were opened and lost",
);
const SPANS: MetricSpec = MetricSpec::counter("oci_rs_spans", &["outcome"], "spans of traces by what became of them");

/// The descriptions of all metrics of this module.
#[cfg(test)]
pub const SPECS: [MetricSpec; 12] = [
    STARTS,
    START_SECONDS,
    START_PHASE_SECONDS,
    PULLS,
    PULL_SECONDS,
    RPCS,
    RPC_SECONDS,
    DANGLING,
    SPANS,
    PREFETCHES,
    PREFETCH_SKIPS,
    PREFETCH_STREAMS,
];

/// The phases of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPhase {
    /// The task block is decoded and the image is made ready.
    Image,
    /// The container is planned.
    Plan,
    /// Host paths are checked, and leftovers of earlier starts are removed.
    Prepare,
    /// Volumes with options are mounted.
    Volumes,
    /// The task's own network is attached.
    Network,
    /// The container is created and its command executed.
    Container,
}

impl StartPhase {
    /// All phases, in their order.
    pub const ALL: [Self; 6] = [Self::Image, Self::Plan, Self::Prepare, Self::Volumes, Self::Network, Self::Container];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Plan => "plan",
            Self::Prepare => "prepare",
            Self::Volumes => "volumes",
            Self::Network => "network",
            Self::Container => "container",
        }
    }
}

/// How a start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartOutcome {
    /// The command runs.
    Started,
    /// The task was stopped before.
    Cancelled,
    /// The job must change, or an image or a volume is not available.
    Failed,
    /// The node failed.
    NodeFailed,
}

impl StartOutcome {
    const ALL: [Self; 4] = [Self::Started, Self::Cancelled, Self::Failed, Self::NodeFailed];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::NodeFailed => "node_failed",
        }
    }
}

type Labels<const N: usize> = [(&'static str, String); N];
type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

fn add(registry: &mut Registry, spec: MetricSpec, metric: impl Metric) {
    registry.register(spec.name, spec.help, metric);
}

/// Counts the events of this process.
#[derive(Debug)]
pub struct Recorder {
    registry: Registry,
    registries: BoundedLabel,
    starts: Family<Labels<1>, Counter>,
    start_seconds: Histogram,
    phase_seconds: Histograms<1>,
    pulls: Family<Labels<2>, Counter>,
    pull_seconds: Histograms<2>,
    rpcs: Family<Labels<2>, Counter>,
    rpc_seconds: Histograms<1>,
    dangling: Counter,
    spans: Family<Labels<1>, Counter>,
    prefetches: Family<Labels<2>, Counter>,
    prefetch_skips: Family<Labels<1>, Counter>,
    prefetch_streams: Family<Labels<1>, Counter>,
}

impl Default for Recorder {
    fn default() -> Self {
        let fast: fn() -> Histogram = || Histogram::new(FAST_BUCKETS);
        let slow: fn() -> Histogram = || Histogram::new(PULL_BUCKETS);
        let mut recorder = Self {
            registry: Registry::default(),
            registries: BoundedLabel::new(REGISTRIES),
            starts: Family::default(),
            start_seconds: fast(),
            phase_seconds: Family::new_with_constructor(fast),
            pulls: Family::default(),
            pull_seconds: Family::new_with_constructor(slow),
            rpcs: Family::default(),
            rpc_seconds: Family::new_with_constructor(fast),
            dangling: Counter::default(),
            spans: Family::default(),
            prefetches: Family::default(),
            prefetch_skips: Family::default(),
            prefetch_streams: Family::default(),
        };
        recorder.register();
        recorder
    }
}

impl Recorder {
    fn register(&mut self) {
        let registry = &mut self.registry;
        add(registry, STARTS, self.starts.clone());
        add(registry, START_SECONDS, self.start_seconds.clone());
        add(registry, START_PHASE_SECONDS, self.phase_seconds.clone());
        add(registry, PULLS, self.pulls.clone());
        add(registry, PULL_SECONDS, self.pull_seconds.clone());
        add(registry, RPCS, self.rpcs.clone());
        add(registry, RPC_SECONDS, self.rpc_seconds.clone());
        add(registry, DANGLING, self.dangling.clone());
        add(registry, SPANS, self.spans.clone());
        add(registry, PREFETCHES, self.prefetches.clone());
        add(registry, PREFETCH_SKIPS, self.prefetch_skips.clone());
        add(registry, PREFETCH_STREAMS, self.prefetch_streams.clone());
        for outcome in StartOutcome::ALL {
            drop(self.starts.get_or_create(&[("outcome", outcome.name().to_owned())]));
        }
        for phase in StartPhase::ALL {
            drop(self.phase_seconds.get_or_create(&[("phase", phase.name().to_owned())]));
        }
        for outcome in ["opened", "lost"] {
            drop(self.prefetch_streams.get_or_create(&[("outcome", outcome.to_owned())]));
        }
        for outcome in ["sent", "dropped"] {
            drop(self.spans.get_or_create(&[("outcome", outcome.to_owned())]));
        }
    }

    /// The metrics for a scrape.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The label value of a registry.
    pub fn registry_label(&self, registry: &str) -> String {
        self.registries.value(registry)
    }

    /// Counts a start and its phases.
    pub fn start(&self, outcome: StartOutcome, elapsed: Duration, phases: &[(StartPhase, Duration)]) {
        self.starts.get_or_create(&[("outcome", outcome.name().to_owned())]).inc();
        if outcome == StartOutcome::Started {
            self.start_seconds.observe(elapsed.as_secs_f64());
        }
        for (phase, elapsed) in phases {
            let labels = [("phase", phase.name().to_owned())];
            self.phase_seconds.get_or_create(&labels).observe(elapsed.as_secs_f64());
        }
    }

    /// Counts a pull.
    pub fn pull(&self, registry: &str, outcome: &'static str, elapsed: Duration) {
        let labels = [("registry", self.registry_label(registry)), ("outcome", outcome.to_owned())];
        self.pulls.get_or_create(&labels).inc();
        self.pull_seconds.get_or_create(&labels).observe(elapsed.as_secs_f64());
    }

    /// Counts a call of the agent. `elapsed` is `None` for a call that waits for its task.
    pub fn rpc(&self, method: &'static str, code: &'static str, elapsed: Option<Duration>) {
        self.rpcs.get_or_create(&[("method", method.to_owned()), ("code", code.to_owned())]).inc();
        if let Some(elapsed) = elapsed {
            self.rpc_seconds.get_or_create(&[("method", method.to_owned())]).observe(elapsed.as_secs_f64());
        }
    }

    /// Counts a removed container that no task knew.
    pub fn dangling_removed(&self) {
        self.dangling.inc();
    }

    /// Counts a prefetched image.
    pub fn prefetch(&self, registry: &str, outcome: &'static str) {
        let labels = [("registry", self.registry_label(registry)), ("outcome", outcome.to_owned())];
        self.prefetches.get_or_create(&labels).inc();
    }

    /// Counts images that are left to the starts of their tasks.
    pub fn prefetch_skipped(&self, reason: &'static str, number: u64) {
        self.prefetch_skips.get_or_create(&[("reason", reason.to_owned())]).inc_by(number);
    }

    /// Counts a stream of events: opened, or lost.
    pub fn prefetch_stream(&self, outcome: &'static str) {
        self.prefetch_streams.get_or_create(&[("outcome", outcome.to_owned())]).inc();
    }

    /// Counts spans of traces: sent to the collector, or dropped.
    pub fn spans(&self, outcome: &'static str, number: u64) {
        self.spans.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(number);
    }
}
