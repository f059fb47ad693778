//! The pulls of wanted images, and their last use.
//!
//! Pulls that a task waits for go first: while the store fetches for a task, it begins no layer of a prefetched image.
//! A task that needs the same image joins the pull.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use image_store::{Image, LeaseOwner, PullError, PullRequest, Reference, Retention, Silent};
use tokio::sync::Notify;

use super::wishes::{JobKey, Wishes};
use crate::{blocking::blocking, error::TaskError, metrics::ObservedPull, node::Node, traces::Span};

/// The limits of the time between two looks at the wanted images.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);
const LONGEST_LOOK: Duration = Duration::from_secs(600);

/// The wanted images, as the parts of this module share them.
#[derive(Default)]
pub struct Queue {
    wishes: Mutex<Wishes>,
    /// The images whose last pull failed. Only the first failure is in the log.
    failing: Mutex<BTreeSet<Reference>>,
    added: Notify,
}

impl Queue {
    /// Calls a function with the wanted images.
    pub fn with<T>(&self, action: impl FnOnce(&mut Wishes) -> T) -> T {
        action(&mut self.wishes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the images of a job. Returns the number of images that are too many.
    pub fn set(&self, job: JobKey, version: u64, images: BTreeMap<Reference, bool>) -> usize {
        let (too_many, waiting) = self.with(|wishes| (wishes.set(job, version, images), wishes.waiting()));
        self.wake(waiting);
        too_many
    }

    fn wake(&self, waiting: usize) {
        (0..waiting).for_each(|_| self.added.notify_one());
    }

    /// The next image to pull, with whether its registry has to be asked.
    async fn next(&self) -> (Reference, bool) {
        loop {
            if let Some(next) = self.with(Wishes::next) {
                return next;
            }
            self.added.notified().await;
        }
    }

    /// Notes how a pull ended. True if an image fails that did not fail before.
    fn ended(&self, name: &Reference, failed: bool) -> bool {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed {
            failing.remove(name);
            return false;
        }
        failing.insert(name.clone())
    }
}

/// Pulls one image after the other, for as long as the plugin lives.
pub async fn work(node: Arc<Node>, queue: Arc<Queue>) {
    loop {
        let (name, force) = queue.next().await;
        match room_problem(&node) {
            None => pull(&node, &queue, name, force).await,
            Some(problem) => {
                if queue.with(|wishes| (!wishes.has_postponed(), wishes.postpone(name)).0) {
                    tracing::warn!(problem, "images are not prefetched");
                }
                if let Some(recorder) = node.recorder() {
                    recorder.prefetch_skipped("disk", 1);
                }
            }
        }
    }
}

async fn pull(node: &Arc<Node>, queue: &Queue, name: Reference, force: bool) {
    let owner = lease_owner();
    let request = PullRequest {
        force,
        background: true,
        timeout: Some(node.config.image_pull_timeout),
        idle_timeout: node.config.pull_activity_timeout,
        ..PullRequest::new(name.clone())
    };
    let progress = ObservedPull::new(Silent);
    failpoint::at("prefetch-before-pull");
    let result = node.store.acquire(request, &owner, Arc::clone(&progress) as _).await;
    failpoint::at("prefetch-before-release");
    let worker = node.clone();
    // The release counts as the last use, from which the delay of `gc` is counted.
    let released = blocking(move || worker.store.release(&owner).map_err(TaskError::internal)).await;
    if let Err(error) = released {
        tracing::warn!(image = %name, %error, "the lease of a prefetched image was not released");
    }
    if let Some(recorder) = node.recorder() {
        recorder.prefetch(name.domain(), progress.outcome(&result));
    }
    // An image that was here is looked at after each change of a job, and is no pull.
    if !progress.is_cached() {
        node.trace(|| vec![span(&progress, &name, &result)]);
    }
    let is_news = queue.ended(&name, result.is_err());
    match result {
        Ok(image) => {
            if let Some(bytes) = progress.fetched() {
                let milliseconds = progress.elapsed().as_millis() as u64;
                tracing::info!(image = %name, digest = image.digest, bytes, milliseconds, "image prefetched");
            }
        }
        Err(error) if is_news => tracing::warn!(image = %name, %error, "image not prefetched"),
        Err(error) => tracing::debug!(image = %name, %error, "image still not prefetched"),
    }
}

/// The span of a pull that has ended now.
fn span(pull: &ObservedPull<Silent>, name: &Reference, result: &Result<Image, PullError>) -> Span {
    let mut attributes = vec![("container.image.name", name.to_string()), ("registry", name.domain().to_owned())];
    if let Ok(image) = result {
        attributes.push(("container.image.digest", image.digest.clone()));
    }
    attributes.extend(pull.fetched().map(|bytes| ("bytes", bytes.to_string())));
    Span::ended("prefetch image", pull.elapsed(), attributes, result.as_ref().err().map(ToString::to_string))
}

/// This pull as the owner of a lease. It ends with the process.
fn lease_owner() -> LeaseOwner {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let started = now.as_nanos() + u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    LeaseOwner::Operator { process: std::process::id(), started }
}

/// Why the disk has no room for images that no task needs yet.
fn room_problem(node: &Node) -> Option<String> {
    match node.store.fill_percent() {
        Ok(percent) => is_full(percent, node.config.retention).then(|| {
            format!(
                "the file system of images is {percent} % full, and images are prefetched below {} %",
                limit(node.config.retention)
            )
        }),
        Err(error) => Some(error.to_string()),
    }
}

/// The use of the file system at which no image is prefetched: garbage collection would remove others for it.
fn limit(retention: Option<Retention>) -> u8 {
    retention.map_or(100, |policy| policy.low)
}

fn is_full(percent: u8, retention: Option<Retention>) -> bool {
    percent >= limit(retention)
}

/// Sets the last use of all wanted images again and again, and lets postponed pulls go on when the disk has room.
pub async fn keep(node: Arc<Node>, queue: Arc<Queue>) {
    let pause = look_interval(node.config.retention);
    loop {
        tokio::time::sleep(pause).await;
        let (worker, names) = (node.clone(), queue.with(|wishes| wishes.all()));
        if names.is_empty() {
            continue;
        }
        let touched =
            blocking(move || names.iter().try_for_each(|name| worker.store.touch(name)).map_err(TaskError::internal));
        if let Err(error) = touched.await {
            tracing::warn!(%error, "prefetched images may be removed early");
        }
        if queue.with(|wishes| wishes.has_postponed()) && room_problem(&node).is_none() {
            let waiting = queue.with(Wishes::resume);
            tracing::info!(images = waiting, "images are prefetched again");
            queue.wake(waiting);
        }
    }
}

/// An image must not be unused for the delay of garbage collection.
fn look_interval(retention: Option<Retention>) -> Duration {
    retention.map_or(LONGEST_LOOK, |policy| (policy.delay / 3).clamp(SHORTEST_LOOK, LONGEST_LOOK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(delay: u64) -> Option<Retention> {
        Some(Retention { delay: Duration::from_secs(delay), high: 85, low: 80 })
    }

    #[test]
    fn images_are_prefetched_below_the_low_watermark_only() {
        for (percent, retention, full) in [
            (79, policy(60), false),
            (80, policy(60), true),
            (90, policy(60), true),
            (99, None, false),
            (100, None, true),
        ] {
            assert_eq!(is_full(percent, retention), full, "{percent} {retention:?}");
        }
    }

    #[test]
    fn images_are_looked_at_before_their_delay_is_over() {
        assert_eq!(look_interval(policy(180)), Duration::from_secs(60));
        assert_eq!(look_interval(policy(1)), SHORTEST_LOOK);
        assert_eq!([look_interval(policy(86_400)), look_interval(None)], [LONGEST_LOOK; 2]);
    }

    #[test]
    fn a_failure_is_news_until_the_image_is_pulled() {
        let (queue, name) = (Queue::default(), "r.example/a:1".parse().unwrap());
        assert!(queue.ended(&name, true) && !queue.ended(&name, true));
        assert!(!queue.ended(&name, false) && queue.ended(&name, true));
    }
}
