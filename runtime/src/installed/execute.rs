//! Running one command of a runtime to its end.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::answers::last_error;
use crate::process::ProcessRef;

/// The `PATH` of runtimes: some call other programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The end of a command.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Its standard output, if that was asked for.
    Done(Vec<u8>),
    /// The reason in the runtime's words.
    Failed(String),
}

/// The standard streams of a command.
#[derive(Debug)]
pub(super) enum Streams {
    /// All are `/dev/null`.
    None,
    /// Standard output is kept.
    Answer,
    /// Those of the container's command.
    Container([OwnedFd; 3]),
}

/// The command of a runtime. It gets no variable of this process.
pub(super) fn command(program: &Path, args: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", PATH).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs a command. A command that takes longer than `limit` is killed. `log` is the file to which it writes its errors.
pub(super) fn run(mut command: Command, streams: Streams, log: &Path, limit: Duration) -> io::Result<Outcome> {
    let mut answer = None;
    match streams {
        Streams::None => {}
        Streams::Answer => {
            let file = File::from(memfd_create("answer", MemfdFlags::CLOEXEC)?);
            command.stdout(file.try_clone()?);
            answer = Some(file);
        }
        Streams::Container([stdin, stdout, stderr]) => {
            command.stdin(stdin).stdout(stdout).stderr(stderr);
        }
    }
    forget(log)?;
    let mut child = command.spawn()?;
    let process = ProcessRef::open(child.id().cast_signed())?;
    if !process.wait_for(Some(limit))? {
        process.signal(libc::SIGKILL)?;
        child.wait()?;
        return Ok(Outcome::Failed(format!("it did not end within {} seconds", limit.as_secs())));
    }
    let status = child.wait()?;
    if !status.success() {
        return Ok(Outcome::Failed(error_of(log, &status.to_string())));
    }
    Ok(Outcome::Done(answer.map(read_all).transpose()?.unwrap_or_default()))
}

/// Removes the messages of an earlier command.
fn forget(log: &Path) -> io::Result<()> {
    match fs::remove_file(log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The last error of a runtime's log. Without one, the command's end is all that is known.
pub(super) fn error_of(log: &Path, status: &str) -> String {
    let text = fs::read(log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
    last_error(&text).unwrap_or_else(|| status.to_owned())
}

/// The content of a file from its beginning. The writer shares the offset.
fn read_all(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, log: &Path, limit: Duration) -> Outcome {
        let command = command(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()]);
        run(command, Streams::Answer, log, limit).expect("a shell")
    }

    #[test]
    fn a_command_is_run_to_its_end_without_our_environment() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        fs::write(&log, r#"{"level":"error","msg":"an earlier one"}"#).expect("written");
        let long = Duration::from_secs(20);
        let Outcome::Done(answer) = sh("env; pwd", &log, long) else { panic!("it succeeds") };
        let answer = String::from_utf8(answer).expect("text");
        let mut lines: Vec<&str> = answer.lines().filter(|line| !line.starts_with("PWD=")).collect();
        lines.retain(|line| !line.starts_with("_=") && !line.starts_with("SHLVL=") && !line.starts_with("OLDPWD"));
        assert_eq!(lines, [format!("PATH={PATH}").as_str(), "/"]);

        let Outcome::Failed(reason) = sh("exit 3", &log, long) else { panic!("it fails") };
        assert_eq!(reason, "exit status: 3");
        let script = format!(r#"echo '{{"level":"error","msg":"no cgroup"}}' > {}; exit 1"#, log.display());
        let Outcome::Failed(reason) = sh(&script, &log, long) else { panic!("it fails") };
        assert_eq!(reason, "no cgroup");
        let Outcome::Failed(reason) = sh("exec sleep 1000", &log, Duration::ZERO) else { panic!("it is killed") };
        assert_eq!(reason, "it did not end within 0 seconds");
    }
}
