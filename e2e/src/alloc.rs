//! One allocation or one task of it: its state in Nomad, and the actions of a user.

use std::{
    fs,
    path::PathBuf,
    process::{Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    Agent, Context, Failure, Outcome,
    process::{self, Process},
    watch::patient,
};

/// The time limit for changes of an allocation. It is long because test machines are busy.
const LIMIT: Duration = Duration::from_secs(120);

/// An allocation of a job on a test agent.
#[derive(Debug)]
pub struct Alloc<'a> {
    agent: &'a Agent,
    /// The allocation's id.
    pub id: String,
    /// The job's id.
    pub job: String,
    /// The selected task; `None` selects the only task.
    task: Option<String>,
}

/// The exit status of a task, as Nomad reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code.
    pub code: i64,
    /// The signal that killed it, 0 for none.
    pub signal: i64,
    /// Whether the kernel killed it at its memory limit.
    pub oom: bool,
}

impl<'a> Alloc<'a> {
    pub(crate) const fn new(agent: &'a Agent, id: String, job: String) -> Self {
        Self { agent, id, job, task: None }
    }

    /// The same allocation with this task selected.
    #[must_use]
    pub fn task(&self, name: &str) -> Self {
        Self { agent: self.agent, id: self.id.clone(), job: self.job.clone(), task: Some(name.to_owned()) }
    }

