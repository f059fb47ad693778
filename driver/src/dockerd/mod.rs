//! Containers that Nomad's docker driver left on the node, when this driver has taken its name on a running node.
//!
//! The agent asks to recover the tasks of the former driver. This driver cannot: it stops and removes their containers
//! through dockerd, and Nomad starts the tasks again. A group keeps its network, because its pause container stays
//! until the group ends.
//!
//! Always holds:
//!
//! - A container is touched only if its id or name, and its label, are those of the task.
//! - Only a daemon's "404" and a socket without a listener say that there is no container. After any other failure
//!   there may be one, and the caller gets an error.
//! - A call ends in bounded time, also if the daemon hangs.

mod api;
mod handle;
mod volumes;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;

use self::api::{Answer, Api};
pub use self::handle::Handle;
use crate::{blocking::blocking, error::TaskError};

/// The label with the allocation's id.
const ALLOC_LABEL: &str = "com.hashicorp.nomad.alloc_id";
/// The limit of a call that does not wait for a process.
const LIMIT: Duration = Duration::from_secs(30);
/// The limit of a call that waits for a container's end, beside the time of its stop.
const END_LIMIT: Duration = Duration::from_secs(60);

/// The containers of the former driver.
#[derive(Debug)]
pub struct Dockerd {
    api: Api,
    /// The time between a container's stop signal and SIGKILL. A handle does not contain the job's.
    stop_timeout: Duration,
    tasks: Mutex<HashMap<TaskKey, Arc<Predecessor>>>,
}

/// A task, by its allocation and its name.
type TaskKey = (String, String);

/// A container that the agent has asked to recover.
#[derive(Debug)]
struct Predecessor {
    handle: Handle,
    /// One removal at a time.
    removal: tokio::sync::Mutex<()>,
}

/// The pause container of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// The container's id.
    pub id: String,
    /// The file to which dockerd has pinned the group's network namespace.
    pub namespace: PathBuf,
}

impl Dockerd {
    /// The daemon at a socket. Connects nothing.
    pub fn new(socket: PathBuf, stop_timeout: Duration) -> Self {
        Self { api: Api::new(socket), stop_timeout, tasks: Mutex::default() }
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        self.api.socket()
    }

    /// Notes the container of a task that the agent asked to recover.
    pub fn note(&self, alloc: &str, task: &str, handle: Handle) {
        let predecessor = Predecessor { handle, removal: tokio::sync::Mutex::default() };
        self.tasks().insert((alloc.to_owned(), task.to_owned()), Arc::new(predecessor));
    }

    /// Stops and removes the container that the former driver started for a task; whether there was one. An error means
    /// that it may still run.
    pub async fn remove_predecessor(&self, alloc: &str, task: &str) -> Result<bool, TaskError> {
        let key = (alloc.to_owned(), task.to_owned());
        let known = self.tasks().get(&key).cloned();
        let Some(predecessor) = known else { return self.remove(alloc, &container_name(task, alloc), None).await };
        let _one_at_a_time = predecessor.removal.lock().await;
        let removed = self.remove(alloc, &predecessor.handle.container, Some(&predecessor.handle)).await?;
        if let Some(pid) = predecessor.handle.logger {
            end_logger(pid);
        }
        self.tasks().remove(&key);
        Ok(removed)
    }

    /// The pause container of an allocation's group, if it runs.
    pub async fn sandbox(&self, alloc: &str) -> Result<Option<Sandbox>, TaskError> {
        let name = pause_container(alloc);
        if !is_plain(&name) {
            return Ok(None);
        }
        match self.inspect(&name).await {
            Ok(found) => Ok(found.and_then(|container| usable_sandbox(&container, alloc))),
            Err(error) if is_absent(&error) => {
                // As long as a task of the group still runs, so does the pause container.
                for handle in self.handles_of(alloc) {
                    self.without_daemon(Some(&handle), &error).await?;
                }
                Ok(None)
            }
            Err(error) => Err(self.unanswered(&name, &error)),
        }
    }

    /// Removes the pause container of an allocation's group, if there is one.
    pub async fn remove_sandbox(&self, alloc: &str) -> Result<(), TaskError> {
        self.remove(alloc, &pause_container(alloc), None).await.map(drop)
    }

