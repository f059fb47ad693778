//! The sizes of writable layers and of the image store: measured in the background, and seldom. The free space of the
//! disk is not among them: a scrape asks the kernel for it.
//!
//! Measuring a layer means looking at each of its files. So a scrape shows the last known sizes and starts a
//! measurement afterwards, which is short unless a layer is large, and is followed by a pause that is a thousand times
//! as long.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use image_store::StoreSize;
use runtime::plan::ContainerId;

use crate::{
    metrics::LayerSample,
    node::Node,
    task::{TaskRef, Tasks},
};

/// A measurement begins no further layer after this time.
const BUDGET: Duration = Duration::from_millis(20);
/// The pause after a measurement, as a multiple of its duration: at most 0.1 % of a core.
const PAUSE: u32 = 1000;
/// A layer is measured again after this time.
const LAYER_LIFETIME: Duration = Duration::from_secs(60);
/// A measurement of one layer looks at no more files.
const FILES: u64 = 1_000_000;

/// The last known sizes.
#[derive(Debug, Default)]
pub struct Sizes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    layers: HashMap<ContainerId, (LayerSample, Instant)>,
    store: Option<StoreSize>,
    /// No measurement begins before.
    next: Option<Instant>,
    is_measuring: bool,
}

impl Sizes {
    /// The size of the store, once it was measured.
    pub fn store(&self) -> Option<StoreSize> {
        self.lock().store
    }

    /// The size of a container's writable layer, once it was measured.
    pub fn layer(&self, container: &ContainerId) -> Option<LayerSample> {
        self.lock().layers.get(container).map(|(sample, _)| *sample)
    }

    /// Measures in the background, unless a measurement runs or the last one was too short ago.
    pub fn measure_soon(self: &Arc<Self>, node: &Arc<Node>, tasks: &Tasks) {
        let Some(measurement) = Measurement::begin(self) else { return };
        let (node, tasks) = (node.clone(), tasks.list());
        tokio::task::spawn_blocking(move || measurement.sizes.measure(&node, &tasks));
    }

    /// Measures the store, and the layers whose sizes are the oldest. Blocks.
    fn measure(&self, node: &Node, tasks: &[TaskRef]) {
        match node.store.size() {
            Ok(size) => self.lock().store = Some(size),
            Err(error) => tracing::debug!(%error, "the image store was not measured"),
        }
        // A large store leaves no layer out: one layer at least is measured.
        let began = Instant::now();
        for (number, container) in self.due(tasks).into_iter().enumerate() {
            if number > 0 && began.elapsed() >= BUDGET {
                return;
            }
            // A container with a read-only root has no layer, and one that has ended may have none any more.
            let Ok(size) = node.runtime.writable_layer_size(&container, FILES) else { continue };
            let measured_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let sample = LayerSample { bytes: size.bytes, measured_at };
            self.lock().layers.insert(container, (sample, Instant::now()));
        }
    }

    /// The containers to measure, those first that were never measured. Forgets those that are gone.
    fn due(&self, tasks: &[TaskRef]) -> Vec<ContainerId> {
        let containers: HashSet<ContainerId> = tasks.iter().filter_map(|task| task.info().container()).collect();
        let mut state = self.lock();
        state.layers.retain(|container, _| containers.contains(container));
        let measured = |container: &ContainerId| state.layers.get(container).map(|(_, at)| *at);
        let mut due: Vec<_> = containers.into_iter().map(|container| (measured(&container), container)).collect();
        due.retain(|(at, _)| at.is_none_or(|at| at.elapsed() >= LAYER_LIFETIME));
        due.sort();
        due.into_iter().map(|(_, container)| container).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A measurement that runs. Its end, also by a panic, lets the next one begin after the pause.
struct Measurement {
    sizes: Arc<Sizes>,
    began: Instant,
}

impl Measurement {
    /// Begins one, unless another one runs or the last one was too short ago.
    fn begin(sizes: &Arc<Sizes>) -> Option<Self> {
        let mut state = sizes.lock();
        let began = Instant::now();
        if state.is_measuring || state.next.is_some_and(|next| began < next) {
            return None;
        }
        state.is_measuring = true;
        Some(Self { sizes: sizes.clone(), began })
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        let mut state = self.sizes.lock();
        state.is_measuring = false;
        state.next = Instant::now().checked_add(self.began.elapsed() * PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_measurement_that_panics_does_not_prevent_the_next_one() {
        let sizes = Arc::new(Sizes::default());
        let running = Measurement::begin(&sizes).unwrap();
        assert!(Measurement::begin(&sizes).is_none(), "one at a time");
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _running = running;
            panic!("of a test");
        }));
        assert!(panicked.is_err() && sizes.lock().next.is_some());
        assert!(!sizes.lock().is_measuring);
        sizes.lock().next = None;
        assert!(Measurement::begin(&sizes).is_some());
    }
}
