//! dockerd with its own data directories: by its command line, and by its API as Nomad's docker driver uses it.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value as Json, json};

use crate::{
    daemon::Daemon,
    process::{MEMORY, READY, SAY_READY, until_done, until_ready},
    workdir::{WorkDirectory, text},
};

/// The distribution's docker client.
pub const CLIENT: &str = "/usr/bin/docker";
const DAEMON: &str = "/usr/sbin/dockerd";

/// A running daemon with its own containerd.
#[derive(Debug)]
pub struct Docker {
    // Only SIGTERM makes the daemon end its containers and its containerd.
    daemon: Daemon,
    socket: PathBuf,
    exec_root: PathBuf,
}

impl Docker {
    /// Starts the daemon with its data in the directory, and waits until it answers. It has no bridge, because it runs
    /// in the machine's own network.
    pub fn start(workdir: &WorkDirectory, data: &Path) -> Result<Self, String> {
        Self::launch(workdir, data, &["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"])
    }

    /// The same with its default bridge and rules, for a thread in a test network.
    pub fn start_with_bridge(workdir: &WorkDirectory, data: &Path) -> Result<Self, String> {
        Self::launch(workdir, data, &[])
    }

    fn launch(workdir: &WorkDirectory, data: &Path, network: &[&str]) -> Result<Self, String> {
        let run = workdir.directory("docker-run");
        let (socket, exec_root) = (run.join("socket"), workdir.memory("docker"));
        let mut command = Command::new(DAEMON);
        command.arg("--data-root").arg(data.join("docker")).arg("--exec-root").arg(&exec_root);
        command.arg("--host").arg(format!("unix://{}", socket.display())).arg("--pidfile").arg(run.join("pid"));
        command.args(network).args(["--log-level", "error"]);
        let answers = || call(&socket, "GET", "/_ping", &Json::Null).is_ok();
        Ok(Self { daemon: Daemon::start(&mut command, &run, answers)?, socket, exec_root })
    }

    /// The address of the API.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The directory for the state of running containers. The command lines of the shims contain it.
    pub fn exec_root(&self) -> &Path {
        &self.exec_root
    }

    /// The client with the daemon's address.
    pub fn client(&self) -> Command {
        let mut command = Command::new(CLIENT);
        command.args(["--host", &self.endpoint()]);
        command
    }

    /// `docker pull`.
    pub fn pull(&self, image: &str) -> Result<Duration, String> {
        until_done(self.client().args(["pull", "--quiet", image]))
    }

    /// Process ids of the daemon and its containerd.
    pub fn daemons(&self) -> Vec<i32> {
        let own = self.daemon.pid();
        let containerd = fixtures::process::children(own).into_iter().filter(|(_, line)| line.contains("containerd"));
        std::iter::once(own).chain(containerd.map(|(pid, _)| pid)).collect()
    }

    /// Process ids of the shims, one for each container.
    pub fn shims(&self) -> Vec<i32> {
        let root = text(&self.exec_root);
        let is_shim = |pid: &i32| {
            let line = fixtures::process::command_line(*pid);
            line.contains("containerd-shim") && line.contains(&root)
        };
        fixtures::process::all_pids().into_iter().filter(is_shim).collect()
    }

    /// `docker run`, timed until the first output.
    pub fn run(&self, image: &str) -> Result<Duration, String> {
        let memory = MEMORY.to_string();
        until_ready(self.client().args(["run", "--rm", "--network=host", "--memory", &memory, image]).args(SAY_READY))
    }

    /// Create, attach and start by the API, timed until the first output.
    pub fn start_by_api(&self, image: &str) -> Result<Duration, String> {
        let begun = Instant::now();
        let id = self.create(image, &SAY_READY)?;
        let mut stream = self.attach(&id)?;
        self.call("POST", &format!("/containers/{id}/start"), &Json::Null)?;
        // A header of eight bytes contains the stream and the length.
        let mut said = [0; 8 + READY.len()];
        stream.read_exact(&mut said).map_err(|error| format!("attach: {error}"))?;
        let took = begun.elapsed();
        assert_eq!(&said[8..], READY.as_bytes());
        self.call("POST", &format!("/containers/{id}/wait"), &Json::Null)?;
        self.remove(&id)?;
        Ok(took)
    }

