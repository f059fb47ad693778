//! Running a peer's program and taking its time.

use std::{
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fixtures::must::Must;

/// What the measured command says first.
pub const READY: &str = "ready";
/// The measured command: a shell that says it.
pub const SAY_READY: [&str; 3] = ["/bin/sh", "-c", "echo ready"];
/// Memory of a container, the same for everybody.
pub const MEMORY: i64 = 64 << 20;

/// From the start of a program to the first output of what it runs; the program's end comes after the time was taken.
pub fn until_ready(command: &mut Command) -> Result<Duration, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let mut stdout = child.stdout.take().must("the program's output");
    let mut said = [0; READY.len()];
    let read = stdout.read_exact(&mut said);
    let took = begun.elapsed();
    let output = child.wait_with_output().must("the program's end");
    if read.is_err() || said != *READY.as_bytes() || !output.status.success() {
        return Err(failure(command, &output.stderr));
    }
    Ok(took)
}

/// From the start of a program to its end, which must be a success.
pub fn until_done(command: &mut Command) -> Result<Duration, String> {
    command.stdin(Stdio::null());
    let begun = Instant::now();
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let took = begun.elapsed();
    if output.status.success() { Ok(took) } else { Err(failure(command, &output.stderr)) }
}

/// The program's name and its last words.
fn failure(command: &Command, stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    format!("{}: {}", command.get_program().to_string_lossy(), said.trim().lines().last().unwrap_or("it says nothing"))
}

/// Whether a program can be started at all.
pub fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_says_something_else_is_an_error() {
        let shell = |script: &str| until_ready(Command::new("/bin/sh").args(["-c", script]));
        shell("echo ready").must("ready");
        for script in ["echo wrong", "echo ready; exit 1", "true"] {
            shell(script).err().must(script);
        }
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error = until_done(Command::new("/bin/sh").args(["-c", "echo because >&2; exit 1"]));
        assert!(error.err().must("an error").contains("because"));
    }
}
