//! The process of the command: user, environment, rights, limits, signals, terminal.

use std::{fs, os::unix::fs::MetadataExt};

use runtime::{
    StartErrorKind,
    plan::{ContainerPlan, Network, Rlimit, Seccomp, SeccompProfile},
};

use super::user_namespace::NetworkHolder;
use crate::common::{Node, eventually};

pub const CASES: &[(&str, fn())] = &[
    ("process_environment_and_directory", environment_and_directory),
    ("process_directory_by_a_descriptor", directory_by_a_descriptor),
    ("process_users_and_groups", users_and_groups),
    ("process_unknown_user_and_group", unknown_user_and_group),
    ("process_user_reopens_its_output", user_reopens_its_output),
    ("process_rights_of_root", rights_of_root),
    ("process_rights_of_a_user", rights_of_a_user),
    ("process_new_privileges_when_allowed", new_privileges_when_allowed),
    ("process_privileged", privileged),
    ("process_filter_of_system_calls", filter_of_system_calls),
    ("process_filter_of_a_profile", filter_of_a_profile),
    ("process_apparmor_profile_that_is_not_loaded", apparmor_profile_that_is_not_loaded),
    ("process_apparmor_profile", apparmor_profile),
    ("process_signals_and_umask_are_reset", signals_and_umask_are_reset),
    ("process_no_descriptor_leaks", no_descriptor_leaks),
    ("process_limits", limits),
    ("process_limit_that_cannot_be_set", limit_that_cannot_be_set),
    ("process_limits_above_those_of_the_driver", limits_above_those_of_the_driver),
    ("process_oom_score", oom_score),
    ("process_init_reaps_and_forwards", init_reaps_and_forwards),
    ("process_init_shows_as_dockers", init_shows_as_dockers),
    ("process_init_reports_a_missing_command", init_reports_a_missing_command),
    ("process_terminal", terminal),
    ("process_terminal_keeps_the_last_output", terminal_keeps_the_last_output),
    ("process_host_name_and_sysctl", host_name_and_sysctl),
    ("process_private_network_has_loopback", private_network_has_loopback),
    ("process_missing_network_namespace", missing_network_namespace),
    ("process_namespaces_of_the_host", namespaces_of_the_host),
    ("process_mounts_show_its_own_namespaces", mounts_show_its_own_namespaces),
    ("process_binary_of_the_host_cannot_be_written", binary_of_the_host_cannot_be_written),
];

fn environment_and_directory() {
    let node = Node::new();
    let mut plan = node.plan("pwd; env");
    plan.cwd = "/srv/deep/er".to_owned();
    plan.env.push(("B".to_owned(), "two words".to_owned()));
    plan.env.push(("A".to_owned(), "x=y".to_owned()));
    let (_, out, _) = node.run(plan);
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.remove(0), "/srv/deep/er");
    lines.retain(|line| !line.starts_with("SHLVL=") && !line.starts_with("PWD=") && !line.starts_with("_="));
    lines.sort_unstable();
    assert_eq!(lines, ["A=x=y", "B=two words", "HOME=/root", "PATH=/bin:/usr/bin"]);
}

/// CVE-2024-21626: a working directory that names a descriptor of the starting process must not lead to the host.
fn directory_by_a_descriptor() {
    let node = Node::new();
    let etc = std::fs::File::open("/etc").expect("a directory of the host's");
    for number in 3..=12.max(std::os::fd::AsRawFd::as_raw_fd(&etc)) {
        let mut plan = node.plan("pwd; ls -d ./shadow ../shadow ../../../../../../etc/shadow");
        plan.cwd = format!("/proc/self/fd/{number}");
        // Most numbers are nothing's, so that the start fails; that is as good.
        if let Ok(mut container) = node.try_start(plan) {
            container.wait();
            let (out, err) = container.output();
            assert!(!out.contains("shadow"), "descriptor {number} leads out: {out} {err}");
        }
    }
}

