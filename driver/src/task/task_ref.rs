//! The way from a call to a task's owner: a channel for events, and the published state.

use std::sync::Arc;

use runtime::plan::ContainerId;
use tokio::sync::{mpsc, oneshot, watch};

use super::{DriverState, Event, Exit, Phase, TaskView, info::TaskInfo};
use crate::error::{Refusal, TaskError};

/// Calls that wait for an owner. The owner takes them at once unless it is removing a container.
const INBOX: usize = 64;

/// One call of the agent.
pub struct Call {
    /// The event that the call raises.
    pub event: Event,
    /// The caller.
    pub reply: oneshot::Sender<Result<(), TaskError>>,
}

/// The owner's ends of a task's channels.
pub struct OwnerChannels {
    /// The calls.
    pub inbox: mpsc::Receiver<Call>,
    /// The published state.
    pub view: watch::Sender<TaskView>,
}

/// A reference to a task that this process knows.
#[derive(Clone)]
pub struct TaskRef {
    inbox: mpsc::Sender<Call>,
    view: watch::Receiver<TaskView>,
    info: Arc<TaskInfo>,
}

/// Makes the channels of a task that is about to start or to be recovered.
pub fn channels(info: TaskInfo) -> (TaskRef, OwnerChannels) {
    let (sender, inbox) = mpsc::channel(INBOX);
    let (publisher, view) = watch::channel(TaskView::new(Phase::Starting { cancelled: false }));
    (TaskRef { inbox: sender, view, info: Arc::new(info) }, OwnerChannels { inbox, view: publisher })
}

impl TaskRef {
    /// The fixed facts about the task.
    pub fn info(&self) -> &Arc<TaskInfo> {
        &self.info
    }

    /// The container, for the first caller after the start.
    pub fn first_attention(&self) -> Option<ContainerId> {
        self.info.container().filter(|_| self.info.attended_first())
    }

    /// The task's name in the job.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The driver's part of the task's handle; an error while the task is starting.
    pub fn state(&self) -> Result<DriverState, TaskError> {
        self.info.state().cloned().ok_or(TaskError::Refused(Refusal::StillStarting))
    }

    /// The state that the owner published last.
    pub fn view(&self) -> TaskView {
        self.view.borrow().clone()
    }

    /// Waits for the end of the task's start or recovery. False if it failed, so that the task is gone.
    pub async fn settled(&self) -> bool {
        let mut view = self.view.clone();
        view.wait_for(|view| !matches!(view.phase, Phase::Starting { .. })).await.is_ok()
    }

    /// Waits for the end of a task that is being stopped. An error means that the task could not be killed.
    pub async fn stopped(&self) -> Result<(), TaskError> {
        let mut view = self.view.clone();
        let settled =
            view.wait_for(|view| view.exit.is_some() || view.phase == Phase::Destroyed || view.kill_error.is_some());
        let kill_error = settled.await.ok().filter(|view| view.exit.is_none()).and_then(|view| view.kill_error.clone());
        kill_error.map_or(Ok(()), |problem| Err(TaskError::Internal(problem)))
    }

    /// Waits for the task's end.
    pub async fn wait(&self) -> Result<Exit, TaskError> {
        let mut view = self.view.clone();
        let ended = view.wait_for(|view| view.exit.is_some() || view.phase == Phase::Destroyed).await;
        let exit = ended.ok().and_then(|view| view.exit.clone());
        exit.ok_or_else(|| TaskError::Unknown(self.info.task_id.clone()))
    }

    /// Raises an event. Returns when the owner has carried its decision out.
    pub async fn apply(&self, event: Event) -> Result<(), TaskError> {
        let gone = || TaskError::Unknown(self.info.task_id.clone());
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Call { event, reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
