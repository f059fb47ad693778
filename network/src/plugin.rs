//! Running one program: a CNI plugin by its protocol (specification 1.0, section 2), or iptables.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
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
use serde_json::Value;

use crate::settings::Settings;

/// How long a program may take. Waiting for the lock of iptables counts.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where programs are that plugins use, whatever PATH the agent was started with.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The most of a program's own words that goes into an error.
const LONGEST_PROBLEM: usize = 1000;

/// What a plugin is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
}

impl Verb {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }
}

/// One call of a plugin.
pub(crate) struct Call<'a> {
    pub program: &'a str,
    pub verb: Verb,
    /// The container as plugins know it.
    pub container: &'a str,
    /// The namespace; none if it is gone.
    pub namespace: Option<&'a Path>,
    /// The interface in the container.
    pub interface: &'a str,
    /// The directories with plugins.
    pub directories: &'a [PathBuf],
    /// What it gets on standard input.
    pub request: Value,
    /// Where its standard error goes. It holds the lock on the network's directory for as long as it lives.
    pub log: &'a File,
}

impl Call<'_> {
    /// Calls the plugin; its answer, null if it has none. The error is in its own words.
    pub fn run(&self) -> Result<Value, String> {
        let path = find(self.program, self.directories)
            .ok_or_else(|| format!("it is not in {}", Settings::search_path(self.directories)))?;
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", search_path())
            .env("CNI_COMMAND", self.verb.name())
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", self.namespace.unwrap_or(Path::new("")))
            .env("CNI_IFNAME", self.interface)
            .env("CNI_PATH", Settings::search_path(self.directories));
        let begun = self.log.metadata().map_or(0, |metadata| metadata.len());
        let (status, output) = run(command, self.request.to_string().as_bytes(), Some(self.log))?;
        if status.success() {
            return if output.trim().is_empty() {
                Ok(Value::Null)
            } else {
                serde_json::from_str(&output).map_err(|error| format!("its answer is no JSON: {error}"))
            };
        }
        Err(told(&output).unwrap_or_else(|| format!("{status}; {}", tail(self.log, begun))))
    }
}

/// The error that a plugin tells by the protocol.
fn told(output: &str) -> Option<String> {
    let error: Value = serde_json::from_str(output).ok()?;
    let text = |key: &str| error.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let message = text("msg")?;
    Some(shortened(&text("details").map_or(message.to_owned(), |details| format!("{message}; {details}"))))
}

fn shortened(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(LONGEST_PROBLEM) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// What was written to a log from a position on.
fn tail(log: &File, from: u64) -> String {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; LONGEST_PROBLEM];
    let count = log.read_at(&mut bytes, from).unwrap_or(0);
    match String::from_utf8_lossy(&bytes[..count]).trim() {
        "" => "it says nothing".to_owned(),
        text => text.to_owned(),
    }
}

