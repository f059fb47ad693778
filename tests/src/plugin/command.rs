//! The command that starts the plugin, with the environment of a Nomad agent.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
};

use fixtures::must::Must;
use tokio::process::Command;

use super::{
    connection::Plugin,
    process::{Lines, Process},
};

/// The environment variable by which a plugin recognizes Nomad as its host.
pub const COOKIE: (&str, &str) =
    ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");

/// With this variable, a development build is killed by a system call that its role is not known to make.
pub const KILL_ON_VIOLATION: &str = "OCI_RS_KILL_ON_VIOLATION";

/// The path of the binary under test: `OCI_RS_BIN`, or where cargo puts it beside the test that runs.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("OCI_RS_BIN") {
        return path.into();
    }
    // target/<triple>/<profile>/deps/<test> → target/<triple>/<profile>/oci-rs
    let test = std::env::current_exe().must("the path of this test");
    let profile = test.parent().and_then(Path::parent).must("the target directory of this test");
    let path = profile.join("oci-rs");
    assert!(
        path.is_file(),
        "there is no {}: build it first (cargo build -p oci-rs), or name another one in OCI_RS_BIN",
        path.display()
    );
    path
}

/// A command that starts a process of the plugin.
#[derive(Debug, Clone)]
pub struct PluginCommand {
    binary: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    directory: PathBuf,
    broken_stderr: bool,
}

impl PluginCommand {
    /// The command of a Nomad agent: cookie, ports, protocol versions, and the agent's environment. The plugin's
    /// working directory is `root`, its temporary directory is `root/tmp`.
    pub fn new(root: &Path) -> Self {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", "/root".to_owned()),
            ("TMPDIR", text(root.join("tmp"))),
            (COOKIE.0, COOKIE.1.to_owned()),
            // Where plugins and commands of this node meet.
            ("OCI_RS_RUN_DIR", text(root.join("run"))),
            ("PLUGIN_MIN_PORT", "10000".to_owned()),
            ("PLUGIN_MAX_PORT", "25000".to_owned()),
            ("PLUGIN_PROTOCOL_VERSIONS", "2".to_owned()),
            (KILL_ON_VIOLATION, "1".to_owned()),
        ];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { binary: binary(), args: Vec::new(), env, directory: root.to_owned(), broken_stderr: false }
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Removes an environment variable.
    pub fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    /// Adds arguments (`plugin.<name>.args` of an agent, or an operator's command).
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Starts another file, for example a copy of the binary under test.
    pub fn binary(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.binary);
        self
    }

    /// Closes the reading end of standard error, as after an agent's death: each write fails.
    pub fn broken_stderr(mut self) -> Self {
        self.broken_stderr = true;
        self
    }

    /// Starts the process.
    pub fn spawn(self) -> Process {
        let mut command = Command::new(&self.binary);
        command.args(&self.args).env_clear().envs(&self.env).current_dir(&self.directory).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.broken_stderr {
            let (reader, writer) = std::io::pipe().must("a pipe");
            drop(reader);
            command.stderr(writer);
        }
        let mut child = command.spawn().must(&format!("start {}", self.binary.display()));
        let stdout = Lines::collect(child.stdout.take().must("stdout of the child"));
        let stderr = child.stderr.take().map_or_else(Lines::none, Lines::collect);
        Process::new(child, stdout, stderr)
    }

    /// The same as a command of the standard library, for a terminal.
    pub fn as_std(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.binary);
        command.args(&self.args).env_clear().envs(&self.env).current_dir(&self.directory);
        command
    }

    /// Starts the process and connects to it, without configuring it.
    pub async fn connect(self) -> Plugin {
        Plugin::connect(self.spawn()).await
    }
}
