//! One task from its start to nothing: the agent's side, and what must hold at every moment.
//!
//! The truth is the task's own account: it writes the code that it is about to end with to a file that outlives it.

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
    scenario::{Ending, Life, Nature, Step},
    world::{Connection, World, kill, process_name},
};

/// Lives one life. Panics with a text that says what did not hold.
pub async fn live(world: &World, life: &Life) {
    let mut lived = Lived::prepare(world, life);
    let running = match life.ending {
        Ending::Interrupt(after) => lived.start_interrupted(after).await,
        _ => lived.start().await,
    };
    if running {
        lived.is_up().await;
        for group in &life.steps {
            all(group.iter().map(|step| lived.step(*step))).await;
        }
        lived.end().await;
    }
    lived.leave_nothing().await;
}

struct Lived<'a> {
    world: &'a World,
    life: &'a Life,
    task: Task,
    handle: Option<TaskHandle>,
    /// The plugin that knows the task.
    known_to: Cell<usize>,
    reader: RefCell<Reader>,
    /// Somebody may have ended it.
    may_be_over: Cell<bool>,
    /// Somebody may have killed it.
    may_be_killed: Cell<bool>,
    /// Its removal was asked for.
    may_be_gone: Cell<bool>,
    monitor_killed: Cell<bool>,
}

/// Who reads the task's output, in logmon's place.
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

fn script(nature: Nature) -> String {
    let until_told = "while [ ! -e /local/go ]; do echo tick; sleep 0.03; done; c=$(cat /local/go); \
                      echo $c >>/local/truth; exit $c";
    let obedient = "trap 'echo 7 >>/local/truth; exit 7' TERM; trap 'echo hup' HUP;";
    match nature {
        Nature::Obedient => format!("{obedient} >/up; {until_told}"),
        Nature::Deaf => format!("trap '' TERM HUP; >/up; {until_told}"),
        Nature::Litter => format!(
            "{obedient} for i in 1 2; do (trap '' TERM HUP; setsid sleep 1000 </dev/null >/dev/null 2>&1) & done; \
             >/up; {until_told}"
        ),
        Nature::Brief(code) => format!("echo {code} >>/local/truth; exit {code}"),
    }
}

impl<'a> Lived<'a> {
    fn prepare(world: &'a World, life: &'a Life) -> Self {
        let image = world.image(life.image, life.number);
        let config = json!({"image": image, "command": "/bin/sh", "args": ["-c", script(life.nature)]});
        let packed = hcl::decode(&world.schema, &config).must("the task's config block");
        let mut task = world.node.task(&image).without_logs().build_packed(packed);
        let fifo = task.alloc.dir.join("alloc/logs/.main.stdout.fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).must("a log FIFO");
        task.config.stdout_path = fifo.to_string_lossy().into_owned();
        let brief = matches!(life.nature, Nature::Brief(_));
        Self {
            world,
            life,
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

    /// StartTask until it is answered. False: it was refused for good, as it may be.
    async fn start(&mut self) -> bool {
        loop {
            let connection = self.world.connection().await;
            match connection.plugin.start(&self.task).await {
                Ok(answer) => {
                    self.handle = answer.handle;
                    self.known_to.set(connection.number);
                    return true;
                }
                Err(_) if connection.dead.get() => {
                    if self.life.agent_dies {
                        self.task = self.task.restarted();
                    }
                }
                Err(status) if self.may_be_over.get() && status.message().contains("stopped while") => return false,
                // An image that could not be had: the restart policy tries again.
                Err(status) => {
                    assert!(
                        recoverable(&status) && status.message().contains("image"),
                        "{}: StartTask: {status}",
                        self.life.number
                    );
                    self.task = self.task.restarted();
                }
            }
        }
    }

    /// StartTask, and StopTask before it is answered.
    async fn start_interrupted(&mut self, after: u64) -> bool {
        self.may_be_over.set(true);
        self.may_be_killed.set(true);
        let (world, id) = (self.world, self.id().to_owned());
        let stop = async {
            tokio::time::sleep(Duration::from_millis(after)).await;
            let connection = world.connection().await;
            let stopped = connection.plugin.stop(&id, Duration::ZERO, "").await;
            assert!(stopped.is_ok() || connection.dead.get(), "StopTask of a starting task: {stopped:?}");
        };
        let (running, ()) = tokio::join!(self.start(), stop);
        running
    }

    /// Waits until the task can be told things.
    async fn is_up(&self) {
        if !self.may_be_over.get() {
            let ready = eventually(seconds(20), || is_one_and_up(&self.task)).await;
            assert!(ready, "{}: not one container that is up: {:?}", self.life.number, self.task.groups.members());
        }
    }

    /// First processes of containers in the task's groups.
    fn leads(&self) -> Vec<i32> {
        leads(&self.task)
    }

    /// The plugin of now, which is told of the task if it does not know it.
    async fn connection(&self) -> Rc<Connection> {
        loop {
            let connection = self.world.connection().await;
            let handle = self.handle.as_ref().filter(|_| self.known_to.get() != connection.number);
            let Some(handle) = handle else { return connection };
            match connection.plugin.recover(handle).await {
                Err(_) if connection.dead.get() => continue,
                // Nothing to be brought back is what its removal wants.
                Err(_) if self.may_be_gone.get() => {}
                recovered => recovered.must(&format!("{}: RecoverTask", self.life.number)),
            }
            self.known_to.set(connection.number);
            return connection;
        }
    }

    /// A call, made again when the plugin died in it.
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
                assert!(refused.is_err(), "{}: a signal that does not exist was sent", self.life.number);
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
                    assert!(refused.is_err(), "{}: a running task was destroyed without force", self.life.number);
                }
            }
            Step::KillPlugin => self.world.kill_plugin().await,
            Step::KillMonitor => self.kill_monitor(),
            Step::KillHelper => self.world.kill_helper().await,
            Step::KillReader => {
                let mut reader = self.reader.borrow_mut();
                reader.end();
                *reader = Reader::start(reader.fifo.clone());
            }
            Step::Pause(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        }
    }

