//! Running a program to its end, with a limit of time.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{MemfdFlags, memfd_create},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
    time::Timespec,
};

/// Runs a program to its end and returns its output. After `limit` it is killed. Its input and output are files in
/// memory, so neither side ever waits for the other. Without a log, its standard error is part of the output. An error
/// is a clause about "it".
pub fn run(
    mut command: Command,
    input: &[u8],
    log: Option<&File>,
    limit: Duration,
) -> Result<(ExitStatus, String), String> {
    let started = start(&mut command, input, log);
    let (mut child, mut stdout) = started.map_err(|error| format!("it cannot be executed: {error}"))?;
    let status = wait(&mut child, limit)?;
    let mut output = Vec::new();
    // The child shares the file position with us and has moved it.
    stdout.rewind().and_then(|()| stdout.read_to_end(&mut output)).map_err(|error| error.to_string())?;
    Ok((status, String::from_utf8_lossy(&output).into_owned()))
}

/// Starts a program. The file receives its output.
fn start(command: &mut Command, input: &[u8], log: Option<&File>) -> io::Result<(Child, File)> {
    let mut stdin = memory_file()?;
    stdin.write_all(input)?;
    stdin.rewind()?;
    let stdout = memory_file()?;
    let stderr = log.unwrap_or(&stdout).try_clone()?;
    // In its own process group: processes that it starts are killed with it, and a Ctrl-C in the agent's terminal does
    // not reach it.
    let child = command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr).process_group(0).spawn()?;
    Ok((child, stdout))
}

/// An empty file in memory.
pub fn memory_file() -> io::Result<File> {
    Ok(memfd_create("program", MemfdFlags::CLOEXEC)?.into())
}

/// Waits for a program's end, and kills it after the limit.
fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    let pid = Pid::from_child(child);
    let ended = ends_within(pid, limit);
    if !matches!(ended, Ok(true)) {
        // The child is not reaped yet, so the number of the process group is still its own.
        kill_process_group(pid, Signal::KILL).ok();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match ended {
        Ok(true) => Ok(status),
        Ok(false) => Err(format!("it did not end within {} seconds and was killed", limit.as_secs())),
        Err(error) => Err(format!("it cannot be watched: {error}")),
    }
}

fn ends_within(pid: Pid, limit: Duration) -> io::Result<bool> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut events, Some(&limit)))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<(ExitStatus, String), String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, b"input", None, limit)
    }

    #[test]
    fn a_program_gets_its_input_and_both_its_outputs_are_kept() {
        let (status, output) = sh("cat; echo error >&2; exit 3", Duration::from_secs(60)).expect("it ends");
        assert_eq!((status.code(), output.as_str()), (Some(3), "inputerror\n"));
        let missing = run(Command::new("/nonexistent"), b"", None, Duration::from_secs(60));
        assert!(missing.is_err_and(|error| error.starts_with("it cannot be executed: ")));
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_its_children() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let log = File::from(std::os::fd::OwnedFd::from(writer));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let error = run(command, b"", Some(&log), Duration::from_millis(300)).expect_err("it is killed");
        assert!(error.starts_with("it did not end within 0 seconds"), "{error}");
        drop(log);
        // The children have the pipe too. Its end is theirs.
        assert_eq!(reader.read(&mut [0]).expect("read"), 0);
    }
}
