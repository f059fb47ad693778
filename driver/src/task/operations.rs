//! StartTask, RecoverTask and DestroyTask: register the id, then hand the task to an owner.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use super::{
    DriverState, Event, TaskRef, Tasks,
    owner::{Owner, Starting},
    running, start,
    task_ref::OwnerChannels,
};
use crate::{
    error::TaskError,
    node::Node,
    plan::{self, NomadTask},
};

impl Tasks {
    /// Starts a task and waits until its command runs. After an error the id is free and nothing of the task is left.
    pub async fn start(&self, node: Arc<Node>, task: NomadTask) -> Result<DriverState, TaskError> {
        let (reference, channels) = self.register(&task)?;
        node.id.learn(&task.node_id);
        if node.recorder().is_some() {
            reference.info().set_restarts(self.count_start(&task));
        }
        let (cancel, cancelled) = watch::channel(false);
        let (caller, started) = oneshot::channel();
        let work = Box::pin(start::run(node.clone(), self.clone(), task, cancelled));
        let starting = Starting { work, cancel, caller };
        self.run(&reference, Owner::of_start(node, reference.info().clone(), channels, starting));
        started.await.unwrap_or_else(|_| Err(TaskError::Internal("the task's owner ended early".to_owned())))
    }

    /// Takes over a container that another plugin process started. A task that is known already is left as it is.
    pub async fn recover(&self, node: Arc<Node>, task: &NomadTask, state: DriverState) -> Result<(), TaskError> {
        let Some((reference, channels)) = self.register_for_recovery(task).await? else { return Ok(()) };
        node.id.learn(&task.node_id);
        node.recoveries.note();
        failpoint::at("recover-before-status");
        let recovered = running::recover(&node, &state).await;
        failpoint::at("recover-before-owner");
        match recovered {
            Ok(recovered) => {
                node.answered(state.container.clone()).await;
                reference.info().set_state(state);
                self.run(&reference, Owner::of_recovered(node, reference.info().clone(), channels, recovered));
                Ok(())
            }
            Err(error) => {
                self.forget(&task.id);
                Err(error)
            }
        }
    }

    /// Registers a task unless another call brings it back. If that other call fails, this one tries itself and so
    /// learns the reason.
    async fn register_for_recovery(&self, task: &NomadTask) -> Result<Option<(TaskRef, OwnerChannels)>, TaskError> {
        if let Ok(registered) = self.register(task) {
            return Ok(Some(registered));
        }
        match self.get(&task.id) {
            Ok(known) if known.settled().await => Ok(None),
            _ => self.register(task).map(Some),
        }
    }

    /// Removes a task. An unknown task may have left a container on the host when its start was interrupted; its id
    /// is taken until that container is removed.
    pub async fn destroy(&self, node: &Arc<Node>, task_id: &str, force: bool) -> Result<(), TaskError> {
        let unknown = NomadTask { id: task_id.to_owned(), ..NomadTask::default() };
        if let Ok((_, channels)) = self.register(&unknown) {
            let removed = node.remove_container(plan::container_id(task_id, node.config.driver)).await;
            self.forget(task_id);
            drop(channels);
            return removed;
        }
        // If the task is not found, another call has destroyed it at this moment.
        let Ok(task) = self.get(task_id) else { return Ok(()) };
        match task.apply(Event::Destroy { force }).await {
            Ok(()) | Err(TaskError::Unknown(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Runs an owner until its task is destroyed, then forgets the task.
    fn run(&self, reference: &TaskRef, owner: Owner) {
        let (tasks, task_id) = (self.clone(), reference.info().task_id.clone());
        tokio::spawn(async move {
            let replies = owner.run().await;
            failpoint::at("destroy-before-forget");
            // The task is forgotten before the reply: a caller that knows of the end must not find the task any more.
            tasks.forget(&task_id);
            failpoint::at("destroy-before-answer");
            replies.send();
        });
    }
}