fn users_and_groups() {
    let node = Node::new();
    for (user, groups, expected) in [
        ("", &[][..], "uid=0(root) gid=0(root) groups=0(root)"),
        ("web", &["video"][..], "uid=1000(web) gid=1000(web) groups=44(video),50(staff),1000(web)"),
        ("1000:50", &[][..], "uid=1000(web) gid=50(staff) groups=50(staff)"),
        ("4711", &["4712"][..], "uid=4711 gid=0(root) groups=0(root),4712"),
    ] {
        let mut plan = node.plan("id; echo $HOME");
        plan.user = user.to_owned();
        plan.groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let (_, out, err) = node.run(plan);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], expected, "{err}");
        let home = if user == "web" || user.starts_with("1000") {
            "/home/web"
        } else if user.is_empty() {
            "/root"
        } else {
            "/"
        };
        assert_eq!(lines[1], home);
    }
}

fn unknown_user_and_group() {
    let node = Node::new();
    let mut plan = node.plan("true");
    plan.user = "nobody-here".to_owned();
    let error = node.refuse(&plan);
    assert_eq!(error.kind, StartErrorKind::UnknownUser);
    assert!(error.message.contains("nobody-here") && error.message.contains("/etc/passwd"), "{error}");
    let mut plan = node.plan("true");
    plan.groups = vec!["no-group".to_owned()];
    let error = node.refuse(&plan);
    assert_eq!(error.kind, StartErrorKind::UnknownUser);
    assert!(error.message.contains("no-group"), "{error}");
}

fn user_reopens_its_output() {
    let node = Node::new();
    let mut plan = node.plan("echo one > /dev/stdout; echo two > /dev/stderr");
    plan.user = "web".to_owned();
    let (exit, out, err) = node.run(plan);
    assert_eq!((exit.exit_code, out.as_str(), err.as_str()), (0, "one\n", "two\n"));
}

/// CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID.
const PLANNED: &str = "00000000000000e1";
const NONE: &str = "0000000000000000";

fn rights_of_root() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100"));
    for (name, expected) in
        [("CapBnd", PLANNED), ("CapEff", PLANNED), ("CapPrm", PLANNED), ("CapInh", NONE), ("CapAmb", NONE)]
    {
        assert_eq!(container.status_field(name), expected, "{name}");
    }
    assert_eq!(container.status_field("NoNewPrivs"), "1");
}

fn rights_of_a_user() {
    let node = Node::new();
    let mut plan = node.plan("sleep 100");
    plan.user = "web".to_owned();
    let container = node.start(plan);
    for (name, expected) in
        [("CapBnd", PLANNED), ("CapEff", NONE), ("CapPrm", NONE), ("CapInh", NONE), ("CapAmb", NONE)]
    {
        assert_eq!(container.status_field(name), expected, "{name}");
    }
}

fn new_privileges_when_allowed() {
    let node = Node::new();
    let mut plan = node.plan("sleep 100");
    plan.user = "web".to_owned();
    plan.security.no_new_privileges = false;
    let container = node.start(plan);
    assert_eq!(container.status_field("NoNewPrivs"), "0");
    assert_eq!(container.status_field("CapBnd"), PLANNED);
    assert_eq!(container.status_field("CapEff"), NONE);
}

fn privileged() {
    let node = Node::new();
    let mut plan = node.plan("ls /dev/kmsg && mount -t tmpfs none /tmp && sleep 100");
    plan.security.privileged = true;
    plan.security.no_new_privileges = false;
    let container = node.start(plan);
    assert_eq!(container.status_field("NoNewPrivs"), "0");
    let own = fs::read_to_string("/proc/self/status").expect("our status");
    let own = own.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("a field").trim();
    assert_eq!(container.status_field("CapEff"), own);
    assert_eq!(container.status_field("Seccomp"), "0");
    eventually("its mount", || container.proc("mountinfo").contains(" /tmp "));
}

