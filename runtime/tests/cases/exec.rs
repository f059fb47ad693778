//! Commands run in a running container: with its rights and no others, ended with everything that they started.

use std::{
    fs::{self, File},
    io::Read,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use runtime::{
    ExecError, ExecExit, ExecOptions, ExecProcess, ExecRequest, TerminalSize,
    plan::{Rlimit, Seccomp},
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::common::{Container, Node, eventually};

pub const CASES: &[(&str, fn())] = &[
    ("exec_output_and_exit_code", output_and_exit_code),
    ("exec_input_reaches_the_command", input_reaches_the_command),
    ("exec_same_namespaces_as_the_container", same_namespaces_as_the_container),
    ("exec_same_rights_as_the_container", same_rights_as_the_container),
    ("exec_rights_of_a_user", rights_of_a_user),
    ("exec_rights_without_restrictions", rights_without_restrictions),
    ("exec_user_reopens_its_output", user_reopens_its_output),
    ("exec_commands_that_cannot_be_executed", commands_that_cannot_be_executed),
    ("exec_removed_working_directory", removed_working_directory),
    ("exec_ended_container", ended_container),
    ("exec_invalid_requests_are_refused", invalid_requests_are_refused),
    ("exec_killed_by_a_signal", killed_by_a_signal),
    ("exec_does_not_wait_for_background_processes", does_not_wait_for_background_processes),
    ("exec_kill_ends_the_whole_process_tree", kill_ends_the_whole_process_tree),
    ("exec_hangup_is_only_a_signal", hangup_is_only_a_signal),
    ("exec_is_ended_when_it_is_dropped", is_ended_when_it_is_dropped),
    ("exec_ends_with_its_helper", ends_with_its_helper),
    ("exec_ends_with_the_container", ends_with_the_container),
    ("exec_terminal", terminal),
    ("exec_terminal_of_a_user", terminal_of_a_user),
    ("exec_ptmx_that_is_no_terminal", ptmx_that_is_no_terminal),
    ("exec_process_limit_of_the_container", process_limit_of_the_container),
    ("exec_no_descriptor_leaks", no_descriptor_leaks),
    ("exec_no_descriptor_before_the_command_begins", no_descriptor_before_the_command_begins),
    ("exec_many_at_once", many_at_once),
    ("exec_shows_no_more_rights", shows_no_more_rights),
    ("exec_program_of_32_bits", program_of_32_bits),
    ("exec_measured", measured),
    ("measure_exec", measure_exec),
];

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 1; done";

pub fn null() -> OwnedFd {
    File::options().read(true).write(true).open("/dev/null").expect("/dev/null").into()
}

/// A command with pipes.
pub struct Piped {
    process: ExecProcess,
    stdout: std::io::PipeReader,
    stderr: std::io::PipeReader,
}

impl Piped {
    pub fn start(node: &Node, container: &Container<'_>, args: &[&str], stdin: OwnedFd) -> Result<Self, ExecError> {
        let (stdout, theirs) = std::io::pipe().expect("a pipe");
        let (stderr, their_errors) = std::io::pipe().expect("a pipe");
        let request = ExecRequest {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            terminal: None,
            stdin,
            stdout: theirs.into(),
            stderr: their_errors.into(),
            options: ExecOptions::default(),
        };
        let process = node.runtime.exec(container.id(), request)?;
        Ok(Self { process, stdout, stderr })
    }

    pub fn shell(node: &Node, container: &Container<'_>, script: &str) -> Self {
        Self::start(node, container, &["sh", "-c", script], null()).expect("a command")
    }

    /// Waits; the exit and all that was written.
    pub fn finish(mut self) -> (ExecExit, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).expect("output");
        self.stderr.read_to_string(&mut err).expect("output");
        (self.process.wait(), out, err)
    }

    fn lines(self) -> Vec<String> {
        let (exit, out, err) = self.finish();
        assert_eq!((exit.exit_code, err.as_str()), (0, ""), "{out}");
        out.lines().map(str::to_owned).collect()
    }
}

fn exited(exit_code: i32) -> ExecExit {
    ExecExit { exit_code, signal: 0 }
}

fn readable(process: &ExecProcess, limit: Duration) -> bool {
    let limit = rustix::time::Timespec::try_from(limit).expect("a time");
    poll(&mut [PollFd::new(&process.exit_fd(), PollFlags::IN)], Some(&limit)).expect("a poll") > 0
}

fn output_and_exit_code() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let (exit, out, err) = Piped::shell(&node, &container, "echo out; echo err >&2; exit 7").finish();
    assert_eq!((exit, out.as_str(), err.as_str()), (exited(7), "out\n", "err\n"));
    let (exit, out, _) =
        Piped::start(&node, &container, &["/bin/echo", "a  b", "", "ü"], null()).expect("a command").finish();
    assert_eq!((exit, out.as_str()), (exited(0), "a  b  ü\n"));
}

