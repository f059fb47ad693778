//! The metrics of each task, from one reading of its container.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder},
};
use runtime::{NetworkUsage, Pressure, Usage};

use super::{
    labels::TaskLabels,
    spec::{MetricSpec, Value, seconds},
};

/// One reading of a task.
#[derive(Debug, Clone)]
pub struct TaskSample {
    /// The task's labels.
    pub labels: Arc<TaskLabels>,
    /// The image as the job names it, and the digest of its manifest.
    pub image: Arc<(String, String)>,
    /// Seconds since 1970 at which the command was executed.
    pub started_at: Option<f64>,
    /// The container's cgroups. `None` for a task that has ended.
    pub usage: Option<Usage>,
    /// The container's network, with its own labels: those of a group's network name no task. `None` on the host's
    /// network, without interfaces, and where another task's sample has the group's network already.
    pub network: Option<(Arc<TaskLabels>, NetworkUsage)>,
    /// The writable layer, once it was measured.
    pub layer: Option<LayerSample>,
    /// The limit of the writable layer in bytes.
    pub layer_limit: Option<u64>,
    /// Further starts of the same task of the allocation, since this plugin process began.
    pub restarts: u64,
    /// Commands that were executed in the task.
    pub execs: u64,
    /// Commands that run in the task now.
    pub execs_running: u64,
}

/// The measured size of a writable layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSample {
    /// Bytes on disk.
    pub bytes: u64,
    /// Seconds since 1970 at which it was measured.
    pub measured_at: f64,
}

/// A metric with one sample per task.
struct TaskMetric {
    spec: MetricSpec,
    value: fn(&TaskSample) -> Option<Value>,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&TaskSample) -> Option<Value>) -> TaskMetric {
    TaskMetric { spec: MetricSpec::counter(name, &[], help), value }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&TaskSample) -> Option<Value>) -> TaskMetric {
    TaskMetric { spec: MetricSpec::gauge(name, &[], help), value }
}

fn usage(task: &TaskSample, value: fn(&Usage) -> u64) -> Option<Value> {
    task.usage.as_ref().map(|usage| Value::Int(value(usage)))
}

fn nanoseconds(task: &TaskSample, value: fn(&Usage) -> u64) -> Option<Value> {
    task.usage.as_ref().map(|usage| seconds(value(usage)))
}

fn measured(task: &TaskSample, value: fn(&Usage) -> Option<u64>) -> Option<Value> {
    task.usage.as_ref().and_then(value).map(Value::Int)
}

fn network(task: &TaskSample, value: fn(&NetworkUsage) -> u64) -> Option<Value> {
    task.network.as_ref().map(|(_, usage)| Value::Int(value(usage)))
}

fn pressure(task: &TaskSample, microseconds: fn(&Pressure) -> u64) -> Option<Value> {
    let pressure = task.usage.as_ref()?.pressure.as_ref()?;
    Some(seconds(microseconds(pressure).saturating_mul(1000)))
}

/// The metrics with the task's labels.
const TASK: &[TaskMetric] = &[
    gauge("oci_rs_task_start_time_seconds", "when the command was executed, in seconds since 1970", |task| {
        task.started_at.map(Value::Float)
    }),
    counter(
        "oci_rs_task_restarts",
        "further starts of the task in the same allocation, since this plugin process began",
        |task| Some(Value::Int(task.restarts)),
    ),
    counter("oci_rs_task_execs", "commands of exec and of script checks that were executed in the task", |task| {
        Some(Value::Int(task.execs))
    }),
    gauge("oci_rs_task_execs_running", "commands of exec and of script checks that run in the task now", |task| {
        Some(Value::Int(task.execs_running))
    }),
    counter("oci_rs_task_cpu_seconds", "CPU time in user and kernel mode", |task| {
        nanoseconds(task, |usage| usage.stats.cpu.total_ns)
    }),
    counter("oci_rs_task_cpu_user_seconds", "CPU time in user mode", |task| {
        nanoseconds(task, |usage| usage.stats.cpu.user_ns)
    }),
    counter("oci_rs_task_cpu_system_seconds", "CPU time in kernel mode", |task| {
        nanoseconds(task, |usage| usage.stats.cpu.system_ns)
    }),
    counter("oci_rs_task_cpu_throttled_periods", "periods in which the CPU quota throttled the task", |task| {
        usage(task, |usage| usage.stats.cpu.throttled_periods)
    }),
    counter("oci_rs_task_cpu_throttled_seconds", "time for which the CPU quota throttled the task", |task| {
        nanoseconds(task, |usage| usage.stats.cpu.throttled_ns)
    }),
    gauge("oci_rs_task_memory_usage_bytes", "memory that counts towards the limit", |task| {
        usage(task, |usage| usage.stats.memory.usage)
    }),
    gauge("oci_rs_task_memory_anon_bytes", "anonymous memory", |task| usage(task, |usage| usage.stats.memory.rss)),
    gauge("oci_rs_task_memory_cache_bytes", "page cache", |task| usage(task, |usage| usage.stats.memory.cache)),
    gauge("oci_rs_task_memory_swap_bytes", "memory in swap", |task| usage(task, |usage| usage.stats.memory.swap)),
    gauge("oci_rs_task_memory_kernel_bytes", "kernel memory of the task (cgroup v2)", |task| {
        measured(task, |usage| usage.stats.memory.kernel)
    }),
    gauge("oci_rs_task_memory_peak_bytes", "highest memory usage so far (cgroup v1, and Linux 5.19)", |task| {
        measured(task, |usage| usage.stats.memory.max_usage)
    }),
    gauge("oci_rs_task_memory_limit_bytes", "hard limit of memory; missing without a limit", |task| {
        measured(task, |usage| usage.stats.memory.limit)
    }),
    counter("oci_rs_task_oom_kills", "processes that the kernel killed for lack of memory", |task| {
        usage(task, |usage| usage.stats.oom_kills)
    }),
    gauge("oci_rs_task_pids", "processes and threads", |task| usage(task, |usage| usage.stats.pids)),
    counter("oci_rs_task_block_read_bytes", "bytes read from block devices", |task| {
        usage(task, |usage| usage.block.read_bytes)
    }),
    counter("oci_rs_task_block_written_bytes", "bytes written to block devices", |task| {
        usage(task, |usage| usage.block.written_bytes)
    }),
    counter("oci_rs_task_block_reads", "read requests to block devices", |task| usage(task, |usage| usage.block.reads)),
    counter("oci_rs_task_block_writes", "write requests to block devices", |task| {
        usage(task, |usage| usage.block.writes)
    }),
    counter("oci_rs_task_pressure_cpu_waiting_seconds", "time in which some thread waited for the CPU (v2)", |task| {
        pressure(task, |pressure| pressure.cpu.some_us)
    }),
    counter(
        "oci_rs_task_pressure_memory_waiting_seconds",
        "time in which some thread waited for memory (v2)",
        |task| pressure(task, |pressure| pressure.memory.some_us),
    ),
    counter(
        "oci_rs_task_pressure_memory_stalled_seconds",
        "time in which all threads waited for memory (v2)",
        |task| pressure(task, |pressure| pressure.memory.full_us),
    ),
    counter(
        "oci_rs_task_pressure_io_waiting_seconds",
        "time in which some thread waited for block devices (v2)",
        |task| pressure(task, |pressure| pressure.io.some_us),
    ),
    counter(
        "oci_rs_task_pressure_io_stalled_seconds",
        "time in which all threads waited for block devices (v2)",
        |task| pressure(task, |pressure| pressure.io.full_us),
    ),
    gauge("oci_rs_task_writable_layer_bytes", "disk space of the writable layer, when it was last measured", |task| {
        task.layer.map(|layer| Value::Int(layer.bytes))
    }),
    gauge("oci_rs_task_writable_layer_limit_bytes", "limit of the writable layer; missing without a limit", |task| {
        task.layer_limit.map(Value::Int)
    }),
    gauge(
        "oci_rs_task_writable_layer_measured_seconds",
        "when the writable layer was last measured, in seconds since 1970",
        |task| task.layer.map(|layer| Value::Float(layer.measured_at)),
    ),
];