fn filter_of_system_calls() {
    let node = Node::new();
    for (user, new_privileges) in [("", false), ("web", false), ("", true), ("web", true)] {
        let mut plan = node.plan("unshare -U true && echo made; grep ^Seccomp: /proc/self/status; sleep 100");
        plan.user = user.to_owned();
        plan.security.no_new_privileges = !new_privileges;
        let mut container = node.start(plan.clone());
        assert_eq!(container.status_field("Seccomp"), "2");
        container.running.signal(libc::SIGKILL).expect("killed");
        container.wait();
        let (out, _) = container.output();
        assert!(!out.contains("made"), "a user namespace was made: {out}");
    }
    let mut plan = node.plan("unshare -U true && echo made");
    plan.security.seccomp = Seccomp::Unconfined;
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "made\n", "{err}");
}

/// The kernel enforces the filter of the plan's own profile, also for commands of exec. The bundle has it too.
fn filter_of_a_profile() {
    let node = Node::new();
    let profile = r#"{ "defaultAction": "SCMP_ACT_ALLOW", "archMap": [
        { "architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"] } ], "syscalls": [
        { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 36 },
        { "names": ["sethostname"], "action": "SCMP_ACT_ERRNO", "includes": { "caps": ["CAP_CHOWN"] } },
        { "names": ["kill"], "action": "SCMP_ACT_ERRNO", "excludes": { "caps": ["CAP_CHOWN"] } } ] }"#;
    let profile = SeccompProfile::from_json(profile.as_bytes()).expect("a profile");
    for (privileged, no_new_privileges) in [(false, true), (false, false), (true, false)] {
        let script =
            "mkdir /made; unshare -U true && echo namespace; kill -0 $$ && echo signal; hostname x; exec sleep 100";
        let mut plan = node.plan(script);
        plan.security.privileged = privileged;
        plan.security.no_new_privileges = no_new_privileges;
        plan.security.seccomp = Seccomp::Profile(profile.clone());
        let mut container = node.start(plan);
        assert_eq!(container.status_field("Seccomp"), "2");
        assert_eq!(container.status_field("NoNewPrivs"), if no_new_privileges { "1" } else { "0" });
        let bundle = node.directory.path().join("state/tasks").join(container.id().as_str()).join("bundle/config.json");
        let bundle: serde_json::Value = serde_json::from_slice(&fs::read(bundle).expect("a bundle")).expect("JSON");
        assert_eq!(bundle["linux"]["seccomp"]["syscalls"].as_array().map(Vec::len), Some(2), "{bundle}");
        eventually("its last command", || container.proc("cmdline").starts_with("sleep"));
        container.running.signal(libc::SIGKILL).expect("killed");
        container.wait();
        let (out, err) = container.output();
        assert_eq!(out, "namespace\nsignal\n", "{err}");
        assert!(err.contains("File name too long"), "the profile's errno: {err}");
        assert!(err.contains("hostname"), "{err}");
    }
}

/// A kernel without AppArmor cannot confine: the start says so instead of going on without.
fn apparmor_profile_that_is_not_loaded() {
    if fs::exists("/sys/module/apparmor").unwrap_or(false) {
        println!("skipped: this kernel has AppArmor");
        return;
    }
    let node = Node::new();
    let mut plan = node.plan("true");
    plan.security.apparmor = Some("web".to_owned());
    let error = node.refuse(&plan);
    assert_eq!(error.kind, StartErrorKind::Invalid);
    assert!(error.message.contains("AppArmor profile \"web\""), "{error}");
}

/// A profile in the kernel until it goes.
struct Loaded(String);

impl Loaded {
    /// Everything but two things, which the container's root could otherwise do.
    fn new(name: &str) -> Option<Self> {
        let text = format!(
            "profile {name} flags=(attach_disconnected, mediate_deleted) {{\n \
             file,\n capability,\n network,\n signal,\n ptrace,\n \
             deny /etc/secret r,\n deny /tmp/** w,\n}}\n"
        );
        parse_profile("--replace", &text).then_some(Self(text))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !parse_profile("--remove", &self.0) {
            println!("a profile stays in the kernel: {}", self.0);
        }
    }
}

