//! A person at a terminal: types, looks at what appears, drags the window larger, or pulls the plug.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{Alloc, Context, Failure, Outcome, process, watch::patient};

/// A person waits that long for something to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// Somebody in front of `nomad alloc exec -i -t`.
#[derive(Debug)]
pub struct Person {
    terminal: File,
    client: Child,
    /// What appeared and was not looked at yet.
    screen: Vec<u8>,
}

impl Person {
    /// Sits down at a terminal of that size and starts a command in the allocation's task.
    ///
    /// # Errors
    /// When there is no terminal or no client.
    pub fn sit_down(alloc: &Alloc, command: &[&str], rows: u16, cols: u16) -> Outcome<Self> {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&terminal)?;
        let side = ioctl_tiocgptpeer(&terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        let terminal = File::from(terminal);
        set_size(&terminal, rows, cols)?;
        let stdio = || -> Outcome<Stdio> { Ok(Stdio::from(OwnedFd::from(File::from(side.try_clone()?)))) };
        // A session of its own, whose terminal this is: the kernel tells it of new sizes.
        let mut line = alloc.agent().command("setsid");
        line.arg("-c").arg(alloc.agent().nomad_program());
        line.args(["alloc", "exec", "-i", "-t", &alloc.id]).args(command).env("TERM", "xterm");
        let client = line.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?).spawn().context("setsid")?;
        rustix::fs::fcntl_setfl(&terminal, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(Self { terminal, client, screen: Vec::new() })
    }

    /// Types text as it is; `\x03` is Ctrl-C.
    ///
    /// # Errors
    /// When the terminal takes nothing.
    pub fn types(&mut self, text: &str) -> Outcome {
        self.terminal.write_all(text.as_bytes()).context(format!("typing {text:?}"))
    }

    /// Waits until the text appears; what appeared up to its end. What comes after it is looked at next.
    ///
    /// # Errors
    /// When it does not appear.
    pub fn sees(&mut self, text: &str) -> Outcome<String> {
        let deadline = Instant::now() + patient(PATIENCE);
        loop {
            if let Some(at) = self.screen.windows(text.len()).position(|part| part == text.as_bytes()) {
                let seen: Vec<u8> = self.screen.drain(..at + text.len()).collect();
                return Ok(String::from_utf8_lossy(&seen).into_owned());
            }
            if !self.looks(deadline)? {
                let screen = String::from_utf8_lossy(&self.screen).into_owned();
                return Err(Failure(format!("{text:?} did not appear, only {screen:?}")));
            }
        }
    }

    /// Drags the window to another size.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resizes(&self, rows: u16, cols: u16) -> Outcome {
        set_size(&self.terminal, rows, cols)
    }

    /// Waits until the client has ended; everything that appeared since the last look, and how it ended.
    ///
    /// # Errors
    /// When it does not end.
    pub fn sees_the_end(mut self) -> Outcome<(String, ExitStatus)> {
        let pid = self.client.id().cast_signed();
        let deadline = Instant::now() + patient(PATIENCE);
        let end = loop {
            if let Some(status) = self.client.try_wait()? {
                break status;
            }
            // The terminal ends with its last user, which is the client.
            if !self.looks(deadline)? && !process::wait_gone(pid, deadline.saturating_duration_since(Instant::now()))? {
                let screen = String::from_utf8_lossy(&self.screen).into_owned();
                return Err(Failure(format!("the client does not end; on the screen: {screen:?}")));
            }
        };
        self.looks(Instant::now())?;
        Ok((String::from_utf8_lossy(&self.screen).into_owned(), end))
    }

    /// Takes in what has appeared, waiting for something; whether there was anything.
    fn looks(&mut self, deadline: Instant) -> Outcome<bool> {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 4096];
        match self.terminal.read(&mut part) {
            Ok(length) => self.screen.extend(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            // Nobody has the other side open any more.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

impl Drop for Person {
    /// Pulls the plug.
    fn drop(&mut self) {
        drop(self.client.kill());
        drop(self.client.wait());
    }
}

fn set_size(terminal: &File, rows: u16, cols: u16) -> Outcome {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
}
