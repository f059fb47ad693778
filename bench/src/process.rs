//! Running a program and measuring its time.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fixtures::must::Must;

/// The first output of the measured command.
pub const READY: &str = "ready";
/// The measured command: a shell that prints the first output.
pub const SAY_READY: [&str; 3] = ["/bin/sh", "-c", "echo ready"];
/// The memory limit of a container, the same for all programs.
pub const MEMORY: i64 = 64 << 20;

/// Runs a program, timed from its start to the first output of its container. It then waits for the program's end.
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

/// Runs a program, timed from its start to its end. It must succeed.
pub fn until_done(command: &mut Command) -> Result<Duration, String> {
    command.stdin(Stdio::null());
    let begun = Instant::now();
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let took = begun.elapsed();
    if output.status.success() { Ok(took) } else { Err(failure(command, &output.stderr)) }
}

/// The program's name and the last line of its error output.
fn failure(command: &Command, stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    format!("{}: {}", command.get_program().to_string_lossy(), said.trim().lines().last().unwrap_or("no output"))
}

/// Whether a program can be started.
pub fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The processor ticks of a process: fields 14 and 15 of `/proc/<pid>/stat`.
pub fn ticks(pid: i32) -> f64 {
    fields_of_stat(pid, 2)
}

/// The processor time of a process and of its children that have ended: fields 14 to 17 of `/proc/<pid>/stat`.
pub fn processor_time(pid: i32) -> Duration {
    // The kernel counts in hundredths of a second (USER_HZ, time(7)).
    Duration::from_secs_f64(fields_of_stat(pid, 4) / 100.0)
}

/// The processor time of this thread.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The sum of this many fields from field 14 on.
fn fields_of_stat(pid: i32, count: usize) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).must("the process's times");
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().skip(11).take(count));
    fields.into_iter().flatten().filter_map(|field| field.parse::<f64>().ok()).sum()
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
    fn children_that_have_ended_count() {
        let own = std::process::id().cast_signed();
        let before = processor_time(own);
        until_done(Command::new("/bin/sh").args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]))
            .must("done");
        assert!(processor_time(own) > before && processor_time(own).as_secs_f64() * 100.0 >= ticks(own));
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error = until_done(Command::new("/bin/sh").args(["-c", "echo because >&2; exit 1"]));
        assert!(error.err().must("an error").contains("because"));
    }
}
