//! Containers end to end, on a real kernel as root: the command finds what its plan says.
//!
//! This program is also the monitor and the exec helper, as the driver's binary is. So it has its own `main`.

#![allow(clippy::print_stdout, reason = "a test program's main reports on standard output")]

#[path = "common/mod.rs"]
mod common;

mod cases {
    pub mod bundle;
    pub mod cgroups;
    pub mod escapes;
    pub mod exec;
    pub mod files;
    pub mod lifecycle;
    pub mod mounted_volumes;
    pub mod process;
    pub mod roots;
    pub mod user_namespace;
    pub mod volumes;
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
    // The results of these cases must not depend on how the root is made, so they run with a copied root too.
    let copied = [cases::files::CASES, cases::process::CASES, cases::volumes::CASES].into_iter().flatten();
    let copied = copied.map(|(name, case)| (format!("copied_{name}"), *case, true));
    let groups = [
        cases::lifecycle::CASES,
        cases::process::CASES,
        cases::exec::CASES,
        cases::files::CASES,
        cases::cgroups::CASES,
        cases::escapes::CASES,
        cases::roots::CASES,
        cases::volumes::CASES,
        cases::user_namespace::CASES,
        cases::mounted_volumes::CASES,
        cases::bundle::CASES,
    ];
    let usual = groups.into_iter().flatten().map(|(name, case)| ((*name).to_owned(), *case, false));
    for (name, case, copy) in usual.chain(copied) {
        common::COPY.store(copy, std::sync::atomic::Ordering::Relaxed);
        let wanted = filter.iter().any(|part| name.contains(part.as_str()));
        // Measurements take long and assert nothing: they run only if they are named.
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
