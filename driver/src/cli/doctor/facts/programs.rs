//! Programs of the system, which answer questions within a time limit.

use std::{
    env,
    fmt::Display,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use host::program::run;

/// The time for the answer of a program.
const LIMIT: Duration = Duration::from_secs(5);

/// A program of the system. The PATH of a shell may lack the directories for administrators.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The standard output of a program that succeeds, or why there is none. A program that takes too long is killed.
pub fn answer(program: &Path, arguments: &[&str]) -> Result<String, String> {
    answer_within(LIMIT, program, arguments)
}

fn answer_within(limit: Duration, program: &Path, arguments: &[&str]) -> Result<String, String> {
    let failed = |problem: &dyn Display| format!("`{} {}`: {problem}", program.display(), arguments.join(" "));
    // Its standard error shall not be a part of the answer.
    let errors = File::options().write(true).open("/dev/null").map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.args(arguments);
    match run(command, b"", Some(&errors), limit) {
        Ok((status, output)) if status.success() => Ok(output),
        Ok((status, _)) => Err(failed(&status)),
        Err(problem) => Err(failed(&problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_succeeds_in_time_has_an_answer() {
        let answer = |script: &str, limit| answer_within(limit, Path::new("/bin/sh"), &["-c", script]);
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(100));
        assert_eq!(answer("cat; echo error >&2; echo answer", long).as_deref(), Ok("answer\n"));
        assert_eq!(answer("exit 3", long), Err("`/bin/sh -c exit 3`: exit status: 3".to_owned()));
        let late = answer("sleep 1000 & wait", short).unwrap_err();
        assert!(late.ends_with("did not end within 0 seconds and was killed"), "{late}");
        let missing = answer_within(long, Path::new("/nonexistent"), &["-V"]).unwrap_err();
        assert!(missing.starts_with("`/nonexistent -V`: it cannot be executed: "), "{missing}");
    }
}
