//! The operator's commands `exec`, `logs` and `events`, with and without a terminal.

use std::{fs, io::Write, process::Stdio};

use fixtures::{
    busybox::Images,
    must::Must,
    registry::{Action, Fault},
    terminal::Terminal,
    wait::seconds,
};
use kit::{
    node::Node,
    plugin::{COOKIE, PluginCommand},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::operator::{run, sleeper};

/// A command of an operator at a terminal.
fn at_terminal(node: &Node, args: &[&str], cols: u16) -> Terminal {
    Terminal::start(&PluginCommand::new(node.root()).without(COOKIE.0).args(args).as_std(), 24, cols)
}

#[tokio::test]
async fn exec_passes_input_output_and_the_exit_code() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    for (command, code, out, err) in [
        (&["echo", "hello"][..], 0, "hello", ""),
        (&["sh", "-c", "echo out; echo err >&2; exit 7"], 7, "out", "err"),
        (&["sh", "-c", "kill -TERM $$"], 143, "", ""),
        (&["cat"], 0, "", ""),
        (&["sh", "-c", "test -t 0 || test -t 1 || echo none"], 0, "none", ""),
    ] {
        let said = run(&node, &[&["exec", "main"], command].concat()).await;
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (code, out, err), "{command:?}");
    }
    let said = run(&node, &["exec", "main", "/no/such"]).await;
    assert!(said.code == 127 && said.err.contains("/no/such"), "{} {}", said.code, said.err);
    assert_eq!(run(&node, &["exec", "main", "/etc/passwd"]).await.code, 126);
    let said = run(&node, &["exec", "-u", "user", "-w", "/etc", "main", "sh", "-c", "id -un; pwd"]).await.well();
    assert_eq!(said.out, "user\n/etc");
    let said = run(&node, &["exec", "no-such-task", "true"]).await;
    assert!(said.code == 125 && said.err.contains("no task of this node"), "{} {}", said.code, said.err);
    // Input of a pipe, with its end.
    let command = PluginCommand::new(node.root()).without(COOKIE.0).args(&["exec", "-i", "main", "wc", "-c"]);
    let mut command = command.as_std();
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().must("start oci-rs");
    let mut input = process.stdin.take().must("a pipe");
    let writer = std::thread::spawn(move || input.write_all(&vec![b'x'; 3_000_000]));
    let output = tokio::task::spawn_blocking(move || process.wait_with_output()).await.must("a thread");
    writer.join().ok().must("a thread").must("all input is read");
    assert_eq!(String::from_utf8_lossy(&output.must("the output").stdout).trim(), "3000000");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_gives_the_command_the_terminal() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    let mut terminal = at_terminal(&node, &["exec", "-it", "main", "sh"], 100);
    terminal.type_text("stty size; echo $((6 * 7))\n");
    terminal.wait_for("24 100");
    terminal.wait_for("42");
    assert!(!terminal.echoes(), "the command's terminal echoes, not this one");
    terminal.resize(30, 90);
    // Ctrl-C reaches the command's terminal and ends no one else.
    terminal.type_text("until stty size | grep -q '30 90'; do sleep 0.1; done; echo re''sized\n");
    terminal.wait_for("resized");
    // A shell without a child. A child that has not executed its program yet would lose the signal.
    let script = "trap 'echo inter''rupted' INT; : 4711; echo r''eady; while :; do read -r line; done";
    terminal.type_text(&format!("sh -c \"{script}\"\n"));
    terminal.wait_for("ready");
    for _ in 0..2 {
        terminal.type_text("\x03");
        terminal.wait_for("interrupted");
    }
    // A lost client ends its command, and the terminal is as before.
    let client = Pid::from_raw(terminal.pid()).must("a pid");
    kill_process(client, Signal::TERM).must("end the client");
    let (_, status) = terminal.ended();
    assert_eq!(status.code(), Some(125));
    assert!(terminal.echoes(), "the terminal has its modes again");
    let gone = "for i in $(seq 100); do ps | grep -q '[4]711' || { echo gone; break; }; sleep 0.1; done";
    assert_eq!(plugin.sh(&task, gone).await, "gone");
    let mut terminal = at_terminal(&node, &["exec", "-it", "main", "sh", "-c", "exit 9"], 100);
    assert_eq!(terminal.ended().1.code(), Some(9));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn logs_reads_nomads_files() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    let logs = task.alloc.dir.join("alloc/logs");
    fs::write(logs.join("main.stdout.0"), "one\ntwo\n").must("a log file");
    fs::write(logs.join("main.stdout.1"), "three\n").must("a log file");
    fs::write(logs.join("main.stderr.0"), "problem\n").must("a log file");
    for (args, out, err) in [
        (&[][..], "one\ntwo\nthree", "problem"),
        (&["--tail", "2"], "two\nthree", "problem"),
        (&["--stdout", "-n", "1"], "three", ""),
        (&["--stderr"], "", "problem"),
    ] {
        let said = run(&node, &[&["logs", "main"], args].concat()).await.well();
        assert_eq!((said.out.as_str(), said.err.as_str()), (out, err), "{args:?}");
    }
    // Output is followed into the next file, and to the end of the task.
    let args = ["logs", "-f", "--tail", "1", "--stdout", "main"];
    let mut following = PluginCommand::new(node.root()).without(COOKIE.0).args(&args).spawn();
    following.stdout.find(seconds(20), "the last line", |line| line == "three").await;
    let mut file = fs::OpenOptions::new().append(true).open(logs.join("main.stdout.1")).must("the log file");
    writeln!(file, "four").must("write");
    following.stdout.find(seconds(20), "new output", |line| line == "four").await;
    fs::write(logs.join("main.stdout.2"), "five\n").must("a log file");
    following.stdout.find(seconds(20), "the next file", |line| line == "five").await;
    plugin.stop(task.id(), seconds(0), "").await.must("StopTask");
    assert_eq!(following.ended(seconds(20)).await.code(), Some(0));
    // A link that a task made is not followed.
    fs::remove_file(logs.join("main.stderr.0")).must("remove");
    std::os::unix::fs::symlink("/etc/shadow", logs.join("main.stderr.0")).must("a link");
    assert_eq!(run(&node, &["logs", "--stderr", "main"]).await.well().err, "");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn events_tells_starts_ends_and_removals() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let first = sleeper(&node, &mut plugin, &images.busybox()).await;
    let following = PluginCommand::new(node.root()).without(COOKIE.0).args(&["events", "-f", "--json"]).spawn();
    let event = async |name: &str, task: &kit::task::Task| -> Json {
        let alloc = task.config.alloc_id.clone();
        let parse = |line: &str| serde_json::from_str::<Json>(line).unwrap_or_default();
        let is_it = |line: &str| parse(line)["event"] == *name && parse(line)["allocation"] == *alloc;
        parse(&following.stdout.find(seconds(20), name, is_it).await)
    };
    event("start", &first).await;
    let second = node.task(&images.busybox()).sh("exit 4").build(&mut plugin).await;
    plugin.started(&second).await;
    event("start", &second).await;
    let exit = event("exit", &second).await;
    assert_eq!((&exit["exit_code"], &exit["image"]), (&json!(4), &json!(images.busybox())), "{exit}");
    plugin.destroy(second.id(), true).await.must("DestroyTask");
    event("remove", &second).await;
    let known = run(&node, &["events"]).await.well().out;
    assert!(known.contains("started") && known.lines().count() == 1, "{known}");
    drop(following);
    plugin.destroy(first.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// A node on which no plugin has run yet.
#[tokio::test]
async fn events_of_a_fresh_node_are_waited_for() {
    let node = Node::new();
    let (state, data) = (node.state_dir().display().to_string(), node.data_dir().display().to_string());
    let args = ["events", "-f", "--json", "--state-dir", &state, "--data-dir", &data];
    let mut following = PluginCommand::new(node.root()).without(COOKIE.0).args(&args).spawn();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    let is_it = |line: &str| line.contains(r#""event":"start""#) && line.contains(&task.config.alloc_id);
    following.stdout.find(seconds(20), "the start", is_it).await;
    assert!(following.is_running(), "{:?}", following.stderr.so_far());
    drop(following);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_the_terminal() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    let (screen, status) = at_terminal(&node, &["ps"], 90).ended();
    assert!(status.success(), "{screen}");
    let widest = screen.lines().map(|line| line.trim_end().chars().count()).max();
    assert!(widest <= Some(90) && screen.contains('…'), "{screen}");
    let mut live = at_terminal(&node, &["stats", "--interval", "200ms"], 100);
    for _ in 0..2 {
        live.wait_for("ALLOC");
        live.wait_for("MiB");
    }
    live.type_text("\x03");
    live.ended();
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The lines that a terminal shows after this output. It knows the sequences that bars need: moves up and down, and the
/// removal of lines.
fn screen(output: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![String::new()], 0_usize, 0_usize);
    // Each part but the first begins with the rest of an escape sequence.
    for (number, part) in output.split("\u{1b}[").enumerate() {
        let end = if number == 0 { 0 } else { part.find(|c: char| c.is_ascii_alphabetic()).must("a sequence") + 1 };
        let (sequence, text) = part.split_at(end);
        let count = sequence.trim_end_matches(char::is_alphabetic).parse().unwrap_or(1);
        match sequence.chars().last() {
            Some('A') => row = row.saturating_sub(count),
            Some('B') => row += count,
            Some('K') => lines[row].clear(),
            Some('J') => lines.truncate(row + 1),
            _ => {}
        }
        for c in text.chars() {
            match c {
                '\r' => column = 0,
                '\n' => row += 1,
                _ => column += 1,
            }
            lines.resize(lines.len().max(row + 1), String::new());
            if !c.is_control() {
                let mut line: Vec<char> = lines[row].chars().collect();
                line.resize(line.len().max(column), ' ');
                line[column - 1] = c;
                lines[row] = line.into_iter().collect();
            }
        }
    }
    lines.into_iter().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_at_a_terminal_shows_bars_and_removes_them() {
    let node = Node::new();
    let images = Images::start().await;
    let name = images.busybox();
    let data = node.data_dir().display().to_string();
    let pull = ["pull", &name, "--data-dir", &data];
    // The layer never arrives.
    images.with(|registry| registry.fault(Fault::on("/blobs/", Action::Stall(1000)).after(1)));
    let mut terminal = at_terminal(&node, &pull, 100);
    let mut output = terminal.wait_for("] ");
    terminal.type_text("\x03");
    let (rest, status) = terminal.ended();
    output.push_str(&rest);
    assert_eq!(status.code(), Some(1), "{output:?}");
    assert!(screen(&output[..output.len() - rest.len()]).concat().contains("sha256:"), "a bar was seen: {output:?}");
    let left = screen(&output);
    assert!(left.iter().all(|line| !line.contains('[')), "a bar is left: {left:#?} {output:?}");
    assert!(left.concat().contains("oci-rs: given up"), "{left:#?}");

    images.with(|registry| registry.heal());
    let (output, status) = at_terminal(&node, &pull, 100).ended();
    assert!(status.success(), "{output:?}");
    let left = screen(&output);
    assert!(left.iter().all(|line| !line.contains('[')) && left.concat().contains("is here"), "{left:#?} {output:?}");

    // Without a terminal, and as JSON.
    let data = node.root().join("other").display().to_string();
    let told = run(&node, &["pull", &name, "--data-dir", &data]).await.well();
    assert!(told.err.starts_with("oci-rs: downloading 1 layers, "), "{}", told.err);
    let data = node.root().join("third").display().to_string();
    assert_eq!(run(&node, &["pull", &name, "--data-dir", &data, "--json"]).await.well().err, "");
    node.finish_without_plugin().await;
}
