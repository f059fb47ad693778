//! One call of a CNI plugin (specification 1.0, section 2).

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use host::program::run;
use serde_json::Value;

use super::program::{find, system_path};
use crate::settings::Settings;

/// The most characters of a plugin's own error text that an error quotes.
const MAX_PROBLEM_LENGTH: usize = 1000;

/// How long a plugin may run, including its wait for the lock of iptables.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A CNI operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Attach the container to the network.
    Add,
    /// Detach it.
    Del,
}

impl Operation {
    /// The value of `CNI_COMMAND`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }
}

/// One call of a plugin.
pub(crate) struct PluginCall<'a> {
    pub program: &'a str,
    pub operation: Operation,
    /// `CNI_CONTAINERID`.
    pub container_id: &'a str,
    /// The file of the network namespace; `None` if the namespace is gone.
    pub namespace: Option<&'a Path>,
    /// The interface in the container.
    pub interface: &'a str,
    /// `CNI_ARGS`; may be empty.
    pub arguments: &'a str,
    /// The directories with plugins.
    pub directories: &'a [PathBuf],
    /// The configuration on the plugin's standard input.
    pub request: Value,
    /// The plugin's standard error. The plugin shares the lock on this file for as long as it lives.
    pub log: &'a File,
}

impl PluginCall<'_> {
    /// Calls the plugin and returns its result, null if it has none.
    ///
    /// # Errors
    ///
    /// The problem in the plugin's own words.
    pub fn run(&self) -> Result<Value, String> {
        let path = find(self.program, self.directories)
            .ok_or_else(|| format!("it is not in {}", Settings::search_path(self.directories)))?;
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", system_path())
            .env("CNI_COMMAND", self.operation.name())
            .env("CNI_CONTAINERID", self.container_id)
            .env("CNI_NETNS", self.namespace.unwrap_or(Path::new("")))
            .env("CNI_IFNAME", self.interface)
            .env("CNI_ARGS", self.arguments)
            .env("CNI_PATH", Settings::search_path(self.directories));
        let log_length = self.log.metadata().map_or(0, |metadata| metadata.len());
        let (status, output) = run(command, self.request.to_string().as_bytes(), Some(self.log), TIMEOUT)?;
        if status.success() {
            return if output.trim().is_empty() {
                Ok(Value::Null)
            } else {
                serde_json::from_str(&output).map_err(|error| format!("its answer is not JSON: {error}"))
            };
        }
        Err(reported_error(&output).unwrap_or_else(|| format!("{status}; {}", log_from(self.log, log_length))))
    }
}

/// The error that a plugin reports on its standard output (specification 1.0, section 5).
fn reported_error(output: &str) -> Option<String> {
    let error: Value = serde_json::from_str(output).ok()?;
    let text = |key: &str| error.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let message = text("msg")?;
    Some(shortened(&text("details").map_or(message.to_owned(), |details| format!("{message}; {details}"))))
}

fn shortened(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MAX_PROBLEM_LENGTH) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// The text in a log from this position on.
fn log_from(log: &File, position: u64) -> String {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; MAX_PROBLEM_LENGTH];
    let count = log.read_at(&mut bytes, position).unwrap_or(0);
    match String::from_utf8_lossy(&bytes[..count]).trim() {
        "" => "it wrote no error message".to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use serde_json::{Value, json};

    use super::{MAX_PROBLEM_LENGTH, Operation, PluginCall, reported_error};

    /// Calls a plugin that is a shell script. Returns its result and its log.
    fn call(script: &str) -> (Result<Value, String>, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("plug");
        // A child process writes the script. If this process did, a child that another test starts at that moment could
        // inherit the descriptor, and a file that is open for writing cannot be executed (ETXTBSY).
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(&program).arg(script).status();
        assert!(status.expect("a shell").success());
        let path = directory.path().join("log");
        let log = fs::File::options().create(true).read(true).append(true).open(&path).expect("a log");
        let missing = directory.path().join("missing");
        let directories = [missing, directory.path().to_owned()];
        let call = PluginCall {
            program: "plug",
            operation: Operation::Add,
            container_id: "web",
            namespace: Some(Path::new("/run/ns")),
            interface: "eth0",
            arguments: "",
            directories: &directories,
            request: json!({"name": "n"}),
            log: &log,
        };
        (call.run(), fs::read_to_string(path).expect("a log"))
    }

    #[test]
    fn a_plugin_gets_its_request_and_returns_its_result() {
        let script = r#"echo hello >&2
            printf '{"got": %s, "env": "%s %s %s %s"}' "$(cat)" $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME"#;
        let (result, log) = call(script);
        assert_eq!(result, Ok(json!({"got": {"name": "n"}, "env": "ADD web /run/ns eth0"})));
        assert_eq!(log, "hello\n");
        assert_eq!(call("true").0, Ok(Value::Null));
    }

    #[test]
    fn an_error_has_the_plugins_own_words() {
        let (result, _) =
            call(r#"echo '{"cniVersion": "1.0.0", "code": 11, "msg": "no more", "details": "of it"}'; exit 1"#);
        assert_eq!(result, Err("no more; of it".to_owned()));
        assert_eq!(call("echo oops >&2; exit 3").0, Err("exit status: 3; oops".to_owned()));
        assert_eq!(call("exit 3").0, Err("exit status: 3; it wrote no error message".to_owned()));
        assert!(call("echo no json").0.expect_err("no result").contains("not JSON"));
        assert_eq!(
            reported_error(&json!({"msg": "é".repeat(5000)}).to_string()).map(|text| text.chars().count()),
            Some(MAX_PROBLEM_LENGTH + 2)
        );
    }
}
