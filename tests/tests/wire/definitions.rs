//! What is made from the definitions of the command line: completion scripts and man pages.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use fixtures::{must::Must, program::missing};
use kit::plugin::binary;
use tempfile::TempDir;

/// Runs `oci-rs` without a node.
fn oci_rs(args: &[&str]) -> String {
    let output = Command::new(binary()).args(args).env_clear().output().must("run oci-rs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).must("text")
}

/// Runs a program, if the machine has it.
fn tool(program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program).args(args).env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            missing(program);
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Completes a line as bash does when the tabulator key is pressed: it calls the function of the command.
const COMPLETE: &str = r#"
source "$1"; shift
function=$(complete -p oci-rs | sed -E 's/.* -F ([^ ]+) .*/\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function" oci-rs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}""#;

#[test]
fn bash_completes_commands_options_and_values() {
    let directory = TempDir::new().must("a directory");
    let script = directory.path().join("oci-rs");
    fs::write(&script, oci_rs(&["completion", "bash"])).must("write the script");
    let script = script.display().to_string();
    for (line, expected) in [
        (&["im"][..], &["image", "images"][..]),
        (&["image", "pru"], &["prune"]),
        (&["image", "prune", "--dry"], &["--dry-run"]),
        (&["image", "ls", "--data"], &["--data-dir"]),
        (&["ps", "--fil"], &["--filter"]),
        (&["completion", ""], &["bash", "zsh", "fish"]),
        (&["no-such-command-"], &[""]),
    ] {
        let args = [&["--norc", "-c", COMPLETE, "bash", &script, "oci-rs"], line].concat();
        let Some(output) = tool("bash", &args) else { return };
        let offered = String::from_utf8(output.stdout).must("text");
        let offered: Vec<&str> = offered.lines().filter(|word| !word.starts_with("-h")).collect();
        for word in expected {
            assert!(offered.contains(word), "{line:?}: {offered:?} {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Begun words, and what zsh and fish make of them. Each has one completion.
const BEGUN: [(&str, &str); 6] = [
    ("imag", "image"),
    ("image pru", "image prune"),
    ("image prune --dry", "image prune --dry-run"),
    ("image ls --data", "image ls --data-dir"),
    ("image his", "image history"),
    ("completion fi", "completion fish"),
];

/// Types lines with a tabulator at their ends into an interactive zsh on a terminal, and prints what it then runs. The
/// command is a function of that shell. The typed text contains neither `READY` nor `RAN`: its echo is not an answer.
const TYPED: &str = r#"
zmodload zsh/zpty || exit 1
zpty shell zsh -f -i
zpty -w shell "fpath=($1 "'$fpath); autoload -Uz compinit; compinit -u -D
    oci-rs() { print -r -- "RA""N <$*>" }; print "REA""DY"'
zpty -r shell answer '*READY*'
shift
for line; do
    zpty -w shell "oci-rs $line"$'\t'
    zpty -r shell answer '*RAN <*>*'
    print -r -- "${${answer##*RAN <}%%>*}"
done
zpty -d shell"#;

#[test]
fn zsh_completes_commands_options_and_values() {
    let directory = TempDir::new().must("a directory");
    let script = oci_rs(&["completion", "zsh"]);
    assert!(script.starts_with("#compdef oci-rs"), "{script}");
    fs::write(directory.path().join("_oci-rs"), script).must("write the script");
    let directory = directory.path().display().to_string();
    let lines: Vec<&str> = BEGUN.iter().map(|(begun, _)| *begun).collect();
    // A shell that reads forever is ended.
    let args = [&["60", "zsh", "-f", "-c", TYPED, "zsh", &directory], lines.as_slice()].concat();
    if tool("zsh", &["--version"]).is_none() {
        return;
    }
    let output = tool("timeout", &args).must("timeout");
    let ran = String::from_utf8_lossy(&output.stdout);
    let expected: Vec<&str> = BEGUN.iter().map(|(_, completed)| *completed).collect();
    let ran: Vec<&str> = ran.lines().map(str::trim_end).collect();
    assert_eq!(ran, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn fish_completes_commands_options_and_values() {
    let directory = TempDir::new().must("a directory");
    let script = directory.path().join("oci-rs.fish");
    fs::write(&script, oci_rs(&["completion", "fish"])).must("write the script");
    let script = script.display().to_string();
    for (begun, completed) in BEGUN {
        let args = ["--no-config", "-c", "source $argv[1]; complete -C \"oci-rs $argv[2]\"", &script, begun];
        let Some(output) = tool("fish", &args) else { return };
        let offered = String::from_utf8_lossy(&output.stdout);
        // Word and description.
        let words: Vec<&str> = offered.lines().filter_map(|line| line.split('\t').next()).collect();
        let last = completed.rsplit(' ').next().unwrap_or_default();
        assert!(words.contains(&last), "{begun}: {offered} {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn pages(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).must("the pages").map(|entry| entry.must("a page").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_command_has_a_man_page_that_groff_accepts() {
    let directory = TempDir::new().must("a directory");
    let (first, second) = (directory.path().join("new/man1"), directory.path().join("again"));
    for to in [&first, &second] {
        oci_rs(&["man", &to.display().to_string()]);
    }
    let names = pages(&first);
    for name in ["oci-rs.1", "oci-rs-ps.1", "oci-rs-image.1", "oci-rs-image-prune.1", "oci-rs-man.1"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    for name in &names {
        let page = first.join(name);
        let text = fs::read(&page).must("the page");
        assert_eq!(text, fs::read(second.join(name)).must("the page"), "{name}: each run writes the same");
        let Some(output) = tool("groff", &["-man", "-Kutf8", "-Tutf8", "-ww", "-P-c", &page.display().to_string()])
        else {
            return;
        };
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
    }
    let Some(output) = tool("man", &["-l", &first.join("oci-rs-ps.1").display().to_string()]) else { return };
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains("List the tasks of this node"), "{shown}");
    assert!(shown.contains("--filter") && shown.contains("Exit codes"), "{shown}");
}
