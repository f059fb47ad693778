//! Hearing what a process has to say, without waiting for those that it forked in turn.

use std::{
    fs::File,
    io::{self, Read},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
};

use crate::process::ProcessRef;

/// Everything that comes through a pipe until its last writer closes it or `speaker` ends. What it forked holds the pipe too,
/// and when it was killed may wait for ever for what it was to be told.
pub(crate) fn until_end(pipe: &mut File, speaker: &ProcessRef) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    loop {
        let mut events = [PollFd::new(&*pipe, PollFlags::IN), PollFd::new(&speaker.pidfd, PollFlags::IN)];
        retry_on_intr(|| poll(&mut events, None))?;
        let told = !events[0].revents().is_empty();
        let mut chunk = [0; 4096];
        match told.then(|| pipe.read(&mut chunk)).transpose()? {
            Some(length) if length > 0 => text.extend_from_slice(&chunk[..length]),
            // The end of the pipe, or of the speaker with nothing left to be read.
            _ => return Ok(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, process::Command};

    use super::*;

    #[test]
    fn a_writer_that_is_not_the_speaker_is_not_waited_for() {
        let (reader, mut other) = io::pipe().expect("a pipe");
        let mut speaker = Command::new("sh");
        speaker.args(["-c", "printf hello"]).stdout(other.try_clone().expect("its other end"));
        let mut speaker = speaker.spawn().expect("a speaker");
        let process = ProcessRef::open(speaker.id() as i32).expect("the speaker");
        let mut pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(until_end(&mut pipe, &process).expect("its words"), b"hello");
        speaker.wait().expect("reaped");
        other.write_all(b"more").expect("the pipe is open");
        assert_eq!(until_end(&mut pipe, &process).expect("what came later"), b"more");
        drop(other);
        assert_eq!(until_end(&mut pipe, &process).expect("the end"), b"");
    }
}
