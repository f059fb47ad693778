//! The streams that the driver sends: fingerprints, task events and statistics.
//!
//! Fingerprints and events stay open for as long as the plugin lives: an agent whose stream ends opens it again without a pause.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use proto::driver::{
    DriverTaskEvent, FingerprintResponse, TaskStatsRequest, TaskStatsResponse, fingerprint_response::HealthState,
};
use tokio::sync::{broadcast::error::RecvError, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::{Plugin, convert, driver::duration};
use crate::{
    engine::Engine,
    events,
    fingerprint::{Fingerprint, fingerprint},
    task::{TaskError, TaskRef, blocking, stats::Sampler},
};

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
pub type Fingerprints = Boxed<FingerprintResponse>;
pub type Events = Boxed<DriverTaskEvent>;
pub type Stats = Boxed<TaskStatsResponse>;

/// How often the node is looked at again.
const FINGERPRINT_PERIOD: Duration = Duration::from_secs(30);
/// The shortest time between two readings of a task's counters.
const SHORTEST_STATS_INTERVAL: Duration = Duration::from_millis(100);
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// Fingerprints: one at once, then one whenever something changed. The first one also starts the background work.
pub fn fingerprints(plugin: Plugin) -> Fingerprints {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut swept = false;
        let mut sent: Option<Fingerprint> = None;
        loop {
            let engine = plugin.engine().await;
            if let (false, Ok(engine)) = (swept, &engine) {
                swept = true;
                tokio::spawn(engine.clone().keep_clean(plugin.0.tasks.clone()));
            }
            let Ok(configured) = plugin.configured() else { return };
            let current = blocking(move || {
                let health = engine.map(|engine| engine.overlay_problem()).map_err(|error| error.to_string());
                Ok(fingerprint(&configured.config, health))
            });
            let current = current.await;
            let Ok(current) = current else { return };
            if sent.as_ref() != Some(&current) {
                if let Some(problem) = &current.problem {
                    tracing::error!(problem, "driver is unhealthy");
                }
                if sender.send(Ok(message(&current))).await.is_err() {
                    return;
                }
                sent = Some(current);
            }
            tokio::select! {
                () = tokio::time::sleep(FINGERPRINT_PERIOD) => {}
                () = sender.closed() => return,
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

fn message(fingerprint: &Fingerprint) -> FingerprintResponse {
    let health = if fingerprint.problem.is_none() { HealthState::Healthy } else { HealthState::Unhealthy };
    let attributes = fingerprint.attributes.clone();
    FingerprintResponse {
        attributes: attributes.into_iter().map(|(name, value)| (name, convert::attribute(value))).collect(),
        health: health.into(),
        health_description: fingerprint.problem.clone().unwrap_or_else(|| "Healthy".to_owned()),
        err: String::new(),
    }
}

/// All task events from now on.
pub fn events(events: &events::Events) -> Events {
    let mut subscription = events.subscribe();
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = subscription.recv() => event,
                () = sender.closed() => return,
            };
            match event {
                Ok(event) => {
                    if sender.send(Ok(convert::event(event))).await.is_err() {
                        return;
                    }
                }
                Err(RecvError::Lagged(lost)) => tracing::warn!(lost, "task events lost: the agent reads too slowly"),
                Err(RecvError::Closed) => return,
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// A task's resource use at each interval; ends in order when the task ends, because any error is logged each second.
pub fn stats(engine: Arc<Engine>, task: TaskRef, request: TaskStatsRequest) -> Stats {
    let interval = match duration(request.collection_interval) {
        Duration::ZERO => STATS_INTERVAL,
        interval => interval.max(SHORTEST_STATS_INTERVAL),
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let Ok(state) = task.state() else { return };
        let mut sampler = Sampler::default();
        if task.view().exit.is_some() {
            return;
        }
        let mut opened = engine.stats_reader(&state.container).await;
        loop {
            if task.view().exit.is_some() {
                return;
            }
            let read = match opened {
                Ok(reader) => blocking(move || Ok((reader.read().map_err(TaskError::internal)?, reader))).await,
                Err(error) => Err(error),
            };
            let stats = match read {
                Ok((stats, reader)) => {
                    opened = Ok(reader);
                    stats
                }
                Err(error) => {
                    // Mostly a task that ended this moment; the stream ends in order either way.
                    tracing::debug!(task = request.task_id, %error, "no statistics");
                    return;
                }
            };
            let rates = sampler.rates(Instant::now(), &stats, engine.compute);
            let stats = convert::task_stats(&request.task_id, SystemTime::now(), &stats, rates);
            if sender.send(Ok(TaskStatsResponse { stats: Some(stats) })).await.is_err() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                _ = task.wait() => return,
                () = sender.closed() => return,
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}
