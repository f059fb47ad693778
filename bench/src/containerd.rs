//! containerd with its own data directories, without dockerd.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fixtures::must::Must;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    process::until_done,
    workdir::{WorkDirectory, text},
};

/// A running daemon.
#[derive(Debug)]
pub struct Containerd {
    child: Child,
    socket: PathBuf,
}

impl Containerd {
    /// Starts the daemon with its data in the directory, and waits until it answers. Pulls unpack for the snapshotter.
    pub fn start(workdir: &WorkDirectory, data: &Path, snapshotter: &str) -> Result<Self, String> {
        let (run, state) = (workdir.directory("containerd"), workdir.memory("containerd"));
        let (configuration, socket) = (run.join("config.toml"), state.join("socket"));
        fs::write(&configuration, config(&data.join("containerd"), &state, &socket, snapshotter)).must("a file");
        let log = fs::File::create(run.join("log")).must("a log for containerd");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&configuration).args(["--log-level", "error"]).stdin(Stdio::null());
        command.stdout(log.try_clone().must("the log")).stderr(log);
        let child = command.spawn().map_err(|error| format!("containerd: {error}"))?;
        let mut containerd = Self { child, socket };
        let deadline = Instant::now() + Duration::from_secs(30);
        // There is no notification when the daemon is ready, so this polls.
        while until_done(containerd.client().arg("version")).is_err() {
            if Instant::now() > deadline || matches!(containerd.child.try_wait(), Ok(Some(_))) {
                let said = fs::read_to_string(run.join("log")).unwrap_or_default();
                return Err(format!("containerd does not run here: {}", said.lines().last().unwrap_or("no output")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(containerd)
    }

    /// Its client.
    pub fn client(&self) -> Command {
        let mut command = Command::new("ctr");
        command.args(["--address", &text(&self.socket)]);
        command
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.pid()) {
            kill_process(pid, Signal::TERM).ok();
        }
        self.child.wait().ok();
    }
}

/// The configuration. Since containerd 2 the daemon unpacks only for the snapshotters that it names.
fn config(data: &Path, state: &Path, socket: &Path, snapshotter: &str) -> String {
    let version = Command::new("containerd").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let is_2 =
        version.split_whitespace().nth(2).is_some_and(|version| version.trim_start_matches('v').starts_with('2'));
    let differ = if snapshotter == "erofs" { "erofs" } else { "walking" };
    let unpack = format!(
        "[plugins.'io.containerd.service.v1.diff-service']\ndefault = [{differ:?}, \"walking\"]\n\
         [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\nplatform = \"linux/amd64\"\n\
         snapshotter = {snapshotter:?}\ndiffer = {differ:?}\n"
    );
    format!(
        "version = {}\nroot = {data:?}\nstate = {state:?}\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\naddress = {socket:?}\n{}",
        if is_2 { 3 } else { 2 },
        if is_2 { unpack.as_str() } else { "" },
    )
}