fn parse_profile(action: &str, text: &str) -> bool {
    use std::{io::Write, process::Stdio};
    let mut parser = std::process::Command::new("apparmor_parser");
    let started = parser.args([action, "--skip-cache"]).stdin(Stdio::piped()).spawn();
    started.is_ok_and(|mut parser| {
        let mut stdin = parser.stdin.take().expect("its input");
        stdin.write_all(text.as_bytes()).expect("a profile");
        drop(stdin);
        parser.wait().expect("its end").success()
    })
}

/// A profile confines the command, even root with all capabilities, and every command of exec.
fn apparmor_profile() {
    if !fs::exists("/sys/kernel/security/apparmor").unwrap_or(false) {
        println!("skipped: this kernel does not use AppArmor, or does not show it in /sys/kernel/security");
        return;
    }
    let name = format!("oci-rs-test-{}", std::process::id());
    let Some(_loaded) = Loaded::new(&name) else {
        println!("skipped: there is no apparmor_parser here that could load a profile");
        return;
    };
    let node = Node::new();
    fs::write(node.directory.path().join("layer/etc/secret"), "secret\n").expect("written");
    let script =
        "cat /etc/secret; echo x > /tmp/x; cat /proc/self/attr/current; echo x > /etc/x && echo wrote; exec sleep 100";
    for (user, no_new_privileges, init) in
        [("", true, false), ("web", true, false), ("", false, false), ("", true, true)]
    {
        let mut plan = node.plan(script);
        plan.user = user.to_owned();
        plan.init = init;
        plan.security.no_new_privileges = no_new_privileges;
        plan.security.capabilities = vec!["CAP_DAC_OVERRIDE".to_owned(), "CAP_DAC_READ_SEARCH".to_owned()];
        plan.security.apparmor = Some(name.clone());
        let mut container = node.start(plan);
        let pid = container.running.init.pid;
        let command =
            if init { container.proc(&format!("task/{pid}/children")).trim().to_owned() } else { pid.to_string() };
        let confined = format!("{name} (enforce)\n");
        for process in [&command, &pid.to_string()] {
            assert_eq!(fs::read_to_string(format!("/proc/{process}/attr/current")).expect("a profile"), confined);
        }
        let later = "cat /proc/self/attr/current; cat /etc/secret || echo refused";
        let (_, out, err) = super::exec::Piped::shell(&node, &container, later).finish();
        assert_eq!(out, format!("{confined}refused\n"), "{err}");
        eventually("its last command", || {
            fs::read_to_string(format!("/proc/{command}/cmdline")).is_ok_and(|text| text.starts_with("sleep"))
        });
        container.running.signal(libc::SIGKILL).expect("killed");
        container.wait();
        let (out, err) = container.output();
        assert_eq!(out, if user.is_empty() { format!("{confined}wrote\n") } else { confined }, "{err}");
        assert!(err.matches("Permission denied").count() >= 2, "{err}");
    }
    let mut plan = node.plan("true");
    plan.security.apparmor = Some("oci-rs-test-nobody-loaded".to_owned());
    let error = node.refuse(&plan);
    assert_eq!(error.kind, StartErrorKind::Invalid);
    assert_eq!(error.message, "AppArmor profile \"oci-rs-test-nobody-loaded\" is not loaded on this node");
}

fn signals_and_umask_are_reset() {
    let node = Node::new();
    let mut plan = node.plan("");
    plan.args = ["sleep", "100"].map(str::to_owned).to_vec();
    let container = node.start(plan);
    for name in ["SigBlk", "SigIgn", "ShdPnd"] {
        assert_eq!(container.status_field(name), NONE, "{name}");
    }
    assert_eq!(container.status_field("Umask"), "0022");
}

fn no_descriptor_leaks() {
    let node = Node::new();
    for init in [false, true] {
        let mut plan = node.plan("");
        plan.init = init;
        plan.args = ["sleep", "100"].map(str::to_owned).to_vec();
        let container = node.start(plan);
        let pid = container.running.init.pid;
        let command =
            if init { container.proc(&format!("task/{pid}/children")).trim().to_owned() } else { pid.to_string() };
        let count = |pid: &str| fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
        eventually("only the standard streams", || count(&command) == 3);
        if init {
            eventually("no descriptor in the init", || count(&pid.to_string()) == 0);
        }
        assert_eq!(
            container.proc("environ").split('\0').filter(|one| one.starts_with("PATH=")).count(),
            usize::from(!init)
        );
    }
}