fn input_reaches_the_command() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let (theirs, mut ours) = std::io::pipe().expect("a pipe");
    let command = Piped::start(&node, &container, &["wc", "-c"], theirs.into()).expect("a command");
    std::io::Write::write_all(&mut ours, &vec![b'x'; 300_000]).expect("written");
    drop(ours);
    assert_eq!(command.finish().1.trim(), "300000");
}

fn same_namespaces_as_the_container() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.cwd = "/srv/app".to_owned();
    plan.hostname = Some("inner".to_owned());
    plan.env.push(("SECRET".to_owned(), "two words".to_owned()));
    plan.oom_score_adj = 321;
    plan.rlimits.insert("nofile".to_owned(), Rlimit { soft: 77, hard: 88 });
    let container = node.start(plan);
    let script = "pwd; hostname; echo $SECRET $HOME; cat /proc/self/oom_score_adj; ulimit -n; ulimit -Hn; umask; \
                  echo ${TERM-none}; for n in mnt pid net ipc uts cgroup user; do readlink /proc/self/ns/$n; done; \
                  cat /proc/self/cgroup";
    let lines = Piped::shell(&node, &container, script).lines();
    let expected = ["/srv/app", "inner", "two words /root", "321", "77", "88", "0022", "none"];
    assert_eq!(lines[..8], expected);
    let namespaces = ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"].map(|name| {
        let link = fs::read_link(format!("/proc/{}/ns/{name}", container.running.init.pid)).expect("a namespace");
        link.to_string_lossy().into_owned()
    });
    assert_eq!(lines[8..15], namespaces);
    // With a cgroup namespace of its own, the command sees its groups as the root, as far as the container is in them.
    let init = Piped::shell(&node, &container, "cat /proc/1/cgroup").lines();
    assert_eq!(lines[15..], init);
    let running = Piped::shell(&node, &container, "sleep 60");
    let group = runtime_groups(&container);
    let members = || fs::read_to_string(group.join("cgroup.procs")).expect("a group").lines().count();
    crate::common::eventually("the command among its members", || members() >= 3);
    drop(running);
}

fn runtime_groups(container: &Container<'_>) -> std::path::PathBuf {
    let groups = crate::common::control_groups(&container.plan.cgroup.path);
    groups.into_iter().find(|group| group.join("cgroup.procs").exists()).expect("a group")
}

/// What the kernel says of a process's rights.
const RIGHTS: &str = "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|SigBlk|SigIgn)";

fn rights_of_init(container: &Container<'_>, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| container.status_field(name)).collect()
}

const FIELDS: [&str; 11] = [
    "Uid",
    "Gid",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Groups",
];

