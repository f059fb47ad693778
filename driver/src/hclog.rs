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
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber, field::Field, level_filters::LevelFilter, span};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt,
};

/// The agent cuts longer lines into raw pieces, so longer values are shortened.
const LONGEST_VALUE: usize = 16 * 1024;
/// After a failed write, the file is opened again after this time.
const REOPEN_PAUSE: Duration = Duration::from_secs(60);
/// The crates whose lines are written. Of other crates only warnings are.
const OWN_CRATES: [&str; 12] = [
    "oci_rs",
    "image_store",
    "layer",
    "lazy",
    "runtime",
    "seccomp",
    "log_drivers",
    "tls",
    "network",
    "firewall",
    "host",
    "failpoint",
];

/// The log of this process. Its file is opened and its level set when the configuration is known.
#[derive(Clone, Default)]
pub struct Log {
    file: Arc<Mutex<Option<LogFile>>>,
    filter: Option<reload::Handle<EnvFilter, Registry>>,
}

/// A file for the log, and its rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// The file.
    pub path: PathBuf,
    /// A larger file is renamed to `<name>.1`, and a new one is begun.
    pub rotate_bytes: u64,
    /// The number of renamed files that are kept.
    pub rotate_files: u64,
}

struct LogFile {
    options: FileOptions,
    state: State,
}

enum State {
    Open {
        file: File,
        size: u64,
    },
    /// A write failed at this time.
    Failed(Instant),
}

impl Log {
    /// Writes every line also to this file from now on. Only root can read the file.
    pub fn open(&self, options: FileOptions) -> io::Result<()> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|file| file.options == options) {
            return Ok(());
        }
        *slot = Some(LogFile { state: open(&options)?, options });
        Ok(())
    }

    /// Writes only lines of this level and above from now on.
    pub fn set_level(&self, level: LevelFilter) {
        if let Some(filter) = &self.filter
            && let Err(error) = filter.reload(filter_of(level))
        {
            tracing::warn!(%error, "the level of the log was not changed");
        }
    }

    fn write(&self, line: &[u8]) {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = slot.as_mut() {
            file.write(line);
        }
    }
}

impl LogFile {
    /// Writes a line. A full or missing disk must not stop the driver, and the error itself cannot be logged here.
    fn write(&mut self, line: &[u8]) {
        if let State::Failed(at) = self.state
            && at.elapsed() < REOPEN_PAUSE
        {
            return;
        }
        if self.try_write(line).is_err() {
            self.state = State::Failed(Instant::now());
        }
    }

    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        if let State::Failed(_) = self.state {
            self.state = open(&self.options)?;
        }
        if matches!(self.state, State::Open { size, .. } if size >= self.options.rotate_bytes) {
            self.rotate()?;
            self.state = open(&self.options)?;
        }
        if let State::Open { file, size } = &mut self.state {
            file.write_all(line)?;
            *size += line.len() as u64;
        }
        Ok(())
    }

    /// Renames the file to `<name>.1`, and the older ones each to the next number. The oldest one is replaced.
    fn rotate(&self) -> io::Result<()> {
        for number in (1..self.options.rotate_files).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.options.path, self.numbered(1))
    }

    fn numbered(&self, number: u64) -> PathBuf {
        let mut name = self.options.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

fn open(options: &FileOptions) -> io::Result<State> {
    if let Some(directory) = options.path.parent() {
        fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&options.path)?;
    let size = file.metadata()?.len();
    Ok(State::Open { file, size })
}

/// Lines of our crates from this level on, and warnings of the others.
fn filter_of(level: LevelFilter) -> EnvFilter {
    let others = level.min(LevelFilter::WARN);
    let own = OWN_CRATES.map(|name| format!("{name}={level}"));
    EnvFilter::new(format!("{others},{}", own.join(",")))
}

/// Installs the log for the whole process. The agent filters by its own level, so everything from debug on is sent
/// until the configuration sets another level.
pub fn init() -> Log {
    let (filter, handle) = reload::Layer::new(filter_of(LevelFilter::DEBUG));
    let log = Log { filter: Some(handle), ..Log::default() };
    let layer = HclogLayer { log: log.clone() };
    if tracing_subscriber::registry().with(filter).with(layer).try_init().is_err() {
        // Only a second call can fail, and then the first one's log is installed.
        return Log::default();
    }
    log
}

struct HclogLayer {
    log: Log,
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
        self.log.write(text.as_bytes());
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
    use std::{
        fs,
        time::{Duration, Instant, SystemTime},
    };

    use serde_json::Value;
    use tracing::{Level, level_filters::LevelFilter};

    use super::{Fields, FileOptions, Log, OWN_CRATES, REOPEN_PAUSE, State, filter_of, render, timestamp};

    #[test]
    fn a_large_file_is_renamed_and_the_oldest_one_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        let log = Log::default();
        log.open(FileOptions { path: path.clone(), rotate_bytes: 4, rotate_files: 2 }).unwrap();
        (1..=4).for_each(|number| log.write(format!("{number}....\n").as_bytes()));
        let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["x.log", "x.log.1", "x.log.2"]);
        let text = |name| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!([text("x.log"), text("x.log.1"), text("x.log.2")], ["4....\n", "3....\n", "2....\n"]);
    }

    #[test]
    fn a_file_that_could_not_be_written_is_opened_again_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below").join("x.log");
        let log = Log::default();
        log.open(FileOptions { path: path.clone(), rotate_bytes: 1, rotate_files: 1 }).unwrap();
        log.write(b"one\n");
        // The rotation cannot rename the file.
        fs::remove_dir_all(directory.path().join("below")).unwrap();
        log.write(b"two\n");
        log.write(b"three\n");
        assert!(!path.exists());
        let failed = Instant::now().checked_sub(REOPEN_PAUSE).unwrap();
        log.file.lock().unwrap().as_mut().unwrap().state = State::Failed(failed);
        log.write(b"four\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
    }

    #[test]
    fn the_level_applies_to_our_crates_and_limits_the_others() {
        for (level, others) in [(LevelFilter::DEBUG, "warn"), (LevelFilter::ERROR, "error"), (LevelFilter::OFF, "off")]
        {
            let filter = filter_of(level).to_string();
            assert!(filter.split(',').any(|part| part == others), "{filter}");
            assert!(OWN_CRATES.iter().all(|name| filter.contains(&format!("{name}={level}"))), "{filter}");
        }
    }

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