/// The metrics with the labels of the network: `task` is empty for the network of a group.
const NETWORK: &[TaskMetric] = &[
    counter("oci_rs_task_network_receive_bytes", "bytes received by the network of the task or group", |task| {
        network(task, |usage| usage.received.bytes)
    }),
    counter("oci_rs_task_network_receive_packets", "packets received", |task| {
        network(task, |usage| usage.received.packets)
    }),
    counter("oci_rs_task_network_receive_errors", "received packets with an error", |task| {
        network(task, |usage| usage.received.errors)
    }),
    counter("oci_rs_task_network_receive_dropped", "received packets that were dropped", |task| {
        network(task, |usage| usage.received.dropped)
    }),
    counter("oci_rs_task_network_transmit_bytes", "bytes sent by the network of the task or group", |task| {
        network(task, |usage| usage.sent.bytes)
    }),
    counter("oci_rs_task_network_transmit_packets", "packets sent", |task| network(task, |usage| usage.sent.packets)),
    counter("oci_rs_task_network_transmit_errors", "packets that could not be sent", |task| {
        network(task, |usage| usage.sent.errors)
    }),
    counter("oci_rs_task_network_transmit_dropped", "packets that were dropped before they were sent", |task| {
        network(task, |usage| usage.sent.dropped)
    }),
];

/// The image of each task.
const INFO: MetricSpec =
    MetricSpec::gauge("oci_rs_task_info", &["image", "digest"], "1 for each task, with its image and manifest digest");

/// The descriptions of all metrics of tasks.
#[cfg(test)]
pub fn specs() -> impl Iterator<Item = MetricSpec> {
    std::iter::once(INFO).chain(TASK.iter().chain(NETWORK).map(|metric| metric.spec))
}

/// The samples of all tasks, for one scrape.
#[derive(Debug)]
pub struct Tasks(pub Vec<TaskSample>);

impl Collector for Tasks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut family = INFO.header(&mut encoder)?;
        for task in &self.0 {
            INFO.sample(family.encode_family(&InfoLabels(task))?, Value::Int(1))?;
        }
        for metric in TASK {
            let mut family = metric.spec.header(&mut encoder)?;
            for task in &self.0 {
                if let Some(value) = (metric.value)(task) {
                    metric.spec.sample(family.encode_family(&*task.labels)?, value)?;
                }
            }
        }
        for metric in NETWORK {
            let mut family = metric.spec.header(&mut encoder)?;
            for task in &self.0 {
                if let (Some((labels, _)), Some(value)) = (&task.network, (metric.value)(task)) {
                    metric.spec.sample(family.encode_family(&**labels)?, value)?;
                }
            }
        }
        Ok(())
    }
}

struct InfoLabels<'a>(&'a TaskSample);

impl EncodeLabelSet for InfoLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Self(task) = self;
        let (image, digest) = &*task.image;
        task.labels.encode(encoder)?;
        [("image", image.as_str()), ("digest", digest.as_str())].encode(encoder)
    }
}
