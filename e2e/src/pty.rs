//! A client at a terminal: `nomad alloc exec -i -t` or a command of an operator behind a pseudo-terminal (pty).
//!
//! A test types into the terminal, waits for output on the screen, resizes the window, or kills the client.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{Agent, Alloc, Context, Failure, Outcome, process, watch::patient};

/// The last line of an operator's command that has left the terminal's modes as they were.
pub const MODES_RESTORED: &str = "the terminal has its old modes\r\n";

/// An operator's shell: it runs a command, outlives Ctrl-C, and compares the terminal's modes.
const OPERATOR: &str = "trap : INT; modes=$(stty -g); \"$@\"; code=$?
[ \"$(stty -g)\" = \"$modes\" ] && echo 'the terminal has its old modes'; exit $code";

/// The time limit for output that a test waits for.
const LIMIT: Duration = Duration::from_secs(30);

/// A running client and its terminal.
#[derive(Debug)]
pub struct PtyClient {
    terminal: File,
    client: Child,
    /// The output that no call of [`PtyClient::wait_for`] has returned yet.
    screen: Vec<u8>,
}

impl PtyClient {
    /// Starts a command in the allocation's task, at a terminal of that size.
    ///
    /// # Errors
    /// When the terminal cannot be opened or the client cannot be started.
    pub fn start(alloc: &Alloc, command: &[&str], rows: u16, cols: u16) -> Outcome<Self> {
        let mut line = alloc.agent().command(alloc.agent().nomad_program());
        line.args(["alloc", "exec", "-i", "-t", &alloc.id]).args(command);
        Self::start_command(&line, rows, cols)
    }

    /// Starts a command of an operator of this agent's node, at a terminal of that size. It is the command of a shell,
    /// which ends with its exit code. If the terminal's modes are as before, the last line is [`MODES_RESTORED`].
    ///
    /// # Errors
    /// When the terminal cannot be opened or the command cannot be started.
    pub fn start_operator(agent: &Agent, args: &[&str], rows: u16, cols: u16) -> Outcome<Self> {
        let command = agent.operator(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", OPERATOR, "sh"]).arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self::start_command(&shell, rows, cols)
    }

    fn start_command(command: &Command, rows: u16, cols: u16) -> Outcome<Self> {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&terminal)?;
        let side = ioctl_tiocgptpeer(&terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        let terminal = File::from(terminal);
        set_size(&terminal, rows, cols)?;
        let stdio = || -> Outcome<Stdio> { Ok(Stdio::from(OwnedFd::from(File::from(side.try_clone()?)))) };
        // `setsid -c` makes this terminal the controlling one. The kernel then signals each new size to the client.
        // A test run in the background of a shell ignores SIGINT, and its children would too.
        let mut line = Command::new("env");
        line.args(["--default-signal", "setsid", "-c"]).arg(command.get_program()).args(command.get_args());
        line.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
        let client = line.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?).spawn().context("setsid")?;
        rustix::fs::fcntl_setfl(&terminal, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(Self { terminal, client, screen: Vec::new() })
    }

    /// Types the text unchanged; `\x03` is Ctrl-C.
    ///
    /// # Errors
    /// When the terminal does not accept the text.
    pub fn type_text(&mut self, text: &str) -> Outcome {
        self.terminal.write_all(text.as_bytes()).context(format!("typing {text:?}"))
    }

    /// Waits until the text is on the screen, and returns the output up to the text's end. The next call begins after
    /// it.
    ///
    /// # Errors
    /// When the text does not appear in time.
    pub fn wait_for(&mut self, text: &str) -> Outcome<String> {
        let deadline = Instant::now() + patient(LIMIT);
        loop {
            if let Some(at) = self.screen.windows(text.len()).position(|part| part == text.as_bytes()) {
                let seen: Vec<u8> = self.screen.drain(..at + text.len()).collect();
                return Ok(String::from_utf8_lossy(&seen).into_owned());
            }
            if !self.read_output(deadline)? {
                let screen = String::from_utf8_lossy(&self.screen).into_owned();
                return Err(Failure(format!("{text:?} did not appear, only {screen:?}")));
            }
        }
    }

    /// Changes the terminal's size.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resize(&self, rows: u16, cols: u16) -> Outcome {
        set_size(&self.terminal, rows, cols)
    }

    /// Waits until the client has ended. Returns the remaining output and the client's exit status.
    ///
    /// # Errors
    /// When the client does not end in time.
    pub fn wait_end(mut self) -> Outcome<(String, ExitStatus)> {
        let pid = self.client.id().cast_signed();
        let deadline = Instant::now() + patient(LIMIT);
        let end = loop {
            if let Some(status) = self.client.try_wait()? {
                break status;
            }
            // The terminal ends together with the client, its last user.
            if !self.read_output(deadline)?
                && !process::wait_gone(pid, deadline.saturating_duration_since(Instant::now()))?
            {
                let screen = String::from_utf8_lossy(&self.screen).into_owned();
                return Err(Failure(format!("the client does not end; on the screen: {screen:?}")));
            }
        };
        // What the client wrote last may still be on its way. After it comes the end, unless a child has the terminal.
        let soon = Instant::now() + Duration::from_secs(1);
        while Instant::now() < soon && self.read_output(soon)? {}
        Ok((String::from_utf8_lossy(&self.screen).into_owned(), end))
    }

    /// Waits for output and reads it. Returns `false` when there was none before the deadline.
    fn read_output(&mut self, deadline: Instant) -> Outcome<bool> {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 4096];
        match self.terminal.read(&mut part) {
            Ok(length) => self.screen.extend(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            // EIO: every process has closed the other side.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

impl Drop for PtyClient {
    /// Kills the client, as a lost connection does.
    fn drop(&mut self) {
        drop(self.client.kill());
        drop(self.client.wait());
    }
}

fn set_size(terminal: &File, rows: u16, cols: u16) -> Outcome {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
}
