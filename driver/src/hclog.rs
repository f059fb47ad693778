//! The log in hclog's format: one JSON object per line on standard error, and the same lines in a file.
//!
//! `@level`, `@message` and `@timestamp` are always strings, and the timestamp has exactly six fractional digits: any
//! other line is demoted by the agent, or makes it panic. Write errors on standard error are ignored, because the
//! plugin may outlive the agent, which holds the other end of the pipe. A new agent never reads an old plugin's pipe;
//! for that case there is a file.

use std::{
    fmt::{self, Write as _},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber, field::Field, span};
use tracing_subscriber::{
    EnvFilter, Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// The agent cuts longer lines into raw pieces, so longer values are shortened.
const LONGEST_VALUE: usize = 16 * 1024;
/// A log file that is larger is renamed to `<name>.1`, and a new one is begun.
const LARGEST_FILE: u64 = 16 * 1024 * 1024;

/// The log file, opened when the configuration is known.
#[derive(Clone, Default)]
pub struct LogFile(Arc<Mutex<Option<OpenLog>>>);

struct OpenLog {
    path: PathBuf,
    file: File,
    size: u64,
}

impl LogFile {
    /// Writes every line also to this file from now on. Only root can read the file.
    pub fn open(&self, path: &Path) -> io::Result<()> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|open| open.path == path) {
            return Ok(());
        }
        *slot = Some(OpenLog::open(path)?);
        Ok(())
    }

    fn write(&self, line: &[u8]) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = slot.as_mut()
            && open.write(line).is_err()
        {
            // A full or missing disk must not stop the driver. The error itself cannot be logged here.
            *slot = None;
        }
    }
}

impl OpenLog {
    fn open(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size > LARGEST_FILE {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            fs::rename(&self.path, old)?;
            *self = Self::open(&self.path)?;
        }
        self.file.write_all(line)?;
        self.size += line.len() as u64;
        Ok(())
    }
}

/// Installs the log for the whole process. The agent filters by its own level, so everything from debug on is sent.
pub fn init() -> LogFile {
    let file = LogFile::default();
    let filter = EnvFilter::new("warn,oci_rs=debug,image_store=debug,runtime=debug");
    let layer = HclogLayer { file: file.clone() };
    if tracing_subscriber::registry().with(filter).with(layer).try_init().is_err() {
        // Only a second call can fail, and then the first one's log is installed.
        return LogFile::default();
    }
    file
}

struct HclogLayer {
    file: LogFile,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for HclogLayer {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = Fields::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<Fields>() {
                line.0.extend(fields.0.clone());
            }
        }
        event.record(&mut line);
        let metadata = event.metadata();
        let text = render(line, metadata.level(), metadata.target(), SystemTime::now());
        // The agent and its pipe may be gone. The file remains.
        drop(io::stderr().lock().write_all(text.as_bytes()));
        self.file.write(text.as_bytes());
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl tracing::field::Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), shortened(value).into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        if write!(text, "{value:?}").is_ok() {
            self.0.insert(field.name().to_owned(), shortened(&text).into());
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn render(mut fields: Fields, level: &Level, target: &str, at: SystemTime) -> String {
    let message = match fields.0.remove("message") {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    // The agent would take a field name that begins with "@" for one of hclog's own.
    fields.0.retain(|name, _| !name.starts_with('@'));
    fields.0.insert("@level".to_owned(), level.as_str().to_ascii_lowercase().into());
    fields.0.insert("@message".to_owned(), message.into());
    fields.0.insert("@module".to_owned(), target.replace("::", ".").into());
    fields.0.insert("@timestamp".to_owned(), timestamp(at).into());
    let mut line = Value::Object(fields.0).to_string();
    line.push('\n');
    line
}

/// In Go's layout `2006-01-02T15:04:05.000000Z`, UTC, which hclog parses.
fn timestamp(at: SystemTime) -> String {
    humantime::format_rfc3339_micros(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::Value;
    use tracing::Level;

    use super::{Fields, render, timestamp};

    #[test]
    fn timestamps_have_exactly_six_fractional_digits() {
        for (seconds, micros, text) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_827_696, 7, "2000-02-29T12:34:56.000007Z"),
            (1_795_219_199, 999_999, "2026-11-20T23:59:59.999999Z"),
        ] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
            assert_eq!(timestamp(at), text);
        }
    }

    #[test]
    fn the_keys_that_the_agent_asserts_on_are_strings() {
        let mut fields = Fields::default();
        fields.0.insert("message".into(), "pulled".into());
        fields.0.insert("@message".into(), 7.into());
        fields.0.insert("bytes".into(), 12.into());
        let line = render(fields, &Level::INFO, "oci_rs::task", SystemTime::UNIX_EPOCH);
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["@message"], "pulled");
        assert_eq!(object["@level"], "info");
        assert_eq!(object["@module"], "oci_rs.task");
        assert_eq!(object["bytes"], 12);
        assert!(line.ends_with("}\n"));
    }
}
