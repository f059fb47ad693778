//! A pull that needs a whole layer which this process serves already: it waits for the service instead of downloading
//! the layer a second time.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use lazy::Hurry;

use super::{
    partial::{Streaming, image_of},
    puller::Puller,
};
use crate::{
    blocking::blocking,
    error::StoreError,
    progress::LayerMeter,
    store::{LayerRecord, LocalStore},
};

/// How often the progress of the layer is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// After a failure of the sources, the service must deliver a byte in this time. Otherwise the pull downloads the
/// layer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What became of the attempt to get a layer from the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joined {
    /// The layer is on disk.
    Complete,
    /// It is not served.
    NotServed,
    /// It was served, but its sources do not deliver it, or it was removed. The pull must download it.
    GaveUp,
}

impl Puller {
    /// Whether this process serves a layer.
    pub(super) fn serves(&self, layer: &LayerRecord) -> bool {
        self.partial.streaming(&image_of(&self.local.partial_directory(layer))).is_some()
    }

    /// Waits for a layer that is served, and asks the service to hurry. The caller must not hold the layer's lock,
    /// because tasks that start before their image is complete need it.
    pub(super) async fn join_service(
        self: &Arc<Self>,
        layer: &LayerRecord,
        meter: &LayerMeter,
    ) -> Result<Joined, StoreError> {
        let directory = self.local.partial_directory(layer);
        let image = image_of(&directory);
        let Some(Streaming { lazy, mut failures }) = self.partial.streaming(&image) else {
            return Ok(Joined::NotServed);
        };
        tracing::debug!(layer = %layer.blob, "a pull waits for a layer that tasks use already");
        let hurried = image.clone();
        let hurry = blocking(move || Ok(lazy.hurry(&hurried))).await?;
        let (mut counted, mut progressed) = (0, Instant::now());
        loop {
            // Before the look at the disk: a change after it is not missed.
            let mut changed = pin!(self.partial.changed.notified());
            changed.as_mut().enable();
            let (local, wanted, directory) = (Arc::clone(&self.local), layer.clone(), directory.clone());
            let looked = move || Ok((local.has_layer_for_blob(&wanted)?, LocalStore::is_incomplete(&directory)));
            let (complete, incomplete) = blocking(looked).await?;
            if complete {
                meter.add_missing();
                return Ok(Joined::Complete);
            }
            let Some(now) = self.partial.streaming(&image).filter(|_| incomplete) else {
                meter.restart();
                return Ok(Joined::GaveUp);
            };
            let here = hurry.as_ref().and_then(Hurry::bytes_here).unwrap_or(counted);
            if here > counted {
                meter.add_bytes(here - counted);
                (counted, progressed, failures) = (here, Instant::now(), now.failures);
            }
            if now.failures != failures && progressed.elapsed() >= PATIENCE {
                tracing::info!(layer = %layer.blob, "the sources of a layer do not deliver it; it is pulled whole");
                meter.restart();
                return Ok(Joined::GaveUp);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}
