//! The stream of fingerprints: health and attributes of the node.
//!
//! The stream stays open for as long as the plugin lives: when it ends, the agent opens it again without a pause.

use std::{pin::Pin, time::Duration};

use proto::driver::{FingerprintResponse, fingerprint_response::HealthState};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::{convert, state::Plugin};
use crate::{
    blocking::blocking,
    cleanup,
    error::TaskError,
    exporter,
    fingerprint::{Fingerprint, fingerprint},
    prefetch,
};

/// The answers to Fingerprint.
pub type FingerprintStream = Pin<Box<dyn Stream<Item = Result<FingerprintResponse, Status>> + Send>>;

/// The time between two looks at the node.
const PERIOD: Duration = Duration::from_secs(30);

/// Sends one fingerprint at once, then one after each change. Starts the cleanup as soon as the node is open.
pub fn stream(plugin: Plugin) -> FingerprintStream {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut cleanup_started = false;
        let mut sent: Option<Fingerprint> = None;
        loop {
            let Ok(current) = take(&plugin, &mut cleanup_started).await else { return };
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
                () = tokio::time::sleep(PERIOD) => {}
                () = sender.closed() => return,
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// Takes a fingerprint of the node. A node that cannot be opened is unhealthy.
async fn take(plugin: &Plugin, cleanup_started: &mut bool) -> Result<Fingerprint, TaskError> {
    let node = plugin.node().await;
    if let (false, Ok(node)) = (*cleanup_started, &node) {
        *cleanup_started = true;
        tokio::spawn(cleanup::run(node.clone(), plugin.tasks().clone()));
    }
    if let Ok(node) = &node
        && node.start_export_once()
    {
        exporter::start(node, plugin.tasks());
        prefetch::start(node);
    }
    let configured = plugin.configured()?;
    blocking(move || {
        let found = node.as_ref().map(|node| node.findings()).map_err(ToString::to_string);
        let taken = fingerprint(&configured.config, found);
        if let Ok(node) = &node {
            node.set_healthy(taken.problem.is_none());
        }
        Ok(taken)
    })
    .await
}

fn message(fingerprint: &Fingerprint) -> FingerprintResponse {
    let health = if fingerprint.problem.is_none() { HealthState::Healthy } else { HealthState::Unhealthy };
    let attributes = fingerprint.attributes.clone();
    FingerprintResponse {
        attributes: attributes.into_iter().map(|(name, value)| (name, convert::attribute(value))).collect(),
        health: health.into(),
        health_description: description(fingerprint),
        err: String::new(),
    }
}

fn description(fingerprint: &Fingerprint) -> String {
    match (&fingerprint.problem, &fingerprint.warning) {
        (Some(problem), _) => problem.clone(),
        (None, Some(warning)) => format!("Healthy, but {warning}"),
        (None, None) => "Healthy".to_owned(),
    }
}
