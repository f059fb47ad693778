//! `oci-rs completion` and `oci-rs man`: files for shells and for `man`, made from the definitions of the command line.
//! They need no node, and are the same in each run.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{
    arguments::{Arguments, ShellName},
    failure::Failure,
};

/// The name of the program, which the scripts complete.
const PROGRAM: &str = "oci-rs";

/// Writes the completion script of a shell to standard output.
pub fn completion(shell: ShellName) -> Result<(), Failure> {
    let shell = match shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), PROGRAM, &mut script);
    let script = String::from_utf8(script).map_err(Failure::of)?;
    // The library names the states of bash's function in two ways if the program's name has a hyphen (clap, issue
    // 6421): no command below the first level would be completed.
    let script = script.replace("oci__subcmd__rs", "oci__rs");
    Ok(io::stdout().write_all(script.as_bytes())?)
}

/// Writes one page for the program and one for each command into a directory, which is made if it is missing.
pub fn man(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory))
        .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display())))
}
