//! A dockerd of the run: its own data, its own containerd, its own cgroup, in the network namespace of the run.
//!
//! Nothing of the machine's own dockerd is touched. [`Dockerd::take_down`] ends all processes by their ids and removes
//! the mounts, cgroups and directories that this dockerd made.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, id},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use e2e::{Context, Failure, Outcome, leaks, process, watch::patient};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};
use tempfile::TempDir;

/// The directory of `scripts/setup.sh` with dockerd, containerd, its shim, docker-init and docker-proxy.
const TOOLS: &str = "docker";
/// Directories that dockerd and containerd make at fixed paths.
const FIXED: [&str; 3] = ["/run/docker", "/run/containerd", "/etc/docker/key.json"];
const LIMIT: Duration = Duration::from_secs(60);

/// A running dockerd.
#[derive(Debug)]
pub struct Dockerd {
    directory: TempDir,
    child: Mutex<Option<Child>>,
    cgroup: String,
    /// Those of [`FIXED`] that did not exist before.
    made: Vec<PathBuf>,
}

/// The directory with dockerd and its helpers.
///
/// # Errors
/// When it does not exist, with the remedy.
pub fn find() -> Outcome<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache"), PathBuf::from);
    let tools = env::var_os("OCI_RS_DOCKER").map_or_else(|| cache.join("oci-rs/tools").join(TOOLS), PathBuf::from);
    if tools.join("dockerd").exists() {
        return Ok(tools);
    }
    Err(Failure(format!("missing: {} (scripts/setup.sh installs it)", tools.join("dockerd").display())))
}

impl Dockerd {
    /// Starts dockerd with this configuration and waits until it answers.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn start(tools: &Path, configuration: &str) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("oci-rs-parity.").tempdir()?;
        let made = FIXED.into_iter().map(PathBuf::from).filter(|path| !path.exists()).collect();
        let started = Self { directory, child: Mutex::default(), cgroup: format!("oci-rs-parity-{}", id()), made };
        let at = |name: &str| started.path().join(name);
        let log = fs::File::create(at("log"))?;
        let mut path = OsString::from(tools);
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(tools.join("dockerd"));
        command.arg("--config-file").arg(at("daemon.json")).arg("--data-root").arg(at("data"));
        command.arg("--exec-root").arg(at("exec")).arg("--pidfile").arg(at("pid"));
        command.arg("--host").arg(format!("unix://{}", started.socket().display()));
        command.arg("--init-path").arg(tools.join("docker-init"));
        command.arg("--userland-proxy-path").arg(tools.join("docker-proxy"));
        command.arg("--cgroup-parent").arg(format!("/{}", started.cgroup));
        command.args(["--storage-driver", "overlay2", "--oom-score-adjust", "0", "--shutdown-timeout", "5"]);
        fs::write(at("daemon.json"), configuration)?;
        command.env("PATH", path).env("TMPDIR", started.path()).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log).process_group(0);
        *started.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(command.spawn().context("dockerd")?);
        started.wait_ready()?;
        Ok(started)
    }

    fn wait_ready(&self) -> Outcome {
        let deadline = Instant::now() + patient(LIMIT);
        while !self.answers() {
            let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            if Instant::now() > deadline || !child.as_mut().is_some_and(runs) {
                let log = fs::read_to_string(self.path().join("log")).unwrap_or_default();
                let end: Vec<&str> = log.lines().rev().take(15).collect();
                return Err(Failure(format!("dockerd does not answer:\n{}", end.join("\n"))));
            }
            drop(child);
            // There is no notification when it listens, so this polls.
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.contains("200 OK"))
    }

    /// The directory of dockerd's files.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The socket of its API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path().join("sock")
    }

    /// Sends dockerd a signal. SIGSTOP lets it hang.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(child) = child.as_ref() {
            process::signal(child.id().cast_signed(), signal);
        }
    }

    /// Ends dockerd with its containers, and returns what it left behind. That is then removed by force.
    pub fn take_down(&self) -> Vec<String> {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut child) = child else { return Vec::new() };
        let pid = child.id().cast_signed();
        process::signal(pid, Signal::TERM);
        if !process::wait_gone(pid, Duration::from_secs(30)).unwrap_or(false) {
            drop(child.kill());
        }
        drop(child.wait());
        self.remove()
    }

    fn remove(&self) -> Vec<String> {
        let directory = self.path().display().to_string();
        let own = |process: &process::Process| process.command.contains(&directory);
        let mut left = leaks::settle(|| process::find(own).into_iter().map(|found| found.command).collect());
        for process in process::find(own) {
            process::signal(process.pid, Signal::KILL);
            drop(process::wait_gone(process.pid, Duration::from_secs(5)));
        }
        for mount in leaks::mounts(self.path()).into_iter().rev() {
            if let Err(error) = unmount(&mount, UnmountFlags::DETACH) {
                left.push(format!("{mount}: {error}"));
            }
        }
        for controller in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroup(&controller.path().join(&self.cgroup));
        }
        remove_cgroup(&Path::new("/sys/fs/cgroup").join(&self.cgroup));
        for path in &self.made {
            drop(if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) });
        }
        // The directory is not removed through a mount that is still there.
        if leaks::mounts(self.path()).is_empty() {
            fs::remove_dir_all(self.path()).ok();
        }
        left
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        self.take_down();
    }
}

/// Removes a cgroup with its children. Only cgroups without processes can be removed.
fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    fs::remove_dir(path).ok();
}