fn assert_same_rights(node: &Node, container: &Container<'_>) -> Vec<String> {
    // No shell: it changes what is done with signals.
    let grep = ["grep", "-E", RIGHTS, "/proc/self/status"];
    let lines = Piped::start(node, container, &grep, null()).expect("a command").lines();
    let field = |name: &str| {
        let line = lines.iter().find(|line| line.split(':').next() == Some(name)).expect("a field");
        line.split_once(':').expect("a field").1.trim().to_owned()
    };
    assert_eq!(FIELDS.map(field).to_vec(), rights_of_init(container, &FIELDS));
    assert_eq!(u64::from_str_radix(&field("SigBlk"), 16), Ok(0));
    assert_eq!(u64::from_str_radix(&field("SigIgn"), 16), Ok(0));
    FIELDS.map(field).to_vec()
}

fn same_rights_as_the_container() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let rights = assert_same_rights(&node, &container);
    assert_eq!(rights[7..9], ["1", "2"]);
    let (exit, _, err) = Piped::shell(&node, &container, "unshare -m true || mount -t tmpfs none /tmp").finish();
    assert_ne!(exit.exit_code, 0);
    assert!(err.contains("not permitted"), "{err}");
}

fn rights_of_a_user() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.user = "web".to_owned();
    plan.groups = vec!["video".to_owned()];
    let container = node.start(plan);
    let rights = assert_same_rights(&node, &container);
    assert_eq!(rights[4].trim_start_matches('0'), "");
    assert_eq!(Piped::shell(&node, &container, "id -u; id -G; echo $HOME").lines()[0], "1000");
}

fn rights_without_restrictions() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.security.privileged = true;
    let container = node.start(plan);
    assert_same_rights(&node, &container);
    let mut plan = node.plan(SLEEP);
    plan.security.no_new_privileges = false;
    plan.security.seccomp = Seccomp::Unconfined;
    plan.user = "1000".to_owned();
    let container = node.start(plan);
    assert_same_rights(&node, &container);
    let mut plan = node.plan(SLEEP);
    plan.security.no_new_privileges = false;
    plan.user = "1000".to_owned();
    let container = node.start(plan);
    assert_same_rights(&node, &container);
}

fn user_reopens_its_output() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.user = "web".to_owned();
    let container = node.start(plan);
    let (exit, out, err) = Piped::shell(&node, &container, "echo out > /dev/stdout; echo err > /dev/stderr").finish();
    assert_eq!((exit, out.as_str(), err.as_str()), (exited(0), "out\n", "err\n"));
}

fn commands_that_cannot_be_executed() {
    let node = Node::new();
    let container = node.start(node.plan("echo x > /tmp/plain; exec sleep 100"));
    crate::common::eventually("the file", || container.proc("cmdline").starts_with("sleep"));
    for (program, code, text) in [
        ("nosuch", 127, "not found"),
        ("/no/such", 127, "not found"),
        ("/tmp/plain", 126, "cannot be executed"),
        ("/tmp", 126, "cannot"),
    ] {
        let (exit, out, err) = Piped::start(&node, &container, &[program, "x"], null()).expect("a command").finish();
        assert_eq!((exit, out.as_str()), (exited(code), ""), "{program}");
        assert!(err.contains(program) && err.contains(text), "{err}");
    }
}

fn removed_working_directory() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.cwd = "/srv/app".to_owned();
    let container = node.start(plan);
    let removed = Piped::shell(&node, &container, "rm -r /srv/app");
    assert_eq!(removed.finish().0, exited(0));
    let error = Piped::start(&node, &container, &["true"], null()).map(drop).expect_err("refused");
    assert!(error.to_string().contains("/srv/app"), "{error}");
}

fn ended_container() {
    let node = Node::new();
    let container = node.start(node.plan("true"));
    container.wait();
    let error = Piped::start(&node, &container, &["true"], null()).map(drop).expect_err("refused");
    assert!(matches!(error, ExecError::NotRunning(_)), "{error}");
}

fn invalid_requests_are_refused() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    for args in [&[][..], &[""], &["echo", "a\0b"]] {
        let error = Piped::start(&node, &container, args, null()).map(drop).expect_err("refused");
        assert!(matches!(error, ExecError::Invalid(_)), "{error}");
    }
}

