//! containerd with its own data directories, without dockerd.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::must::Must;

use crate::{daemon::Daemon, process::until_done, workdir::WorkDirectory};

/// The snapshotter for eStargz images.
pub const STARGZ: &str = "stargz";
/// The snapshotter for images with a SOCI index.
pub const SOCI: &str = "soci";
/// Snapshotters that need images of their own. The container starts before its image is there.
pub const REMOTE: [&str; 2] = [STARGZ, SOCI];

/// A running daemon.
#[derive(Debug)]
pub struct Containerd {
    daemon: Daemon,
    /// The snapshotter, if it is a program of its own. It ends after containerd.
    snapshotter: Option<Daemon>,
    socket: PathBuf,
}

impl Containerd {
    /// Starts the daemon with its data in the directory, and waits until it answers. Pulls unpack for the snapshotter.
    pub fn start(workdir: &WorkDirectory, data: &Path, snapshotter: &str) -> Result<Self, String> {
        let (run, state) = (workdir.directory("containerd"), workdir.memory("containerd"));
        let (configuration, socket) = (run.join("config.toml"), state.join("socket"));
        let remote = remote(workdir, data, &socket, snapshotter)?;
        let mut content = config(&data.join("containerd"), &state, &socket, snapshotter);
        content.push_str(remote.as_ref().map_or("", |(_, plugin)| plugin));
        fs::write(&configuration, content).must("a file");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&configuration).args(["--log-level", "error"]);
        let answers = || until_done(client("ctr", &socket).arg("version")).is_ok();
        let snapshotter = remote.map(|(daemon, _)| daemon);
        Ok(Self { daemon: Daemon::start(&mut command, &run, answers)?, snapshotter, socket })
    }

    /// Its client.
    pub fn client(&self) -> Command {
        self.client_of("ctr")
    }

    /// The client that knows eStargz.
    pub fn remote_client(&self) -> Command {
        self.client_of("ctr-remote")
    }

    /// A program that takes the address of the daemon as `ctr` does.
    pub fn client_of(&self, program: &str) -> Command {
        client(program, &self.socket)
    }

    /// Its process ids.
    pub fn pids(&self) -> Vec<i32> {
        [Some(&self.daemon), self.snapshotter.as_ref()].into_iter().flatten().map(Daemon::pid).collect()
    }
}

fn client(program: &str, socket: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--address").arg(socket);
    command
}

/// Starts a snapshotter that is a program of its own, and returns it with its part of containerd's configuration.
fn remote(
    workdir: &WorkDirectory,
    data: &Path,
    containerd: &Path,
    snapshotter: &str,
) -> Result<Option<(Daemon, String)>, String> {
    let program = match snapshotter {
        STARGZ => "containerd-stargz-grpc",
        SOCI => "soci-snapshotter-grpc",
        _ => return Ok(None),
    };
    let (run, root) = (workdir.directory(snapshotter), data.join(snapshotter));
    let socket = run.join("socket");
    let mut command = Command::new(program);
    command.arg("--address").arg(&socket).arg("--root").arg(&root);
    if snapshotter == SOCI {
        let configuration = run.join("config.toml");
        // It asks containerd for layers that have no index.
        let store = format!("[content_store]\ncontainerd_address = {containerd:?}\n");
        fs::write(&configuration, store).must("a file");
        command.arg("--config").arg(configuration);
    }
    let daemon = Daemon::start(&mut command, &run, || UnixStream::connect(&socket).is_ok())?;
    let plugin = format!(
        "[proxy_plugins.{snapshotter}]\ntype = \"snapshot\"\naddress = {socket:?}\n\
         [proxy_plugins.{snapshotter}.exports]\nroot = {root:?}\nenable_remote_snapshot_annotations = \"true\"\n"
    );
    Ok(Some((daemon, plugin)))
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
