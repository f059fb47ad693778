//! Watches for processes that enter the container, and attacks them before they have become the command.

use std::{
    collections::BTreeMap,
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    thread::yield_now,
    time::{Duration, Instant},
};

use crate::{
    attempt::{Refusal, Tried, WORKS, text},
    attempts::{
        processes::{DESCRIPTORS, DIRECTORY, MAPPINGS, MEMORY, ROOT, TRACE, VARIABLES, WRITE_PROGRAM},
        tools::{each, inode, nodes_file_below, processes, writable},
    },
    sys::call,
};

/// The result of an attempt that never succeeded: which errno, is a matter of moments.
const NEVER: &str = "never";
/// Names of variables of Nomad's plugins and of runc.
const OF_THE_NODE: [&str; 3] = ["PLUGIN_MAGIC_COOKIE", "PLUGIN_UNIX", "_LIBCONTAINER_"];
const NOT_FOUND: Tried = Err(Refusal::Errno(libc::ENOENT));

/// Attacks every process that enters meanwhile. Returns the results.
#[must_use]
pub fn run(time: Duration) -> BTreeMap<&'static str, String> {
    let all = [WRITE_PROGRAM, DESCRIPTORS, ROOT, DIRECTORY, MEMORY, TRACE, VARIABLES, MAPPINGS];
    let mut results: BTreeMap<&str, String> = all.into_iter().map(|what| (what, NEVER.to_owned())).collect();
    let known = processes();
    let mut programs = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        for process in processes().into_iter().filter(|process| !known.contains(process)) {
            for (what, tried) in attack(&process, &mut programs) {
                if tried.is_ok() {
                    results.insert(what, text(tried));
                }
            }
        }
    }
    // A program can be written when no process executes it any more.
    let written = |program: &OwnedFd| writable(format!("/proc/self/fd/{}", program.as_raw_fd())).is_ok();
    if programs.iter().any(written) {
        results.insert(WRITE_PROGRAM, WORKS.to_owned());
    }
    results
}

/// Whether the process is not yet the command: another program than this one, or it hides.
fn enters(process: &Path) -> bool {
    match inode(process.join("exe")) {
        Ok(program) => inode("/proc/self/exe").is_ok_and(|own| own != program) && !again(process),
        // A process that has ended has no program, and hides nothing.
        Err(Refusal::Errno(libc::EACCES | libc::EPERM)) => process.exists(),
        Err(_) => false,
    }
}

/// Whether the process is a command that executes the entering process's program again, with the container's rights.
fn again(process: &Path) -> bool {
    // In the middle of execve(2) the new program is mapped, and the command line is still empty.
    let line = loop {
        match fs::read(process.join("cmdline")) {
            Ok(line) if line.is_empty() && inode(process.join("exe")).is_ok() => yield_now(),
            line => break line.unwrap_or_default(),
        }
    };
    line.starts_with(b"/proc/self/exe")
}

fn attack(process: &Path, programs: &mut Vec<OwnedFd>) -> Vec<(&'static str, Tried)> {
    let mut results = Vec::new();
    let below = |name: &str| process.join(name);
    let mut attempt = |what: &'static str, attempt: &dyn Fn() -> Tried| {
        if enters(process) {
            let tried = attempt();
            // The result counts only if the process did not become the command meanwhile.
            if enters(process) && process.exists() {
                results.push((what, tried));
            }
        }
    };
    attempt(ROOT, &|| nodes_file_below(&below("root").to_string_lossy()));
    attempt(DIRECTORY, &|| nodes_file_below(&format!("{}/{}", below("cwd").display(), "../".repeat(20))));
    attempt(DESCRIPTORS, &|| {
        let open = each(&below("fd").to_string_lossy(), "");
        let reach = |path: &PathBuf| nodes_file_below(&format!("{}/{}", path.display(), "../".repeat(20)));
        open.iter().map(reach).find(Result::is_ok).unwrap_or(NOT_FOUND)
    });
    attempt(MEMORY, &|| writable(below("mem")));
    attempt(VARIABLES, &|| {
        let variables = fs::read(below("environ"))?;
        let found = OF_THE_NODE.iter().any(|name| variables.windows(name.len()).any(|part| part == name.as_bytes()));
        if found { Ok(0) } else { NOT_FOUND }
    });
    attempt(MAPPINGS, &|| {
        let mappings = fs::read(below("maps"))?;
        if mappings.is_empty() { NOT_FOUND } else { Ok(0) }
    });
    attempt(TRACE, &|| {
        let pid: i64 = process.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0);
        call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0)?;
        call!(libc::SYS_ptrace, libc::PTRACE_DETACH, pid, 0, 0)
    });
    let program = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(below("exe"));
    let foreign = inode(below("exe")).ok() != inode("/proc/self/exe").ok();
    if let (true, Ok(program)) = (foreign && programs.len() < 500, program) {
        programs.push(program.into());
    }
    results
}
