//! The commands and exit codes in `docs/commands.md`. They are generated from the definitions of the command line, so
//! that both always agree.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites it.

use clap::{Arg, ArgAction, Command, CommandFactory, error::ErrorKind};
use fixtures::documents::{blocks, check, wrapped};

use super::arguments::{Arguments, with_two_dashes};

/// The options that are listed once for all commands.
const NODE: &str = "Node";

fn reference() -> String {
    let mut text = String::new();
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        section("oci-rs", command, &mut text);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The exit codes of each command, as its help tells them. Commands with the same codes share a row.
fn exit_codes() -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for command in Arguments::command().get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let codes = help.strip_prefix("Exit codes: ").unwrap_or_else(|| panic!("{}: {help:?}", command.get_name()));
        let name = format!("`{}`", command.get_name());
        match rows.iter_mut().find(|(known, _)| known == codes) {
            Some((_, names)) => names.push(name),
            None => rows.push((codes.to_owned(), vec![name])),
        }
    }
    let rows = rows.iter().map(|(codes, names)| wrapped("  ", &format!("- {}: {codes}.", names.join(", "))));
    format!("\n{}\n", rows.collect::<String>())
}

/// A command and the commands below it.
fn section(parent: &str, command: &Command, text: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    text.push_str(&format!("### {name}\n\n"));
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    about.split("\n\n").for_each(|part| text.push_str(&(wrapped("", &sentence(part)) + "\n")));
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{parent} {alias}`")).collect();
    if !aliases.is_empty() {
        text.push_str(&format!("Also {}.\n\n", aliases.join(", ")));
    }
    let commands: Vec<&Command> = command.get_subcommands().filter(|below| below.get_name() != "help").collect();
    let mut own: Vec<&Arg> = command.get_arguments().filter(|argument| is_listed(argument)).collect();
    own.sort_by_key(|argument| !argument.is_positional());
    own.iter().for_each(|argument| text.push_str(&item(argument)));
    if !own.is_empty() {
        text.push('\n');
    }
    commands.into_iter().for_each(|below| section(&name, below, text));
}

fn is_listed(argument: &Arg) -> bool {
    let is_help = matches!(argument.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong);
    !argument.is_hide_set() && !is_help && argument.get_help_heading() != Some(NODE)
}

fn item(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let name = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        _ => String::new(),
    };
    let name = match (name.is_empty(), takes_value) {
        (true, _) => values,
        (false, true) => format!("{name} {values}"),
        (false, false) => name,
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<String> = argument.get_default_values().iter().map(|one| one.to_string_lossy().into()).collect();
    let default =
        if !takes_value || default.is_empty() { String::new() } else { format!(" Default: {}.", default.join(" ")) };
    wrapped("  ", &format!("- **`{name}`**: {}{default}", sentence(&help)))
}

fn sentence(text: &str) -> String {
    let text = text.replace('\n', " ");
    if text.ends_with(['.', '?', '!', ']']) { text } else { text + "." }
}

#[test]
fn the_document_lists_the_commands_and_their_options() {
    check("commands.md", &[("exit codes", exit_codes()), ("commands", format!("\n{}\n", reference()))]);
}

/// The words of each command line of ours in a block of shell commands.
fn command_lines(block: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for line in block.lines() {
        let code = line.split(" #").next().unwrap_or_default();
        for command in code.split(['|', ';', '&', '(', ')']) {
            let words: Vec<String> =
                command.split(['<', '>']).next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
            if words.first().is_some_and(|program| program == "oci-rs") {
                found.push(words);
            }
        }
    }
    found
}

#[test]
fn every_command_line_of_the_documents_is_one() {
    let mut count = 0;
    for (document, block) in blocks("sh") {
        for words in command_lines(&block) {
            let parsed = Arguments::command().try_get_matches_from(with_two_dashes(words.iter().map(Into::into)));
            let told = |kind| matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let wrong = parsed.err().filter(|error| !told(error.kind()));
            assert!(wrong.is_none(), "{document}: {words:?}: {wrong:?}");
            count += 1;
        }
    }
    assert!(count > 30, "only {count} command lines");
}

#[test]
fn command_lines_are_found_in_blocks() {
    let block = "oci-rs ps   # oci-rs no\ncp oci-rs /x\ncat x | oci-rs migrate - > out; oci-rs df < y";
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(command_lines(block), ["oci-rs ps", "oci-rs migrate -", "oci-rs df"].map(words));
}
