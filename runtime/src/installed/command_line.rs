//! The command lines of OCI runtimes.

use std::path::Path;

use super::dialect::Dialect;
use crate::{
    cgroup::Version,
    plan::{InstalledRuntime, Network},
};

/// A runtime, and the container to which its commands belong.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    pub runtime: &'a InstalledRuntime,
    pub version: Version,
    pub network: &'a Network,
    /// The directory of everything that belongs to the runtime.
    pub directory: &'a Path,
    /// The container's name for the runtime.
    pub id: &'a str,
}

/// A command of a runtime.
#[derive(Debug, Clone, Copy)]
pub(super) enum RuntimeCommand<'a> {
    Create {
        bundle: &'a Path,
        pid_file: &'a Path,
        console: Option<&'a Path>,
    },
    Start,
    State,
    /// Sends a signal to the container's first process.
    Kill(i32),
    /// Sends a signal to a process by its pid in a sandbox.
    KillInSandbox {
        pid: i32,
        signal: i32,
    },
    /// Removes the container, also if it runs.
    Delete,
    Exec {
        process: &'a Path,
        pid_file: &'a Path,
        /// The file that gets the pid in a sandbox.
        sandbox_pid_file: &'a Path,
        console: Option<&'a Path>,
    },
}

impl RuntimeCommand<'_> {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Start => "start",
            Self::State => "state",
            Self::Kill(_) | Self::KillInSandbox { .. } => "kill",
            Self::Delete => "delete",
            Self::Exec { .. } => "exec",
        }
    }
}

impl Caller<'_> {
    /// The arguments of the executable, which writes its messages to `log`, as JSON. The operator's arguments come
    /// after ours: the last one of two equal options counts.
    pub fn args(&self, command: RuntimeCommand<'_>, log: &Path) -> Vec<String> {
        let dialect = Dialect::of(self.runtime);
        let state = self.directory.join("state");
        let mut args = vec![flag("--root", &state), flag("--log", log), "--log-format=json".to_owned()];
        args.extend(dialect.options(self.version, self.network).into_iter().map(str::to_owned));
        args.extend(self.runtime.args.iter().cloned());
        args.push(command.name().to_owned());
        let console_flag = |console: Option<&Path>| console.map(|console| flag("--console-socket", console));
        let mut last = None;
        match command {
            RuntimeCommand::Create { bundle, pid_file, console } => {
                args.extend([flag("--bundle", bundle), flag("--pid-file", pid_file)]);
                args.extend(console_flag(console));
            }
            RuntimeCommand::Start | RuntimeCommand::State => {}
            RuntimeCommand::Kill(signal) => last = Some(signal.to_string()),
            RuntimeCommand::KillInSandbox { pid, signal } => {
                args.push(format!("--pid={pid}"));
                last = Some(signal.to_string());
            }
            RuntimeCommand::Delete => args.push("--force".to_owned()),
            RuntimeCommand::Exec { process, pid_file, sandbox_pid_file, console } => {
                args.extend(["--detach".to_owned(), flag("--process", process), flag("--pid-file", pid_file)]);
                args.extend((dialect == Dialect::Runsc).then(|| flag("--internal-pid-file", sandbox_pid_file)));
                args.extend(console_flag(console));
            }
        }
        args.push(self.id.to_owned());
        args.extend(last);
        args
    }
}

fn flag(name: &str, value: &Path) -> String {
    format!("{name}={}", value.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &str, args: &[&str], command: RuntimeCommand<'_>) -> String {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let runtime = InstalledRuntime { name: "x".to_owned(), path: path.into(), args };
        let network = Network::Private;
        let directory = Path::new("/t");
        let caller = Caller { runtime: &runtime, version: Version::V1, network: &network, directory, id: "oci-rs-1" };
        caller.args(command, Path::new("/l")).join(" ")
    }

    const COMMON: &str = "--root=/t/state --log=/l --log-format=json";

    #[test]
    fn the_command_lines_of_all_runtimes() {
        let console = Some(Path::new("/c"));
        let create = RuntimeCommand::Create { bundle: Path::new("/b"), pid_file: Path::new("/p"), console: None };
        let exec = RuntimeCommand::Exec {
            process: Path::new("/e/process"),
            pid_file: Path::new("/e/pid"),
            sandbox_pid_file: Path::new("/e/sandbox"),
            console,
        };
        for (path, options, extra) in [
            ("/usr/sbin/runc", "", ""),
            ("/usr/bin/crun", " --cgroup-manager=disabled", ""),
            ("/usr/bin/runsc", " --ignore-cgroups --network=none", " --internal-pid-file=/e/sandbox"),
            ("/usr/bin/kata-runtime", "", ""),
        ] {
            for (command, expected) in [
                (create, "create --bundle=/b --pid-file=/p oci-rs-1".to_owned()),
                (RuntimeCommand::Start, "start oci-rs-1".to_owned()),
                (RuntimeCommand::State, "state oci-rs-1".to_owned()),
                (RuntimeCommand::Kill(15), "kill oci-rs-1 15".to_owned()),
                (RuntimeCommand::Delete, "delete --force oci-rs-1".to_owned()),
                (
                    exec,
                    format!("exec --detach --process=/e/process --pid-file=/e/pid{extra} --console-socket=/c oci-rs-1"),
                ),
            ] {
                assert_eq!(line(path, &[], command), format!("{COMMON}{options} {expected}"));
            }
        }
    }

    #[test]
    fn the_operators_arguments_come_before_the_command_and_after_ours() {
        let expected =
            format!("{COMMON} --ignore-cgroups --network=none --platform=ptrace --network=host start oci-rs-1");
        let args = ["--platform=ptrace", "--network=host"];
        assert_eq!(line("/usr/bin/runsc", &args, RuntimeCommand::Start), expected);
    }

    #[test]
    fn a_signal_in_a_sandbox_names_the_process() {
        let found = line("/usr/bin/runsc", &[], RuntimeCommand::KillInSandbox { pid: 7, signal: 9 });
        assert!(found.ends_with(" kill --pid=7 oci-rs-1 9"), "{found}");
    }
}
