//! Checks a plugin's log lines by the rules of the agent: JSON in the form of hclog.

use serde_json::{Map, Value};

/// The reason why the agent rejects the log line or panics; `None` for a valid line.
pub fn fault(line: &str) -> Option<String> {
    let entry: Map<String, Value> = match serde_json::from_str(line) {
        Ok(Value::Object(entry)) => entry,
        Ok(_) => return Some(format!("not an object: {line}")),
        Err(_) => {
            return Some(format!("not JSON, the agent shows it as raw debug text: {line}"));
        }
    };
    if line.len() > 64 * 1024 {
        return Some(format!("longer than 64 KiB: {} bytes", line.len()));
    }
    for key in ["@message", "@level", "@timestamp"] {
        match entry.get(key) {
            Some(Value::String(_)) => {}
            Some(_) => {
                return Some(format!("{key} is no string, which panics the agent: {line}"));
            }
            None => return Some(format!("{key} is missing: {line}")),
        }
    }
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    if !["trace", "debug", "info", "warn", "error"].contains(&text("@level").to_lowercase().as_str()) {
        return Some(format!("unknown level: {line}"));
    }
    (!timestamp_is_go(text("@timestamp"))).then(|| format!("timestamp is not 2006-01-02T15:04:05.000000Z07:00: {line}"))
}

/// Exactly six digits after the second, and `Z` or `+hh:mm`.
fn timestamp_is_go(text: &str) -> bool {
    let shape = |pattern: &str, text: &str| {
        pattern.len() == text.len()
            && pattern.bytes().zip(text.bytes()).all(|(p, c)| match p {
                b'0' => c.is_ascii_digit(),
                b'~' => c == b'+' || c == b'-',
                _ => p == c,
            })
    };
    shape("0000-00-00T00:00:00.000000Z", text) || shape("0000-00-00T00:00:00.000000~00:00", text)
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn only_lines_that_the_agent_accepts_are_valid() {
        let line = |time: &str| format!(r#"{{"@message":"m","@level":"INFO","@timestamp":"{time}","k":1}}"#);
        assert_eq!(fault(&line("2026-01-02T03:04:05.000006Z")), None);
        assert_eq!(fault(&line("2026-01-02T03:04:05.000006+01:00")), None);
        for wrong in [
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.006Z",
            "2026-01-02T03:04:05.000000006Z",
            "2026-01-02 03:04:05.000006Z",
        ] {
            assert!(fault(&line(wrong)).is_some(), "{wrong}");
        }
        assert!(fault(r#"{"@message":1,"@level":"info","@timestamp":"2026-01-02T03:04:05.000006Z"}"#).is_some());
        assert!(fault("hello").is_some());
    }
}
