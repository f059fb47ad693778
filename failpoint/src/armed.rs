//! The behaviour of a development build at a failpoint.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::process::{Signal, getpid, kill_process};

/// The content of the environment variables when the process passed its first failpoint.
struct Settings {
    /// The failpoint to die at, and the number of the arrival.
    fatal: Option<(String, u32)>,
    /// Kept open, because the process may later change its root or its mount namespace.
    trace: Option<File>,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
static ARRIVALS: AtomicU32 = AtomicU32::new(0);

/// Records the arrival at a failpoint, and kills the process if `variable` names this arrival.
pub(crate) fn at(name: &str, variable: &str, trace_variable: &str) {
    let settings = SETTINGS.get_or_init(|| Settings {
        fatal: std::env::var(variable).ok().map(|text| parse(&text)),
        trace: std::env::var_os(trace_variable).map(|path| open(Path::new(&path))),
    });
    // A single write, so that lines of several processes and threads do not mix.
    if let Some(Err(error)) = settings.trace.as_ref().map(|mut file| file.write_all(format!("{name}\n").as_bytes())) {
        panic!("failpoint {name}: {error}");
    }
    if let Some((wanted, arrival)) = &settings.fatal
        && wanted == name
        && ARRIVALS.fetch_add(1, Ordering::SeqCst) + 1 == *arrival
    {
        // SIGKILL, because nothing may run after this failpoint: no destructor, no signal handler, no other thread.
        let killed = kill_process(getpid(), Signal::KILL);
        panic!("failpoint {name}: still alive after SIGKILL ({killed:?})");
    }
}

/// Parses `name` or `name:N`. N counts from 1.
fn parse(text: &str) -> (String, u32) {
    match text.rsplit_once(':').and_then(|(name, number)| Some((name, number.parse().ok()?))) {
        Some((name, number)) => (name.to_owned(), number),
        None => (text.to_owned(), 1),
    }
}

/// Opens the trace. A trace that cannot be written means a broken test, so this panics.
fn open(path: &Path) -> File {
    let opened = File::options().append(true).create(true).open(path);
    opened.unwrap_or_else(|error| panic!("trace {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failpoint_may_have_the_number_of_an_arrival() {
        assert_eq!(parse("pull-before-commit"), ("pull-before-commit".into(), 1));
        assert_eq!(parse("pull-before-commit:3"), ("pull-before-commit".into(), 3));
        assert_eq!(parse("odd:name"), ("odd:name".into(), 1));
    }
}