/// The first directory's program of this name.
pub(crate) fn find(program: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// A program of the system.
pub(crate) fn find_in_system(program: &str) -> Option<PathBuf> {
    find(program, &std::env::split_paths(&search_path()).collect::<Vec<_>>())
}

/// The agent's PATH, and behind it what it may lack.
fn search_path() -> String {
    completed(&std::env::var("PATH").unwrap_or_default())
}

fn completed(inherited: &str) -> String {
    let own = SYSTEM_DIRECTORIES.into_iter().filter(|directory| !inherited.split(':').any(|known| known == *directory));
    inherited.split(':').filter(|directory| !directory.is_empty()).chain(own).collect::<Vec<_>>().join(":")
}

/// Runs a program to its end, which is forced after a while. Input and output are files in memory, so neither side ever waits for
/// the other. Without a log its standard error becomes its output.
pub(crate) fn run(mut command: Command, input: &[u8], log: Option<&File>) -> Result<(ExitStatus, String), String> {
    use std::os::unix::process::CommandExt;
    let mut prepare = || -> io::Result<(Child, File)> {
        let mut stdin = memory_file()?;
        stdin.write_all(input)?;
        stdin.rewind()?;
        let stdout = memory_file()?;
        let stderr = log.unwrap_or(&stdout).try_clone()?;
        // In a group of its own: what it started ends with it, and a Ctrl-C in the agent's terminal does not reach it.
        let child = command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr).process_group(0).spawn()?;
        Ok((child, stdout))
    };
    let (mut child, mut stdout) = prepare().map_err(|error| format!("it cannot be executed: {error}"))?;
    let status = wait(&mut child)?;
    let mut output = Vec::new();
    // The child's writes moved the position that it shares with us.
    stdout.rewind().and_then(|()| stdout.read_to_end(&mut output)).map_err(|error| error.to_string())?;
    Ok((status, String::from_utf8_lossy(&output).into_owned()))
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create("cni", MemfdFlags::CLOEXEC)?.into())
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let pid = Pid::from_child(child);
    let ended = || -> io::Result<bool> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
        Ok(retry_on_intr(|| poll(&mut events, Some(&timeout)))? > 0)
    };
    let outcome = ended();
    if !matches!(outcome, Ok(true)) {
        // It has not been waited for, so the group's number is still its own.
        kill_process_group(pid, Signal::KILL).ok();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match outcome {
        Ok(true) => Ok(status),
        Ok(false) => Err(format!("it did not end within {} seconds and was killed", PATIENCE.as_secs())),
        Err(error) => Err(format!("it cannot be watched: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use serde_json::{Value, json};

    use super::{Call, LONGEST_PROBLEM, SYSTEM_DIRECTORIES, Verb, completed, told};

    /// A plugin that is a shell script.
    fn call(script: &str) -> (Result<Value, String>, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("plug");
        // By a process of its own: what another test starts at that moment could inherit a descriptor of ours that is open for writing, and
        // a file that somebody may write cannot be executed (ETXTBSY).
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(&program).arg(script).status();
        assert!(status.expect("a shell").success());
        let path = directory.path().join("log");
        let log = fs::File::options().create(true).read(true).append(true).open(&path).expect("a log");
        let missing = directory.path().join("missing");
        let directories = [missing, directory.path().to_owned()];
        let call = Call {
            program: "plug",
            verb: Verb::Add,
            container: "web",
            namespace: Some(Path::new("/run/ns")),
            interface: "eth0",
            directories: &directories,
            request: json!({"name": "n"}),
            log: &log,
        };
        (call.run(), fs::read_to_string(path).expect("a log"))
    }

    #[test]
    fn a_plugin_is_told_what_to_do_and_answers() {
        let script = r#"echo hello >&2
            printf '{"got": %s, "env": "%s %s %s %s"}' "$(cat)" $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME"#;
        let (answer, log) = call(script);
        assert_eq!(answer, Ok(json!({"got": {"name": "n"}, "env": "ADD web /run/ns eth0"})));
        assert_eq!(log, "hello\n");
        assert_eq!(call("true").0, Ok(Value::Null));
    }

    #[test]
    fn a_failure_is_told_in_the_plugins_own_words() {
        let (answer, _) =
            call(r#"echo '{"cniVersion": "1.0.0", "code": 11, "msg": "no more", "details": "of it"}'; exit 1"#);
        assert_eq!(answer, Err("no more; of it".to_owned()));
        assert_eq!(call("echo oops >&2; exit 3").0, Err("exit status: 3; oops".to_owned()));
        assert_eq!(call("exit 3").0, Err("exit status: 3; it says nothing".to_owned()));
        assert!(call("echo no json").0.expect_err("no answer").contains("no JSON"));
        assert_eq!(
            told(&json!({"msg": "é".repeat(5000)}).to_string()).map(|text| text.chars().count()),
            Some(LONGEST_PROBLEM + 2)
        );
    }

    #[test]
    fn programs_of_the_system_are_found_whatever_the_agents_path_is() {
        let all = SYSTEM_DIRECTORIES.join(":");
        assert_eq!(completed(""), all);
        assert_eq!(completed(&all), all);
        assert_eq!(completed("/opt/bin::/usr/bin").split(':').take(2).collect::<Vec<_>>(), ["/opt/bin", "/usr/bin"]);
        for path in ["", "/opt/bin::/usr/bin", "/sbin"] {
            let found = completed(path);
            for directory in SYSTEM_DIRECTORIES {
                assert_eq!(found.split(':').filter(|known| *known == directory).count(), 1, "{path}: {found}");
            }
        }
    }
}
