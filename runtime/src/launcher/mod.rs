//! Executing our own binary in another role.
//!
//! Processes are started by a thread, the starter, that shares no descriptors with the rest of this process. A new
//! process begins with a copy of its starter's descriptor table and closes all but three of them. The plugin has
//! several descriptors for each task, so without the starter a start would cost more with every task.

mod copy;
mod prelink;

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use self::copy::sealed_copy;
use crate::{
    packets::{connection, receive, send},
    process::ProcessRef,
    role::Role,
    sys,
};

/// The name of the starter thread.
const STARTER: &str = "starter";

/// Starts the sealed copy of this program.
#[derive(Debug, Default)]
pub(crate) struct Launcher {
    /// The connection to the starter thread. When it is closed, the starter ends.
    starter: Mutex<Option<OwnedFd>>,
}

/// A request to the starter. Standard input, output and error of the new process go with it as descriptors.
#[derive(Debug, Serialize, Deserialize)]
struct StartRequest {
    args: Vec<String>,
}

/// The starter's reply.
#[derive(Debug, Serialize, Deserialize)]
enum StartReply {
    Started { pid: i32 },
    Failed { errno: Option<i32>, text: String },
}

impl Launcher {
    /// Makes the copy and the starter if there are none.
    pub fn prepare(&self) -> io::Result<()> {
        prepared(&mut self.starter.lock().unwrap_or_else(PoisonError::into_inner)).map(drop)
    }

    /// Starts the copy in a role with these as standard input, output and error, with no other descriptor, and with an
    /// empty environment (except for the variables of tests in a dev build).
    pub fn spawn(&self, role: &Role, stdio: [BorrowedFd<'_>; 3]) -> io::Result<ProcessRef> {
        self.spawn_with(role.to_args()?, stdio)
    }

    fn spawn_with(&self, args: Vec<String>, stdio: [BorrowedFd<'_>; 3]) -> io::Result<ProcessRef> {
        let mut starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = prepared(&mut starter)?;
        let answer = send(connection, &StartRequest { args }, &stdio).and_then(|()| receive(connection));
        match answer {
            Ok(Some((StartReply::Started { pid }, _))) => ProcessRef::open(pid).inspect_err(|_| discard(pid)),
            Ok(Some((StartReply::Failed { errno: Some(errno), .. }, _))) => Err(io::Error::from_raw_os_error(errno)),
            Ok(Some((StartReply::Failed { text, .. }, _))) => Err(io::Error::other(text)),
            // The next call makes another starter.
            Ok(None) => {
                *starter = None;
                Err(io::Error::other("the thread that starts processes has ended"))
            }
            Err(error) => {
                *starter = None;
                Err(error)
            }
        }
    }
}

/// Ends and reaps a new process that this process cannot refer to, for example for lack of descriptors.
fn discard(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    // The pid cannot be used again before it is reaped. A killed process that holds nothing ends at once.
    let ended = kill_process(pid, Signal::KILL).and_then(|()| waitpid(Some(pid), WaitOptions::empty()));
    if let Err(error) = ended {
        tracing::warn!(%error, pid = pid.as_raw_nonzero(), "new process not reaped");
    }
}

/// The connection to the starter. Makes the starter if there is none.
fn prepared(starter: &mut Option<OwnedFd>) -> io::Result<BorrowedFd<'_>> {
    if starter.is_none() {
        let program = sealed_copy()?;
        let (ours, theirs) = connection()?;
        let (tell, told) = mpsc::channel();
        let number = theirs.as_raw_fd();
        thread::Builder::new().name(STARTER.to_owned()).spawn(move || {
            let taken = sys::leave_descriptors(number);
            let failed = tell.send(taken.as_ref().map(drop).map_err(|error| error.to_string())).is_err();
            if let (Ok(connection), false) = (taken, failed) {
                serve(&connection);
            }
        })?;
        // `theirs` must stay open until the starter has its own copy of it.
        told.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
        drop(theirs);
        send(&ours, &(), &[program.as_fd()])?;
        *starter = Some(ours);
    }
    starter.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The starter's main loop. It may use only descriptors that came through `connection`; so it must not log either.
fn serve(connection: &OwnedFd) {
    let Ok(Some(((), mut program))) = receive(connection) else { return };
    let Some(program) = program.pop() else { return };
    while let Ok(Some((request, stdio))) = receive(connection) {
        let answer = match start(program.as_raw_fd(), request, stdio) {
            Ok(pid) => StartReply::Started { pid },
            Err(error) => StartReply::Failed { errno: error.raw_os_error(), text: error.to_string() },
        };
        if send(connection, &answer, &[]).is_err() {
            return;
        }
    }
}

fn start(program: RawFd, request: StartRequest, stdio: Vec<OwnedFd>) -> io::Result<i32> {
    let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(stdio).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(format!("/proc/self/fd/{program}"));
    command.arg0("oci-rs").args(request.args).env_clear();
    if cfg!(debug_assertions) {
        let told = |name| std::env::var_os(name).map(|value: OsString| (name, value));
        let variables = [failpoint::VARIABLE, failpoint::TRACE, confinement::KILL_VARIABLE];
        command.envs(variables.into_iter().filter_map(told));
    }
    let child = command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr)).spawn()?;
    Ok(child.id() as i32)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, fs::File};

    use rustix::pipe::pipe;

    use super::*;
    use crate::role::ExecArgs;

    /// The descriptors of the thread of that name.
    fn descriptors(name: &str) -> BTreeSet<i32> {
        let threads = fs::read_dir("/proc/self/task").expect("threads").map(|entry| entry.expect("a thread").path());
        let is_it = |thread: &std::path::PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let mut found = threads.filter(is_it);
        let thread = found.next().expect("the thread");
        assert_eq!(found.next(), None, "one such thread");
        let names = fs::read_dir(thread.join("fd")).expect("descriptors").map(|entry| entry.expect("one").file_name());
        names.map(|name| name.to_string_lossy().parse().expect("a number")).collect()
    }

    fn list() -> Vec<String> {
        vec!["--list".to_owned(), "--format=terse".to_owned()]
    }

    #[test]
    fn processes_are_started_by_a_thread_without_descriptors_of_ours() {
        let many: Vec<File> = (0..100).map(|_| File::open("/dev/null").expect("a file")).collect();
        let launcher = Launcher::default();
        let null = File::options().read(true).write(true).open("/dev/null").expect("a file");
        for _ in 0..2 {
            let (reader, writer) = pipe().expect("a pipe");
            // The copy is this test program, which prints the list of its tests.
            let stdio = [null.as_fd(), writer.as_fd(), null.as_fd()];
            let process = launcher.spawn_with(list(), stdio).expect("a process");
            drop(writer);
            let said = io::read_to_string(File::from(reader)).expect("its output");
            assert!(said.contains("processes_are_started_by_a_thread_without_descriptors_of_ours"), "{said}");
            assert!(process.wait_for(None).expect("its end"));
            process.reap().expect("it is our child");
            // Standard input, output and error, the connection, and the program.
            let own = descriptors(STARTER);
            assert_eq!(own.len(), 5, "{own:?}");
        }
        drop(many);

        // A request that fails does not harm later ones.
        let stdio = || [null.as_fd(), null.as_fd(), null.as_fd()];
        let long = Role::Exec(ExecArgs { task: "x".repeat(100_000).into() });
        launcher.spawn(&long, stdio()).expect_err("too long");
        let process = launcher.spawn_with(list(), stdio()).expect("a process");
        assert!(process.wait_for(None).expect("its end"));
        process.reap().expect("it is our child");
    }
}
