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
    let mut script = script.replace("oci__subcmd__rs", "oci__rs");
    if shell == Shell::Fish {
        script.push_str(&values_for_fish(&Arguments::command()));
    }
    Ok(io::stdout().write_all(script.as_bytes())?)
}

/// The values of arguments without a name, which the library leaves out for fish.
fn values_for_fish(program: &clap::Command) -> String {
    let of = |command: &clap::Command| {
        let values = command.get_positionals().flat_map(|argument| argument.get_possible_values());
        let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        let (name, names) = (command.get_name(), names.join(" "));
        let line = format!("complete -c {PROGRAM} -n \"__fish_oci_rs_using_subcommand {name}\" -f -a \"{names}\"\n");
        (!names.is_empty()).then_some(line)
    };
    program.get_subcommands().filter_map(of).collect()
}

/// Writes one page for the program and one for each command into a directory, which is made if it is missing.
pub fn man(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory))
        .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display())))
}
