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

/// Reads all tasks whose commands have started.
pub fn sample(node: &Arc<Node>, tasks: &[TaskRef], sizes: &Sizes, known: KnownTasks) -> (Vec<TaskSample>, KnownTasks) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
    let share = tasks.len().div_ceil(threads).max(TASKS_PER_THREAD);
    let read = |tasks: &[TaskRef]| -> Vec<(TaskSample, Option<(String, KnownTask)>)> {
        tasks.iter().filter_map(|task| sample_one(node, task, sizes, &known)).collect()
    };
    let all: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = tasks.chunks(share).map(|tasks| scope.spawn(|| read(tasks))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
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
    (samples, known)
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