    /// Creates and starts a container that keeps running.
    pub fn keep(&self, image: &str, command: &[&str]) -> Result<String, String> {
        let id = self.create(image, command)?;
        self.call("POST", &format!("/containers/{id}/start"), &Json::Null)?;
        Ok(id)
    }

    /// Kills and removes a container.
    pub fn remove(&self, id: &str) -> Result<(), String> {
        self.call("DELETE", &format!("/containers/{id}?force=1"), &Json::Null).map(drop)
    }

    /// `docker exec`.
    pub fn exec(&self, id: &str, command: &[&str]) -> Result<Duration, String> {
        until_done(self.client().args(["exec", id]).args(command))
    }

    /// A command in a container by the API: create, run to its end, get the exit code.
    pub fn exec_by_api(&self, id: &str, command: &[&str]) -> Result<Duration, String> {
        let begun = Instant::now();
        let wanted = json!({"AttachStdout": true, "AttachStderr": true, "Cmd": command});
        let answer = self.call("POST", &format!("/containers/{id}/exec"), &wanted)?;
        let exec = field(&answer, "Id")?;
        self.call("POST", &format!("/exec/{exec}/start"), &json!({"Detach": false, "Tty": false}))?;
        let answer = self.call("GET", &format!("/exec/{exec}/json"), &Json::Null)?;
        let took = begun.elapsed();
        if json_of(&answer)["ExitCode"] == json!(0) { Ok(took) } else { Err(format!("{command:?}: {answer}")) }
    }

    fn create(&self, image: &str, command: &[&str]) -> Result<String, String> {
        let host = json!({"NetworkMode": "host", "Memory": MEMORY});
        let wanted = json!({"Image": image, "Cmd": command, "AttachStdout": true, "HostConfig": host});
        field(&self.call("POST", "/containers/create", &wanted)?, "Id")
    }

    fn attach(&self, id: &str) -> Result<UnixStream, String> {
        let head = format!(
            "POST /containers/{id}/attach?stream=1&stdout=1 HTTP/1.1\r\nHost: docker\r\nUpgrade: tcp\r\nConnection: \
             Upgrade\r\n\r\n"
        );
        let attach = || {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.write_all(head.as_bytes())?;
            let (mut answer, mut byte) = (Vec::new(), [0]);
            while !answer.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte)?;
                answer.push(byte[0]);
            }
            Ok::<_, std::io::Error>((stream, String::from_utf8_lossy(&answer).into_owned()))
        };
        let (stream, answer) = attach().map_err(|error| format!("attach: {error}"))?;
        if answer.starts_with("HTTP/1.1 101") { Ok(stream) } else { Err(answer) }
    }

    fn call(&self, method: &str, path: &str, body: &Json) -> Result<String, String> {
        call(&self.socket, method, path, body)
    }
}

/// The JSON object in a body. The body may be chunked.
fn json_of(body: &str) -> Json {
    let object = body.find('{').zip(body.rfind('}')).and_then(|(from, to)| body.get(from..=to));
    object.and_then(|object| serde_json::from_str(object).ok()).unwrap_or_default()
}

fn field(body: &str, name: &str) -> Result<String, String> {
    json_of(body)[name].as_str().map(str::to_owned).ok_or_else(|| format!("no {name} in {body}"))
}

/// Sends one request to the daemon and returns the answer's unchanged body.
fn call(socket: &Path, method: &str, path: &str, body: &Json) -> Result<String, String> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = exchange().map_err(|error| format!("{method} {path}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some(status) if status.starts_with('2') => Ok(body.to_owned()),
        _ => Err(format!("{method} {path}: {answer}")),
    }
}
