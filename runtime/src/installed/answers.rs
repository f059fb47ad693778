//! The answers of OCI runtimes: the state of a container, and errors.

use serde::Deserialize;
use serde_json::Value;

use crate::error::StartErrorKind;

/// The part of a container's state that is of use here (runtime specification, section "State").
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ContainerState {
    pub status: String,
}

/// The answer to `state`; `None` if it is not that of the specification.
pub(super) fn parse_state(answer: &[u8]) -> Option<ContainerState> {
    serde_json::from_slice(answer).ok()
}

/// The last error in a runtime's log: JSON values, with or without a line for each. The text that is not JSON counts as
/// a message.
pub(super) fn last_error(log: &str) -> Option<String> {
    let mut found = None;
    let mut values = serde_json::Deserializer::from_str(log).into_iter::<Value>();
    let mut end = 0;
    while let Some(Ok(value)) = values.next() {
        end = values.byte_offset();
        let message = value.get("msg").and_then(Value::as_str);
        let is_error = matches!(value.get("level").and_then(Value::as_str), Some("error" | "fatal" | "panic"));
        found = message.filter(|_| is_error).map(str::to_owned).or(found);
    }
    let rest = log.get(end..).unwrap_or_default().trim();
    if rest.is_empty() { found } else { rest.lines().last().map(str::to_owned) }
}

/// The kind of an error when a command is started. Each runtime has its own words.
pub(crate) fn failure_kind(message: &str) -> StartErrorKind {
    let has = |part: &str| message.contains(part);
    let of_command = has("exec: ") || has("executable") || has("failed to load");
    match () {
        () if has("executable file") && has("not found") => StartErrorKind::CommandNotFound,
        () if of_command && has("no such file or directory") => StartErrorKind::CommandNotFound,
        () if of_command && (has("ermission denied") || has("not permitted") || has("exec format error")) => {
            StartErrorKind::CommandNotExecutable
        }
        () => StartErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_that_of_the_specification() {
        let runc = br#"{"ociVersion": "1.0.2-dev", "id": "t", "pid": 0, "status": "stopped", "owner": ""}"#;
        assert_eq!(parse_state(runc), Some(ContainerState { status: "stopped".to_owned() }));
        let runsc = br#"{"ociVersion":"1.0.2-dev","id":"t","status":"running","pid":-1,"bundle":"."}"#;
        assert_eq!(parse_state(runsc), Some(ContainerState { status: "running".to_owned() }));
        for wrong in ["", "{", "{}", r#"{"status": 5}"#, "container does not exist"] {
            assert_eq!(parse_state(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_last_error_of_a_log_is_found_in_every_form() {
        let runc = "{\"level\":\"warning\",\"msg\":\"w\",\"time\":\"t\"}\n{\"level\":\"error\",\"msg\":\"one\"}\n\
                    {\"level\":\"error\",\"msg\":\"two\"}\n{\"level\":\"info\",\"msg\":\"three\"}\n";
        assert_eq!(last_error(runc).as_deref(), Some("two"));
        let runsc = r#"{"msg":"one","level":"error","time":"t"}{"msg":"two","level":"error","time":"t"}"#;
        assert_eq!(last_error(runsc).as_deref(), Some("two"));
        assert_eq!(last_error("{\"level\":\"error\",\"msg\":\"one\"}\nfatal: two\n").as_deref(), Some("fatal: two"));
        for nothing in ["", "\n", r#"{"level":"info","msg":"x"}"#, "5"] {
            assert_eq!(last_error(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn each_runtimes_words_for_a_missing_command_are_known() {
        for (message, expected) in [
            (r#"unable to start container process: exec: "x": executable file not found in $PATH"#, 127),
            (r#"unable to start container process: exec: "/x": stat /x: no such file or directory"#, 127),
            (r#"unable to start container process: exec: "/etc": permission denied"#, 126),
            ("executable file `x` not found in $PATH: No such file or directory", 127),
            ("open executable: Operation not permitted", 126),
            ("starting sandbox: creating process: failed to load /x: no such file or directory", 127),
            ("failed to load /x: exec format error", 126),
            ("mount /a: no such file or directory", 0),
            ("container does not exist", 0),
        ] {
            let code = match failure_kind(message) {
                StartErrorKind::CommandNotFound => 127,
                StartErrorKind::CommandNotExecutable => 126,
                _ => 0,
            };
            assert_eq!(code, expected, "{message}");
        }
    }
}
