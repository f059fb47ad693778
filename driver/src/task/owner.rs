//! The owner of one task: an async task that takes calls one after another and carries decisions out.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    Exit, Phase, TaskError, TaskView,
    alive::{Alive, Recovered},
    hits::{self, AbortOnDrop},
    lifecycle::{Action, Event, decide},
    registry::Facts,
    start::Started,
};
use crate::{
    engine::Engine,
    events::TaskEvents,
    logs::{self, Watched},
};

/// How long the monitor of a killed container may take to write down its end.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One call: what is to happen, and who waits for it.
pub struct Command {
    /// What is to happen.
    pub event: Event,
    /// Told when it has been carried out.
    pub reply: oneshot::Sender<Result<(), TaskError>>,
}

/// The answers that may only leave after the task is forgotten.
pub struct Farewell {
    report: Option<Report>,
    destroys: Vec<oneshot::Sender<Result<(), TaskError>>>,
}

type Report = (oneshot::Sender<Result<Started, TaskError>>, TaskError);

impl Farewell {
    /// Sends them. Whoever hung up meanwhile does not mind.
    pub fn send(self) {
        if let Some((report, error)) = self.report {
            drop(report.send(Err(error)));
        }
        for reply in self.destroys {
            drop(reply.send(Ok(())));
        }
    }
}

/// See the module's head.
pub struct Owner {
    engine: Arc<Engine>,
    facts: Arc<Facts>,
    inbox: mpsc::Receiver<Command>,
    view: watch::Sender<TaskView>,
    phase: Phase,
    starting: Option<Starting>,
    alive: Option<Arc<Alive>>,
    logs: Option<Watched>,
    /// Done when nothing writes about the logs any more.
    released: Option<oneshot::Receiver<()>>,
    hits: Option<AbortOnDrop>,
    /// Ends with the container by itself.
    terminal: Option<AbortOnDrop>,
    ended: Option<Later<Exit>>,
    grace: Option<Instant>,
    /// Destroys that wait for a start to come to its end.
    destroys: Vec<oneshot::Sender<Result<(), TaskError>>>,
    failed: Option<Report>,
    /// Nobody but us will ask for its removal: its start was given up after the container was made, or the removal was asked for and
    /// failed, which an agent does not ask again.
    orphaned: bool,
    /// When a removal that failed is tried again.
    retry: Option<Instant>,
}

/// How long a removal that failed waits. That a container ends at last is heard of at once.
const RETRY: std::time::Duration = std::time::Duration::from_secs(60);

struct Starting {
    result: Later<Result<(Started, Alive), TaskError>>,
    cancel: watch::Sender<bool>,
    report: oneshot::Sender<Result<Started, TaskError>>,
}

impl Owner {
    /// The owner of a task that is being started.
    pub fn starting(
        engine: Arc<Engine>,
        facts: Arc<Facts>,
        inbox: mpsc::Receiver<Command>,
        view: watch::Sender<TaskView>,
        result: Later<Result<(Started, Alive), TaskError>>,
        cancel: watch::Sender<bool>,
        report: oneshot::Sender<Result<Started, TaskError>>,
    ) -> Self {
        let mut owner = Self::new(engine, facts, inbox, view);
        owner.starting = Some(Starting { result, cancel, report });
        owner
    }

    /// The owner of a task that another process started.
    pub fn recovered(
        engine: Arc<Engine>,
        facts: Arc<Facts>,
        inbox: mpsc::Receiver<Command>,
        view: watch::Sender<TaskView>,
        recovered: Recovered,
    ) -> Self {
        let mut owner = Self::new(engine, facts, inbox, view);
        match recovered {
            Recovered::Running(alive) => owner.adopt(alive),
            Recovered::Ended { exit, started_at } => {
                owner.phase = Phase::Exited;
                owner.tell_remarks(&exit);
                if let Some(state) = owner.facts.state() {
                    logs::tell_dropped(&owner.engine.runtime, &state.container, &owner.events());
                }
                owner.view.send_replace(TaskView { started_at, exit: Some(exit), ..TaskView::new(Phase::Exited) });
            }
        }
        owner
    }

