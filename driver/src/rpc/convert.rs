//! The driver's values in their form on the wire.
//!
//! Nomad's client reads most nested messages without a check: a missing message crashes the agent. So each function
//! fills all fields, and "not yet" is Go's zero time.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
use proto::{
    driver::{
        CpuUsage, DriverTaskEvent, ExitResult, MemoryUsage, NetworkOverride, TaskResourceUsage, TaskState, TaskStats,
        TaskStatus, cpu_usage, memory_usage,
    },
    structs::{Attribute, attribute},
};
use runtime::{ExecExit, Stats};

use crate::{
    events::TaskEvent,
    fingerprint,
    task::{DriverNetwork, DriverState, Exit, Phase, TaskView, stats::CpuRates},
};

/// Go's zero time, year 1, which the client reads as "not yet".
const NEVER: Timestamp = Timestamp { seconds: -62_135_596_800, nanos: 0 };

/// A point in time.
pub fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
}

/// The end of a task.
pub fn exit_result(exit: &Exit) -> ExitResult {
    ExitResult { exit_code: exit.code, signal: exit.signal, oom_killed: exit.oom_killed }
}

/// The end of an exec command.
pub fn exec_result(exit: &ExecExit) -> ExitResult {
    ExitResult { exit_code: exit.exit_code, signal: exit.signal, oom_killed: false }
}

/// A duration of the wire. A missing or negative one is zero.
pub fn duration(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(duration).ok()).unwrap_or_default()
}

/// The attributes of a running task that InspectTask shows.
pub fn driver_attributes(state: &DriverState) -> HashMap<String, String> {
    [
        ("container_id", state.container.to_string()),
        ("image", state.image.clone()),
        ("image_digest", state.image_digest.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// A task's state.
pub fn task_status(id: &str, name: &str, view: &TaskView) -> TaskStatus {
    let state = match view.phase {
        Phase::Starting { .. } => TaskState::Unknown,
        Phase::Running | Phase::Stopping { .. } => TaskState::Running,
        Phase::Exited | Phase::Destroyed => TaskState::Exited,
    };
    TaskStatus {
        id: id.to_owned(),
        name: name.to_owned(),
        state: state.into(),
        started_at: Some(view.started_at.map_or(NEVER, timestamp)),
        completed_at: Some(view.exit.as_ref().map_or(NEVER, |exit| timestamp(exit.finished_at))),
        result: Some(view.exit.as_ref().map(exit_result).unwrap_or_default()),
    }
}

/// A task's own network.
pub fn network(network: DriverNetwork) -> NetworkOverride {
    NetworkOverride {
        port_map: network.ports.into_iter().map(|(label, port)| (label, port.into())).collect(),
        addr: network.address,
        auto_advertise: network.auto_advertise,
    }
}

/// A task event.
pub fn event(event: TaskEvent) -> DriverTaskEvent {
    DriverTaskEvent {
        task_id: event.task_id,
        alloc_id: event.alloc_id,
        task_name: event.task_name,
        timestamp: Some(timestamp(event.at)),
        message: event.message,
        annotations: event.annotations.into_iter().collect(),
    }
}

/// A node attribute.
pub fn attribute(value: fingerprint::Value) -> Attribute {
    let value = match value {
        fingerprint::Value::Text(text) => attribute::Value::StringVal(text),
        fingerprint::Value::Flag(flag) => attribute::Value::BoolVal(flag),
        fingerprint::Value::Number(number) => attribute::Value::IntVal(number),
    };
    Attribute { value: Some(value), unit: String::new() }
}

/// A task's resource use. `measured_fields` lists only measured values, so that users see no zero for the others.
pub fn task_stats(id: &str, at: SystemTime, stats: &Stats, rates: CpuRates) -> TaskStats {
    let usage = TaskResourceUsage { cpu: Some(cpu(stats, rates)), memory: Some(memory(stats)) };
    TaskStats {
        id: id.to_owned(),
        timestamp: Some(timestamp(at)),
        agg_resource_usage: Some(usage),
        resource_usage_by_pid: Default::default(),
    }
}

fn cpu(stats: &Stats, rates: CpuRates) -> CpuUsage {
    use cpu_usage::Fields;
    let measured = [
        Fields::SystemMode,
        Fields::UserMode,
        Fields::TotalTicks,
        Fields::ThrottledPeriods,
        Fields::ThrottledTime,
        Fields::Percent,
    ];
    CpuUsage {
        system_mode: rates.system,
        user_mode: rates.user,
        total_ticks: rates.ticks,
        throttled_periods: stats.cpu.throttled_periods,
        throttled_time: stats.cpu.throttled_ns,
        percent: rates.percent,
        measured_fields: measured.map(i32::from).to_vec(),
    }
}

fn memory(stats: &Stats) -> MemoryUsage {
    use memory_usage::Fields;
    let memory = &stats.memory;
    let optional = [
        (Fields::MaxUsage, memory.max_usage),
        (Fields::KernelUsage, memory.kernel),
        (Fields::KernelMaxUsage, memory.kernel_max),
    ];
    let measured = [Fields::Rss, Fields::Cache, Fields::Swap, Fields::Usage]
        .into_iter()
        .chain(optional.iter().filter(|(_, value)| value.is_some()).map(|(field, _)| *field));
    MemoryUsage {
        rss: memory.rss,
        cache: memory.cache,
        swap: memory.swap,
        usage: memory.usage,
        max_usage: memory.max_usage.unwrap_or(0),
        kernel_usage: memory.kernel.unwrap_or(0),
        kernel_max_usage: memory.kernel_max.unwrap_or(0),
        measured_fields: measured.map(i32::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{NEVER, task_status, timestamp};
    use crate::task::{Phase, TaskView};

    #[test]
    fn a_status_is_complete_in_every_phase() {
        let view =
            TaskView { started_at: Some(UNIX_EPOCH + Duration::from_millis(1500)), ..TaskView::new(Phase::Running) };
        let status = task_status("id", "web", &view);
        assert_eq!(status.started_at, Some(timestamp(UNIX_EPOCH + Duration::from_millis(1500))));
        assert_eq!(status.completed_at, Some(NEVER));
        assert!(status.result.is_some());
    }
}
