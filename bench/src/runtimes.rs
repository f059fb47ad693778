//! Bare OCI runtimes with a prepared bundle: no image, no overlay, no logs, no supervision. They show the lower bound.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use fixtures::must::Must;
use serde_json::{Value as Json, json};

use crate::{
    process::{MEMORY, SAY_READY, exists, until_done, until_ready},
    report::or_say,
    workdir::{WorkDirectory, text},
};

/// A runtime with its bundles.
#[derive(Debug)]
pub struct Bare {
    /// The program.
    pub program: &'static str,
    state: PathBuf,
    bundle: PathBuf,
    idle: PathBuf,
}

impl Bare {
    /// The runtimes that run here, with bundles on the given file system.
    pub fn all(workdir: &WorkDirectory, data: &Path) -> Vec<Self> {
        let make = |program: &'static str| {
            let state = workdir.directory("runtimes").join(program);
            let at = data.join(program);
            let (bundle, idle) = (bundle(&at.join("say"), &SAY_READY), bundle(&at.join("idle"), &["sleep", "100000"]));
            Self { program, state, bundle, idle }
        };
        // A first run tests whether the runtime works here. For example, crun refuses some cgroup hierarchies.
        let runs = |bare: &Self| or_say(bare.run()).is_some();
        ["runc", "crun", "youki"].into_iter().filter(|program| exists(program)).map(make).filter(runs).collect()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args(["--root", &text(&self.state)]);
        command
    }

    /// `run`, timed until the first output.
    pub fn run(&self) -> Result<Duration, String> {
        let id = format!("oci-rs-bench-{}-{}", self.program, std::process::id());
        until_ready(self.command().args(["run", "--bundle", &text(&self.bundle), &id]))
    }

    /// Starts a container that keeps running.
    pub fn keep(&self) -> Result<(), String> {
        let mut command = self.command();
        command.args(["run", "--detach", "--bundle", &text(&self.idle), &self.idle_id()]);
        // The container's command keeps inherited files open.
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let status = status.map_err(|error| format!("{command:?}: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
    }

    fn idle_id(&self) -> String {
        format!("oci-rs-bench-{}-idle-{}", self.program, std::process::id())
    }

    /// A command in the running container.
    pub fn exec(&self, command: &[&str]) -> Result<Duration, String> {
        until_done(self.command().args(["exec", &self.idle_id()]).args(command))
    }

    /// Kills and removes the running container.
    pub fn remove(&self) -> Result<(), String> {
        until_done(self.command().args(["delete", "--force", &self.idle_id()])).map(drop)
    }
}

/// A bundle with busybox and the configuration of `runc spec`, with the same settings as the other programs.
fn bundle(at: &Path, command: &[&str]) -> PathBuf {
    let bin = at.join("rootfs/bin");
    fs::create_dir_all(&bin).must("a bundle");
    for name in ["proc", "dev", "sys", "tmp"] {
        fs::create_dir_all(at.join("rootfs").join(name)).must("a bundle");
    }
    fs::write(bin.join("busybox"), fixtures::busybox::program()).must("busybox in a bundle");
    fs::set_permissions(bin.join("busybox"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).must("its mode");
    for name in ["sh", "sleep", "true"] {
        symlink("busybox", bin.join(name)).must("a link in a bundle");
    }
    crate::workdir::tool("runc", &["spec", "--bundle", &text(at)]);
    let file = at.join("config.json");
    let mut spec: Json = serde_json::from_slice(&fs::read(&file).must("a spec")).must("a spec");
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!(command);
    spec["root"]["readonly"] = json!(false);
    spec["linux"]["resources"]["memory"] = json!({"limit": MEMORY});
    let namespaces = spec["linux"]["namespaces"].as_array_mut().must("namespaces");
    namespaces.retain(|namespace| namespace["type"] != "network");
    fs::write(&file, spec.to_string()).must("a spec");
    at.to_owned()
}