    /// Stops and removes a container by its name or id. `handle` is the task's, if the agent has one.
    async fn remove(&self, alloc: &str, container: &str, handle: Option<&Handle>) -> Result<bool, TaskError> {
        if !is_plain(container) {
            // Docker cannot have a container with this name.
            return Ok(false);
        }
        let found = match self.inspect(container).await {
            Ok(found) => found.filter(|found| belongs_to(found, alloc)),
            Err(error) if is_absent(&error) => return self.without_daemon(handle, &error).await,
            Err(error) => return Err(self.unanswered(container, &error)),
        };
        let Some(id) = found.as_ref().and_then(id_of) else { return Ok(false) };
        // A pause container ignores signals.
        let seconds = if container == pause_container(alloc) { 0 } else { self.stop_timeout.as_secs() };
        self.expect("POST", &format!("/containers/{id}/stop?t={seconds}"), &[204, 304, 404]).await?;
        let removed = self.expect("DELETE", &format!("/containers/{id}?force=true&v=true"), &[204, 404, 409]).await?;
        if removed.status == 409 {
            // Another client removes it.
            self.expect("POST", &format!("/containers/{id}/wait?condition=removed"), &[200, 404]).await?;
        }
        tracing::info!(alloc, container = id, "removed a container of Nomad's docker driver");
        Ok(true)
    }

    /// The description of a container; `None` if the daemon has no such container.
    async fn inspect(&self, container: &str) -> io::Result<Option<Value>> {
        let answer = self.api.call("GET", &format!("/containers/{container}/json"), LIMIT).await?;
        match answer.status {
            // An answer that was cut off describes nothing.
            200 if id_of(&answer.body).is_some() => Ok(Some(answer.body)),
            404 => Ok(None),
            _ => Err(io::Error::other(answer.message())),
        }
    }

    /// The daemon does not say whether it has a container.
    fn unanswered(&self, container: &str, error: &io::Error) -> TaskError {
        let problem = match error.kind() {
            io::ErrorKind::TimedOut => format!("no answer within {} seconds", LIMIT.as_secs()),
            _ => error.to_string(),
        };
        TaskError::Internal(format!(
            "dockerd at {} does not say whether the container {container} of Nomad's docker driver exists ({problem}): \
             restart dockerd, or stop it after its containers",
            self.api.socket().display()
        ))
    }

    /// The handles of an allocation's tasks whose containers were not removed.
    fn handles_of(&self, alloc: &str) -> Vec<Handle> {
        let tasks = self.tasks();
        let of_alloc = tasks.iter().filter(|((owner, _), _)| owner == alloc);
        of_alloc.map(|(_, predecessor)| predecessor.handle.clone()).collect()
    }

    async fn expect(&self, method: &str, path: &str, statuses: &[u16]) -> Result<Answer, TaskError> {
        let failed = |problem: String| {
            TaskError::Internal(format!("dockerd cannot remove a container of Nomad's docker driver: {problem}"))
        };
        let limit = self.stop_timeout + END_LIMIT;
        let answer = self.api.call(method, path, limit).await.map_err(|error| failed(error.to_string()))?;
        if statuses.contains(&answer.status) { Ok(answer) } else { Err(failed(answer.message())) }
    }

    /// Without a daemon there are no containers, unless the kernel still has their processes.
    async fn without_daemon(&self, handle: Option<&Handle>, error: &io::Error) -> Result<bool, TaskError> {
        let Some(handle) = handle.cloned() else { return Ok(false) };
        let id = handle.container.clone();
        let processes = blocking(move || Ok(processes_of(Path::new("/proc"), &id))).await?;
        let [first, ..] = processes.as_slice() else { return Ok(false) };
        let (container, socket) = (handle.short(), self.api.socket().display());
        Err(TaskError::Internal(format!(
            "the container {container} of Nomad's docker driver still runs (process {first}), and dockerd does not \
             answer at {socket} ({error}): start dockerd or end the container's processes. `endpoint` in the plugin \
             block names another socket"
        )))
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, HashMap<TaskKey, Arc<Predecessor>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name that Nomad's docker driver gives a task's container.
fn container_name(task: &str, alloc: &str) -> String {
    format!("{}-{alloc}", task.replace('/', "_"))
}

/// The name that it gives the container that holds a group's network.
fn pause_container(alloc: &str) -> String {
    format!("nomad_init_{alloc}")
}

/// Docker's rule for names of containers. Such a name needs no escapes in a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) && !name.starts_with('.')
}

/// Whether an error means that no daemon listens at the socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn id_of(container: &Value) -> Option<&str> {
    container["Id"].as_str().filter(|id| is_plain(id))
}

