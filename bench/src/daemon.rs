//! A daemon of a peer that runs as long as it is measured.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fixtures::must::Must;
use rustix::process::{Pid, Signal, kill_process};

/// The limit of its start.
const LIMIT: Duration = Duration::from_secs(30);

/// A running daemon. It is asked to end when the value is dropped.
#[derive(Debug)]
pub struct Daemon(Child);

impl Daemon {
    /// Starts a program and waits until it answers. Its output goes to a file in the directory.
    pub fn start(command: &mut Command, directory: &Path, answers: impl Fn() -> bool) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let path = directory.join("log");
        let log = fs::File::create(&path).must("a log for a daemon");
        command.stdin(Stdio::null()).stdout(log.try_clone().must("the log")).stderr(log);
        let mut daemon = Self(command.spawn().map_err(|error| format!("{name}: {error}"))?);
        let deadline = Instant::now() + LIMIT;
        // There is no notification when the daemon is ready, so this polls.
        while !answers() {
            if Instant::now() > deadline || matches!(daemon.0.try_wait(), Ok(Some(_))) {
                let said = fs::read_to_string(&path).unwrap_or_default();
                return Err(format!("{name} does not run here: {}", said.lines().last().unwrap_or("no output")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.pid()) {
            kill_process(pid, Signal::TERM).ok();
        }
        self.0.wait().ok();
    }
}
