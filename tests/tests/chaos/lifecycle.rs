//! Runs one lifecycle: makes the calls of the agent, and checks the invariants.
//!
//! The task writes its exit code to a file before it exits. This file is compared with the driver's answers.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    rc::Rc,
    time::Duration,
};

use fixtures::{
    must::Must,
    process,
    wait::{all, eventually, seconds},
};
use kit::{calls::recoverable, hcl, leak::Traces, plugin::Plugin, task::Task};
use proto::driver::{TaskHandle, TaskState, WaitTaskResponse};
use serde_json::json;
use tonic::Status;

use crate::{
    environment::{Connection, Environment, kill, process_name},
    scenario::{Behavior, Ending, Lifecycle, Step},
};

/// Runs one lifecycle. Panics when an invariant does not hold.
pub async fn run(environment: &Environment, lifecycle: &Lifecycle) {
    let mut run = Run::prepare(environment, lifecycle);
    let running = match lifecycle.ending {
        Ending::Interrupt(after) => run.start_interrupted(after).await,
        _ => run.start().await,
    };
    if running {
        run.is_up().await;
        for group in &lifecycle.steps {
            all(group.iter().map(|step| run.step(*step))).await;
        }
        run.end().await;
    }
    run.check_clean().await;
}

struct Run<'a> {
    environment: &'a Environment,
    lifecycle: &'a Lifecycle,
    task: Task,
    handle: Option<TaskHandle>,
    /// The number of the plugin that knows the task.
    known_to: Cell<usize>,
    reader: RefCell<Reader>,
    /// Whether the task may have ended.
    may_be_over: Cell<bool>,
    /// Whether the task may have been killed.
    may_be_killed: Cell<bool>,
    /// Whether DestroyTask was called.
    may_be_gone: Cell<bool>,
    monitor_killed: Cell<bool>,
}

/// The reader of the task's output, in the place of logmon.
struct Reader {
    fifo: PathBuf,
    child: Child,
}

impl Reader {
    fn start(fifo: PathBuf) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "exec cat \"$0\" >/dev/null"]).arg(&fifo);
        Self { child: command.spawn().must("a reader of the log"), fifo }
    }

    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
    }
}

fn script(behavior: Behavior) -> String {
    let until_go = "while [ ! -e /local/go ]; do echo tick; sleep 0.03; done; c=$(cat /local/go); \
                      echo $c >>/local/exit-code; exit $c";
    let traps = "trap 'echo 7 >>/local/exit-code; exit 7' TERM; trap 'echo hup' HUP;";
    match behavior {
        Behavior::HandlesTerm => format!("{traps} >/up; {until_go}"),
        Behavior::IgnoresTerm => format!("trap '' TERM HUP; >/up; {until_go}"),
        Behavior::LeavesChildren => format!(
            "{traps} for i in 1 2; do (trap '' TERM HUP; setsid sleep 1000 </dev/null >/dev/null 2>&1) & done; \
             >/up; {until_go}"
        ),
        Behavior::ExitsAtOnce(code) => format!("echo {code} >>/local/exit-code; exit {code}"),
    }
}

