//! Removes images that no task has used for the configured time, or when the disk is nearly full.
//!
//! The image store decides by records on disk, so the decision does not depend on how long this process has run.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use image_store::{Removed, Retention};

use crate::{blocking::blocking, error::TaskError, node::Node};

/// The pause after a failed removal.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Removes unused images, for as long as the plugin lives.
pub async fn remove_unused_images(node: Arc<Node>, policy: Retention) {
    loop {
        let worker = node.clone();
        let removed = blocking(move || {
            worker.store.retain(&policy).map_err(|error| TaskError::Internal(format!("image store: {error}")))
        });
        let next = match removed.await {
            Ok(report) => {
                report.removed.iter().for_each(log_removed);
                report.next
            }
            Err(error) => {
                tracing::warn!(%error, "unused images not removed, trying again");
                Some(SystemTime::now() + RETRY_PAUSE)
            }
        };
        tokio::select! {
            () = node.store.changed() => {}
            () = sleep_until(next) => {}
        }
    }
}

fn log_removed(image: &Removed) {
    let (reference, unused) = (&image.reference, image.unused.as_secs());
    let why = match image.pressure {
        Some(pressure) => pressure.to_string(),
        None => "no task uses it".to_owned(),
    };
    tracing::info!(image = %reference, unused_seconds = unused, bytes = image.bytes, why, "image removed");
}

/// Sleeps until a moment of the wall clock; for ever without one.
async fn sleep_until(moment: Option<SystemTime>) {
    match moment {
        Some(moment) => tokio::time::sleep(moment.duration_since(SystemTime::now()).unwrap_or_default()).await,
        None => std::future::pending().await,
    }
}