fn killed_by_a_signal() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let (exit, ..) = Piped::shell(&node, &container, "kill -TERM $$").finish();
    assert_eq!(exit, ExecExit { exit_code: 143, signal: 15 });
}

fn does_not_wait_for_background_processes() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let begun = Instant::now();
    let command = Piped::shell(&node, &container, "sleep 60 & echo started");
    assert!(readable(&command.process, Duration::from_secs(10)));
    assert_eq!(command.process.wait(), exited(0));
    assert!(begun.elapsed() < Duration::from_secs(10));
    // Still there: it belongs to the container now. It may not have become `sleep` yet.
    eventually("the background command runs", || processes(&node, &container).contains("sleep 60"));
}

fn processes(node: &Node, container: &Container<'_>) -> String {
    Piped::shell(node, container, "ps").finish().1
}

/// Starts a tree of processes that ignore SIGHUP and waits until it stands.
fn stubborn(node: &Node, container: &Container<'_>) -> Piped {
    let script = "trap '' HUP; (sleep 71 & sleep 72 & wait) & sleep 73 & echo up; wait; sleep 74";
    let mut command = Piped::shell(node, container, script);
    let mut line = [0; 3];
    command.stdout.read_exact(&mut line).expect("a line");
    eventually("the tree stands", || {
        let all = processes(node, container);
        ["sleep 71", "sleep 72", "sleep 73"].iter().all(|part| all.contains(part))
    });
    command
}

fn assert_no_tree(node: &Node, container: &Container<'_>) {
    let all = processes(node, container);
    assert!(!all.contains("sleep 7"), "{all}");
}

fn kill_ends_the_whole_process_tree() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let command = stubborn(&node, &container);
    command.process.kill();
    assert!(readable(&command.process, Duration::from_secs(10)));
    assert_no_tree(&node, &container);
    assert_eq!(command.process.wait(), ExecExit { exit_code: 137, signal: 9 });
    assert!(!container.running.init.ended());
}

fn hangup_is_only_a_signal() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let mut command =
        Piped::shell(&node, &container, "trap 'echo hup; exit 5' HUP; echo up; while :; do usleep 1000; done");
    let mut line = [0; 3];
    command.stdout.read_exact(&mut line).expect("a line");
    command.process.hangup();
    let (exit, out, _) = command.finish();
    assert_eq!((exit, out.as_str()), (exited(5), "hup\n"));
}

fn is_ended_when_it_is_dropped() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let command = stubborn(&node, &container);
    let helper = command.process.helper().expect("a helper").pid;
    drop(command);
    eventually("the tree is gone", || !processes(&node, &container).contains("sleep 7"));
    eventually("the helper is reaped", || !std::path::Path::new(&format!("/proc/{helper}")).exists());
}

fn ends_with_its_helper() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let command = Piped::start(&node, &container, &["sleep", "75"], null()).expect("a command");
    command.process.helper().expect("a helper").signal(9).expect("killed");
    assert!(readable(&command.process, Duration::from_secs(10)));
    assert_eq!(command.process.wait(), ExecExit { exit_code: 137, signal: 9 });
    eventually("the command is gone", || !processes(&node, &container).contains("sleep 75"));
}

fn ends_with_the_container() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let command = Piped::start(&node, &container, &["sleep", "76"], null()).expect("a command");
    node.runtime.kill_all(container.id()).expect("killed");
    assert!(readable(&command.process, Duration::from_secs(10)));
    assert_eq!(command.process.wait(), ExecExit { exit_code: 137, signal: 9 });
}

