//! Running one hook: its input, its output, and its deadline.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create},
    io::{Errno, retry_on_intr},
    pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
    time::Timespec,
};

use super::state::HookState;
use crate::{plan::Hook, sys};

/// The time of a hook whose plan gives it none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes of a hook's output that an error repeats.
const SHOWN: usize = 1024;

/// Runs hooks one after the other, until one fails. `default_env` is the environment of hooks without one.
pub(crate) fn run_all<'a>(
    hooks: impl Iterator<Item = &'a Hook>,
    state: &HookState,
    default_env: &[(String, String)],
) -> Result<(), String> {
    let mut hooks = hooks.peekable();
    if hooks.peek().is_none() {
        return Ok(());
    }
    let state = state.to_json();
    hooks.try_for_each(|hook| {
        run(hook, &state, default_env)
            .map_err(|problem| format!("hook {} {:?} of a device's spec: {problem}", hook.stage, hook.path))
    })
}

fn run(hook: &Hook, state: &[u8], default_env: &[(String, String)]) -> Result<(), String> {
    let (child, output) = start(hook, state, default_env).map_err(|error| format!("cannot be executed: {error}"))?;
    let limit = hook.timeout_s.map_or(DEFAULT_TIMEOUT, |seconds| Duration::from_secs(u64::from(seconds)));
    let mut shown = Vec::new();
    let (status, in_time) =
        wait(child, output, limit, &mut shown).map_err(|error| format!("cannot be waited for: {error}"))?;
    if status.success() && in_time {
        return Ok(());
    }
    let end = match (in_time, status.code(), status.signal()) {
        (false, ..) => format!("did not end within {} s and was killed", limit.as_secs()),
        (true, Some(code), _) => format!("ended with exit code {code}"),
        (true, None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
    };
    let shown = String::from_utf8_lossy(&shown);
    Err(if shown.trim().is_empty() { end } else { format!("{end}: {}", shown.trim()) })
}

/// Starts the program in a process group of its own.
fn start(hook: &Hook, state: &[u8], default_env: &[(String, String)]) -> io::Result<(Child, OwnedFd)> {
    let input = input(state)?;
    let (output, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&output, OFlags::NONBLOCK)?;
    let mut command = Command::new(&hook.path);
    if let Some((name, args)) = hook.args.split_first() {
        command.arg0(name).args(args);
    }
    command.env_clear();
    if hook.env.is_empty() {
        command.envs(default_env.iter().map(|(name, value)| (name, value)));
    }
    command.envs(hook.env.iter().map(|(name, value)| (name, value)));
    command.current_dir("/").process_group(0);
    sys::end_with_parent(&mut command);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(writer.try_clone()?)).stderr(Stdio::from(writer));
    Ok((command.spawn()?, output))
}

/// The state as the input of a hook. A hook that does not read it delays no process.
///
/// It is a pipe, because SELinux gives a pipe the label of the process that makes it, and policies allow containers the
/// pipes of their runtime. A file in memory has a label that they deny.
fn input(state: &[u8]) -> io::Result<OwnedFd> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    if fcntl_getpipe_size(&writer)? < state.len() && fcntl_setpipe_size(&writer, state.len()).is_err() {
        // More than the kernel allows a pipe to hold.
        let mut file = File::from(memfd_create("state", MemfdFlags::CLOEXEC)?);
        file.write_all(state)?;
        file.rewind()?;
        return Ok(file.into());
    }
    File::from(writer).write_all(state)?;
    Ok(reader)
}

