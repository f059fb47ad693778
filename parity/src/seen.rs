//! A running task of a case, as a user and as the host see it.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::Output,
};

use e2e::{Alloc, Context, Failure, Outcome};

use crate::{driver::Driver, node::Node};

/// A running task.
pub struct Seen<'a> {
    /// The task.
    pub task: Alloc<'a>,
    /// The driver that runs it.
    pub driver: Driver,
    /// The node.
    pub node: &'a Node,
}

impl Seen<'_> {
    /// Runs a shell script in the task by `nomad alloc exec`. Returns its output with `exit = N` as the last line.
    ///
    /// # Errors
    /// When the command line tool cannot be run.
    pub fn sh(&self, script: &str) -> Outcome<String> {
        self.exec(&["/bin/sh", "-c", script]).map(|output| shown(&output))
    }

    /// Runs a command in the task by `nomad alloc exec`.
    ///
    /// # Errors
    /// When the command line tool cannot be run.
    pub fn exec(&self, command: &[&str]) -> Outcome<Output> {
        self.task.exec(command)
    }

    /// Waits until the task has written the text to a stream of its output.
    ///
    /// # Errors
    /// After a while, with the output's end.
    pub fn wait_output(&self, stream: &str, text: &str) -> Outcome<String> {
        let has = |log: &[u8]| String::from_utf8_lossy(log).contains(text);
        self.task.wait_log(stream, has).map(|log| String::from_utf8_lossy(&log).into_owned())
    }

    /// The pid of the container's first process on the host.
    ///
    /// # Errors
    /// When there is none.
    pub fn pid(&self) -> Outcome<i32> {
        Ok(self.task.init()?.pid)
    }

    /// A file in `/proc/PID` of the container's first process.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn proc(&self, file: &str) -> Outcome<String> {
        let path = format!("/proc/{}/{file}", self.pid()?);
        fs::read_to_string(&path).context(path)
    }

    /// The cgroup of the task in the hierarchy of a controller, on the host.
    ///
    /// # Errors
    /// When the process is not in such a hierarchy.
    pub fn cgroup(&self, controller: &str) -> Outcome<PathBuf> {
        let table = self.proc("cgroup")?;
        let own = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let path = parts.next()?.trim_start_matches('/').to_owned();
            let mount = if controllers.is_empty() { String::new() } else { controllers.replace("name=", "") };
            (controllers.is_empty() || controllers.split(',').any(|name| name == controller)).then_some((mount, path))
        };
        let found = table.lines().find_map(own).ok_or_else(|| Failure(format!("no {controller} in {table}")))?;
        Ok(PathBuf::from("/sys/fs/cgroup").join(found.0).join(found.1))
    }

    /// The value of a file of the task's cgroup; "missing" if the kernel has no such file.
    ///
    /// # Errors
    /// When the process is not in such a hierarchy.
    pub fn limit(&self, controller: &str, file: &str) -> Outcome<String> {
        let path = self.cgroup(controller)?.join(file);
        Ok(fs::read_to_string(path).map_or_else(|_| "missing".to_owned(), |text| text.trim().to_owned()))
    }

    /// What a client outside of the node gets from the group's port `label`.
    ///
    /// # Errors
    /// When there is no such port, or no answer.
    pub fn fetch(&self, label: &str) -> Outcome<String> {
        self.fetch_from(label, e2e::network::NODE.into())
    }

    /// The same from an address of the node.
    ///
    /// # Errors
    /// When there is no such port, or no answer.
    pub fn fetch_from(&self, label: &str, node: IpAddr) -> Outcome<String> {
        let port: SocketAddr = self.task.address(label)?.parse().context("the port's address")?;
        let address = SocketAddr::new(node, port.port());
        self.node.outside.fetch(&format!("http://{address}/"))
    }
}

/// The output of a command, its error output and its exit code.
#[must_use]
pub fn shown(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        text.push_str(&format!("stderr = {line}\n"));
    }
    text + &format!("exit = {}\n", output.status.code().unwrap_or(-1))
}
