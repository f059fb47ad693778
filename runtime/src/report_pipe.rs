//! The report of a process through a pipe. It is one line of JSON, so a reader waits neither for the processes that the
//! writer forked, nor for the end of the writer.

use std::{
    fs::File,
    io::{self, Read, Write},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    thread::sched_yield,
    time::Timespec,
};
use serde::Serialize;

use crate::process::ProcessRef;

/// Writes a report. The reader goes on before this process does: it waited for the report, and a process that ends or
/// gives up rights afterwards would keep its processor.
pub(crate) fn write_report(mut pipe: impl Write, report: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    pipe.write_all(&line)?;
    sched_yield();
    Ok(())
}

/// Reads a report: until the end of its line, until the last writer closes the pipe, or until `writer` has ended. The
/// forks of the writer hold the pipe too. If the writer was killed, a fork may wait for ever for an answer of the
/// writer, so the end of the pipe never comes. If nothing of that happens within the limit, the error is `TimedOut`.
pub(crate) fn read_report(pipe: &mut File, writer: &ProcessRef, limit: Option<Duration>) -> io::Result<Vec<u8>> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut text = Vec::new();
    loop {
        let mut events = [PollFd::new(&*pipe, PollFlags::IN), PollFd::new(&writer.pidfd, PollFlags::IN)];
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
        if retry_on_intr(|| poll(&mut events, left.as_ref()))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let readable = !events[0].revents().is_empty();
        let mut chunk = [0; 4096];
        match readable.then(|| pipe.read(&mut chunk)).transpose()? {
            Some(length) if length > 0 => text.extend_from_slice(&chunk[..length]),
            // The end of the pipe, or the end of the writer with nothing left to read.
            _ => return Ok(text),
        }
        if text.ends_with(b"\n") {
            return Ok(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, process::Command};

    use super::*;

    #[test]
    fn only_the_reporting_process_is_waited_for() {
        let (reader, mut other) = io::pipe().expect("a pipe");
        let mut writer = Command::new("sh");
        writer.args(["-c", "printf hello"]).stdout(other.try_clone().expect("its other end"));
        let mut writer = writer.spawn().expect("a process");
        let process = ProcessRef::open(writer.id() as i32).expect("the process");
        let mut pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(read_report(&mut pipe, &process, None).expect("its words"), b"hello");
        writer.wait().expect("reaped");
        other.write_all(b"more").expect("the pipe is open");
        assert_eq!(read_report(&mut pipe, &process, None).expect("what came later"), b"more");
        drop(other);
        assert_eq!(read_report(&mut pipe, &process, None).expect("the end"), b"");
    }

    #[test]
    fn a_whole_report_is_read_before_its_writer_ends() {
        let (reader, writer) = io::pipe().expect("a pipe");
        write_report(&writer, &["built"]).expect("a report");
        let this = ProcessRef::open(std::process::id() as i32).expect("this process");
        let mut pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(read_report(&mut pipe, &this, None).expect("its report"), b"[\"built\"]\n");
    }

    #[test]
    fn a_process_that_says_nothing_is_waited_for_up_to_the_limit() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut silent = Command::new("sleep").arg("1000").stdout(writer).spawn().expect("a process");
        let process = ProcessRef::open(silent.id() as i32).expect("the process");
        let mut pipe = File::from(std::os::fd::OwnedFd::from(reader));
        let error = read_report(&mut pipe, &process, Some(Duration::from_millis(10))).expect_err("no words");
        silent.kill().expect("killed");
        silent.wait().expect("reaped");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
