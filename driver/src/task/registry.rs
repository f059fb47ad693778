//! The tasks that this process knows, by Nomad's id.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use runtime::plan::ContainerId;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    DriverState, Event, Exit, Phase, TaskError, TaskView, alive,
    owner::{Command, Owner},
    start::{self, Started},
};
use crate::{
    engine::Engine,
    plan::{self, NomadTask},
};

/// Calls that wait for an owner to take them; it takes them at once unless it is removing a container.
const INBOX: usize = 64;

/// All known tasks. An id is claimed under the lock, so two starts of one id cannot both pass.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<HashMap<String, TaskRef>>>);

/// A way to a task's owner.
#[derive(Clone)]
pub struct TaskRef {
    inbox: mpsc::Sender<Command>,
    view: watch::Receiver<TaskView>,
    facts: Arc<Facts>,
}

/// What does not change in a task's life.
#[derive(Debug)]
pub struct Facts {
    /// Nomad's id of the task.
    pub task_id: String,
    /// Its name in the job.
    pub name: String,
    /// The allocation.
    pub alloc_id: String,
    /// What recovery and stop need to know; set once the start knows it.
    state: std::sync::OnceLock<DriverState>,
}

impl Tasks {
    /// The owner of a known task.
    pub fn get(&self, task_id: &str) -> Result<TaskRef, TaskError> {
        self.lock().get(task_id).cloned().ok_or_else(|| TaskError::Unknown(task_id.to_owned()))
    }

    /// Whether this is the container of a task, one that is only being started included.
    pub fn knows(&self, container: &ContainerId) -> bool {
        self.lock().keys().any(|task_id| plan::container_id(task_id) == *container)
    }

    /// Does something about a container that is no task's, and keeps it from becoming one until that is done.
    pub fn unless_known(&self, container: &str, work: impl FnOnce() -> Result<(), TaskError>) -> Result<(), TaskError> {
        let tasks = self.lock();
        let known = tasks.keys().any(|task_id| plan::container_id(task_id).as_str() == container);
        if known { Ok(()) } else { work() }
    }

    /// Starts a task and waits until its command runs. On error the id is free again and nothing is left of it.
    pub async fn start(&self, engine: Arc<Engine>, task: NomadTask) -> Result<Started, TaskError> {
        let (reference, link) = self.claim(&task)?;
        engine.node.is(&task.node_id);
        let (cancel, cancelled) = watch::channel(false);
        let (report, started) = oneshot::channel();
        let starting = Box::pin(start::run(engine.clone(), self.clone(), task, cancelled));
        let owner = Owner::starting(engine, reference.facts.clone(), link.inbox, link.view, starting, cancel, report);
        self.run(&reference, owner);
        started.await.unwrap_or_else(|_| Err(TaskError::Internal("the task's owner ended early".to_owned())))
    }

    /// Takes over a container that another plugin process started; a task that is known already is fine.
    pub async fn recover(&self, engine: Arc<Engine>, task: &NomadTask, state: DriverState) -> Result<(), TaskError> {
        let mut claimed = self.claim(task);
        if claimed.is_err() {
            // Another call may be about to bring it back. When it cannot, we learn the reason ourselves.
            match self.get(&task.id) {
                Ok(known) if known.settled().await => return Ok(()),
                _ => claimed = self.claim(task),
            }
        }
        let (reference, link) = claimed?;
        engine.node.is(&task.node_id);
        failpoint::at("recover-before-status");
        let recovered = alive::recover(&engine, &state).await;
        failpoint::at("recover-before-owner");
        match recovered {
            Ok(recovered) => {
                reference.facts.set_state(state);
                let owner = Owner::recovered(engine, reference.facts.clone(), link.inbox, link.view, recovered);
                self.run(&reference, owner);
                Ok(())
            }
            Err(error) => {
                self.lock().remove(&task.id);
                Err(error)
            }
        }
    }

