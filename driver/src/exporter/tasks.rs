//! Reads the tasks, on several threads if there are many.

use std::{
    collections::{HashMap, HashSet},
    num::NonZero,
    sync::Arc,
    thread,
    time::UNIX_EPOCH,
};

use runtime::UsageSource;

use super::sizes::Sizes;
use crate::{
    error::TaskError,
    metrics::{TaskLabels, TaskSample},
    node::Node,
    task::TaskRef,
};

/// Fewer tasks per thread are not worth a thread.
const TASKS_PER_THREAD: usize = 64;
/// More threads would compete with the tasks.
const THREADS: usize = 4;

/// What stays the same between two scrapes, by Nomad's id of the task.
pub type KnownTasks = HashMap<String, KnownTask>;

/// The unchanging facts about one running task.
#[derive(Clone)]
pub struct KnownTask {
    labels: Arc<TaskLabels>,
    image: Arc<(String, String)>,
    source: UsageSource,
    network: Option<KnownNetwork>,
}

/// A network that is not the host's.
#[derive(Clone)]
struct KnownNetwork {
    /// The inode of its namespace.
    namespace: u64,
    labels: Arc<TaskLabels>,
}

/// Reads all tasks whose commands have started. An error if a thread that reads them panics: a scrape without some
/// tasks would look as if they had ended.
pub fn sample(
    node: &Arc<Node>,
    tasks: &[TaskRef],
    sizes: &Sizes,
    known: KnownTasks,
) -> Result<(Vec<TaskSample>, KnownTasks), TaskError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
    let share = tasks.len().div_ceil(threads).max(TASKS_PER_THREAD);
    let all = in_threads(tasks, share, |task| sample_one(node, task, sizes, &known))?;
    let mut seen = HashSet::new();
    let mut samples = Vec::with_capacity(all.len());
    let mut known = KnownTasks::with_capacity(all.len());
    for (mut sample, one) in all {
        if let Some((id, task)) = one {
            let namespace = task.network.as_ref().map(|network| network.namespace);
            // The tasks of a group share its network: the first one shows it.
            if namespace.is_some_and(|namespace| !seen.insert(namespace)) {
                sample.network = None;
            }
            known.insert(id, task);
        }
        samples.push(sample);
    }
    Ok((samples, known))
}

/// Reads items, each `share` of them on a thread.
fn in_threads<I: Sync, O: Send>(
    items: &[I],
    share: usize,
    read: impl Fn(&I) -> Option<O> + Sync,
) -> Result<Vec<O>, TaskError> {
    let read = &read;
    thread::scope(|scope| {
        let start = |items| scope.spawn(move || -> Vec<O> { <[I]>::iter(items).filter_map(read).collect() });
        let workers: Vec<_> = items.chunks(share).map(start).collect();
        let mut all = Vec::with_capacity(items.len());
        // Each thread is joined, also after a panic of one.
        let joined: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        for part in joined {
            all.extend(part.map_err(|_| TaskError::internal("a thread that reads tasks for metrics panicked"))?);
        }
        Ok(all)
    })
}

/// Reads one task; `None` while it is starting.
fn sample_one(
    node: &Node,
    task: &TaskRef,
    sizes: &Sizes,
    known: &KnownTasks,
) -> Option<(TaskSample, Option<(String, KnownTask)>)> {
    let (view, info) = (task.view(), task.info());
    let state = info.state()?;
    let found = if view.exit.is_some() {
        None
    } else {
        known.get(&info.task_id).cloned().or_else(|| KnownTask::find(node, task))
    };
    let fixed = |known: &KnownTask| (known.labels.clone(), known.image.clone());
    let (labels, image) = found.as_ref().map_or_else(|| describe(task), fixed);
    let network = found.as_ref().and_then(|known| {
        let network = known.network.as_ref()?;
        Some((network.labels.clone(), known.source.network()?))
    });
    let started_at = view.started_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let (execs, execs_running) = info.commands();
    let sample = TaskSample {
        labels,
        image,
        started_at: started_at.map(|since| since.as_secs_f64()),
        usage: found.as_ref().map(|known| known.source.read()),
        network,
        layer: sizes.layer(&state.container),
        layer_limit: found.as_ref().and_then(|known| known.source.layer_limit()),
        restarts: info.restarts(),
        execs,
        execs_running,
    };
    Some((sample, found.map(|known| (info.task_id.clone(), known))))
}

fn describe(task: &TaskRef) -> (Arc<TaskLabels>, Arc<(String, String)>) {
    let info = task.info();
    let image = info.state().map(|state| (state.image.clone(), state.image_digest.clone())).unwrap_or_default();
    (Arc::new(info.labels(&info.name)), Arc::new(image))
}

impl KnownTask {
    fn find(node: &Node, task: &TaskRef) -> Option<Self> {
        let info = task.info();
        let state = info.state()?;
        let source = node.runtime.usage_source(&state.container).ok()?;
        let (labels, image) = describe(task);
        let network = source.network_namespace().map(|namespace| KnownNetwork {
            namespace,
            // A network that only this task has is in its handle.
            labels: if state.network.is_some() { labels.clone() } else { Arc::new(info.labels("")) },
        });
        Some(Self { labels, image, source, network })
    }
}

#[cfg(test)]
mod tests {
    use super::in_threads;

    #[test]
    fn a_thread_that_panics_fails_the_whole_reading() {
        let numbers: Vec<u32> = (0..10).collect();
        let even = in_threads(&numbers, 3, |number| (number % 2 == 0).then_some(*number));
        assert_eq!(even.unwrap(), [0, 2, 4, 6, 8]);
        let read = in_threads(&numbers, 3, |number| if *number == 4 { panic!("of a test") } else { Some(*number) });
        assert!(read.unwrap_err().to_string().contains("panicked"));
        assert_eq!(in_threads(&[] as &[u32], 3, |number| Some(*number)).unwrap(), [0_u32; 0]);
    }
}
