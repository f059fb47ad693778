//! The stream of a task's resource use.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use proto::driver::{TaskStatsRequest, TaskStatsResponse};
use runtime::StatsReader;
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::convert;
use crate::{
    blocking::blocking,
    error::TaskError,
    node::Node,
    task::{TaskRef, stats::Sampler},
};

/// The answers to TaskStats.
pub type StatsStream = Pin<Box<dyn Stream<Item = Result<TaskStatsResponse, Status>> + Send>>;

/// The shortest time between two readings of a task's counters.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two readings if the agent names none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Sends a task's resource use at each interval. The stream ends without an error, because the agent logs each error
/// and asks again each second.
pub fn stream(node: Arc<Node>, task: TaskRef, request: TaskStatsRequest) -> StatsStream {
    let interval = match convert::duration(request.collection_interval) {
        Duration::ZERO => DEFAULT_INTERVAL,
        interval => interval.max(SHORTEST_INTERVAL),
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = send(&node, &task, &request.task_id, interval, &sender).await {
            // Usually the task has ended at this moment.
            tracing::debug!(task = request.task_id, %error, "no statistics");
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// Sends readings until the task ends, the receiver goes away, or a reading fails.
async fn send(
    node: &Arc<Node>,
    task: &TaskRef,
    task_id: &str,
    interval: Duration,
    sender: &mpsc::Sender<Result<TaskStatsResponse, Status>>,
) -> Result<(), TaskError> {
    let Ok(state) = task.state() else { return Ok(()) };
    if task.view().exit.is_some() {
        return Ok(());
    }
    let mut sampler = Sampler::default();
    let mut reader = node.stats_reader(&state.container).await?;
    while task.view().exit.is_none() {
        let (read, full, returned) = read(reader).await?;
        reader = returned;
        if let Some(limit) = full {
            task.info().tell_full_layer(node, &state.container, limit);
        }
        let rates = sampler.rates(Instant::now(), &read, node.compute);
        let stats = convert::task_stats(task_id, SystemTime::now(), &read, rates);
        if sender.send(Ok(TaskStatsResponse { stats: Some(stats) })).await.is_err() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = task.wait() => return Ok(()),
            () = sender.closed() => return Ok(()),
        }
    }
    Ok(())
}

/// The counters, and the limit of the writable layer if that is full.
async fn read(reader: StatsReader) -> Result<(runtime::Stats, Option<u64>, StatsReader), TaskError> {
    blocking(move || Ok((reader.read().map_err(TaskError::internal)?, reader.full_layer(), reader))).await
}