fn usable_sandbox(container: &Value, alloc: &str) -> Option<Sandbox> {
    let id = id_of(container)?.to_owned();
    let namespace = PathBuf::from(container["NetworkSettings"]["SandboxKey"].as_str()?);
    let usable = belongs_to(container, alloc) && container["State"]["Running"] == true && namespace.exists();
    usable.then_some(Sandbox { id, namespace })
}

fn belongs_to(container: &Value, alloc: &str) -> bool {
    container["Config"]["Labels"][ALLOC_LABEL] == alloc
}

/// The processes in a container's cgroups.
fn processes_of(proc: &Path, container: &str) -> Vec<i32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |pid: &i32| {
        // A process that has ended meanwhile is in no cgroup.
        fs::read_to_string(proc.join(format!("{pid}/cgroup"))).is_ok_and(|cgroups| cgroups.contains(container))
    };
    pids.filter(holds).collect()
}

/// Ends Nomad's process that collected a container's logs. It does not end by itself.
fn end_logger(pid: i32) {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let Some(process) = rustix::process::Pid::from_raw(pid).filter(|_| command.contains("docker_logger")) else {
        return;
    };
    if let Err(error) = rustix::process::kill_process(process, rustix::process::Signal::TERM) {
        tracing::debug!(pid, %error, "the collector of a container's logs was not ended");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs, io,
        os::unix::net::UnixListener,
        path::{Path, PathBuf},
        time::Duration,
    };

    use serde_json::json;

    use super::{Dockerd, belongs_to, container_name, is_absent, is_plain, processes_of};

    #[test]
    fn containers_have_the_names_of_nomads_docker_driver() {
        assert_eq!(container_name("a/b", "9f7b"), "a_b-9f7b");
        assert!(is_plain("web-9f7b0c1e-1111") && is_plain("nomad_init_9f7b"));
        for name in ["", "..", "a b", "a?b", "a/b", "é"] {
            assert!(!is_plain(name), "{name}");
        }
        let labelled = json!({"Config": {"Labels": {"com.hashicorp.nomad.alloc_id": "9f7b"}}});
        assert!(belongs_to(&labelled, "9f7b") && !belongs_to(&labelled, "9f7"));
        assert!(!belongs_to(&json!({"Config": {"Labels": null}}), "9f7b"));
    }

    #[tokio::test]
    async fn only_a_socket_without_a_listener_means_no_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("docker.sock");
        let at = |path: &Path| Dockerd::new(PathBuf::from(path), Duration::ZERO);
        assert_eq!(at(&socket).sandbox("9f7b").await.unwrap(), None, "no socket");
        drop(UnixListener::bind(&socket).unwrap());
        assert_eq!(at(&socket).sandbox("9f7b").await.unwrap(), None, "no listener");
        assert!(!at(&socket).remove_predecessor("9f7b", "web").await.unwrap());
        let no_directory = socket.join("docker.sock");
        assert!(at(&no_directory).sandbox("9f7b").await.unwrap_err().recoverable());
        assert!(at(&no_directory).remove_predecessor("9f7b", "web").await.unwrap_err().recoverable());
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidData] {
            assert!(!is_absent(&kind.into()), "{kind}");
        }
    }

    #[test]
    fn the_processes_of_a_container_are_found_by_their_cgroups() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, cgroups) in
            [("7", "4:cpu:/docker/abc\n"), ("8", "0::/system.slice/docker-abc.scope\n"), ("9", "0::/\n")]
        {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("cgroup"), cgroups).unwrap();
        }
        fs::create_dir(proc.path().join("sys")).unwrap();
        let mut found = processes_of(proc.path(), "abc");
        found.sort_unstable();
        assert_eq!(found, [7, 8]);
        assert!(processes_of(proc.path(), "xyz").is_empty());
    }
}
