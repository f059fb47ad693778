//! The monitor's part of a log relay: starting it, holding its FIFOs, and starting it again after it was killed.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    pipe::{PipeFlags, pipe_with},
};

use crate::{
    error::{Context, StartError},
    logs::{DroppedBytes, OutputStream, Outputs},
    plan::Output,
    process::ProcessRef,
    relay::RelayOutcome,
    report_pipe::read_report,
    role::{RelayArgs, Role},
    state::TaskDir,
};

/// The least time between two starts of a relay.
const REST: Duration = Duration::from_secs(1);
/// That time doubles with each relay that ends early, from this one on, up to the longest rest.
const EARLY_ENDS: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(32);
/// A relay that ran for less ended early.
const EARLY: Duration = Duration::from_secs(60);
/// A relay has this long to connect. The start of the task waits meanwhile.
const CONNECT: Duration = Duration::from_secs(20);
/// After the end of the container, the monitor waits this long for the end of the delivery. The relay goes on longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A container's relay.
pub(super) struct Relay {
    /// Nomad's FIFOs. While this process holds them, their reader sees no end when the relay is killed.
    pub logs: Outputs,
    helper: Helper,
}

/// The process of a relay.
pub(super) struct Helper {
    task: TaskDir,
    process: ProcessRef,
    started: Instant,
    /// The end of the process was seen: it is reaped and counted.
    buried: bool,
    /// How many relays in a row ended early or did not start.
    early_ends: u32,
}

impl Relay {
    /// Makes the FIFOs into which the container writes, and starts the relay. `logs` are Nomad's FIFOs.
    pub fn start(task: &TaskDir, logs: Outputs) -> Result<(Outputs, Self), StartError> {
        let paths = Output { stdout: task.relayed(OutputStream::Stdout), stderr: task.relayed(OutputStream::Stderr) };
        for path in [&paths.stdout, &paths.stderr] {
            let made = mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).map_err(io::Error::from);
            made.context(|| format!("making {}", path.display()))?;
        }
        // Before the relay looks: it takes a FIFO without a writer for one whose container has ended.
        let outputs = Outputs::open(&paths)?;
        Ok((outputs, Self { logs, helper: Helper::start(task, false)? }))
    }

    /// Nomad's FIFOs, and the process.
    pub fn parts(&mut self) -> (&Outputs, &mut Helper) {
        (&self.logs, &mut self.helper)
    }

    /// The container has ended. If the relay was killed, another one delivers the rest.
    pub fn before_end(&mut self) {
        if self.helper.process.ended() {
            self.helper.bury(false);
            self.helper.start_again();
        }
    }

    /// Waits a while for the end of the delivery. This process has closed the FIFOs into which the container wrote.
    pub fn await_end(mut self) -> io::Result<()> {
        drop(self.logs);
        if self.helper.process.wait_for(Some(PATIENCE))? {
            self.helper.bury(true);
        }
        Ok(())
    }
}

impl Helper {
    /// Starts the process, and waits until it relays. If it does not, it is killed.
    fn start(task: &TaskDir, again: bool) -> Result<Self, StartError> {
        let (outcome, writer) =
            pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).context(|| "making a pipe".to_owned())?;
        let args = Role::Relay(RelayArgs { task: task.path().to_owned(), again }).to_args();
        let args = args.context(|| "starting the log relay".to_owned())?;
        // This process is the sealed copy.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("oci-rs").args(args).stdin(Stdio::null()).stdout(Stdio::from(writer));
        let child = command.spawn().context(|| "starting the log relay".to_owned())?;
        drop(command);
        let process = ProcessRef::open(child.id() as i32).context(|| "looking at the log relay".to_owned())?;
        if let Err(error) = await_relay(&mut File::from(outcome), &process) {
            // A process that hangs in the kernel stays until that lets it go.
            let ended = process.signal(libc::SIGKILL).and_then(|()| process.wait_for(Some(PATIENCE)));
            drop(ended.and_then(|_| process.reap()));
            return Err(error);
        }
        Ok(Self { task: task.clone(), process, started: Instant::now(), buried: false, early_ends: 0 })
    }

    /// The process.
    pub fn process(&self) -> &ProcessRef {
        &self.process
    }

    /// Whether the process has not ended.
    pub fn is_alive(&self) -> bool {
        !self.process.ended()
    }

    /// Starts the process again if it has ended. Returns the time until it may be started, if that is not now.
    pub fn revive(&mut self) -> Option<Duration> {
        if !self.process.ended() {
            return None;
        }
        self.bury(false);
        let rest = rest_after(self.early_ends).saturating_sub(self.started.elapsed());
        if !rest.is_zero() {
            return Some(rest);
        }
        self.start_again();
        self.process.ended().then(|| rest_after(self.early_ends))
    }

    /// Reaps the ended process and counts its end, the first time. One that `may_end` is not counted if it succeeded.
    fn bury(&mut self, may_end: bool) {
        if std::mem::replace(&mut self.buried, true) {
            return;
        }
        self.early_ends = if self.started.elapsed() < EARLY { self.early_ends.saturating_add(1) } else { 0 };
        let status = match self.process.reap_with_status() {
            Ok(status) => status.and_then(|status| status.exit_status()),
            Err(error) => {
                drop(writeln!(io::stderr(), "reaping the log relay: {error}"));
                None
            }
        };
        if may_end && status == Some(0) {
            return;
        }
        let counted = DroppedBytes::open(&self.task.relay_ends()).and_then(|count| count.add(1));
        if let Err(error) = counted {
            drop(writeln!(io::stderr(), "counting the ends of the log relay: {error}"));
        }
    }

    fn start_again(&mut self) {
        self.started = Instant::now();
        match Self::start(&self.task, true) {
            Ok(helper) => *self = Self { early_ends: self.early_ends, ..helper },
            Err(error) => {
                self.early_ends = self.early_ends.saturating_add(1);
                drop(writeln!(io::stderr(), "the log relay was killed, and starting it again failed: {error}"));
            }
        }
    }
}

/// Waits until a relay relays.
fn await_relay(outcome: &mut File, process: &ProcessRef) -> Result<(), StartError> {
    let text = match read_report(outcome, process, Some(CONNECT)) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(StartError::internal(format!(
                "logging: no connection to the log server within {} seconds (check the options of `logging`, the \
                 server, and the name servers of the node)",
                CONNECT.as_secs()
            )));
        }
        text => text.context(|| "listening to the log relay".to_owned())?,
    };
    match serde_json::from_slice::<RelayOutcome>(&text) {
        Ok(outcome) => outcome,
        Err(_) => Err(StartError::internal("the log relay ended without a word")),
    }
}

/// The least time between two starts, after so many relays in a row that ended early.
fn rest_after(early_ends: u32) -> Duration {
    let doubled = early_ends.saturating_sub(EARLY_ENDS).min(LONGEST_REST.as_secs().ilog2());
    (REST * (1 << doubled)).min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_ends_again_and_again_rests_longer() {
        for (early_ends, seconds) in [(0, 1), (1, 1), (3, 1), (4, 2), (5, 4), (8, 32), (9, 32), (u32::MAX, 32)] {
            assert_eq!(rest_after(early_ends), Duration::from_secs(seconds), "{early_ends}");
        }
    }
}