impl<'a> Run<'a> {
    fn prepare(environment: &'a Environment, lifecycle: &'a Lifecycle) -> Self {
        let image = environment.image(lifecycle.image, lifecycle.number);
        let config = json!({"image": image, "command": "/bin/sh", "args": ["-c", script(lifecycle.behavior)]});
        let packed = hcl::decode(&environment.schema, &config).must("the task's config block");
        let mut task = environment.node.task(&image).without_logs().build_packed(packed);
        let fifo = task.alloc.dir.join("alloc/logs/.main.stdout.fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).must("a log FIFO");
        task.config.stdout_path = fifo.to_string_lossy().into_owned();
        let brief = matches!(lifecycle.behavior, Behavior::ExitsAtOnce(_));
        Self {
            environment,
            lifecycle,
            task,
            handle: None,
            known_to: Cell::new(usize::MAX),
            reader: RefCell::new(Reader::start(fifo)),
            may_be_over: Cell::new(brief),
            may_be_killed: Cell::new(false),
            may_be_gone: Cell::new(false),
            monitor_killed: Cell::new(false),
        }
    }

    fn id(&self) -> &str {
        self.task.id()
    }

    /// Repeats StartTask until it is answered. Returns `false` after a final refusal that the lifecycle allows.
    async fn start(&mut self) -> bool {
        loop {
            let connection = self.environment.connection().await;
            match connection.plugin.start(&self.task).await {
                Ok(answer) => {
                    self.handle = answer.handle;
                    self.known_to.set(connection.number);
                    return true;
                }
                Err(_) if connection.dead.get() => {
                    if self.lifecycle.agent_dies {
                        self.task = self.task.restarted();
                    }
                }
                Err(status) if self.may_be_over.get() && status.message().contains("stopped while") => return false,
                // The pull failed. The restart policy tries again.
                Err(status) => {
                    assert!(
                        recoverable(&status) && status.message().contains("image"),
                        "{}: StartTask: {status}",
                        self.lifecycle.number
                    );
                    self.task = self.task.restarted();
                }
            }
        }
    }

    /// Calls StartTask, and StopTask before the answer.
    async fn start_interrupted(&mut self, after: u64) -> bool {
        self.may_be_over.set(true);
        self.may_be_killed.set(true);
        let (environment, id) = (self.environment, self.id().to_owned());
        let stop = async {
            tokio::time::sleep(Duration::from_millis(after)).await;
            let connection = environment.connection().await;
            let stopped = connection.plugin.stop(&id, Duration::ZERO, "").await;
            assert!(stopped.is_ok() || connection.dead.get(), "StopTask of a starting task: {stopped:?}");
        };
        let (running, ()) = tokio::join!(self.start(), stop);
        running
    }

    /// Waits until the task's command runs.
    async fn is_up(&self) {
        if !self.may_be_over.get() {
            let ready = eventually(seconds(20), || is_one_and_up(&self.task)).await;
            assert!(ready, "{}: not one container that is up: {:?}", self.lifecycle.number, self.task.groups.members());
        }
    }

    /// The first processes of containers in the task's cgroups.
    fn leads(&self) -> Vec<i32> {
        leads(&self.task)
    }

    /// The current plugin. It gets RecoverTask if it does not know the task.
    async fn connection(&self) -> Rc<Connection> {
        loop {
            let connection = self.environment.connection().await;
            let handle = self.handle.as_ref().filter(|_| self.known_to.get() != connection.number);
            let Some(handle) = handle else { return connection };
            match connection.plugin.recover(handle).await {
                Err(_) if connection.dead.get() => continue,
                // After DestroyTask, there may be nothing to recover.
                Err(_) if self.may_be_gone.get() => {}
                recovered => recovered.must(&format!("{}: RecoverTask", self.lifecycle.number)),
            }
            self.known_to.set(connection.number);
            return connection;
        }
    }

    /// Makes a call, and repeats it when the plugin was killed during the call.
    async fn call<T>(&self, call: impl AsyncFn(&Plugin) -> Result<T, Status>) -> Result<T, Status> {
        loop {
            let connection = self.connection().await;
            let answer = call(&connection.plugin).await;
            if answer.is_ok() || !connection.dead.get() {
                return answer;
            }
        }
    }

    async fn step(&self, step: Step) {
        match step {
            Step::Signal => self.check(step, self.call(async |plugin| plugin.signal(self.id(), "SIGHUP").await).await),
            Step::BadSignal => {
                let refused = self.call(async |plugin| plugin.signal(self.id(), "SIGNONSENSE").await).await;
                assert!(refused.is_err(), "{}: a signal that does not exist was sent", self.lifecycle.number);
            }
            Step::Exec => self.exec(step, "echo here").await,
            Step::LongExec => self.exec(step, "sleep 0.15; echo here").await,
            Step::Inspect => {
                let answer = self.call(async |plugin| plugin.inspect(self.id()).await).await;
                let running = answer.map(|answer| answer.task.is_some_and(|task| task.state() == TaskState::Running));
                self.check(
                    step,
                    running.and_then(|runs| if runs { Ok(()) } else { Err(Status::aborted("not running")) }),
                );
            }
            Step::Stats => {
                let first = async |plugin: &Plugin| match plugin.stats(self.id(), Duration::from_millis(20)).await {
                    Ok(mut stream) => stream.message().await.map(drop),
                    Err(status) => Err(status),
                };
                self.check(step, self.call(first).await);
            }
            Step::Recover => {
                if let Some(handle) = &self.handle {
                    self.check(step, self.call(async |plugin| plugin.recover(handle).await).await);
                }
            }
            Step::Wait => {
                let connection = self.connection().await;
                let wait = tokio::time::timeout(Duration::from_millis(10), connection.plugin.wait_raw(self.id()));
                drop(wait.await);
            }
            Step::Destroy => {
                if !self.may_be_over.get() {
                    let refused = self.call(async |plugin| plugin.destroy(self.id(), false).await).await;
                    assert!(refused.is_err(), "{}: a running task was destroyed without force", self.lifecycle.number);
                }
            }
            Step::KillPlugin => self.environment.kill_plugin().await,
            Step::KillMonitor => self.kill_monitor(),
            Step::KillHelper => self.environment.kill_helper().await,
            Step::KillReader => {
                let mut reader = self.reader.borrow_mut();
                reader.end();
                *reader = Reader::start(reader.fifo.clone());
            }
            Step::Pause(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        }
    }

    /// Checks a call that must succeed while the task runs.
    fn check(&self, step: Step, answer: Result<(), Status>) {
        if !self.may_be_over.get() {
            answer.must(&format!("{}: {step:?} in a running task", self.lifecycle.number));
        }
    }

    async fn exec(&self, step: Step, script: &str) {
        let command = ["/bin/sh", "-c", script];
        let answer = self.call(async |plugin| plugin.exec(self.id(), &command, seconds(20)).await).await;
        let done = answer.and_then(|answer| {
            let code = answer.result.map_or(-1, |result| result.exit_code);
            let right = code == 0 && answer.stdout == b"here\n";
            if right { Ok(()) } else { Err(Status::aborted(format!("code {code}, output {:?}", answer.stdout))) }
        });
        if !(self.environment.helpers_killed.get() && done.is_err()) {
            self.check(step, done);
        }
    }

    fn kill_monitor(&self) {
        let monitor = self.leads().first().and_then(|lead| parent(*lead));
        if let Some(monitor) = monitor.filter(|pid| process_name(*pid) == "oci-rs:monitor") {
            self.monitor_killed.set(true);
            kill(monitor);
        }
    }

    /// Ends the task, and checks the exit status that WaitTask returns.
    async fn end(&self) {
        let wait = self.call(async |plugin| plugin.wait_raw(self.id()).await);
        let (answer, ()) = tokio::join!(wait, self.cause_end());
        self.check_end(answer);
        let again = self.call(async |plugin| plugin.wait_raw(self.id()).await).await;
        self.check_end(again);
        self.may_be_gone.set(true);
        let destroyed = self.call(async |plugin| plugin.destroy(self.id(), true).await).await;
        destroyed.must(&format!("{}: DestroyTask of an ended task", self.lifecycle.number));
    }

    async fn cause_end(&self) {
        self.may_be_over.set(true);
        match self.lifecycle.ending {
            Ending::Stop(timeout) => self.stop(timeout).await,
            Ending::Interrupt(_) => self.stop(Duration::ZERO).await,
            Ending::Exit(code) => {
                let (new, go) = (self.task.dir().join("local/.go"), self.task.dir().join("local/go"));
                fs::write(&new, code.to_string()).and_then(|()| fs::rename(&new, go)).must("let the task exit");
            }
            Ending::Killed => {
                self.may_be_killed.set(true);
                self.leads().into_iter().for_each(kill);
            }
            Ending::Destroy => self.destroy().await,
            Ending::Concurrent(timeout) => {
                let signal = self.call(async |plugin| plugin.signal(self.id(), "SIGHUP").await);
                let stops = async { tokio::join!(self.stop(timeout), self.stop(timeout)) };
                let (signalled, ..) = tokio::join!(signal, stops, self.exec(Step::Exec, "echo here"), self.destroy());
                drop(signalled);
            }
        }
    }

    async fn stop(&self, timeout: Duration) {
        if timeout < seconds(10) {
            self.may_be_killed.set(true);
        }
        let stopped = self.call(async |plugin| plugin.stop(self.id(), timeout, "").await).await;
        stopped.must(&format!("{}: StopTask", self.lifecycle.number));
    }

    async fn destroy(&self) {
        self.may_be_killed.set(true);
        self.may_be_gone.set(true);
        let destroyed = self.call(async |plugin| plugin.destroy(self.id(), true).await).await;
        destroyed.must(&format!("{}: DestroyTask with force", self.lifecycle.number));
    }

    /// Compares the exit status of the driver with the exit code that the task wrote.
    fn check_end(&self, answer: Result<WaitTaskResponse, Status>) {
        let number = self.lifecycle.number;
        let answer = match answer {
            // The task was removed before WaitTask.
            Err(_) if self.may_be_gone.get() => return,
            answer => answer.must(&format!("{number}: WaitTask")),
        };
        let result = answer.result.must("a result in WaitTask's answer");
        let written = fs::read_to_string(self.task.dir().join("local/exit-code")).unwrap_or_default();
        let exit_code: Option<i32> = written.lines().last().and_then(|line| line.parse().ok());
        let killed = self.may_be_killed.get() && (result.exit_code, result.signal) == (137, 9);
        let lost = self.monitor_killed.get() && result.exit_code != 0 && answer.err.contains("lost");
        let correct = exit_code == Some(result.exit_code) && result.signal == 0;
        assert!(
            killed || lost || correct,
            "{number}: WaitTask returned {result:?} {:?}, the task wrote {written:?}",
            answer.err
        );
        assert!(result.exit_code != 0 || answer.err.is_empty(), "{number}: a success with an error: {:?}", answer.err);
        assert!(!result.oom_killed, "{number}: a task far below its memory limit is not OOM-killed");
    }

    /// Removes the client's part, and checks that nothing else is left.
    async fn check_clean(&self) {
        self.reader.borrow_mut().end();
        let alloc = &self.task.alloc;
        let directories = [self.environment.node.state_dir(), self.environment.node.data_dir()];
        let own = BTreeSet::from([alloc.id.clone()]);
        let traces = || {
            let mut traces = Traces::find(&alloc.dir, &directories, &own);
            traces.files.retain(|path| path.to_string_lossy().contains(&alloc.id));
            // The pinned namespaces of other tasks' networks are mounts too.
            traces.mounts.retain(|point| point.contains(&alloc.id));
            traces
        };
        eventually(seconds(10), || traces().processes.is_empty() && traces().files.is_empty()).await;
        let failures = alloc.release();
        let traces = traces();
        assert!(
            traces.is_clean() && failures.is_empty(),
            "{}: left behind:\n{traces}{failures:?}",
            self.lifecycle.number
        );
    }
}

/// Whether a task has exactly one container, and its command runs.
///
/// A caller polls this: the process that forked the container's first process stays in the cgroups for a moment.
pub fn is_one_and_up(task: &Task) -> bool {
    let leads = leads(task);
    leads.len() == 1 && Path::new(&format!("/proc/{}/root/up", leads[0])).exists()
}

/// The first processes of containers in a task's cgroups.
fn leads(task: &Task) -> Vec<i32> {
    let members: BTreeSet<i32> = task.groups.members().into_iter().collect();
    // A process that has ended meanwhile has no parent.
    members.iter().copied().filter(|pid| parent(*pid).is_some_and(|parent| !members.contains(&parent))).collect()
}

fn parent(pid: i32) -> Option<i32> {
    process::status_field(pid, "PPid")?.parse().ok()
}
