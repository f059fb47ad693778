//! Task events, which `nomad alloc status` shows beside a task's state changes.
//!
//! Nomad keeps the last ten of a task, so there are few events, and each contains new information.
//!
//! An agent drops an event of a task that has no task runner yet. A restarted agent opens the stream of events first,
//! then recovers its tasks, and then makes their task runners. So an event waits here until an agent listens and has
//! made a call that only a task's runner makes ([`Events::attend`]). Events wait in memory. An event that must survive
//! this process comes from a file that is read at its delivery ([`TaskEvents::emit_at_delivery`]).

mod content;
#[cfg(test)]
mod reference;

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use tokio::sync::mpsc;

pub use self::content::Content;

/// The number of events that wait for a listener or for a slow one. Events are sent per task start, so no burst is
/// larger.
const BACKLOG: usize = 1024;

/// An event for the users of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEvent {
    /// Nomad's id of the task.
    pub task_id: String,
    /// The allocation.
    pub alloc_id: String,
    /// The task's name in the job.
    pub task_name: String,
    /// The time of the event.
    pub at: SystemTime,
    /// The text that users see.
    pub message: String,
    /// Further values, shown in the API.
    pub annotations: BTreeMap<String, String>,
}

/// An event that no agent has received yet.
struct Waiting {
    /// The event. Without a text if the text is made at the delivery.
    event: TaskEvent,
    make: Option<Box<dyn FnOnce() -> Option<Content> + Send>>,
}

impl Waiting {
    /// The complete event; `None` if there is nothing to say any more.
    fn resolve(self) -> Option<TaskEvent> {
        let Some(make) = self.make else { return Some(self.event) };
        let (message, annotations) = make()?.into_parts();
        Some(TaskEvent { message, annotations, ..self.event })
    }
}

/// The events of all tasks, on their way to the agent.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The agent's streams. There is more than one only for the moment in which an agent replaces its stream.
    listeners: Vec<mpsc::Sender<TaskEvent>>,
    /// The tasks with a task runner in the agent.
    attended: HashSet<String>,
    waiting: VecDeque<Waiting>,
}

impl State {
    /// Forgets listeners that have gone. With the last one the agent has gone, and its task runners too.
    fn prune(&mut self) {
        let before = self.listeners.len();
        self.listeners.retain(|listener| !listener.is_closed());
        if before > 0 && self.listeners.is_empty() {
            self.attended.clear();
        }
    }

    fn wait(&mut self, waiting: Waiting) {
        if self.waiting.len() >= BACKLOG {
            self.waiting.pop_front();
        }
        self.waiting.push_back(waiting);
    }

    /// Takes the waiting events for which this is true.
    fn take(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let (taken, left) = std::mem::take(&mut self.waiting).into_iter().partition(wanted);
        self.waiting = left;
        let taken: VecDeque<Waiting> = taken;
        taken.into()
    }

    /// Sends an event to all listeners. Without a listener it goes on waiting.
    fn send(&mut self, event: TaskEvent) {
        self.prune();
        if self.listeners.is_empty() {
            return self.wait(Waiting { event, make: None });
        }
        for listener in &self.listeners {
            if listener.try_send(event.clone()).is_err() {
                tracing::warn!(task = event.task_id, "task event lost: the agent reads too slowly");
            }
        }
    }
}

