//! The program that a container of the suite runs: its first argument is what it does.

use std::{
    env,
    io::{Write, stdout},
    process::ExitCode,
    thread::park,
    time::Duration,
};

use escapes::{attempt, attempts, sys, watch};

/// The time limit of an attempt, in seconds.
const LIMIT: u32 = 5;

fn main() -> ExitCode {
    attempts::count_descriptors();
    match env::args().nth(1).as_deref() {
        Some("wait") => loop {
            park();
        },
        Some("run") => run(),
        Some("watch") => {
            for (what, result) in watch::run(Duration::from_secs(2)) {
                report(what, &result);
            }
        }
        Some("image") => drop(std::fs::write("/alloc/verdict", attempts::look_around())),
        Some("identity") => return succeeded(sys::is_root()),
        Some("capable") => return succeeded(sys::has_capabilities()),
        _ => (),
    }
    ExitCode::SUCCESS
}

/// Makes each attempt in a process of its own.
fn run() {
    drop(std::fs::create_dir("/tmp/place"));
    let apart = env::var_os("ESCAPE_APART").is_some();
    for attempt in attempts::all() {
        let result = sys::in_child(LIMIT, || {
            if apart {
                sys::leave_mount_namespace();
            }
            attempt::text((attempt.run)())
        });
        report(attempt.what, &result);
    }
}

fn report(what: &str, result: &str) {
    // The reader is gone if this fails.
    drop(writeln!(stdout(), "{what}\t{result}"));
}

fn succeeded(yes: bool) -> ExitCode {
    if yes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
