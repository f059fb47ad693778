//! containerd with its own data directories, without dockerd.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::must::Must;

use crate::{daemon::Daemon, process::until_done, workdir::WorkDirectory};

/// A running daemon.
#[derive(Debug)]
pub struct Containerd {
    daemon: Daemon,
    socket: PathBuf,
}

impl Containerd {
    /// Starts the daemon with its data in the directory, and waits until it answers. Pulls unpack for the snapshotter.
    pub fn start(workdir: &WorkDirectory, data: &Path, snapshotter: &str) -> Result<Self, String> {
        let (run, state) = (workdir.directory("containerd"), workdir.memory("containerd"));
        let (configuration, socket) = (run.join("config.toml"), state.join("socket"));
        fs::write(&configuration, config(&data.join("containerd"), &state, &socket, snapshotter)).must("a file");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&configuration).args(["--log-level", "error"]);
        let answers = || until_done(client(&socket).arg("version")).is_ok();
        Ok(Self { daemon: Daemon::start(&mut command, &run, answers)?, socket })
    }

    /// Its client.
    pub fn client(&self) -> Command {
        client(&self.socket)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }
}

fn client(socket: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket);
    command
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
