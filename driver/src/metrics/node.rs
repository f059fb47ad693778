//! The metrics of the node that are read at a scrape.

use image_store::{DiskSize, HostTraffic, RemovalCause, Removals, StoreSize};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::spec::{Kind, MetricSpec, Value};

/// One reading of the node.
#[derive(Debug, Clone, Default)]
pub struct NodeSample {
    /// The version of the driver.
    pub version: &'static str,
    /// Whether the last fingerprint was healthy.
    pub healthy: bool,
    /// Tasks that start, run, and have ended.
    pub tasks: [u64; 3],
    /// The image store, once it was measured.
    pub store: Option<StoreSize>,
    /// The file system of the image store; `None` if the kernel does not tell.
    pub disk: Option<DiskSize>,
    /// The traffic with each registry, by its label value.
    pub traffic: Vec<(String, HostTraffic)>,
    /// Removed images by their cause.
    pub removals: Vec<(RemovalCause, Removals)>,
    /// Lost output of tasks in bytes: standard output, standard error.
    pub lost_bytes: [u64; 2],
    /// Lines of output that no log server received.
    pub undelivered_lines: u64,
    /// This process.
    pub process: ProcessSample,
    /// The time that the reading took.
    pub scrape_seconds: f64,
}

/// One reading of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessSample {
    /// CPU time in seconds.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub open_files: u64,
    /// The limit of descriptors.
    pub max_files: u64,
    /// Seconds since 1970 at which the process began.
    pub started_at: f64,
}

/// The samples of one metric: the values of its labels, and the value.
type Samples = Vec<(Vec<String>, Value)>;

struct NodeMetric {
    spec: MetricSpec,
    samples: fn(&NodeSample) -> Samples,
}

fn one(value: Value) -> Samples {
    vec![(Vec::new(), value)]
}

fn labelled<'a>(samples: impl IntoIterator<Item = (&'a str, u64)>) -> Samples {
    samples.into_iter().map(|(label, value)| (vec![label.to_owned()], Value::Int(value))).collect()
}

fn traffic(node: &NodeSample, value: fn(&HostTraffic) -> u64) -> Samples {
    labelled(node.traffic.iter().map(|(registry, traffic)| (registry.as_str(), value(traffic))))
}

fn disk(node: &NodeSample, value: fn(&DiskSize) -> u64) -> Samples {
    node.disk.as_ref().map(|disk| one(Value::Int(value(disk)))).unwrap_or_default()
}

fn store(node: &NodeSample, value: fn(&StoreSize) -> u64) -> Samples {
    node.store.as_ref().map(|size| one(Value::Int(value(size)))).unwrap_or_default()
}

fn removals(node: &NodeSample, value: fn(&Removals) -> u64) -> Samples {
    labelled(node.removals.iter().map(|(cause, removals)| (cause_name(*cause), value(removals))))
}

fn cause_name(cause: RemovalCause) -> &'static str {
    match cause {
        RemovalCause::Unused => "unused",
        RemovalCause::Bytes => "disk_bytes",
        RemovalCause::Inodes => "disk_inodes",
        RemovalCause::Pull => "pull",
    }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    samples: fn(&NodeSample) -> Samples,
) -> NodeMetric {
    NodeMetric { spec: MetricSpec { name, kind: Kind::Counter, labels, help }, samples }
}

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    samples: fn(&NodeSample) -> Samples,
) -> NodeMetric {
    NodeMetric { spec: MetricSpec { name, kind: Kind::Gauge, labels, help }, samples }
}

const NODE: &[NodeMetric] = &[
    gauge("oci_rs_build_info", &["version"], "1, with the version of the driver", |node| labelled([(node.version, 1)])),
    gauge("oci_rs_node_healthy", &[], "1 if the driver's last fingerprint was healthy, otherwise 0", |node| {
        one(Value::Int(node.healthy.into()))
    }),
    gauge("oci_rs_tasks", &["state"], "tasks that this plugin process knows", |node| {
        let [starting, running, ended] = node.tasks;
        labelled([("starting", starting), ("running", running), ("ended", ended)])
    }),
    counter("oci_rs_registry_requests", &["registry"], "requests to a registry or mirror", |node| {
        traffic(node, |traffic| traffic.requests)
    }),
    counter("oci_rs_registry_retries", &["registry"], "failed requests after which another attempt followed", |node| {
        traffic(node, |traffic| traffic.retries)
    }),
    counter(
        "oci_rs_registry_received_bytes",
        &["registry"],
        "received bytes of manifests, configs and layers",
        |node| traffic(node, |traffic| traffic.bytes),
    ),
    gauge("oci_rs_images", &[], "images on the node", |node| store(node, |size| size.images)),
    gauge("oci_rs_image_layers", &[], "layers of images on the node", |node| store(node, |size| size.layers)),
    gauge("oci_rs_image_bytes", &[], "unpacked bytes of all layers", |node| store(node, |size| size.bytes)),
    gauge("oci_rs_data_dir_used_bytes", &[], "used bytes of the file system of data_dir", |node| {
        disk(node, |disk| disk.used)
    }),
    gauge("oci_rs_data_dir_available_bytes", &[], "available bytes of the file system of data_dir", |node| {
        disk(node, |disk| disk.available)
    }),
    counter("oci_rs_images_removed", &["cause"], "images that garbage collection removed", |node| {
        removals(node, |removals| removals.images)
    }),
    counter("oci_rs_images_removed_bytes", &["cause"], "unpacked bytes that garbage collection removed", |node| {
        removals(node, |removals| removals.bytes)
    }),
    counter("oci_rs_lost_output_bytes", &["stream"], "output of tasks that was lost without a reader", |node| {
        let [stdout, stderr] = node.lost_bytes;
        labelled([("stdout", stdout), ("stderr", stderr)])
    }),
    counter("oci_rs_undelivered_output_lines", &[], "lines of output that no log server received", |node| {
        one(Value::Int(node.undelivered_lines))
    }),
    gauge("oci_rs_scrape_seconds", &[], "time that reading the values of this scrape took", |node| {
        one(Value::Float(node.scrape_seconds))
    }),
    counter("process_cpu_seconds", &[], "CPU time of the plugin", |node| one(Value::Float(node.process.cpu_seconds))),
    gauge("process_resident_memory_bytes", &[], "resident memory of the plugin", |node| {
        one(Value::Int(node.process.resident_bytes))
    }),
    gauge("process_threads", &[], "threads of the plugin", |node| one(Value::Int(node.process.threads))),
    gauge("process_open_fds", &[], "open descriptors of the plugin", |node| one(Value::Int(node.process.open_files))),
    gauge("process_max_fds", &[], "the plugin's limit of descriptors", |node| one(Value::Int(node.process.max_files))),
    gauge("process_start_time_seconds", &[], "when the plugin began, in seconds since 1970", |node| {
        one(Value::Float(node.process.started_at))
    }),
];

/// The descriptions of all metrics of this module.
#[cfg(test)]
pub fn specs() -> impl Iterator<Item = MetricSpec> {
    NODE.iter().map(|metric| metric.spec)
}

impl Collector for NodeSample {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for NodeMetric { spec, samples } in NODE {
            let mut family = spec.header(&mut encoder)?;
            for (values, value) in samples(self) {
                if spec.labels.is_empty() {
                    spec.sample(family, value)?;
                    break;
                }
                let labels: Vec<_> = spec.labels.iter().copied().zip(values).collect();
                spec.sample(family.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }
}