/// Waits for the end of the program, and kills its process group after `limit`. The last bytes of its output come to
/// `shown`. The second part of the result is whether it ended by itself.
fn wait(mut child: Child, output: OwnedFd, limit: Duration, shown: &mut Vec<u8>) -> io::Result<(ExitStatus, bool)> {
    let deadline = Instant::now() + limit;
    let pid = Pid::from_child(&child);
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut output = Some(File::from(output));
    let in_time = loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut watched = vec![PollFd::new(&process, PollFlags::IN)];
        watched.extend(output.as_ref().map(|output| PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)));
        if retry_on_intr(|| poll(&mut watched, Some(&left)))? == 0 {
            break false;
        }
        let ended = !watched[0].revents().is_empty();
        // A process that the hook left behind may keep the other end open.
        let has_output = output.as_mut().is_some_and(|output| keep_last(output, shown));
        if !has_output {
            output = None;
        }
        if ended {
            break true;
        }
    };
    if !in_time {
        match kill_process_group(pid, Signal::KILL) {
            // It has ended just now.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((child.wait()?, in_time))
}

/// Reads all output that is there; whether there can be more.
fn keep_last(output: &mut File, shown: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                shown.extend_from_slice(&buffer[..count]);
                shown.drain(..shown.len().saturating_sub(SHOWN));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::HookStage;

    fn hook(script: &str, timeout_s: Option<u32>) -> Hook {
        Hook {
            stage: HookStage::CreateRuntime,
            path: "/bin/sh".into(),
            args: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), "/bin:/usr/bin".to_owned())],
            timeout_s,
        }
    }

    fn state(size: usize) -> HookState {
        HookState {
            id: "one".to_owned(),
            status: "creating",
            pid: Some(7),
            bundle: "/bundle".into(),
            annotations: [("a".to_owned(), "x".repeat(size))].into(),
        }
    }

    fn outcome(script: &str, timeout_s: Option<u32>) -> Result<(), String> {
        run_all([hook(script, timeout_s)].iter(), &state(200_000), &[])
    }

    #[test]
    fn a_hook_gets_the_state_and_only_its_environment() {
        assert_eq!(outcome("test \"$(wc -c)\" -gt 200000 && test \"$(env | grep -c =)\" -le 4", None), Ok(()));
        // In a pipe; in a larger pipe; in none, because it would have to be larger than the kernel allows.
        for size in [1, 200_000, 5_000_000] {
            let length = state(size).to_json().len();
            let reading = hook(&format!("test \"$(wc -c)\" -eq {length}"), None);
            assert_eq!(run_all([reading].iter(), &state(size), &[]), Ok(()), "{size}");
        }
        assert_eq!(outcome("head -c 16 | grep -q '{\"ociVersion\"'", None), Ok(()));
        assert_eq!(outcome("exit 0", None), Ok(()), "one that reads nothing");
        let without = Hook { env: vec![], path: "/usr/bin/env".into(), args: vec!["env".into()], ..hook("", None) };
        let inherited = [("INHERITED".to_owned(), "1".to_owned())];
        assert_eq!(run_all([without].iter(), &state(1), &inherited), Ok(()));
    }

    #[test]
    fn a_failing_hook_is_named_with_the_end_of_its_output() {
        let prefix = "hook createRuntime \"/bin/sh\" of a device's spec: ";
        for (script, expected) in [
            ("echo no such device >&2; exit 3", "ended with exit code 3: no such device"),
            ("exit 1", "ended with exit code 1"),
            ("kill -9 $$", "was killed by signal 9"),
        ] {
            assert_eq!(outcome(script, None), Err(format!("{prefix}{expected}")), "{script}");
        }
        let long = outcome("yes | head -c 100000; echo the end; exit 1", None).expect_err("it fails");
        assert!(long.ends_with("the end") && long.len() < 2 * SHOWN, "{long}");
        let gone = Hook { path: "/no/such/hook".into(), ..hook("", None) };
        let error = run_all([gone].iter(), &state(1), &[]).expect_err("it does not exist");
        assert!(error.contains("\"/no/such/hook\" of a device's spec: cannot be executed: "), "{error}");
    }

    #[test]
    fn a_hook_is_killed_at_its_deadline_with_its_children() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC).expect("a flag");
        let error = outcome("sleep 1000 & echo waiting; sleep 1000", Some(1)).expect_err("it hangs");
        assert!(error.ends_with("did not end within 1 s and was killed: waiting"), "{error}");
        // The hook and its child had the other end.
        drop(writer);
        assert_eq!(File::from(reader).read(&mut [0]).expect("the end"), 0);
    }

    #[test]
    fn a_process_that_a_hook_leaves_behind_delays_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a FIFO");
        // It keeps the hook's output open, and ends when the FIFO is written to.
        assert_eq!(outcome(&format!("(read line < {}) & exit 0", fifo.display()), Some(1000)), Ok(()));
        std::fs::write(&fifo, "end\n").expect("it reads");
    }
}