    fn new(
        engine: Arc<Engine>,
        facts: Arc<Facts>,
        inbox: mpsc::Receiver<Command>,
        view: watch::Sender<TaskView>,
    ) -> Self {
        Self {
            engine,
            facts,
            inbox,
            view,
            phase: Phase::Starting { cancelled: false },
            starting: None,
            alive: None,
            logs: None,
            released: None,
            hits: None,
            terminal: None,
            ended: None,
            grace: None,
            destroys: Vec::new(),
            failed: None,
            orphaned: false,
            retry: None,
        }
    }

    /// Runs until the task is destroyed.
    pub async fn run(mut self) -> Farewell {
        while self.phase != Phase::Destroyed {
            tokio::select! {
                Some(command) = self.inbox.recv() => self.take(command).await,
                result = finished(self.starting.as_mut().map(|starting| &mut starting.result)) => {
                    self.start_finished(result).await;
                }
                exit = finished(self.ended.as_mut()) => self.container_ended(exit).await,
                () = reached(self.grace) => {
                    self.grace = None;
                    self.step(Event::GraceOver).await;
                }
                () = reached(self.retry) => {
                    self.retry = None;
                    self.step(Event::Destroy { force: true }).await;
                }
            }
        }
        Farewell { report: self.failed, destroys: self.destroys }
    }

    /// Where to tell what happens to the task.
    fn events(&self) -> TaskEvents {
        self.engine.events.of_task(&self.facts.task_id, &self.facts.alloc_id, &self.facts.name)
    }

    async fn take(&mut self, Command { event, reply }: Command) {
        if matches!(event, Event::Stop { .. }) {
            self.view.send_modify(|view| view.unkillable = None);
        }
        let result = self.apply(event).await;
        if matches!(event, Event::Destroy { .. }) && result.is_ok() {
            // Answered when the task is gone: now, or when its start has come to an end.
            self.destroys.push(reply);
        } else {
            // The caller may have hung up; what it asked for is done all the same.
            drop(reply.send(result));
        }
    }

    async fn start_finished(&mut self, result: Result<(Started, Alive), TaskError>) {
        let Some(starting) = self.starting.take() else { return };
        match result {
            Ok((started, alive)) => {
                self.facts.set_state(started.state.clone());
                if self.phase == (Phase::Starting { cancelled: true }) {
                    // Answered when the container is gone: after an answer nobody but us would ask for its removal, and we may die.
                    self.orphaned = true;
                    self.failed = Some((starting.report, TaskError::Cancelled));
                    self.adopt_with(alive, Event::Started).await;
                } else {
                    self.adopt_with(alive, Event::Started).await;
                    drop(starting.report.send(Ok(started)));
                }
            }
            Err(error) => {
                self.failed = Some((starting.report, error));
                self.step(Event::StartFailed).await;
            }
        }
    }

    async fn adopt_with(&mut self, alive: Alive, event: Event) {
        let phase = self.phase;
        self.adopt(alive);
        self.phase = phase;
        self.step(event).await;
    }

    /// Watches a container that runs.
    fn adopt(&mut self, alive: Alive) {
        let alive = Arc::new(alive);
        self.phase = Phase::Running;
        self.logs = self.engine.logs.watch(alive.container(), self.events());
        let runtime = self.engine.runtime.clone();
        let terminal = logs::terminal::keep(runtime, alive.container().clone(), alive.clone(), self.events());
        self.terminal = Some(AbortOnDrop::of(terminal));
        self.hits = Some(AbortOnDrop::of(hits::watch(self.engine.clone(), alive.container().clone(), self.events())));
        self.ended = Some(Box::pin(alive.clone().end(self.engine.clone())));
        self.view.send_modify(|view| {
            view.phase = Phase::Running;
            view.started_at = Some(alive.running.started_at);
        });
        self.alive = Some(alive);
    }

