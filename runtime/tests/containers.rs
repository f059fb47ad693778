//! Containers end to end, on a real kernel as root: what a plan asks for is what the command finds.
//!
//! This program is also the monitor and the exec helper, as the driver's binary is, so it brings its own `main`.

#![allow(clippy::print_stdout, reason = "a test program's main reports on standard output")]

#[path = "common/mod.rs"]
mod common;

mod cases {
    pub mod bundle;
    pub mod exec;
    pub mod files;
    pub mod groups;
    pub mod holes;
    pub mod life;
    pub mod process;
    pub mod roots;
}

use std::{panic, process::ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if let Some(ended) = runtime::run_role(std::env::args_os().skip(1)) {
        return ended;
    }
    match std::env::args().nth(1).as_deref() {
        Some("keyring") => {
            println!("{}", common::sys::session_keyring());
            return ExitCode::SUCCESS;
        }
        Some("start") => return common::start_from(args.by_ref().skip(1)),
        _ => {}
    }
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if !common::can_run() {
        println!("skipped: containers need root and control groups");
        return ExitCode::SUCCESS;
    }
    let mut failed = Vec::new();
    // What a container finds of its files, and a few that run something, must not depend on how its root is made.
    let copied = [cases::files::CASES, cases::process::CASES].into_iter().flatten();
    let copied = copied.map(|(name, case)| (format!("copied_{name}"), *case, true));
    let groups = [
        cases::life::CASES,
        cases::process::CASES,
        cases::exec::CASES,
        cases::files::CASES,
        cases::groups::CASES,
        cases::holes::CASES,
        cases::roots::CASES,
        cases::bundle::CASES,
    ];
    let usual = groups.into_iter().flatten().map(|(name, case)| ((*name).to_owned(), *case, false));
    for (name, case, copy) in usual.chain(copied) {
        common::COPY.store(copy, std::sync::atomic::Ordering::Relaxed);
        let wanted = filter.iter().any(|part| name.contains(part.as_str()));
        // Measurements take long and prove nothing: only when asked for by name.
        if !wanted && (!filter.is_empty() || name.starts_with("measure")) {
            continue;
        }
        let begun = std::time::Instant::now();
        let result = panic::catch_unwind(case);
        println!("{name} ... {} ({} ms)", if result.is_ok() { "ok" } else { "FAILED" }, begun.elapsed().as_millis());
        if result.is_err() {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}
