//! The resource usage of a container for metrics: cgroups, network interfaces, writable layer.

use std::{fs, os::unix::fs::MetadataExt, sync::Arc};

use host::tree_size::{self, TreeSize};

use super::{runtime::Runtime, stats};
use crate::{
    cgroup::{Cgroups, open_counters::OpenCounters, usage::Usage},
    error::{Context, RuntimeError},
    plan::ContainerId,
    process::ProcessRecord,
    rootfs::WritableLayer,
    state::{CGROUP, CONTAINER, ContainerRecord},
};

/// Where the usage of one running container is read. Holds no open file. Clones are cheap.
#[derive(Debug, Clone)]
pub struct UsageSource {
    cgroups: Arc<Cgroups>,
    init: ProcessRecord,
    open: Arc<OpenCounters>,
    layer_limit: Option<u64>,
}

/// The traffic of all interfaces of a network namespace, without the loopback device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkUsage {
    /// Received.
    pub received: Traffic,
    /// Sent.
    pub sent: Traffic,
}

/// The traffic in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with an error.
    pub errors: u64,
    /// Dropped packets.
    pub dropped: u64,
}

impl UsageSource {
    /// Reads the counters of the cgroups: those that are open for a [`StatsReader`](super::StatsReader) from its files.
    pub fn read(&self) -> Usage {
        self.cgroups.usage(self.open.get((self.init.pid, self.init.start_time)).as_deref())
    }

    /// The limit of the writable layer in bytes; `None` without one.
    pub fn layer_limit(&self) -> Option<u64> {
        self.layer_limit
    }

    /// The inode of the container's network namespace; `None` if it is the host's, or if the container has ended.
    pub fn network_namespace(&self) -> Option<u64> {
        let inode = |process: &str| fs::metadata(format!("/proc/{process}/ns/net")).map(|meta| meta.ino()).ok();
        let own = inode(&self.init.pid.to_string())?;
        (inode("self")? != own).then_some(own)
    }

    /// Reads the counters of the network interfaces; `None` if the namespace has only a loopback device.
    pub fn network(&self) -> Option<NetworkUsage> {
        interfaces(&fs::read_to_string(format!("/proc/{}/net/dev", self.init.pid)).ok()?)
    }
}

/// Adds the lines of `/proc/<pid>/net/dev`.
fn interfaces(text: &str) -> Option<NetworkUsage> {
    let mut sum = None;
    for (name, numbers) in text.lines().filter_map(|line| line.split_once(':')) {
        if name.trim() == "lo" {
            continue;
        }
        let numbers: Vec<u64> = numbers.split_ascii_whitespace().map_while(|number| number.parse().ok()).collect();
        let [bytes, packets, errors, dropped, _, _, _, _, sent_bytes, sent_packets, sent_errors, sent_dropped, ..] =
            numbers[..]
        else {
            continue;
        };
        let usage: &mut NetworkUsage = sum.get_or_insert_default();
        usage.received.add(Traffic { bytes, packets, errors, dropped });
        usage.sent.add(Traffic {
            bytes: sent_bytes,
            packets: sent_packets,
            errors: sent_errors,
            dropped: sent_dropped,
        });
    }
    sum
}

impl Traffic {
    fn add(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.packets = self.packets.saturating_add(more.packets);
        self.errors = self.errors.saturating_add(more.errors);
        self.dropped = self.dropped.saturating_add(more.dropped);
    }
}

impl Runtime {
    /// Where the usage of a running container is read.
    pub fn usage_source(&self, id: &ContainerId) -> Result<UsageSource, RuntimeError> {
        let task = self.task(id);
        let not_running = || RuntimeError::NotRunning(id.clone());
        let record = task.read::<ContainerRecord>(CONTAINER)?.ok_or_else(not_running)?;
        let cgroups = task.read::<Cgroups>(CGROUP)?.ok_or_else(not_running)?;
        let open = self.inner.counters.clone();
        Ok(UsageSource { cgroups: Arc::new(cgroups), init: record.init, open, layer_limit: stats::layer_limit(&task) })
    }

    /// The disk space of a container's writable layer, and of its volumes without a name. Looks at no more than `limit`
    /// files. Takes about two microseconds for each.
    pub fn writable_layer_size(&self, id: &ContainerId, limit: u64) -> Result<TreeSize, RuntimeError> {
        let layer = WritableLayer::of(&self.inner.data_dir, id.as_str());
        tree_size::measure(layer.directory(), limit).context(|| format!("measuring {}", layer.directory().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interfaces_are_added_without_loopback() {
        let header = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop|bytes\n";
        let text = format!(
            "{header}    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 100 2 1 3 0 0 0 0 200 4 5 6 0 0 0 0\n\
             eth1:1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
        );
        let expected = NetworkUsage {
            received: Traffic { bytes: 101, packets: 3, errors: 1, dropped: 3 },
            sent: Traffic { bytes: 201, packets: 5, errors: 5, dropped: 6 },
        };
        assert_eq!(interfaces(&text), Some(expected));
        assert_eq!(interfaces(&format!("{header}    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n")), None);
    }
}