    /// Removes a task. One that this process does not know may have left something on the host, when its start was cut short;
    /// its id is taken until that is gone.
    pub async fn destroy(&self, engine: &Arc<Engine>, task_id: &str, force: bool) -> Result<(), TaskError> {
        let task = NomadTask { id: task_id.to_owned(), ..NomadTask::default() };
        match self.claim(&task) {
            Ok((_, link)) => {
                let removed = engine.remove_container(plan::container_id(task_id)).await;
                self.lock().remove(task_id);
                drop(link);
                removed
            }
            Err(_) => match self.get(task_id) {
                Ok(task) => match task.apply(Event::Destroy { force }).await {
                    Ok(()) | Err(TaskError::Unknown(_)) => Ok(()),
                    Err(error) => Err(error),
                },
                // Destroyed this moment by another call.
                Err(_) => Ok(()),
            },
        }
    }

    fn claim(&self, task: &NomadTask) -> Result<(TaskRef, Link), TaskError> {
        let mut tasks = self.lock();
        if tasks.contains_key(&task.id) {
            return Err(TaskError::AlreadyStarted(task.id.clone()));
        }
        let (inbox, commands) = mpsc::channel(INBOX);
        let (publish, view) = watch::channel(TaskView::new(Phase::Starting { cancelled: false }));
        let facts = Arc::new(Facts {
            task_id: task.id.clone(),
            name: task.name.clone(),
            alloc_id: task.alloc_id.clone(),
            state: std::sync::OnceLock::new(),
        });
        let reference = TaskRef { inbox, view, facts };
        tasks.insert(task.id.clone(), reference.clone());
        Ok((reference, Link { inbox: commands, view: publish }))
    }

    /// Lets an owner run until its task is destroyed, then forgets the task.
    fn run(&self, reference: &TaskRef, owner: Owner) {
        let (tasks, task_id) = (self.clone(), reference.facts.task_id.clone());
        tokio::spawn(async move {
            let replies = owner.run().await;
            failpoint::at("destroy-before-forget");
            // Forgotten first: who hears that the task is destroyed must not find it any more.
            tasks.lock().remove(&task_id);
            failpoint::at("destroy-before-answer");
            replies.send();
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, TaskRef>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owner's ends of a task's channels.
struct Link {
    inbox: mpsc::Receiver<Command>,
    view: watch::Sender<TaskView>,
}

impl Facts {
    /// What the start learned; known from the moment that the command runs.
    pub fn state(&self) -> Option<&DriverState> {
        self.state.get()
    }

    /// Sets it, once.
    pub fn set_state(&self, state: DriverState) {
        // A second value cannot come: a task is started or recovered once.
        drop(self.state.set(state));
    }
}

impl TaskRef {
    /// The task's name in the job.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// What the start learned.
    pub fn state(&self) -> Result<DriverState, TaskError> {
        self.facts.state().cloned().ok_or(TaskError::Refused(super::Refusal::StillStarting))
    }

    /// What the owner published last.
    pub fn view(&self) -> TaskView {
        self.view.borrow().clone()
    }

    /// Waits until the task's start or recovery has come to its end; whether there is a task then.
    async fn settled(&self) -> bool {
        let mut view = self.view.clone();
        view.wait_for(|view| !matches!(view.phase, Phase::Starting { .. })).await.is_ok()
    }

    /// Waits for the end of a task that is being stopped; an error when it cannot be brought about.
    pub async fn stopped(&self) -> Result<(), TaskError> {
        let mut view = self.view.clone();
        let settled =
            view.wait_for(|view| view.exit.is_some() || view.phase == Phase::Destroyed || view.unkillable.is_some());
        let unkillable = settled.await.ok().filter(|view| view.exit.is_none()).and_then(|view| view.unkillable.clone());
        unkillable.map_or(Ok(()), |problem| Err(TaskError::Internal(problem)))
    }

    /// Waits for the task's end.
    pub async fn wait(&self) -> Result<Exit, TaskError> {
        let mut view = self.view.clone();
        let ended = view.wait_for(|view| view.exit.is_some() || view.phase == Phase::Destroyed).await;
        let exit = ended.ok().and_then(|view| view.exit.clone());
        exit.ok_or_else(|| TaskError::Unknown(self.facts.task_id.clone()))
    }

    /// Has the owner decide on an event and carry the decision out. Returns when that is done.
    pub async fn apply(&self, event: Event) -> Result<(), TaskError> {
        let gone = || TaskError::Unknown(self.facts.task_id.clone());
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Command { event, reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