fn limits() {
    let node = Node::new();
    let mut plan = node.plan("ulimit -Sn; ulimit -Hn; ulimit -c");
    plan.rlimits.insert("nofile".to_owned(), Rlimit { soft: 20, hard: 40 });
    plan.rlimits.insert("core".to_owned(), Rlimit { soft: 0, hard: 0 });
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "20\n40\n0\n", "{err}");
    // So small that no container could be made under them: they come last.
    let mut plan = node.plan("ulimit -n; ulimit -f; ulimit -v");
    for (name, value) in [("nofile", 3), ("fsize", 0), ("as", 48 << 20), ("nice", 0), ("locks", 0), ("memlock", 0)] {
        plan.rlimits.insert(name.to_owned(), Rlimit { soft: value, hard: value });
    }
    let (_, out, err) = node.run(plan);
    assert_eq!(out, "3\n0\n49152\n", "{err}");
}

/// Whether we may raise our own limits, as root of a whole machine may.
fn may_raise() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").expect("our status");
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a field");
    u64::from_str_radix(held.trim(), 16).expect("a mask") & (1 << SYS_RESOURCE) != 0
}

/// What takes a capability works where we hold it, and is an error that names it where not.
fn limits_above_those_of_the_driver() {
    let node = Node::new();
    let own = rustix::process::getrlimit(rustix::process::Resource::Msgqueue).maximum.expect("Linux has a limit");
    let mut higher = node.plan("grep msgqueue /proc/self/limits | tr -s ' ' | cut -d ' ' -f 5");
    higher.rlimits.insert("msgqueue".to_owned(), Rlimit { soft: 1, hard: own + 1 });
    let mut protected = node.plan("cat /proc/self/oom_score_adj");
    protected.oom_score_adj = -500;
    if may_raise() {
        assert_eq!(node.run(higher).1, format!("{}\n", own + 1));
        assert_eq!(node.run(protected).1, "-500\n");
        return;
    }
    for (plan, option) in [(higher, "ulimit msgqueue"), (protected, "oom_score_adj -500")] {
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::Invalid);
        assert!(error.message.starts_with(option) && error.message.contains("CAP_SYS_RESOURCE"), "{error}");
    }
}

fn limit_that_cannot_be_set() {
    let node = Node::new();
    let mut plan = node.plan("true");
    plan.rlimits.insert("nofile".to_owned(), Rlimit { soft: 30, hard: 20 });
    let error = node.refuse(&plan);
    assert_eq!(error.kind, StartErrorKind::Invalid);
    assert!(error.message.contains("nofile"), "{error}");
    let mut plan = node.plan("true");
    plan.rlimits.insert("nothing".to_owned(), Rlimit { soft: 1, hard: 1 });
    assert!(node.refuse(&plan).message.contains("nothing"));
}

fn oom_score() {
    let node = Node::new();
    let mut plan = node.plan("cat /proc/self/oom_score_adj");
    plan.oom_score_adj = 321;
    assert_eq!(node.run(plan).1, "321\n");
    let container = node.start(node.plan("sleep 100"));
    let own = fs::read_to_string("/proc/self/oom_score_adj").expect("our score");
    assert_eq!(
        container.proc("oom_score_adj"),
        if own.trim().starts_with('-') { "0\n".to_owned() } else { own.clone() }
    );
    let monitor =
        fs::read_to_string(format!("/proc/{}/oom_score_adj", container.running.monitor.pid)).expect("a score");
    assert_eq!(monitor, own, "the monitor keeps ours");
}