    fn tell_remarks(&self, exit: &Exit) {
        for remark in &exit.remarks {
            self.events().emit(remark.clone(), []);
        }
    }

    async fn container_ended(&mut self, exit: Exit) {
        self.ended = None;
        self.grace = None;
        self.let_go_of_logs();
        self.hits = None;
        self.tell_remarks(&exit);
        self.view.send_modify(|view| view.exit = Some(exit));
        self.step(Event::Ended).await;
        if self.orphaned || !self.destroys.is_empty() {
            self.step(Event::Destroy { force: true }).await;
        }
    }

    /// An event of our own: refusals cannot happen, and a failure is logged because nobody waits for it.
    async fn step(&mut self, event: Event) {
        if let Err(error) = self.apply(event).await {
            tracing::error!(task = self.facts.task_id, ?event, %error, "task step failed");
        }
    }

    async fn apply(&mut self, event: Event) -> Result<(), TaskError> {
        let (next, actions) = decide(self.phase, event)?;
        for action in actions {
            failpoint::at(before(action));
            if let Err(error) = self.carry_out(action).await {
                self.failed_to(event, &error);
                return Err(error);
            }
        }
        self.phase = next;
        self.view.send_modify(|view| view.phase = next);
        Ok(())
    }

    /// What was to happen did not. A removal is tried again by ourselves; who waits for the end of a task hears that it does not come.
    fn failed_to(&mut self, event: Event, error: &TaskError) {
        if let Some((report, cancelled)) = self.failed.take() {
            drop(report.send(Err(cancelled)));
        }
        match event {
            Event::Destroy { .. } => {
                self.orphaned = true;
                self.retry = Some(Instant::now() + RETRY);
            }
            // A container whose start was given up, and that does not end.
            Event::Started => self.phase = Phase::Stopping { killed: false },
            Event::GraceOver => self.view.send_modify(|view| view.unkillable = Some(error.to_string())),
            _ => {}
        }
    }

    async fn carry_out(&mut self, action: Action) -> Result<(), TaskError> {
        match action {
            Action::CancelStart => {
                if let Some(starting) = &self.starting {
                    starting.cancel.send_replace(true);
                }
                Ok(())
            }
            Action::ArmGrace(grace) => {
                // A grace beyond what the clock can count never ends.
                self.grace = Instant::now().checked_add(grace);
                Ok(())
            }
            Action::Signal(signal) => match &self.alive {
                Some(alive) => alive
                    .running
                    .signal(signal)
                    .map_err(|error| TaskError::Internal(format!("signal {signal}: {error}"))),
                None => Ok(()),
            },
            Action::KillAll => self.engine.kill_all(self.facts.clone()).await,
            Action::Remove => {
                self.publish_end().await;
                // Whatever of ours still works in the task's directory lets go of it.
                (self.hits, self.terminal) = (None, None);
                self.let_go_of_logs();
                if let Some(released) = self.released.take() {
                    drop(released.await);
                }
                self.engine.remove(self.facts.clone()).await
            }
        }
    }

    fn let_go_of_logs(&mut self) {
        if let Some(logs) = self.logs.take() {
            self.released = Some(logs.let_go());
        }
    }

    /// Before a killed task is forgotten: Nomad takes an error of WaitTask for the task's end, so who waits is told the truth.
    async fn publish_end(&mut self) {
        let Some(ended) = self.ended.take() else { return };
        if let Ok(exit) = tokio::time::timeout(PATIENCE, ended).await {
            self.view.send_modify(|view| view.exit = Some(exit));
        }
    }
}

/// The failpoint before an action.
fn before(action: Action) -> &'static str {
    match action {
        Action::CancelStart => "owner-before-cancel",
        Action::Signal(_) => "owner-before-signal",
        Action::ArmGrace(_) => "owner-before-grace",
        Action::KillAll => "owner-before-kill",
        Action::Remove => "owner-before-remove",
    }
}

/// The end of a future that may not be there: pending for ever without one.
async fn finished<T>(future: Option<&mut Later<T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