impl Events {
    /// A stream of the waiting events and of all events from now on.
    pub fn subscribe(&self) -> mpsc::Receiver<TaskEvent> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let mut state = self.lock();
        state.prune();
        state.listeners.push(sender);
        drop(state);
        self.deliver();
        receiver
    }

    /// Notes that the agent has a task runner for the task: it has made a call that only a task runner makes.
    pub fn attend(&self, task_id: &str) {
        let mut state = self.lock();
        state.prune();
        if state.attended.insert(task_id.to_owned()) && !state.waiting.is_empty() {
            drop(state);
            self.deliver();
        }
    }

    /// Completes the waiting events of a task. Called before the task's files are removed.
    pub fn complete(&self, task_id: &str) {
        let taken = self.lock().take(|waiting| waiting.make.is_some() && waiting.event.task_id == task_id);
        let complete: Vec<TaskEvent> = taken.into_iter().filter_map(Waiting::resolve).collect();
        let mut state = self.lock();
        complete.into_iter().for_each(|event| state.wait(Waiting { event, make: None }));
    }

    /// Forgets a task that was removed. Its waiting events stay.
    pub fn forget(&self, task_id: &str) {
        let mut state = self.lock();
        if !state.waiting.iter().any(|waiting| waiting.event.task_id == task_id) {
            state.attended.remove(task_id);
        }
    }

    /// A sender for the events of one task.
    pub fn of_task(&self, task_id: &str, alloc_id: &str, task_name: &str) -> TaskEvents {
        TaskEvents {
            events: self.clone(),
            task_id: task_id.to_owned(),
            alloc_id: alloc_id.to_owned(),
            task_name: task_name.to_owned(),
        }
    }

    fn emit(&self, waiting: Waiting) {
        self.lock().wait(waiting);
        self.deliver();
    }

    /// Sends the events that an agent would show.
    fn deliver(&self) {
        let mut state = self.lock();
        state.prune();
        if state.listeners.is_empty() {
            return;
        }
        let attended = std::mem::take(&mut state.attended);
        let due = state.take(|waiting| attended.contains(&waiting.event.task_id));
        state.attended = attended;
        drop(state);
        // Without the lock, because completing an event reads files and writes to the log.
        let complete: Vec<TaskEvent> = due.into_iter().filter_map(Waiting::resolve).collect();
        let mut state = self.lock();
        complete.into_iter().for_each(|event| state.send(event));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the events of one task.
#[derive(Clone)]
pub struct TaskEvents {
    events: Events,
    task_id: String,
    alloc_id: String,
    task_name: String,
}

impl TaskEvents {
    /// Sends one event.
    pub fn emit(&self, content: Content) {
        let (message, annotations) = content.into_parts();
        let event = TaskEvent { message, annotations, ..self.empty() };
        self.events.emit(Waiting { event, make: None });
    }

    /// Sends an event whose content is made when an agent receives it. If this process ends before, its successor can
    /// send the event. `make` returns `None` if the event was sent already.
    pub fn emit_at_delivery(&self, make: impl FnOnce() -> Option<Content> + Send + 'static) {
        self.events.emit(Waiting { event: self.empty(), make: Some(Box::new(make)) });
    }

    fn empty(&self) -> TaskEvent {
        TaskEvent {
            task_id: self.task_id.clone(),
            alloc_id: self.alloc_id.clone(),
            task_name: self.task_name.clone(),
            at: SystemTime::now(),
            message: String::new(),
            annotations: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn task(events: &Events, id: &str) -> TaskEvents {
        events.of_task(id, "alloc", "main")
    }

    fn content(path: &str) -> Content {
        Content::Loading { path: path.to_owned() }
    }

    fn received(listener: &mut mpsc::Receiver<TaskEvent>) -> Vec<String> {
        let events = std::iter::from_fn(|| listener.try_recv().ok());
        events.map(|event| event.message.replace("Loading image from ", "")).collect()
    }

    #[test]
    fn an_event_waits_for_a_listener_and_for_the_tasks_runner() {
        let events = Events::default();
        task(&events, "a").emit(content("one"));
        let mut listener = events.subscribe();
        task(&events, "b").emit(content("of b"));
        assert_eq!(received(&mut listener), Vec::<String>::new(), "the agent would drop them");
        events.attend("a");
        assert_eq!(received(&mut listener), ["one"]);
        task(&events, "a").emit(content("two"));
        assert_eq!(received(&mut listener), ["two"]);

        // The agent is replaced by another one, which has no task runners yet.
        drop(listener);
        task(&events, "a").emit(content("three"));
        let mut listener = events.subscribe();
        assert_eq!(received(&mut listener), Vec::<String>::new());
        events.attend("a");
        events.attend("b");
        let mut got = received(&mut listener);
        got.sort();
        assert_eq!(got, ["of b", "three"]);
    }

    #[test]
    fn content_is_made_at_the_delivery_or_before_the_tasks_removal() {
        let events = Events::default();
        let made = Arc::new(AtomicU32::new(0));
        let count = |text: Option<&'static str>| {
            let made = made.clone();
            move || {
                made.fetch_add(1, Ordering::Relaxed);
                text.map(content)
            }
        };
        events.attend("a");
        task(&events, "a").emit_at_delivery(count(Some("late")));
        task(&events, "a").emit_at_delivery(count(None));
        task(&events, "b").emit_at_delivery(count(Some("of b")));
        assert_eq!(made.load(Ordering::Relaxed), 0);
        events.complete("b");
        events.forget("b");
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let mut listener = events.subscribe();
        assert_eq!(received(&mut listener), ["late"], "an event without content is none");
        events.attend("b");
        assert_eq!((received(&mut listener), made.load(Ordering::Relaxed)), (vec!["of b".to_owned()], 3));
    }

    #[test]
    fn the_oldest_waiting_events_are_dropped_first() {
        let events = Events::default();
        (0..=BACKLOG).for_each(|number| task(&events, "a").emit(content(&number.to_string())));
        events.attend("a");
        let got = received(&mut events.subscribe());
        assert_eq!((got.len(), got[0].as_str()), (BACKLOG, "1"));
    }
}
