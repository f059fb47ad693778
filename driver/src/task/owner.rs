//! The owner of one task: an async task that takes events one after another and carries the decisions out.
//!
//! `lifecycle` decides. The owner only measures time, keeps the callers' replies, and calls the node.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    DriverState, Exit, Phase, TaskView,
    container_watch::ContainerWatch,
    info::TaskInfo,
    lifecycle::{Action, Event, Lifecycle, ReplyTime},
    running::{Recovered, RunningContainer},
    task_ref::{Call, OwnerChannels},
};
use crate::{error::TaskError, events::TaskEvents, logs, node::Node};

/// The longest wait for the monitor of a killed container to record the container's end.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// The pause after a failed removal. A container's end, when it comes at last, repeats the removal at once.
const REMOVAL_RETRY: Duration = Duration::from_secs(60);

/// A start in progress.
pub struct Starting {
    /// The start.
    pub work: BoxFuture<'static, Result<(DriverState, RunningContainer), TaskError>>,
    /// Set to true to cancel the start.
    pub cancel: watch::Sender<bool>,
    /// The caller of StartTask.
    pub caller: oneshot::Sender<Result<DriverState, TaskError>>,
}

/// Replies that leave only after the task is forgotten.
#[derive(Default)]
pub struct PendingReplies {
    start: Option<StartReply>,
    destroys: Vec<oneshot::Sender<Result<(), TaskError>>>,
}

struct StartReply {
    caller: oneshot::Sender<Result<DriverState, TaskError>>,
    result: Result<DriverState, TaskError>,
}

impl StartReply {
    fn send(self) {
        // A caller that has gone away needs no answer.
        drop(self.caller.send(self.result));
    }
}

impl PendingReplies {
    /// Sends the replies.
    pub fn send(self) {
        if let Some(start) = self.start {
            start.send();
        }
        for caller in self.destroys {
            drop(caller.send(Ok(())));
        }
    }
}

/// The owner of one task.
pub struct Owner {
    node: Arc<Node>,
    info: Arc<TaskInfo>,
    channels: OwnerChannels,
    state: Lifecycle,
    starting: Option<Starting>,
    watch: Option<ContainerWatch>,
    /// The end of a stop's grace.
    grace: Option<Instant>,
    /// The time of the repetition of a failed removal.
    removal_retry: Option<Instant>,
    replies: PendingReplies,
}

impl Owner {
    /// The owner of a task that is being started.
    pub fn of_start(node: Arc<Node>, info: Arc<TaskInfo>, channels: OwnerChannels, starting: Starting) -> Self {
        let state = Lifecycle::new(Phase::Starting { cancelled: false });
        Self { starting: Some(starting), ..Self::new(node, info, channels, state) }
    }

    /// The owner of a task that another plugin process started.
    pub fn of_recovered(node: Arc<Node>, info: Arc<TaskInfo>, channels: OwnerChannels, recovered: Recovered) -> Self {
        match recovered {
            Recovered::Running(container) => {
                let mut owner = Self::new(node, info, channels, Lifecycle::new(Phase::Running));
                owner.watch_container(container);
                owner
            }
            Recovered::Ended { exit, started_at } => {
                let owner = Self::new(node, info, channels, Lifecycle::new(Phase::Exited));
                owner.emit_remarks(&exit);
                if let Some(container) = owner.info.container() {
                    logs::report_dropped(&owner.node.runtime, &container, &owner.events());
                }
                let view = TaskView { started_at, exit: Some(exit), ..TaskView::new(Phase::Exited) };
                owner.channels.view.send_replace(view);
                owner
            }
        }
    }

    fn new(node: Arc<Node>, info: Arc<TaskInfo>, channels: OwnerChannels, state: Lifecycle) -> Self {
        Self {
            node,
            info,
            channels,
            state,
            starting: None,
            watch: None,
            grace: None,
            removal_retry: None,
            replies: PendingReplies::default(),
        }
    }

    /// Runs until the task is destroyed.
    pub async fn run(mut self) -> PendingReplies {
        while self.state.phase != Phase::Destroyed {
            tokio::select! {
                Some(command) = self.channels.inbox.recv() => self.take(command).await,
                result = start_result(self.starting.as_mut()) => self.start_finished(result).await,
                exit = container_end(self.watch.as_mut()) => self.container_ended(exit).await,
                () = reached(self.grace) => {
                    self.grace = None;
                    self.raise(Event::GraceOver).await;
                }
                () = reached(self.removal_retry) => {
                    self.removal_retry = None;
                    self.raise(Event::REMOVE).await;
                }
            }
        }
        self.node.events.forget(&self.info.task_id);
        self.replies
    }

