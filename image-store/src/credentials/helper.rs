//! Credential helpers: `docker-credential-<name> get`, with the registry on its standard input.
//!
//! A helper is a foreign program:
//!
//! - It runs in its own process group. The whole group is killed when the helper exceeds its time limit or leaves
//!   children behind.
//! - Its output is bounded, and read as one document or not at all.
//! - Errors and logs contain only its exit code.

use std::{
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use serde::Deserialize;

use super::{failure::Failure, secret::Credentials};

/// The time limit of a helper.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const OUTPUT_BYTES: usize = 1 << 20;

/// Asks a helper by name. `Ok(None)`: it has no credentials for this registry.
pub(super) fn ask(name: &str, server: &str) -> Result<Option<Credentials>, Failure> {
    let program = format!("docker-credential-{name}");
    // A slash would make the name a path, and the name may come from a file.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err(Failure {
            origin: format!("credential helper {name:?}"),
            problem: "that is no helper's name".into(),
        });
    }
    run(Path::new(&program), server, TIME_LIMIT)
}

/// Runs a helper.
pub(super) fn run(program: &Path, server: &str, limit: Duration) -> Result<Option<Credentials>, Failure> {
    let wrong = |problem: String| Failure { origin: program.display().to_string(), problem };
    let (status, output) = execute(program, server, limit).map_err(|error| wrong(explain(&error, limit)))?;
    judge(status, &output).map_err(wrong)
}

fn explain(error: &io::Error, limit: Duration) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such program in the PATH of Nomad's agent".into(),
        io::ErrorKind::TimedOut => format!("it did not answer within {limit:?} and was killed"),
        io::ErrorKind::FileTooLarge => format!("it printed more than {OUTPUT_BYTES} bytes"),
        _ => error.to_string(),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    username: String,
    #[serde(default)]
    secret: String,
}

/// Interprets an exit status and an output. Pure.
fn judge(status: ExitStatus, output: &[u8]) -> Result<Option<Credentials>, String> {
    if !status.success() {
        // The only message that the protocol defines.
        let unknown = String::from_utf8_lossy(output).to_ascii_lowercase().contains("credentials not found");
        return match (unknown, status.code(), status.signal()) {
            (true, Some(_), _) => Ok(None),
            (_, Some(code), _) => Err(format!("it failed with exit code {code}; run it by hand to see why")),
            (_, None, signal) => Err(format!("it was killed by signal {}", signal.unwrap_or_default())),
        };
    }
    let answer: Answer = serde_json::from_slice(output).map_err(|_| "its answer is no document of credentials")?;
    if answer.secret.is_empty() {
        return if answer.username.is_empty() { Ok(None) } else { Err("its answer holds no secret".into()) };
    }
    Ok(Some(Credentials { username: answer.username, password: answer.secret.into() }))
}

/// A process group whose leader is not reaped, so no other process can get its process id. Its processes do not outlive
/// this value.
struct Group {
    child: Child,
    leader: Pid,
}

impl Group {
    fn spawn(program: &Path) -> io::Result<Group> {
        let mut command = Command::new(program);
        command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn()?;
        match i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            Some(leader) => Ok(Group { child, leader }),
            None => {
                child.kill()?;
                child.wait()?;
                Err(io::Error::other("the process has no usable number"))
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The leader is reaped only below, so the group id is still valid.
        if let Err(error) = kill_process_group(self.leader, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "a credential helper's processes may be left");
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "a credential helper is not reaped");
        }
    }
}

