//! Podman with its own data directories.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::{
    process::{MEMORY, SAY_READY, exists, until_done, until_ready},
    workdir::{Fresh, WorkDirectory, text},
};

/// Podman's data directories, and its OCI runtime.
#[derive(Debug)]
pub struct Podman {
    root: PathBuf,
    run: PathBuf,
    scratch: PathBuf,
    runtime: &'static str,
}

impl Podman {
    /// Podman with this OCI runtime, if it is installed.
    pub fn find(workdir: &WorkDirectory, data: &Fresh, runtime: &'static str) -> Result<Self, String> {
        if !exists("podman") {
            return Err("podman is not installed".to_owned());
        }
        let scratch = data.path().join("podman-scratch");
        std::fs::create_dir_all(&scratch).map_err(|error| format!("a directory for podman: {error}"))?;
        Ok(Self { root: data.path().join("podman"), run: workdir.directory("podman-run"), scratch, runtime })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        // Without this, temporary blobs would be on another file system.
        command.env("TMPDIR", &self.scratch);
        command.args(["--root", &text(&self.root), "--runroot", &text(&self.run.join("run"))]);
        command.args(["--tmpdir", &text(&self.run.join("tmp")), "--storage-driver", "overlay"]);
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", self.runtime]);
        command
    }

    /// `podman pull`.
    pub fn pull(&self, image: &str) -> Result<Duration, String> {
        until_done(self.command().args(["pull", "--quiet", "--tls-verify=false", image]))
    }

    fn run_command(&self) -> Command {
        let mut command = self.command();
        // Podman's default raises these limits, which needs a capability that root in a container may not have.
        command.args([
            "run",
            "--ulimit=nofile=4096:4096",
            "--ulimit=nproc=4096:4096",
            "--network=host",
            "--log-driver=k8s-file",
            "--memory",
            &MEMORY.to_string(),
        ]);
        command
    }

    /// `podman run`, timed until the first output.
    pub fn run(&self, image: &str) -> Result<Duration, String> {
        until_ready(self.run_command().args(["--rm", image]).args(SAY_READY))
    }

    /// Starts a container that keeps running.
    pub fn keep(&self, name: &str, image: &str, command: &[&str]) -> Result<(), String> {
        until_done(self.run_command().args(["--detach", "--name", name, image]).args(command)).map(drop)
    }

    /// `podman exec`.
    pub fn exec(&self, name: &str, command: &[&str]) -> Result<Duration, String> {
        until_done(self.command().args(["exec", name]).args(command))
    }

    /// Kills and removes containers.
    pub fn remove_all(&self) -> Result<(), String> {
        until_done(self.command().args(["rm", "--all", "--force", "--time", "0"])).map(drop)
    }

    /// Process ids of the monitors, one for each container.
    pub fn monitors(&self) -> Vec<i32> {
        let root = text(&self.run);
        let is_monitor = |pid: &i32| {
            let line = fixtures::process::command_line(*pid);
            line.contains("conmon") && line.contains(&root)
        };
        fixtures::process::all_pids().into_iter().filter(is_monitor).collect()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Err(error) = self.remove_all() {
            crate::report::note(&error);
        }
        // Podman leaves the mount of its store behind.
        Command::new("umount").args(["-q", &text(&self.root.join("overlay"))]).status().ok();
    }
}
