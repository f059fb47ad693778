//! One method for each call of the driver, with the checks of a Go client.

use std::time::{Duration, Instant};

use fixtures::{
    must::Must,
    wait::{patient, seconds, within},
};
use prost::Message;
use proto::{
    driver::{
        CapabilitiesRequest, CreateNetworkRequest, CreateNetworkResponse, DestroyNetworkRequest, DestroyTaskRequest,
        DriverCapabilities, ExecTaskRequest, ExecTaskResponse, InspectTaskRequest, InspectTaskResponse,
        RecoverTaskRequest, SignalTaskRequest, StartTaskRequest, StartTaskResponse, StopTaskRequest, TaskHandle,
        TaskStatsRequest, TaskStatsResponse, WaitTaskRequest, WaitTaskResponse,
    },
    structs::RecoverableError,
};
use rustix::process::{Pid, Signal, kill_process};
use tonic::{Code, Status, Streaming};

use crate::{plugin::Plugin, task::Task};

/// The time limit of each call.
const LIMIT: Duration = seconds(60);

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// Signal as the driver reports it.
    pub signal: i32,
    /// Whether the kernel killed it at the memory limit.
    pub oom: bool,
    /// The driver's error message.
    pub err: String,
}

impl Plugin {
    /// Capabilities.
    pub async fn capabilities(&self) -> DriverCapabilities {
        let answer = within(LIMIT, "Capabilities", self.driver().capabilities(CapabilitiesRequest {})).await;
        answer.must("Capabilities").into_inner().capabilities.must("capabilities")
    }

    /// StartTask. A success must contain the handle that Nomad needs.
    pub async fn start(&self, task: &Task) -> Result<StartTaskResponse, Status> {
        self.start_within(LIMIT, task).await
    }

    /// The same with another time limit, for a long pull.
    pub async fn start_within(&self, limit: Duration, task: &Task) -> Result<StartTaskResponse, Status> {
        let request = StartTaskRequest { task: Some(task.config.clone()) };
        let answer = within(limit, "StartTask", self.driver().start_task(request)).await?.into_inner();
        let handle = answer.handle.as_ref().must("a handle in StartTask's answer");
        assert_eq!(handle.config.as_ref(), Some(&task.config), "the handle echoes the whole TaskConfig");
        assert!(handle.version >= 1, "version 0 of a handle is reserved");
        Ok(answer)
    }

    /// StartTask that must succeed; returns the handle.
    pub async fn started(&self, task: &Task) -> TaskHandle {
        let answer = self.start(task).await.must("StartTask");
        answer.handle.must("a handle")
    }

    /// WaitTask, with the unchanged answer.
    pub async fn wait_raw(&self, id: &str) -> Result<WaitTaskResponse, Status> {
        let request = WaitTaskRequest { task_id: id.to_owned() };
        within(LIMIT, "WaitTask", self.driver().wait_task(request)).await.map(tonic::Response::into_inner)
    }

    /// WaitTask that must return an exit status. An agent panics without a result.
    pub async fn wait(&self, id: &str) -> Exit {
        let answer = self.wait_raw(id).await.must("WaitTask");
        let result = answer.result.must("a result in WaitTask's answer");
        let success = result.exit_code == 0 && result.signal == 0;
        assert!(!success || answer.err.is_empty(), "an error beside a success makes it a failure: {:?}", answer.err);
        Exit { code: result.exit_code, signal: result.signal, oom: result.oom_killed, err: answer.err }
    }

    /// StopTask.
    pub async fn stop(&self, id: &str, timeout: Duration, signal: &str) -> Result<(), Status> {
        let timeout = Some(prost_types::Duration::try_from(timeout).must("a duration"));
        let request = StopTaskRequest { task_id: id.to_owned(), timeout, signal: signal.to_owned() };
        within(LIMIT, "StopTask", self.driver().stop_task(request)).await.map(|_| ())
    }

    /// DestroyTask.
    pub async fn destroy(&self, id: &str, force: bool) -> Result<(), Status> {
        let request = DestroyTaskRequest { task_id: id.to_owned(), force };
        within(LIMIT, "DestroyTask", self.driver().destroy_task(request)).await.map(|_| ())
    }

    /// Ends a task as an agent does: StopTask without a timeout, then DestroyTask.
    pub async fn end(&self, task: &Task) {
        self.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
        self.destroy(task.id(), true).await.must("DestroyTask");
    }

    /// SignalTask.
    pub async fn signal(&self, id: &str, signal: &str) -> Result<(), Status> {
        let request = SignalTaskRequest { task_id: id.to_owned(), signal: signal.to_owned() };
        within(LIMIT, "SignalTask", self.driver().signal_task(request)).await.map(|_| ())
    }

    /// InspectTask. A success must contain the fields without which an agent panics.
    pub async fn inspect(&self, id: &str) -> Result<InspectTaskResponse, Status> {
        let request = InspectTaskRequest { task_id: id.to_owned() };
        let answer = within(LIMIT, "InspectTask", self.driver().inspect_task(request)).await?.into_inner();
        let task = answer.task.as_ref().must("a task in InspectTask's answer");
        task.result.as_ref().must("a result in InspectTask's answer");
        task.started_at.as_ref().must("a start time in InspectTask's answer");
        task.completed_at.as_ref().must("an end time in InspectTask's answer, Go's zero time while there is none");
        Ok(answer)
    }