fn init_reaps_and_forwards() {
    let node = Node::new();
    let script = "(sleep 0.1 &) ; trap 'echo got; exit 9' TERM; echo $$; while :; do sleep 0.05; done";
    let mut plan = node.plan(script);
    plan.init = true;
    let mut container = node.start(plan);
    let zombies = || {
        let pid = container.running.init.pid;
        let children = container.proc(&format!("task/{pid}/children"));
        let is_zombie =
            |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
        children.split_whitespace().filter(|pid| is_zombie(pid)).count()
    };
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(zombies(), 0);
    container.running.signal(libc::SIGTERM).expect("sent");
    let exit = container.wait();
    assert_eq!((exit.exit_code, exit.signal), (9, 0));
    let out = container.output().0;
    assert_eq!(out.lines().next(), Some("2"), "the command is not process 1");
    assert!(out.contains("got"));
    let mut plan = node.plan("kill -9 $$");
    plan.init = true;
    assert_eq!(node.run(plan).0.exit_code, 137);
}

/// Programs find docker's init by its name and its command line. Ours shows the same, and nothing of the node.
fn init_shows_as_dockers() {
    let node = Node::new();
    let mut plan = node.plan("cat /proc/1/comm; tr '\\0' ' ' < /proc/1/cmdline");
    plan.init = true;
    let (_, out, err) = node.run(plan);
    let expected = "docker-init\n/sbin/docker-init -- /bin/sh -c cat /proc/1/comm; tr '\\0' ' ' < /proc/1/cmdline";
    assert_eq!(out.trim_end(), expected, "{err}");
}

fn init_reports_a_missing_command() {
    let node = Node::new();
    let mut plan = node.plan("");
    plan.init = true;
    plan.args = vec!["missing".to_owned()];
    assert_eq!(node.refuse(&plan).kind, StartErrorKind::CommandNotFound);
}

fn terminal() {
    let node = Node::new();
    for init in [false, true] {
        let mut plan = node.plan("tty; readlink /proc/self/fd/2; stty size; stat -c %u $(tty); echo err >&2; id -u");
        plan.terminal = true;
        plan.init = init;
        plan.user = "web".to_owned();
        let (exit, out, err) = node.run(plan);
        assert_eq!((exit.exit_code, err.as_str()), (0, ""));
        assert_eq!(out, "/dev/pts/0\r\n/dev/pts/0\r\n24 80\r\n1000\r\nerr\r\n1000\r\n");
    }
}

fn terminal_keeps_the_last_output() {
    let node = Node::new();
    let mut plan = node.plan("seq 1 30000");
    plan.terminal = true;
    let (exit, out, _) = node.run(plan);
    assert_eq!(exit.exit_code, 0);
    assert_eq!(out.lines().count(), 30000);
    assert!(out.ends_with("30000\r\n"));
}

fn host_name_and_sysctl() {
    let node = Node::new();
    let mut plan = node.plan("hostname; cat /proc/sys/net/core/somaxconn");
    plan.hostname = Some("box".to_owned());
    plan.sysctl.insert("net.core.somaxconn".to_owned(), "77".to_owned());
    assert_eq!(node.run(plan).1, "box\n77\n");
    let mut plan = node.plan("true");
    plan.sysctl.insert("kernel.panic".to_owned(), "1".to_owned());
    let error = node.refuse(&plan);
    assert!(error.message.contains("kernel.panic"), "{error}");
    let mut plan = node.plan("true");
    plan.hostname = Some("box".to_owned());
    plan.namespaces.private_uts = false;
    assert!(node.refuse(&plan).message.contains("hostname"));
}

fn private_network_has_loopback() {
    let node = Node::new();
    let (_, out, _) = node.run(node.plan("ifconfig lo"));
    assert!(out.contains("UP LOOPBACK RUNNING") && out.contains("127.0.0.1"), "{out}");
}

fn missing_network_namespace() {
    let node = Node::new();
    let mut plan = node.plan("true");
    for (path, problem) in [("/run/netns/no-such-namespace", "No such file"), ("/etc/passwd", "not a namespace")] {
        plan.namespaces.network = Network::Path(path.into());
        let error = node.refuse(&plan);
        assert!(error.message.contains(path) && error.message.contains(problem), "{error}");
    }
}