    /// A call that succeeds while the task runs.
    fn check(&self, step: Step, answer: Result<(), Status>) {
        if !self.may_be_over.get() {
            answer.must(&format!("{}: {step:?} in a running task", self.life.number));
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
        if !(self.world.helpers_killed.get() && done.is_err()) {
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

    /// Ends the task, and sees that its end is told truly by whoever is asked.
    async fn end(&self) {
        let wait = self.call(async |plugin| plugin.wait_raw(self.id()).await);
        let (told, ()) = tokio::join!(wait, self.bring_about_its_end());
        self.judge(told);
        let again = self.call(async |plugin| plugin.wait_raw(self.id()).await).await;
        self.judge(again);
        self.may_be_gone.set(true);
        let destroyed = self.call(async |plugin| plugin.destroy(self.id(), true).await).await;
        destroyed.must(&format!("{}: DestroyTask of an ended task", self.life.number));
    }

    async fn bring_about_its_end(&self) {
        self.may_be_over.set(true);
        match self.life.ending {
            Ending::Stop(patience) => self.stop(patience).await,
            Ending::Interrupt(_) => self.stop(Duration::ZERO).await,
            Ending::Itself(code) => {
                let (new, told) = (self.task.dir().join("local/.go"), self.task.dir().join("local/go"));
                fs::write(&new, code.to_string()).and_then(|()| fs::rename(&new, told)).must("tell the task to end");
            }
            Ending::Killed => {
                self.may_be_killed.set(true);
                self.leads().into_iter().for_each(kill);
            }
            Ending::Destroy => self.destroy().await,
            Ending::Everything(patience) => {
                let signal = self.call(async |plugin| plugin.signal(self.id(), "SIGHUP").await);
                let stops = async { tokio::join!(self.stop(patience), self.stop(patience)) };
                let (signalled, ..) = tokio::join!(signal, stops, self.exec(Step::Exec, "echo here"), self.destroy());
                drop(signalled);
            }
        }
    }

    async fn stop(&self, patience: Duration) {
        if patience < seconds(10) {
            self.may_be_killed.set(true);
        }
        let stopped = self.call(async |plugin| plugin.stop(self.id(), patience, "").await).await;
        stopped.must(&format!("{}: StopTask", self.life.number));
    }

    async fn destroy(&self) {
        self.may_be_killed.set(true);
        self.may_be_gone.set(true);
        let destroyed = self.call(async |plugin| plugin.destroy(self.id(), true).await).await;
        destroyed.must(&format!("{}: DestroyTask with force", self.life.number));
    }

    /// Compares what the driver tells of the end with the task's own account.
    fn judge(&self, told: Result<WaitTaskResponse, Status>) {
        let number = self.life.number;
        let told = match told {
            // Gone before anybody could be told.
            Err(_) if self.may_be_gone.get() => return,
            told => told.must(&format!("{number}: WaitTask")),
        };
        let result = told.result.must("a result in WaitTask's answer");
        let account = fs::read_to_string(self.task.dir().join("local/truth")).unwrap_or_default();
        let truth: Option<i32> = account.lines().last().and_then(|line| line.parse().ok());
        let killed = self.may_be_killed.get() && (result.exit_code, result.signal) == (137, 9);
        let lost = self.monitor_killed.get() && result.exit_code != 0 && told.err.contains("lost");
        let true_code = truth == Some(result.exit_code) && result.signal == 0;
        assert!(killed || lost || true_code, "{number}: told {result:?} {:?}, the task says {account:?}", told.err);
        assert!(result.exit_code != 0 || told.err.is_empty(), "{number}: a success with an error: {:?}", told.err);
        assert!(!result.oom_killed, "{number}: there was memory enough");
    }

    /// The client takes away what it made; nothing else may be left.
    async fn leave_nothing(&self) {
        self.reader.borrow_mut().end();
        let alloc = &self.task.alloc;
        let directories = [self.world.node.state_dir(), self.world.node.data_dir()];
        let own = BTreeSet::from([alloc.id.clone()]);
        let traces = || {
            let mut traces = Traces::find(&alloc.dir, &directories, &own);
            traces.files.retain(|path| path.to_string_lossy().contains(&alloc.id));
            // Namespaces of others' networks, which are pinned there.
            traces.mounts.retain(|point| point.contains(&alloc.id));
            traces
        };
        eventually(seconds(10), || traces().processes.is_empty() && traces().files.is_empty()).await;
        let failures = alloc.release();
        let traces = traces();
        assert!(traces.is_clean() && failures.is_empty(), "{}: left behind:\n{traces}{failures:?}", self.life.number);
    }
}

/// Whether a task has one container, whose command is at work. To be waited for: the process that forked the first one of the
/// container ends beside it, and is in the groups for a moment more.
pub fn is_one_and_up(task: &Task) -> bool {
    let leads = leads(task);
    leads.len() == 1 && Path::new(&format!("/proc/{}/root/up", leads[0])).exists()
}

/// First processes of containers in a task's groups.
fn leads(task: &Task) -> Vec<i32> {
    let members: BTreeSet<i32> = task.groups.members().into_iter().collect();
    // One that has ended meanwhile has no parent any more.
    members.iter().copied().filter(|pid| parent(*pid).is_some_and(|parent| !members.contains(&parent))).collect()
}

fn parent(pid: i32) -> Option<i32> {
    process::status_field(pid, "PPid")?.parse().ok()
}