    async fn take(&mut self, Call { event, reply }: Call) {
        match self.apply(event).await {
            Ok((ReplyTime::WhenDestroyed, follow_up)) => {
                self.replies.destroys.push(reply);
                self.raise(follow_up).await;
            }
            Ok((ReplyTime::Now, follow_up)) => {
                // The event is carried out even if the caller has gone away.
                drop(reply.send(Ok(())));
                self.raise(follow_up).await;
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    async fn start_finished(&mut self, result: Result<(DriverState, RunningContainer), TaskError>) {
        let Some(Starting { caller, .. }) = self.starting.take() else { return };
        match result {
            Ok((state, container)) => {
                self.info.set_state(state.clone());
                self.replies.start = Some(StartReply { caller, result: Ok(state) });
                self.watch_container(container);
                self.raise(Event::Started).await;
            }
            Err(error) => {
                self.replies.start = Some(StartReply { caller, result: Err(error) });
                self.raise(Event::StartFailed).await;
            }
        }
    }

    fn watch_container(&mut self, container: RunningContainer) {
        let watch = ContainerWatch::start(&self.node, container, &self.info.alloc_dir, &self.events());
        self.channels.view.send_modify(|view| {
            view.phase = Phase::Running;
            view.started_at = Some(watch.container().processes.started_at);
        });
        self.watch = Some(watch);
    }

    async fn container_ended(&mut self, exit: Exit) {
        self.grace = None;
        if let Some(watch) = &mut self.watch {
            watch.stop_after_end();
        }
        self.emit_remarks(&exit);
        self.channels.view.send_modify(|view| view.exit = Some(exit));
        self.raise(Event::Ended).await;
    }

    /// Applies an event that has no caller, and the events that follow it. A refusal is impossible; a failure is
    /// logged.
    async fn raise(&mut self, event: impl Into<Option<Event>>) {
        let mut next = event.into();
        while let Some(event) = next.take() {
            match self.apply(event).await {
                Ok((_, follow_up)) => next = follow_up,
                Err(error) => tracing::error!(task = self.info.task_id, ?event, %error, "task step failed"),
            }
        }
    }

    /// Decides on an event and carries the decision out.
    async fn apply(&mut self, event: Event) -> Result<(ReplyTime, Option<Event>), TaskError> {
        let decision = self.state.decide(event)?;
        for action in decision.actions {
            if let Some(name) = failpoint_before(action) {
                failpoint::at(name);
            }
            if let Err(error) = self.carry_out(action, None).await {
                self.fail(event, &error).await;
                return Err(error);
            }
        }
        self.enter(decision.next);
        Ok((decision.reply, decision.follow_up))
    }

    async fn fail(&mut self, event: Event, error: &TaskError) {
        let (next, actions) = self.state.after_failure(event);
        for action in actions {
            if let Err(error) = self.carry_out(action, Some(error)).await {
                tracing::error!(task = self.info.task_id, ?action, %error, "a failure could not be handled");
            }
        }
        if next.phase == self.state.phase {
            self.state = next;
        } else {
            self.enter(next);
        }
    }

    fn enter(&mut self, state: Lifecycle) {
        self.state = state;
        self.channels.view.send_modify(|view| view.phase = state.phase);
    }

    /// `failure` is the error that led to the action, if one did.
    async fn carry_out(&mut self, action: Action, failure: Option<&TaskError>) -> Result<(), TaskError> {
        match action {
            Action::Signal(signal) => {
                let container = self.watch.as_ref().map(|watch| watch.container().clone());
                if let Some(container) = container {
                    container.signal(&self.node, signal).await?;
                }
            }
            Action::KillAll => return self.kill_all().await,
            Action::Remove => return self.remove().await,
            Action::CancelStart => {
                if let Some(starting) = &self.starting {
                    starting.cancel.send_replace(true);
                }
            }
            Action::AnswerStart => {
                if let Some(start) = self.replies.start.take() {
                    start.send();
                }
            }
            Action::WithholdStartAnswer => {
                if let Some(start) = &mut self.replies.start {
                    start.result = Err(TaskError::Cancelled);
                }
            }
            // A grace longer than the clock can count never ends.
            Action::ArmGrace(grace) => self.grace = Instant::now().checked_add(grace),
            Action::ArmRemovalRetry => self.removal_retry = Some(Instant::now() + REMOVAL_RETRY),
            Action::PublishKillError => self.publish_kill_error(failure.map(ToString::to_string)),
            Action::ClearKillError => self.publish_kill_error(None),
        }
        Ok(())
    }

    fn publish_kill_error(&self, error: Option<String>) {
        self.channels.view.send_modify(|view| view.kill_error = error);
    }

    async fn kill_all(&mut self) -> Result<(), TaskError> {
        match self.info.container() {
            Some(container) => self.node.kill_all(container).await,
            None => Ok(()),
        }
    }

    async fn remove(&mut self) -> Result<(), TaskError> {
        if let Some(watch) = &mut self.watch {
            // Nomad takes an error of WaitTask for the task's end, so the exit is published before the task is
            // forgotten.
            if let Some(exit) = watch.take_end(END_PATIENCE).await {
                self.channels.view.send_modify(|view| view.exit = Some(exit));
            }
            watch.release().await;
        }
        self.node.events.complete(&self.info.task_id);
        match self.info.container() {
            Some(container) => self.node.remove_container(container).await,
            None => Ok(()),
        }
    }

    fn events(&self) -> TaskEvents {
        self.info.events(&self.node.events)
    }

    fn emit_remarks(&self, exit: &Exit) {
        for remark in &exit.remarks {
            self.events().emit(remark.clone());
        }
    }
}

/// The failpoint before an action.
fn failpoint_before(action: Action) -> Option<&'static str> {
    match action {
        Action::CancelStart => Some("owner-before-cancel"),
        Action::Signal(_) => Some("owner-before-signal"),
        Action::ArmGrace(_) => Some("owner-before-grace"),
        Action::KillAll => Some("owner-before-kill"),
        Action::Remove => Some("owner-before-remove"),
        _ => None,
    }
}

/// The result of the start; pending for ever without one.
async fn start_result(starting: Option<&mut Starting>) -> Result<(DriverState, RunningContainer), TaskError> {
    match starting {
        Some(starting) => (&mut starting.work).await,
        None => std::future::pending().await,
    }
}

/// The container's end; pending for ever without a container.
async fn container_end(watch: Option<&mut ContainerWatch>) -> Exit {
    match watch {
        Some(watch) => watch.ended().await,
        None => std::future::pending().await,
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