/// A command on a terminal, and what it wrote until it ended.
fn on_terminal(node: &Node, container: &Container<'_>, script: &str, input: &str) -> (ExecExit, String) {
    let request = ExecRequest {
        args: ["sh", "-c", script].map(str::to_owned).to_vec(),
        terminal: Some(TerminalSize { rows: 33, cols: 101 }),
        stdin: null(),
        stdout: null(),
        stderr: null(),
        options: ExecOptions::default(),
    };
    let mut process = node.runtime.exec(container.id(), request).expect("a command");
    let mut master = File::from(process.terminal.take().expect("a terminal"));
    std::io::Write::write_all(&mut master, input.as_bytes()).expect("typed");
    let mut text = Vec::new();
    // The end of a terminal is an error.
    drop(master.read_to_end(&mut text));
    (process.wait(), String::from_utf8_lossy(&text).into_owned())
}

fn terminal() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let script = "stty size; tty; test -t 0 && test -t 1 && test -t 2 && echo $TERM; read x; echo got $x; \
                  echo err >&2; echo ctty > /dev/tty; exit 4";
    let (exit, text) = on_terminal(&node, &container, script, "typed\n");
    assert_eq!(exit, exited(4));
    for part in ["33 101\r\n", "/dev/pts/0\r\n", "xterm\r\n", "got typed\r\n", "err\r\n", "ctty\r\n"] {
        assert!(text.contains(part), "{text:?}");
    }
    let (exit, text) = on_terminal(&node, &container, "sleep 60", "\u{3}");
    assert_eq!((exit.signal, text.as_str()), (2, "^C"));
    let (exit, text) = on_terminal(&node, &container, "exec /no/such", "");
    assert_eq!(exit, exited(127), "{text}");
}

fn terminal_of_a_user() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.user = "web".to_owned();
    let container = node.start(plan);
    let (exit, text) = on_terminal(&node, &container, "echo again > $(tty); stat -c %u $(tty)", "");
    assert_eq!(exit, exited(0), "{text}");
    assert!(text.contains("again\r\n1000\r\n"), "{text:?}");
}

fn ptmx_that_is_no_terminal() {
    let node = Node::new();
    // Lazily, because a command that came before may still hold its terminal.
    let mut plan =
        node.plan("umount -l /dev/pts && mkdir -p /dev/pts && echo x > /dev/pts/ptmx; while :; do sleep 1; done");
    plan.security.privileged = true;
    let container = node.start(plan);
    let request = || ExecRequest {
        args: vec!["true".to_owned()],
        terminal: Some(TerminalSize { rows: 1, cols: 1 }),
        stdin: null(),
        stdout: null(),
        stderr: null(),
        options: ExecOptions::default(),
    };
    eventually("refused", || {
        node.runtime
            .exec(container.id(), request())
            .is_err_and(|error| error.to_string().contains("not the terminal multiplexer"))
    });
}

fn process_limit_of_the_container() {
    let node = Node::new();
    let mut plan = node.plan(SLEEP);
    plan.resources.pids_limit = Some(8);
    let container = node.start(plan);
    let (mut running, mut refusal) = (Vec::new(), None);
    while refusal.is_none() && running.len() < 9 {
        match Piped::start(&node, &container, &["sleep", "60"], null()) {
            Ok(command) => running.push(command),
            Err(error) => refusal = Some(error.to_string()),
        }
    }
    let refusal = refusal.expect("refused in the end");
    assert!(refusal.contains("as many processes as it may"), "{refusal}");
    assert!(running.len() > 2, "{}", running.len());
}

fn no_descriptor_leaks() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let lines = Piped::shell(&node, &container, "ls /proc/$$/fd; true").lines();
    assert_eq!(lines, ["0", "1", "2"]);
}

