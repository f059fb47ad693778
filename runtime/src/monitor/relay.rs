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

/// A relay is started at most this often.
const REST: Duration = Duration::from_secs(1);
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
            self.helper.start_again();
        }
    }

    /// Waits a while for the end of the delivery. This process has closed the FIFOs into which the container wrote.
    pub fn await_end(self) -> io::Result<()> {
        drop(self.logs);
        self.helper.process.wait_for(Some(PATIENCE)).map(drop)
    }
}

impl Helper {
    /// Starts the process, and waits until it relays.
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
        let text = read_report(&mut File::from(outcome), &process);
        let text = text.context(|| "listening to the log relay".to_owned())?;
        match serde_json::from_slice::<RelayOutcome>(&text) {
            Ok(outcome) => outcome?,
            Err(_) => return Err(StartError::internal("the log relay ended without a word")),
        }
        Ok(Self { task: task.clone(), process, started: Instant::now() })
    }

    /// The process.
    pub fn process(&self) -> &ProcessRef {
        &self.process
    }

    /// Starts the process again if it has ended. Returns the time until it may be started, if that is not now.
    pub fn revive(&mut self) -> Option<Duration> {
        if !self.process.ended() {
            return None;
        }
        let rest = REST.saturating_sub(self.started.elapsed());
        if !rest.is_zero() {
            return Some(rest);
        }
        self.start_again();
        self.process.ended().then_some(REST)
    }

    fn start_again(&mut self) {
        self.started = Instant::now();
        let counted = DroppedBytes::open(&self.task.relay_ends()).and_then(|count| count.add(1));
        if let Err(error) = counted {
            drop(writeln!(io::stderr(), "counting the ends of the log relay: {error}"));
        }
        match Self::start(&self.task, true) {
            Ok(helper) => *self = helper,
            Err(error) => {
                drop(writeln!(io::stderr(), "the log relay was killed, and starting it again failed: {error}"))
            }
        }
    }
}
