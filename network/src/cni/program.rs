//! Finding a program and running it to its end.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::PathBuf,
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

/// How long a program may run, including its wait for the lock of iptables.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The directories in which programs are searched after those of the agent's PATH.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Finds a program of this name in the first directory that has one.
pub(crate) fn find(program: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// The agent's PATH, followed by the directories of the system that it lacks.
pub(crate) fn system_path() -> String {
    with_system_directories(&std::env::var("PATH").unwrap_or_default())
}

fn with_system_directories(path: &str) -> String {
    let missing = SYSTEM_DIRECTORIES.into_iter().filter(|directory| !path.split(':').any(|known| known == *directory));
    path.split(':').filter(|directory| !directory.is_empty()).chain(missing).collect::<Vec<_>>().join(":")
}

/// Runs a program to its end and returns its output. After [`TIMEOUT`] it is killed. Its input and output are files in
/// memory, so neither side ever waits for the other. Without a log, its standard error is part of the output.
pub(crate) fn run(mut command: Command, input: &[u8], log: Option<&File>) -> Result<(ExitStatus, String), String> {
    let started = start(&mut command, input, log);
    let (mut child, mut stdout) = started.map_err(|error| format!("it cannot be executed: {error}"))?;
    let status = wait(&mut child)?;
    let mut output = Vec::new();
    // The child shares the file position with us and has moved it.
    stdout.rewind().and_then(|()| stdout.read_to_end(&mut output)).map_err(|error| error.to_string())?;
    Ok((status, String::from_utf8_lossy(&output).into_owned()))
}

/// Starts a program. The file receives its output.
fn start(command: &mut Command, input: &[u8], log: Option<&File>) -> io::Result<(Child, File)> {
    use std::os::unix::process::CommandExt;
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
pub(crate) fn memory_file() -> io::Result<File> {
    Ok(memfd_create("cni", MemfdFlags::CLOEXEC)?.into())
}

/// Waits for a program's end, and kills it after [`TIMEOUT`].
fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let pid = Pid::from_child(child);
    let ended = ends_in_time(pid);
    if !matches!(ended, Ok(true)) {
        // The child is not reaped yet, so the number of the process group is still its own.
        kill_process_group(pid, Signal::KILL).ok();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match ended {
        Ok(true) => Ok(status),
        Ok(false) => Err(format!("it did not end within {} seconds and was killed", TIMEOUT.as_secs())),
        Err(error) => Err(format!("it cannot be watched: {error}")),
    }
}

fn ends_in_time(pid: Pid) -> io::Result<bool> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut events, Some(&timeout)))? > 0)
}

#[cfg(test)]
mod tests {
    use super::{SYSTEM_DIRECTORIES, with_system_directories};

    #[test]
    fn programs_of_the_system_are_found_with_any_path_of_the_agent() {
        let all = SYSTEM_DIRECTORIES.join(":");
        assert_eq!(with_system_directories(""), all);
        assert_eq!(with_system_directories(&all), all);
        let first = with_system_directories("/opt/bin::/usr/bin");
        assert_eq!(first.split(':').take(2).collect::<Vec<_>>(), ["/opt/bin", "/usr/bin"]);
        for path in ["", "/opt/bin::/usr/bin", "/sbin"] {
            let completed = with_system_directories(path);
            for directory in SYSTEM_DIRECTORIES {
                let count = completed.split(':').filter(|known| *known == directory).count();
                assert_eq!(count, 1, "{path}: {completed}");
            }
        }
    }
}