/// The container stops each process that enters it, often before execve(2). With CAP_SYS_PTRACE it could then open what
/// that process has open.
fn no_descriptor_before_the_command_begins() {
    let node = Node::new();
    let pids: String = (2..400).map(|pid| format!(" {pid}")).collect();
    let container = node.start(node.plan(&format!("exec 2>/dev/null; while :; do kill -STOP{pids}; done")));
    let is_ours = |pid: &str| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let inside = status.lines().find(|line| line.starts_with("NSpid:")).map_or(0, |line| line.split('\t').count());
        comm == "oci-rs:exec\n" && inside > 2 && status.contains("(stopped)")
    };
    let mut seen = 0;
    let begun = Instant::now();
    while seen < 3 && begun.elapsed() < Duration::from_secs(10) {
        let commands: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn({
                    let (runtime, id) = (node.runtime.clone(), container.id().clone());
                    move || {
                        let (stdin, stdout, stderr) = (null(), null(), null());
                        let args = vec!["/bin/true".to_owned()];
                        let options = ExecOptions::default();
                        let request = ExecRequest { args, terminal: None, stdin, stdout, stderr, options };
                        runtime.begin_exec(&id, request)
                    }
                })
            })
            .map(|thread| thread.join().expect("no panic").expect("a helper"))
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        let groups = crate::common::control_groups(&container.plan.cgroup.path);
        let group = groups.first().expect("a group");
        let members = fs::read_to_string(group.join("cgroup.procs")).expect("members");
        for pid in members.lines().filter(|pid| is_ours(pid)) {
            seen += 1;
            let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
            let links = open.filter_map(|entry| Some((entry.file_name(), fs::read_link(entry.path()).ok()?)));
            for (name, link) in links {
                let (name, link) = (name.to_string_lossy().into_owned(), link.to_string_lossy().into_owned());
                assert!(["0", "1", "2"].contains(&&*name) || link.starts_with("pipe:"), "descriptor {name}: {link}");
            }
        }
        drop(commands);
    }
    println!("{seen} commands were stopped before they began");
}

fn many_at_once() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let commands: Vec<_> =
        (0..24).map(|n| Piped::shell(&node, &container, &format!("usleep 10000; exit {n}"))).collect();
    for (n, command) in commands.into_iter().enumerate() {
        assert_eq!(command.finish().0, exited(n as i32));
    }
    let own = fs::read_dir("/proc/self/fd").expect("our descriptors").count();
    drop(Piped::shell(&node, &container, "true").finish());
    assert_eq!(fs::read_dir("/proc/self/fd").expect("our descriptors").count(), own);
}

fn measure_exec() {
    let node = Node::new();
    let container = node.start(node.plan(SLEEP));
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            let begun = Instant::now();
            let command = Piped::start(&node, &container, &["/bin/true"], null()).expect("a command");
            let started = begun.elapsed();
            command.process.exit_fd().as_fd();
            command.process.wait();
            (begun.elapsed(), started)
        })
        .collect();
    times.sort();
    println!("exec of true: median {:?} (started after {:?}), least {:?}", times[25].0, times[25].1, times[0].0);
}

fn measured() {
    let node = Node::new();
    let mut plan = node.plan("dd if=/dev/zero of=/dev/null bs=1M count=3000 2>/dev/null; echo ready; sleep 60");
    plan.resources.memory_limit = Some(64 << 20);
    let container = node.start(plan);
    let reader = node.runtime.stats_reader(container.id()).expect("counters");
    // The kernel counts user and system time by sampling on cgroup v1: some milliseconds may have been seen by no tick.
    eventually("its work is counted", || {
        let stats = reader.read().expect("statistics");
        stats.cpu.total_ns > 10_000_000
            && stats.cpu.user_ns + stats.cpu.system_ns > 0
            && stats.memory.usage > 0
            && stats.pids > 0
    });
    let before = reader.read().expect("statistics");
    assert!(
        before.memory.rss > 0 && before.memory.max_usage.is_none_or(|most| most >= before.memory.rss),
        "{before:?}"
    );
    Piped::shell(&node, &container, "dd if=/dev/zero of=/dev/null bs=1M count=3000 2>/dev/null").lines();
    let after = reader.read().expect("statistics");
    assert!(after.cpu.total_ns > before.cpu.total_ns + 10_000_000, "{before:?} {after:?}");
    node.runtime.kill_all(container.id()).expect("killed");
    reader.read().expect_err("ended");
    node.runtime.stats_reader(container.id()).expect_err("ended");
}