fn namespaces_of_the_host() {
    let node = Node::new();
    let mut plan = node.plan("for n in pid net ipc uts cgroup; do readlink /proc/self/ns/$n; done");
    plan.namespaces.network = Network::Host;
    plan.namespaces.private_pid = false;
    plan.namespaces.private_ipc = false;
    plan.namespaces.private_uts = false;
    plan.namespaces.private_cgroup = false;
    let (_, out, err) = node.run(plan);
    let own = ["pid", "net", "ipc", "uts", "cgroup"]
        .map(|name| fs::read_link(format!("/proc/self/ns/{name}")).expect("a link").to_string_lossy().into_owned());
    assert_eq!(out.lines().collect::<Vec<_>>(), own, "{err}");
    let (_, out, _) = node.run(node.plan("for n in pid net ipc uts cgroup mnt; do readlink /proc/self/ns/$n; done"));
    assert!(own.iter().all(|name| !out.contains(name.as_str())));
    let mut plan = node.plan("readlink /proc/self/ns/net");
    plan.namespaces.network = Network::Path("/proc/self/ns/net".into());
    // libcontainer resolves the path in its own process, which is in our network namespace.
    assert_eq!(node.run(plan).1.trim(), own[1]);
}

/// What a mount of sysfs, mqueue or proc shows is decided when the mount is made. Each network namespace has a sysfs of
/// its own, and each IPC namespace an mqueue of its own. So the device numbers of the mounts identify the namespaces.
fn mounts_show_its_own_namespaces() {
    let node = Node::new();
    let holder = NetworkHolder::new();
    let script = "stat -c %d /sys; stat -c %d /dev/mqueue; [ -e /proc/$$/stat ] && echo own processes; \
                  ls /sys/class/net | sort; echo --; tail -n +3 /proc/net/dev | sed 's/:.*//; s/ *//' | sort";
    // The file systems of /sys and of /dev/mqueue.
    let shown = |network: Network, private_ipc: bool, change: fn(&mut ContainerPlan)| {
        let case = format!("{network:?}, private IPC: {private_ipc}");
        let mut plan = node.plan(script);
        plan.namespaces.network = network;
        plan.namespaces.private_ipc = private_ipc;
        change(&mut plan);
        let (exit, out, err) = node.run(plan);
        assert_eq!((exit.exit_code, err.as_str()), (0, ""), "{case}: {out}");
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[2], "own processes", "{case}: {out}");
        let (by_sysfs, by_network) = out
            .split_once("own processes\n")
            .and_then(|(_, rest)| rest.split_once("--\n"))
            .expect("two lists of interfaces");
        // The file of the driver of bonds is no interface.
        let by_sysfs = by_sysfs.replace("bonding_masters\n", "");
        assert_eq!(by_sysfs, by_network, "{case}: the interfaces of another network namespace");
        [lines[0].to_owned(), lines[1].to_owned()]
    };
    let [of_node, queues_of_node] = shown(Network::Host, false, |_| ());
    assert_eq!(of_node, fs::metadata("/sys").expect("a sysfs").dev().to_string());
    let changes: [fn(&mut ContainerPlan); 5] = [
        |_| (),
        |plan| plan.security.privileged = true,
        |plan| plan.root.readonly = true,
        |plan| plan.namespaces.private_pid = false,
        |plan| plan.namespaces.private_cgroup = false,
    ];
    for change in changes {
        for network in [Network::Path(holder.path()), Network::Private] {
            let [sysfs, queues] = shown(network, true, change);
            assert!(sysfs != of_node && queues != queues_of_node);
        }
        assert_eq!(shown(Network::Host, false, change), [of_node.clone(), queues_of_node.clone()]);
    }
}

/// If process 1 of a container is our binary, the container finds the file through /proc. It must not be able to change
/// it.
fn binary_of_the_host_cannot_be_written() {
    let node = Node::new();
    let mut plan =
        node.plan("for try in 1 2 3; do echo x > /proc/1/exe && echo written; done; echo x > /proc/self/exe; true");
    plan.init = true;
    plan.security.capabilities = ["CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"].map(str::to_owned).to_vec();
    let (_, out, _) = node.run(plan);
    assert!(!out.contains("written"), "{out}");
}