    /// RecoverTask. An agent sends the handle without a task id.
    pub async fn recover(&self, handle: &TaskHandle) -> Result<(), Status> {
        let request = RecoverTaskRequest { task_id: String::new(), handle: Some(handle.clone()) };
        within(LIMIT, "RecoverTask", self.driver().recover_task(request)).await.map(|_| ())
    }

    /// TaskStats.
    pub async fn stats(&self, id: &str, interval: Duration) -> Result<Streaming<TaskStatsResponse>, Status> {
        let interval = Some(prost_types::Duration::try_from(interval).must("a duration"));
        let request = TaskStatsRequest { task_id: id.to_owned(), collection_interval: interval };
        within(LIMIT, "TaskStats", self.driver().task_stats(request)).await.map(tonic::Response::into_inner)
    }

    /// ExecTask. The timeout is for a machine of usual speed: an emulated machine gets more.
    pub async fn exec(&self, id: &str, command: &[&str], timeout: Duration) -> Result<ExecTaskResponse, Status> {
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let timeout = Some(prost_types::Duration::try_from(patient(timeout)).must("a duration"));
        let request = ExecTaskRequest { task_id: id.to_owned(), command, timeout };
        let answer = within(LIMIT, "ExecTask", self.driver().exec_task(request)).await?.into_inner();
        answer.result.as_ref().must("a result in ExecTask's answer");
        Ok(answer)
    }

    /// Runs a shell script in the task and returns its output; it must succeed.
    pub async fn sh(&self, task: &Task, script: &str) -> String {
        let answer = self.exec(task.id(), &["/bin/sh", "-c", script], seconds(20)).await.must("ExecTask");
        let output = String::from_utf8_lossy(&answer.stdout).into_owned();
        let result = answer.result.must("a result");
        assert_eq!(result.exit_code, 0, "{script}: {output}");
        output.trim_end().to_owned()
    }

    /// CreateNetwork.
    pub async fn create_network(&self, alloc: &str, hostname: &str) -> Result<CreateNetworkResponse, Status> {
        let request = CreateNetworkRequest { alloc_id: alloc.to_owned(), hostname: hostname.to_owned() };
        within(LIMIT, "CreateNetwork", self.driver().create_network(request)).await.map(tonic::Response::into_inner)
    }

    /// DestroyNetwork, as from an agent that does not know the network any more.
    pub async fn destroy_network(&self, alloc: &str) -> Result<(), Status> {
        let request = DestroyNetworkRequest { alloc_id: alloc.to_owned(), isolation_spec: None };
        within(LIMIT, "DestroyNetwork", self.driver().destroy_network(request)).await.map(drop)
    }

    /// The host's process id of a task's first process. It has the task's environment, and its parent does not.
    ///
    /// A process that executes a program has no environment for a moment, so the search is repeated.
    pub fn init_pid(&self, task: &Task) -> i32 {
        let marker = format!("NOMAD_ALLOC_ID={}", task.alloc.id);
        let name = format!("NOMAD_TASK_NAME={}", task.config.name);
        let carries = |pid: i32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let has = |text: &str| environ.split(|byte| *byte == 0).any(|variable| variable == text.as_bytes());
            has(&marker) && has(&name)
        };
        let leads = |pid: &i32| {
            let parent = fixtures::process::status_field(*pid, "PPid").and_then(|ppid| ppid.parse().ok()).unwrap_or(0);
            carries(*pid) && !carries(parent)
        };
        let deadline = Instant::now() + patient(seconds(5));
        loop {
            let members = task.groups.members();
            if let Some(lead) = members.iter().copied().find(leads) {
                return lead;
            }
            assert!(Instant::now() < deadline, "the task's first process among {members:?}");
            std::thread::yield_now();
        }
    }

    /// The monitor of a running task.
    pub fn monitor_pid(&self, task: &Task) -> i32 {
        let monitor = fixtures::process::status_field(self.init_pid(task), "PPid").and_then(|pid| pid.parse().ok());
        monitor.filter(|pid| *pid != self.process.pid()).must("the monitor")
    }

    /// Kills the monitor of a running task.
    pub fn kill_monitor(&self, task: &Task) {
        let monitor = Pid::from_raw(self.monitor_pid(task)).must("a pid");
        kill_process(monitor, Signal::KILL).must("kill the monitor");
    }
}

/// Google's status message with the details of an error.
#[derive(Clone, PartialEq, Message)]
struct StatusDetails {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// Whether a failed StartTask is recoverable, that is, whether the restart policy tries again. An error without the
/// detail is final.
pub fn recoverable(status: &Status) -> bool {
    assert!(!matches!(status.code(), Code::Unavailable | Code::Cancelled), "a code that means a dead plugin: {status}");
    if status.details().is_empty() {
        return false;
    }
    let inner = StatusDetails::decode(status.details()).must("grpc-status-details-bin");
    assert_eq!(inner.code, i32::from(status.code()), "Go turns a status with two different codes into INTERNAL");
    let detail = inner
        .details
        .iter()
        .find(|any| any.type_url.ends_with("hashicorp.nomad.plugins.shared.structs.RecoverableError"));
    detail.is_some_and(|any| RecoverableError::decode(any.value.as_slice()).must("RecoverableError").recoverable)
}