/// A container that may trace everything looks at all processes that it sees, over and over, while commands are made.
fn shows_no_more_rights() {
    let node = Node::new();
    let mut plan = node.plan("while :; do cat /proc/[0-9]*/status; done 2>/dev/null | grep -E '^(CapPrm|CapBnd)'");
    plan.security.capabilities.push("CAP_SYS_PTRACE".to_owned());
    let mut container = node.start(plan);
    for _ in 0..60 {
        Piped::start(&node, &container, &["true"], null()).expect("a command").finish();
    }
    let own = container.status_field("CapBnd");
    node.runtime.kill_all(container.id()).expect("killed");
    let (seen, _) = container.output();
    let seen: std::collections::BTreeSet<_> = seen.lines().filter_map(|line| line.split_once('\t')).collect();
    // The last line can be cut off.
    let more: Vec<_> = seen.iter().filter(|(_, mask)| mask.len() == own.len() && *mask != own).collect();
    assert!(!seen.is_empty() && more.is_empty(), "{own}: {more:?}");
}

/// Filtered like all others, by its own table: `getpid` and `write` work, `mount` (21 there, `access` on x86_64) does
/// not.
fn program_of_32_bits() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let node = Node::new();
    let layer = node.directory.path().join("layer/bin/small");
    fs::write(&layer, small_program()).expect("written");
    fs::set_permissions(&layer, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    // Outside of a container mount fails for another reason, or there is no support for such programs at all.
    let Ok(outside) = std::process::Command::new(&layer).output() else { return };
    assert_eq!(outside.status.code(), Some(rustix::io::Errno::FAULT.raw_os_error()));
    let container = node.start(node.plan(SLEEP));
    let (exit, out, _) = Piped::start(&node, &container, &["small"], null()).expect("a command").finish();
    assert_eq!((exit, out.as_str()), (exited(rustix::io::Errno::PERM.raw_os_error()), "ok\n"));
}

/// An i386 program: writes "ok" and ends with the errno of `mount(NULL, …)`.
fn small_program() -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    const CODE_AT: u32 = 52 + 32;
    let text = BASE + CODE_AT + 49;
    let mut code: Vec<u8> = Vec::new();
    code.extend([0xb8, 20, 0, 0, 0, 0xcd, 0x80]); // getpid
    code.extend([0xb8, 4, 0, 0, 0, 0xbb, 1, 0, 0, 0, 0xb9]); // write(1, text, 3)
    code.extend(text.to_le_bytes());
    code.extend([0xba, 3, 0, 0, 0, 0xcd, 0x80]);
    code.extend([0xb8, 21, 0, 0, 0, 0x31, 0xdb, 0x31, 0xc9, 0xcd, 0x80]); // mount(NULL, NULL, …)
    code.extend([0xf7, 0xd8, 0x89, 0xc3, 0x31, 0xc0, 0x40]); // exit(-result)
    code.extend([0xcd, 0x80]);
    assert_eq!(code.len(), 49);
    code.extend(b"ok\n");
    let size = CODE_AT + code.len() as u32;
    let mut file = b"\x7fELF\x01\x01\x01".to_vec();
    file.resize(16, 0);
    let halves = |file: &mut Vec<u8>, all: &[u16]| file.extend(all.iter().flat_map(|half| half.to_le_bytes()));
    let words = |file: &mut Vec<u8>, all: &[u32]| file.extend(all.iter().flat_map(|word| word.to_le_bytes()));
    halves(&mut file, &[2, 3]);
    words(&mut file, &[1, BASE + CODE_AT, 52, 0, 0]);
    halves(&mut file, &[52, 32, 1, 0, 0, 0]);
    words(&mut file, &[1, 0, BASE, BASE, size, size, 5, 0x1000]);
    file.extend(code);
    file
}
