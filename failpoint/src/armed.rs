//! What a dev build does at a point.

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

/// What the environment asked for when the process passed its first point.
struct Orders {
    point: Option<(String, u32)>,
    /// Kept open: a process may leave the place where its path leads there.
    trace: Option<File>,
}

static ORDERS: OnceLock<Orders> = OnceLock::new();
static ARRIVALS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn at(name: &str) {
    let orders = ORDERS.get_or_init(|| Orders {
        point: std::env::var(crate::VARIABLE).ok().map(|text| parse(&text)),
        trace: std::env::var_os(crate::TRACE).map(|path| open(Path::new(&path))),
    });
    // One write, so that processes and threads do not mix their lines.
    if let Some(Err(error)) = orders.trace.as_ref().map(|mut file| file.write_all(format!("{name}\n").as_bytes())) {
        panic!("failpoint {name}: {error}");
    }
    if let Some((wanted, arrival)) = &orders.point
        && wanted == name
        && ARRIVALS.fetch_add(1, Ordering::SeqCst) + 1 == *arrival
    {
        // Nothing may run after this point: no destructor, no handler, no other thread.
        let killed = kill_process(getpid(), Signal::KILL);
        panic!("failpoint {name}: still alive after SIGKILL ({killed:?})");
    }
}

/// `name` or `name:N`, N from 1.
fn parse(text: &str) -> (String, u32) {
    match text.rsplit_once(':').and_then(|(name, number)| Some((name, number.parse().ok()?))) {
        Some((name, number)) => (name.to_owned(), number),
        None => (text.to_owned(), 1),
    }
}

/// A trace that cannot be written is a broken test.
fn open(path: &Path) -> File {
    let opened = File::options().append(true).create(true).open(path);
    opened.unwrap_or_else(|error| panic!("trace {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_may_carry_its_arrival() {
        assert_eq!(parse("pull-before-commit"), ("pull-before-commit".into(), 1));
        assert_eq!(parse("pull-before-commit:3"), ("pull-before-commit".into(), 3));
        assert_eq!(parse("odd:name"), ("odd:name".into(), 1));
    }
}