fn execute(program: &Path, server: &str, limit: Duration) -> io::Result<(ExitStatus, Vec<u8>)> {
    let deadline = Instant::now() + limit;
    let mut group = Group::spawn(program)?;
    if let Some(mut stdin) = group.child.stdin.take() {
        // The text fits in every pipe. A helper need not read it.
        match stdin.write_all(server.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    let stdout = group.child.stdout.take().ok_or_else(|| io::Error::other("no pipe to read from"))?;
    let ended = pidfd_open(group.leader, PidfdFlags::empty())?;
    let output = read(stdout, &ended, deadline)?;
    // A helper may close its output before it ends.
    if !wait_for(&[&ended], deadline)?[0] {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let status = exit_status(&group)?;
    Ok((status, output))
}

/// The exit status of the leader, which is not reaped.
fn exit_status(group: &Group) -> io::Result<ExitStatus> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let status = waitid(WaitId::Pid(group.leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let status = status.ok_or_else(|| io::Error::other("no exit status"))?;
    let raw = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (code & 0xff) << 8,
        (None, signal) => signal.unwrap_or(9),
    };
    Ok(ExitStatus::from_raw(raw))
}

/// Reads until the output is closed, or until the leader has ended and the pipe is empty.
fn read(mut stdout: ChildStdout, ended: &OwnedFd, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let ready = wait_for_two(&stdout, ended, deadline)?;
        match ready {
            (false, false) => return Err(io::ErrorKind::TimedOut.into()),
            (false, true) => return Ok(output),
            (true, _) => {}
        }
        match stdout.read(&mut buffer)? {
            0 => return Ok(output),
            length => output.extend_from_slice(&buffer[..length]),
        }
        if output.len() > OUTPUT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
}

fn wait_for_two(stdout: &ChildStdout, ended: &OwnedFd, deadline: Instant) -> io::Result<(bool, bool)> {
    let mut polled = [PollFd::new(stdout, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
    poll_until(&mut polled, deadline)?;
    Ok((!polled[0].revents().is_empty(), !polled[1].revents().is_empty()))
}

fn wait_for(descriptors: &[&OwnedFd; 1], deadline: Instant) -> io::Result<[bool; 1]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    poll_until(&mut polled, deadline)?;
    Ok([!polled[0].revents().is_empty()])
}

fn poll_until(polled: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match poll(polled, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Writes a script through another process. A descriptor of this process that is open for writing could be
    /// inherited by a process that another test starts at the same moment, and a file that is open for writing cannot
    /// be executed (ETXTBSY).
    pub fn script(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("docker-credential-test");
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status();
        assert!(status.unwrap().success());
        path
    }

    fn answer(text: &str) -> Result<Option<(String, String)>, String> {
        let directory = tempfile::tempdir().unwrap();
        let result = run(&script(directory.path(), text), "https://index.docker.io/v1/", Duration::from_secs(10));
        let pair = |found: Credentials| (found.username, found.password.expose().to_owned());
        result.map(|found| found.map(pair)).map_err(|failure| format!("{}: {}", failure.origin, failure.problem))
    }

    #[test]
    fn the_answer_of_a_helper_is_used() {
        let text =
            r#"[ "$1" = get ] && read host; echo "{\"ServerURL\":\"x\",\"Username\":\"joe\",\"Secret\":\"$host\"}""#;
        assert_eq!(answer(text), Ok(Some(("joe".into(), "https://index.docker.io/v1/".into()))));
        assert_eq!(answer(r#"echo '{"Username":"<token>","Secret":"t"}'"#), Ok(Some(("<token>".into(), "t".into()))));
        assert_eq!(answer("echo '{\"Username\":\"\",\"Secret\":\"\"}'"), Ok(None));
    }

    #[test]
    fn a_registry_unknown_to_a_helper_is_no_failure() {
        assert_eq!(answer("echo credentials not found in native keychain; exit 1"), Ok(None));
    }

    #[test]
    fn failures_contain_no_secret() {
        for (text, expected) in [
            ("echo hunter2; echo hunter2 >&2; exit 3", "exit code 3"),
            ("echo '{\"Username\": hunter2'", "no document"),
            ("echo '{\"Username\":\"hunter2\"}'", "no secret"),
            ("kill -9 $$", "signal 9"),
            ("exec yes hunter2", "more than"),
        ] {
            let error = answer(text).unwrap_err();
            assert!(error.contains(expected) && error.contains("docker-credential-test"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        for name in ["", "../../bin/sh", "a b", "a/b"] {
            assert!(ask(name, "r.example").is_err());
        }
    }

    #[test]
    fn no_process_of_a_helper_outlives_it() {
        let directory = tempfile::tempdir().unwrap();
        let pid_file = directory.path().join("pid");
        // A helper that hangs, and a helper that answers but leaves a child with an open output.
        for (text, limit, answers) in [
            (format!("sleep 1000 & echo $! > {}; wait", pid_file.display()), Duration::from_secs(3), false),
            (
                format!(
                    "sleep 1000 & echo $! > {}; echo '{{\"Username\":\"u\",\"Secret\":\"s\"}}'",
                    pid_file.display()
                ),
                Duration::from_secs(30),
                true,
            ),
        ] {
            let program = script(directory.path(), &text);
            let result = run(&program, "r.example", limit);
            assert_eq!(result.is_ok(), answers, "{result:?}");
            let pid = std::fs::read_to_string(&pid_file).unwrap();
            let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
            let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            assert!(wait_for(&[&pidfd], Instant::now() + Duration::from_secs(5)).unwrap()[0], "it goes on");
        }
    }
}
