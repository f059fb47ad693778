//! One `nomad agent` process.

use std::{
    env,
    fs::OpenOptions,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::Signal;

use crate::{Context, Failure, Outcome, process};

const STOP: Duration = Duration::from_secs(30);

/// An agent's executable, configuration, log and process.
#[derive(Debug)]
pub(crate) struct Nomad {
    program: PathBuf,
    config: PathBuf,
    /// A second configuration file, if it exists. Its values override those of the first one.
    overrides: PathBuf,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

/// The variable that names the directory in which plugins leave their pointers for commands.
pub(crate) const RUN_DIR: &str = "OCI_RS_RUN_DIR";

impl Nomad {
    pub(crate) fn new(program: &Path, config: PathBuf) -> Self {
        let (log, overrides) = (config.with_extension("log"), config.with_extension("overrides.hcl"));
        Self { program: program.to_owned(), log, overrides, config, child: Mutex::default() }
    }

    /// Starts the process without waiting until it is ready.
    pub(crate) fn start(&self) -> Outcome {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(["agent", "-config"]).arg(&self.config).stdin(Stdio::null());
        if self.overrides.exists() {
            command.arg("-config").arg(&self.overrides);
        }
        // A killed agent leaves its plugins' sockets behind. The path of a socket has at most 107 bytes.
        command.env("TMPDIR", self.config.with_file_name("tmp"));
        // Where the plugins of this agent and an operator's commands meet.
        command.env(RUN_DIR, self.config.with_file_name("run"));
        // The agent runs `consul` for each proxy of the service mesh.
        let mut path = self.config.with_file_name("bin").into_os_string();
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        command.env("PATH", path);
        // With its own process group, Ctrl-C reaches only the test, which stops the jobs first.
        command.stdout(log.try_clone()?).stderr(log).process_group(0);
        *self.child() = Some(command.spawn().context("nomad agent")?);
        Ok(())
    }

    /// Ends the process by a signal and waits for its end.
    pub(crate) fn end(&self, signal: Signal) -> Outcome {
        let Some(mut child) = self.child().take() else { return Ok(()) };
        let pid = child.id().cast_signed();
        process::signal(pid, signal);
        let gone = process::wait_gone(pid, STOP)?;
        if !gone {
            child.kill()?;
        }
        child.wait()?;
        if gone { Ok(()) } else { Err(Failure(format!("the agent did not end within {STOP:?} after {signal:?}"))) }
    }

    /// Whether the process runs.
    pub(crate) fn runs(&self) -> bool {
        self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    pub(crate) fn overrides(&self) -> &Path {
        &self.overrides
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