    /// The first of these allocations that is of a task group.
    ///
    /// # Errors
    /// When there is none.
    pub fn of_group<'b>(allocs: &'b [Self], group: &str) -> Outcome<&'b Self> {
        let found = allocs.iter().find(|alloc| alloc.get().is_ok_and(|alloc| alloc["TaskGroup"] == group));
        found.ok_or_else(|| Failure(format!("no allocation of group {group}")))
    }

    /// The same allocation once for each task.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn tasks(&self) -> Outcome<Vec<Self>> {
        let alloc = self.get()?;
        Ok(alloc["TaskStates"].as_object().into_iter().flatten().map(|(name, _)| self.task(name)).collect())
    }

    /// The name of the selected task; empty if none is selected.
    #[must_use]
    pub fn name(&self) -> &str {
        self.task.as_deref().unwrap_or_default()
    }

    /// The agent that runs the allocation.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        self.agent
    }

    /// The allocation as the API shows it.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn get(&self) -> Outcome<Value> {
        self.agent.api().get(&self.path())
    }

    /// Waits for a condition on the allocation.
    ///
    /// # Errors
    /// After two minutes, with the allocation's events.
    pub fn wait<T>(&self, what: &str, ready: impl FnMut(&Value) -> Option<T>) -> Outcome<T> {
        self.agent.api().wait(&self.path(), what, LIMIT, ready).map_err(|_| {
            let events = self.events().unwrap_or_default().join("\n  ");
            Failure(format!("waited {LIMIT:?} in vain for {what}; events:\n  {events}"))
        })
    }

    /// Waits until the task runs.
    ///
    /// # Errors
    /// When it ends instead.
    pub fn wait_running(&self) -> Outcome {
        let state = self.wait("the task to run", |alloc| {
            let state = self.state(alloc)["State"].as_str()?;
            (state != "pending").then(|| state.to_owned())
        })?;
        if state == "running" {
            return Ok(());
        }
        Err(Failure(format!("the task did not run; events:\n  {}", self.events()?.join("\n  "))))
    }

    /// Waits until the task has ended for good, and returns its last exit status.
    ///
    /// # Errors
    /// When the task does not end, or never ran.
    pub fn wait_exit(&self) -> Outcome<Exit> {
        let alloc = self.wait_over()?;
        let events = self.state(&alloc)["Events"].as_array().cloned().unwrap_or_default();
        let last = events.iter().rfind(|event| event["Type"] == "Terminated");
        let Some(event) = last else {
            return Err(Failure(format!("it never ran: {:?}", self.events()?)));
        };
        Ok(Exit {
            code: event["ExitCode"].as_i64().unwrap_or(-1),
            signal: event["Signal"].as_i64().unwrap_or(-1),
            oom: event["Details"]["oom_killed"] == "true",
        })
    }

    /// Waits until the allocation has ended, with or without success.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn wait_over(&self) -> Outcome<Value> {
        self.wait("the task to end", |alloc| {
            let over = alloc["ClientStatus"] == "complete" || alloc["ClientStatus"] == "failed";
            (over && self.state(alloc)["State"] == "dead").then(|| alloc.clone())
        })
    }

    /// The exit codes in the task's events. Nomad keeps the last ten events.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn exit_codes(&self) -> Outcome<Vec<i64>> {
        let alloc = self.get()?;
        let events = self.state(&alloc)["Events"].as_array().cloned().unwrap_or_default();
        let ends = events.iter().filter(|event| event["Type"] == "Terminated");
        Ok(ends.map(|event| event["ExitCode"].as_i64().unwrap_or(-1)).collect())
    }

    /// The task's events, one line for each.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn events(&self) -> Outcome<Vec<String>> {
        let alloc = self.get()?;
        let events = self.state(&alloc)["Events"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(events.iter().map(|event| format!("{}: {}", text(&event["Type"]), text(&event["DisplayMessage"]))).collect())
    }

    /// The number of restarts of the task.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn restarts(&self) -> Outcome<i64> {
        let alloc = self.get()?;
        Ok(self.state(&alloc)["Restarts"].as_i64().unwrap_or(-1))
    }

    /// Stops the job and waits for the task's end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&self) -> Outcome {
        self.ask_to_stop()?;
        self.wait_over().map(drop)
    }

    /// Stops the job without waiting.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn ask_to_stop(&self) -> Outcome {
        self.agent.api().delete(&format!("/v1/job/{}", self.job)).map(drop)
    }

    /// `nomad alloc exec` without a terminal.
    ///
    /// # Errors
    /// When the tool cannot be run.
    pub fn exec(&self, command: &[&str]) -> Outcome<Output> {
        let args = [&["alloc", "exec", "-i=false", "-t=false"], &*self.task_option(), &[&self.id], command].concat();
        self.agent.nomad(&args)
    }

    /// `nomad alloc exec` in a terminal of 40 rows and 100 columns; `input` is typed into it.
    ///
    /// # Errors
    /// When the tool cannot be run.
    pub fn exec_in_terminal(&self, command: &str, input: &str) -> Outcome<Output> {
        let line = format!(
            "stty rows 40 cols 100; exec timeout 60 \"$NOMAD\" alloc exec -i=true -t=true {} {} {command}",
            self.task_option().join(" "),
            self.id
        );
        let mut script = self.agent.command("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = script.spawn().context("script")?;
        if let Some(mut stdin) = child.stdin.take() {
            std::io::Write::write_all(&mut stdin, input.as_bytes())?;
            // Closing the input acts as Ctrl-D, so it stays open until the command has ended.
            let output = thread::spawn(move || child.wait_with_output());
            let output = output.join().map_err(|_| Failure("script's reader panicked".to_owned()))??;
            drop(stdin);
            return Ok(output);
        }
        Err(Failure("script has no stdin".to_owned()))
    }

    /// The output of `nomad alloc logs` for `stdout` or `stderr`.
    ///
    /// # Errors
    /// With the tool's error output.
    pub fn log(&self, stream: &str) -> Outcome<Vec<u8>> {
        let option = if stream == "stderr" { "-stderr" } else { "-stdout" };
        let output = self.agent.nomad(&[&["alloc", "logs", option], &*self.task_option(), &[&self.id]].concat())?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Failure(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Waits until the log of `stream` satisfies `ready`. Nomad writes logs with a delay and without a notification.
    ///
    /// # Errors
    /// After a while, with the log's end, the error of the last call, the sizes of Nomad's files and the task's events.
    pub fn wait_log(&self, stream: &str, ready: impl Fn(&[u8]) -> bool) -> Outcome<Vec<u8>> {
        let deadline = Instant::now() + patient(Duration::from_secs(20));
        loop {
            let (log, error) = self.log(stream).map_or_else(|error| (Vec::new(), Some(error.0)), |log| (log, None));
            if ready(&log) {
                return Ok(log);
            }
            if Instant::now() > deadline {
                let end = String::from_utf8_lossy(&log[log.len().saturating_sub(300)..]).into_owned();
                return Err(Failure(format!(
                    "not the expected {stream}: {} bytes ending in {end:?}, {error:?}, files {:?}, events {:?}",
                    log.len(),
                    self.log_files(),
                    self.events()
                )));
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// The files in Nomad's log directory of the allocation, with their sizes.
    fn log_files(&self) -> Vec<(String, u64)> {
        let entries = fs::read_dir(self.shared_directory().join("logs")).into_iter().flatten().flatten();
        let size = |entry: &fs::DirEntry| entry.metadata().map_or(0, |metadata| metadata.len());
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), size(&entry))).collect()
    }

    /// `nomad alloc restart`.
    ///
    /// # Errors
    /// With the tool's error output.
    pub fn restart(&self) -> Outcome {
        let output = self.agent.nomad(&[&["alloc", "restart"], &*self.task_option(), &[&self.id]].concat())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(Failure(String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }

    /// Runs a shell command in the task and returns its output.
    ///
    /// # Errors
    /// When the command fails, with its output.
    pub fn sh(&self, script: &str) -> Outcome<String> {
        let output = self.exec(&["/bin/sh", "-c", script])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Failure(format!("{script}: {}: {text}{words}", output.status)))
    }

    /// The address and port of the node for the group's port `label`.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn address(&self, label: &str) -> Outcome<String> {
        let alloc = self.get()?;
        let ports = alloc["AllocatedResources"]["Shared"]["Ports"].as_array().cloned().unwrap_or_default();
        let port =
            ports.iter().find(|port| port["Label"] == label).ok_or_else(|| Failure(format!("no port {label}")))?;
        let host = port["HostIP"].as_str().unwrap_or_default();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Ok(format!("{host}:{}", port["Value"]))
    }

    /// The container's process 1.
    ///
    /// # Errors
    /// When there is not exactly one.
    pub fn init(&self) -> Outcome<Process> {
        let mut found = process::of_alloc(&self.id);
        found.retain(|process| process.inner_pid == 1 && process.depth > 0);
        found.retain(|process| self.task.is_none() || process::task_of(process.pid) == self.task);
        match found.as_slice() {
            [init] => Ok(init.clone()),
            _ => Err(Failure(format!("expected one container process, found {found:?}"))),
        }
    }

    /// The directory on the host that the tasks see as `/alloc`.
    #[must_use]
    pub fn shared_directory(&self) -> PathBuf {
        self.agent.path().join("client/alloc").join(&self.id).join("alloc")
    }

    fn path(&self) -> String {
        format!("/v1/allocation/{}", self.id)
    }

    /// The option of `nomad alloc` that selects the task.
    fn task_option(&self) -> Vec<&str> {
        self.task.iter().flat_map(|name| ["-task", name]).collect()
    }

    /// The state of the selected task.
    fn state<'v>(&self, alloc: &'v Value) -> &'v Value {
        let states = &alloc["TaskStates"];
        let only = || states.as_object().and_then(|tasks| tasks.values().next()).unwrap_or(&Value::Null);
        self.task.as_ref().map_or_else(only, |name| &states[name])
    }
}
