//! The binary as a dynamic host volume plugin: `oci-rs-volume` in Nomad's `host_volume_plugin_dir`.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use fixtures::{must::Must, program};
use kit::{node::Node, plugin::binary};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::host_volume_copies::grows_ext4;

pub const ID: &str = "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01";
pub const MEBIBYTE: u64 = 1 << 20;
pub const POINT: &str = "OCI_RS_FAILPOINT";
const TRACE: &str = "OCI_RS_FAILPOINT_TRACE";

/// The volumes of one client.
pub struct Client {
    root: TempDir,
    /// Where plugins leave their directories for commands.
    run: Option<PathBuf>,
    /// A volume that the test does not remove.
    kept: Option<&'static str>,
}

/// The specification of a volume.
#[derive(Clone)]
pub struct Spec {
    pub id: &'static str,
    pub min: u64,
    pub max: u64,
    pub parameters: Json,
}

impl Spec {
    pub fn directory(parameters: Json) -> Self {
        Self { id: ID, min: 0, max: 0, parameters }
    }

    pub fn limited(min: u64, max: u64) -> Self {
        Self { id: ID, min, max, parameters: Json::Null }
    }
}

/// The answer to a call.
pub struct Said(pub Output);

impl Said {
    #[track_caller]
    pub fn well(&self) -> Json {
        assert!(self.0.status.success(), "{:?}", self.0);
        serde_json::from_slice(&self.0.stdout).unwrap_or(Json::Null)
    }

    /// The reason of a refusal. Standard error and the answer contain the same.
    #[track_caller]
    pub fn refusal(&self) -> String {
        assert_eq!(self.0.status.code(), Some(1), "{:?}", self.0);
        let answer: Json = serde_json::from_slice(&self.0.stdout).must("JSON");
        let reason = answer["error"].as_str().must("a reason").to_owned();
        assert!(String::from_utf8_lossy(&self.0.stderr).contains(&reason), "{:?}", self.0);
        reason
    }
}

impl Client {
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// A client whose volumes are in memory, for tests that make many: nothing waits for a disk.
    pub fn in_memory() -> Self {
        Self::below(Path::new("/dev/shm"))
    }

    /// A client whose volumes are in this directory.
    pub fn below(directory: &Path) -> Self {
        let root = TempDir::with_prefix_in("oci-rs-volumes-", directory).must("a directory");
        fs::create_dir(root.path().join("plugins")).must("a directory");
        symlink(binary(), root.path().join("plugins/oci-rs-volume")).must("a link");
        let run = Some(root.path().join("run"));
        Self { root, run, kept: None }
    }

    /// The client of a node, on which a driver's plugin works.
    pub fn on(mut self, node: &Node) -> Self {
        self.run = Some(node.root().join("run"));
        self
    }

    /// A client that keeps this volume while others are made and removed.
    pub fn keeping(mut self, id: &'static str) -> Self {
        self.kept = Some(id);
        self
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn plugins(&self) -> PathBuf {
        self.root.path().join("plugins")
    }

    pub fn volumes(&self) -> PathBuf {
        self.root.path().join("host_volumes")
    }

    pub fn path(&self, id: &str) -> PathBuf {
        self.volumes().join(id)
    }

    /// A call as Nomad makes it.
    pub fn command(&self, operation: &str, spec: &Spec) -> Command {
        let mut command = Command::new(self.root.path().join("plugins/oci-rs-volume"));
        command.arg(operation).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("DHV_OPERATION", operation);
        command.envs(self.run.iter().map(|run| ("OCI_RS_RUN_DIR", run)));
        command.env("DHV_VOLUMES_DIR", self.volumes()).env("DHV_PLUGIN_DIR", self.root.path().join("plugins"));
        command.env("DHV_NAMESPACE", "default").env("DHV_VOLUME_NAME", "db").env("DHV_VOLUME_ID", spec.id);
        command.env("DHV_NODE_ID", "node").env("DHV_NODE_POOL", "default");
        command.env("DHV_PARAMETERS", spec.parameters.to_string());
        match operation {
            "create" => {
                command.env("DHV_CAPACITY_MIN_BYTES", spec.min.to_string());
                command.env("DHV_CAPACITY_MAX_BYTES", spec.max.to_string())
            }
            // What Nomad sends if it could not save the volume.
            _ => command.env("DHV_CREATED_PATH", self.volumes()),
        };
        command
    }

    pub fn create(&self, spec: &Spec) -> Said {
        Said(self.command("create", spec).output().must("create"))
    }

    pub fn delete(&self, spec: &Spec) -> Said {
        Said(self.command("delete", spec).output().must("delete"))
    }

    /// The mounts at the volume's path.
    pub fn mounts(&self, id: &str) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").must("the mounts");
        let path = self.path(id).display().to_string();
        table.lines().filter(|line| line.split(' ').nth(4) == Some(&path)).map(str::to_owned).collect()
    }

    /// The loop devices with files of this client.
    pub fn devices(&self) -> Vec<String> {
        let mut devices = Vec::new();
        for entry in fs::read_dir("/sys/block").must("the devices").flatten() {
            let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            let is_kept = self.kept.is_some_and(|id| file.contains(id));
            if Path::new(&file).starts_with(self.root.path()) && !is_kept {
                devices.push(format!("{}: {}", entry.file_name().display(), file.trim()));
            }
        }
        devices
    }

    /// The directories that the plugin has for volumes.
    pub fn own(&self) -> Vec<String> {
        let entries = fs::read_dir(self.volumes().join(".oci-rs")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Nothing of any volume is left.
    #[track_caller]
    pub fn assert_empty(&self) {
        let names = |directory: PathBuf| -> Vec<_> {
            fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
        };
        let mut left = names(self.volumes());
        left.retain(|name| name != ".oci-rs");
        left.extend(names(self.volumes().join(".oci-rs")));
        left.retain(|name| self.kept.is_none_or(|kept| name != kept));
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(self.mounts(ID), Vec::<String>::new());
        // The kernel may let go of a device a moment later.
        let end = Instant::now() + Duration::from_secs(20);
        while !self.devices().is_empty() {
            assert!(Instant::now() < end, "{:?}", self.devices());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.volumes()).into_iter().flatten().flatten() {
            unmount(entry.path(), UnmountFlags::DETACH).ok();
        }
    }
}

/// Mode, owner and group of a file.
fn attributes(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).must("a file");
    (found.mode() & 0o7777, found.uid(), found.gid())
}

/// Writes this number of mebibytes; how many found room.
fn fill(path: &Path, mebibytes: usize) -> usize {
    let mut file = File::create(path).must("a file");
    let block = vec![b'x'; 1 << 20];
    for written in 0..mebibytes {
        if let Err(error) = file.write_all(&block).and_then(|()| file.sync_data()) {
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            return written;
        }
    }
    mebibytes
}

#[test]
fn nomad_finds_the_plugin_by_its_version() {
    let client = Client::new();
    let program = client.root.path().join("plugins/oci-rs-volume");
    let fingerprint = |command: &mut Command| Said(command.env_clear().output().must("fingerprint")).well();
    let answer = fingerprint(Command::new(&program).arg("fingerprint"));
    let version = answer["version"].as_str().must("a version");
    assert!(version.split('.').count() == 3 && answer.as_object().map(serde_json::Map::len) == Some(1), "{answer}");
    // The variable is enough, also under another name.
    for program in [program.clone(), binary()] {
        let named = Command::new(program).env_clear().env("DHV_OPERATION", "fingerprint").output().must("fingerprint");
        assert_eq!(Said(named).well(), answer);
    }
    let unknown = Said(Command::new(&program).arg("resize").env_clear().output().must("a refusal"));
    assert!(unknown.refusal().contains("\"resize\" is no operation"));
}

#[test]
fn a_volume_without_a_capacity_is_a_directory() {
    let client = Client::new();
    let spec = Spec::directory(json!({"uid": "1000", "gid": "50", "mode": "02750"}));
    let made = client.create(&spec).well();
    assert_eq!(made, json!({"path": client.path(ID), "bytes": 0}));
    assert_eq!(attributes(&client.path(ID)), (0o2750, 1000, 50));
    fs::write(client.path(ID).join("file"), "kept").must("written");
    // The agent repeats the call when it starts.
    assert_eq!(client.create(&spec).well(), made);
    assert_eq!(fs::read_to_string(client.path(ID).join("file")).must("the file"), "kept");
    let other = Spec { id: "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d02", ..Spec::directory(Json::Null) };
    client.create(&other).well();
    assert_eq!(attributes(&client.path(other.id)), (0o700, 0, 0));
    assert!(client.create(&Spec::limited(0, 64 * MEBIBYTE)).refusal().contains("made without a limit"));
    for _ in 0..2 {
        client.delete(&spec).well();
    }
    assert!(!client.path(ID).exists() && client.path(other.id).exists());
    client.delete(&other).well();
    client.assert_empty();
}

#[test]
fn a_capacity_is_a_limit_and_survives_an_unmount() {
    let client = Client::in_memory();
    let kinds = fs::read_to_string("/proc/filesystems").must("the file systems");
    for (kind, min, max) in [("ext4", 8, 32), ("ext4", 12, 12), ("ext4", 0, 16), ("xfs", 0, 320)] {
        if !kinds.contains(kind) || program::find(&format!("mkfs.{kind}")).is_none() {
            continue;
        }
        let spec = Spec {
            parameters: json!({"fs": kind, "uid": "7", "gid": "8", "mode": "0770"}),
            ..Spec::limited(min * MEBIBYTE, max * MEBIBYTE)
        };
        let made = client.create(&spec).well();
        let path = client.path(ID);
        let bytes = made["bytes"].as_u64().must("bytes");
        // A file system has no room for the maximum besides its own structures.
        let least = if min < max { min } else { max / 2 };
        assert!((least * MEBIBYTE..=max * MEBIBYTE).contains(&bytes), "{kind} {min} to {max}: {bytes}");
        assert_eq!(attributes(&path), (0o770, 7, 8));
        assert_eq!(fs::read_dir(&path).must("listed").count(), 0, "{kind}");
        let [mounted] = &client.mounts(ID)[..] else { panic!("{:?}", client.mounts(ID)) };
        assert!(mounted.contains("nosuid") && mounted.contains("nodev"), "{mounted}");
        fs::write(path.join("file"), "kept").must("written");
        let room = fill(&path.join("big"), 400);
        assert!(room as u64 >= least && (room as u64) < max, "{kind} {min} to {max}: {room}");
        fs::remove_file(path.join("big")).must("removed");
        // The agent repeats the call when it starts: nothing changes, also after a reboot.
        for is_reboot in [false, true] {
            if is_reboot {
                unmount(&path, UnmountFlags::empty()).must("unmounted");
            }
            assert_eq!(client.create(&spec).well(), made);
            assert_eq!((client.mounts(ID).len(), client.devices().len()), (1, 1));
            assert_eq!(fs::read_to_string(path.join("file")).must("the file"), "kept");
        }
        client.delete(&spec).well();
        client.assert_empty();
    }
}

#[test]
fn a_larger_capacity_makes_a_volume_larger_while_it_is_used() {
    let client = Client::in_memory();
    let kinds = fs::read_to_string("/proc/filesystems").must("the file systems");
    for (kind, first, later) in [("ext4", (0, 16), (0, 64)), ("ext4", (8, 32), (48, 96)), ("xfs", (0, 320), (0, 640))] {
        if !kinds.contains(kind) || program::find(&format!("mkfs.{kind}")).is_none() {
            continue;
        }
        let of = |(min, max)| Spec { parameters: json!({"fs": kind}), ..Spec::limited(min * MEBIBYTE, max * MEBIBYTE) };
        let before = client.create(&of(first)).well()["bytes"].as_u64().must("bytes");
        if kind == "ext4" && !grows_ext4() {
            let refusal = client.create(&of(later)).refusal();
            assert!(refusal.contains("give Nomad's agent the capability SYS_RESOURCE"), "{refusal}");
            assert_eq!(client.create(&of(first)).well()["bytes"], before);
            client.delete(&of(first)).well();
            client.assert_empty();
            continue;
        }
        let path = client.path(ID);
        // The open file is a use of the volume.
        let mut file = File::create(path.join("file")).must("a file");
        let grown = client.create(&of(later)).well();
        let after = grown["bytes"].as_u64().must("bytes");
        let least = if later.0 > 0 { later.0 } else { later.1 * 3 / 4 };
        let range = least * MEBIBYTE..=later.1 * MEBIBYTE;
        assert!(range.contains(&after) && after > before, "{kind}: {before}, {after}");
        file.write_all(b"kept").must("written");
        let room = fill(&path.join("big"), 700) as u64;
        assert!(room * MEBIBYTE > before && room < later.1, "{kind}: {room} MiB");
        fs::remove_file(path.join("big")).must("removed");
        drop(file);
        for is_reboot in [false, true] {
            if is_reboot {
                unmount(&path, UnmountFlags::empty()).must("unmounted");
            }
            assert_eq!(client.create(&of(later)).well(), grown);
            assert_eq!((client.mounts(ID).len(), client.devices().len()), (1, 1));
            assert_eq!(fs::read_to_string(path.join("file")).must("the file"), "kept");
        }
        let refusal = client.create(&of(first)).refusal();
        assert!(refusal.contains("cannot become smaller"), "{refusal}");
        client.delete(&of(later)).well();
        client.assert_empty();
    }
}

#[test]
fn a_read_only_volume_cannot_become_larger() {
    let client = Client::in_memory();
    let of = |mebibytes: u64| Spec {
        parameters: json!({"read_only": "true"}),
        ..Spec::limited(mebibytes * MEBIBYTE, mebibytes * MEBIBYTE)
    };
    client.create(&of(16)).well();
    let refusal = client.create(&of(32)).refusal();
    assert!(refusal.contains("cannot become larger because it is read-only"), "{refusal}");
    client.create(&of(16)).well();
    client.delete(&of(16)).well();
    client.assert_empty();
}

#[test]
fn a_killed_growth_is_mended_by_the_next_call() {
    let kinds = fs::read_to_string("/proc/filesystems").must("the file systems");
    for (kind, first, later) in [("ext4", 16, 32), ("xfs", 320, 640)] {
        let is_there = kinds.contains(kind) && program::find(&format!("mkfs.{kind}")).is_some();
        if is_there && (kind != "ext4" || grows_ext4()) {
            let of = |max: u64| Spec { parameters: json!({"fs": kind}), ..Spec::limited(0, max * MEBIBYTE) };
            kill_growth(&Client::in_memory(), &of(first), &of(later));
        }
    }
}

/// Kills the growth of a volume at each failpoint that it passes.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub fn kill_growth(client: &Client, first: &Spec, later: &Spec) {
    client.create(first).well();
    let passed = points(client, "create", later);
    let expected = client.create(later).well();
    client.delete(later).well();
    if passed.is_empty() {
        return println!("skipped: this is a release build");
    }
    assert!(passed.iter().any(|point| point == "volume-before-growth"), "{passed:?}");
    for point in passed {
        client.create(first).well();
        fs::write(client.path(ID).join("file"), "kept").must("written");
        let killed = client.command("create", later).env(POINT, &point).output().must("a call");
        assert_eq!(killed.status.code(), None, "{point}: {killed:?}");
        assert_eq!(client.create(later).well(), expected, "{point}");
        assert_eq!(fs::read_to_string(client.path(ID).join("file")).must("the file"), "kept", "{point}");
        client.delete(later).well();
        client.assert_empty();
    }
}

/// A second loop device with the file would destroy the file system.
#[test]
fn a_volume_that_is_mounted_elsewhere_gets_no_second_device() {
    let client = Client::new();
    let spec = Spec::limited(0, 16 * MEBIBYTE);
    client.create(&spec).well();
    let mut elsewhere = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .must("unshare");
    let mut ready = [0];
    std::io::Read::read_exact(elsewhere.stdout.as_mut().must("a pipe"), &mut ready).must("another namespace");
    unmount(client.path(ID), UnmountFlags::empty()).must("unmounted");
    let again = client.create(&spec);
    let seen = PathBuf::from(format!("/proc/{}/root{}", elsewhere.id(), client.path(ID).display()));
    fs::write(client.path(ID).join("file"), "same").must("written");
    let read = fs::read_to_string(seen.join("file"));
    let devices = client.devices();
    elsewhere.kill().must("killed");
    elsewhere.wait().must("ended");
    again.well();
    assert_eq!(devices.len(), 1, "{devices:?}");
    assert_eq!(read.must("the file"), "same");
    client.delete(&spec).well();
    client.assert_empty();
}

#[test]
fn a_refusal_names_the_parameter_and_leaves_nothing() {
    let client = Client::new();
    for (spec, part) in [
        (Spec::directory(json!({"owner": "root"})), "parameter owner: there is no such parameter"),
        (Spec::directory(json!({"uid": "root"})), "parameter uid"),
        (Spec::directory(json!({"encryption": "luks"})), "parameter encryption: give key_file"),
        (Spec::directory(json!({"fs": "ext4"})), "give capacity_max"),
        (Spec::limited(0, 4096), "capacity_max: 4096 bytes are too few for ext4"),
        (Spec { id: "../../../../../../../../../etc/passwd", ..Spec::directory(Json::Null) }, "DHV_VOLUME_ID"),
    ] {
        let refusal = client.create(&spec).refusal();
        assert!(refusal.contains(part), "{refusal}");
        client.assert_empty();
    }
}

#[test]
fn a_directory_of_another_program_is_left_alone() {
    let client = Client::new();
    fs::create_dir_all(client.path(ID)).must("a directory");
    fs::write(client.path(ID).join("file"), "kept").must("written");
    for spec in [Spec::directory(Json::Null), Spec::limited(0, 16 * MEBIBYTE)] {
        for said in [client.create(&spec), client.delete(&spec)] {
            let refusal = said.refusal();
            assert!(refusal.contains("has no record of it") && refusal.contains(ID), "{refusal}");
        }
    }
    assert_eq!(fs::read_to_string(client.path(ID).join("file")).must("the file"), "kept");
    fs::remove_dir_all(client.path(ID)).must("removed");
    client.assert_empty();
}

#[test]
fn lost_data_are_an_error_and_no_empty_volume() {
    let client = Client::new();
    for (spec, data) in [
        (Spec::directory(Json::Null), client.path(ID)),
        (Spec::limited(0, 16 * MEBIBYTE), client.volumes().join(".oci-rs").join(ID).join("volume.ext4")),
    ] {
        client.create(&spec).well();
        unmount(client.path(ID), UnmountFlags::empty()).ok();
        fs::rename(&data, client.root.path().join("elsewhere")).must("moved");
        let refusal = client.create(&spec).refusal();
        assert!(refusal.contains("the data of the volume are gone"), "{refusal}");
        fs::rename(client.root.path().join("elsewhere"), &data).must("moved");
        client.create(&spec).well();
        client.delete(&spec).well();
        client.assert_empty();
    }
}

#[test]
fn concurrent_calls_make_one_volume_and_remove_it_once() {
    let client = Client::in_memory();
    for spec in [Spec::limited(0, 16 * MEBIBYTE), Spec::directory(Json::Null)] {
        let at_once = |operation: &str| -> Vec<Json> {
            let start = || client.command(operation, &spec).spawn().must("a call");
            let calls: Vec<Child> = (0..6).map(|_| start()).collect();
            calls.into_iter().map(|call| Said(call.wait_with_output().must("an end")).well()).collect()
        };
        let answers: BTreeSet<String> = at_once("create").iter().map(Json::to_string).collect();
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert!(client.mounts(ID).len() <= 1 && client.path(ID).is_dir());
        at_once("delete");
        client.assert_empty();
    }
}

/// The failpoints that a call passes, in their order.
fn points(client: &Client, operation: &str, spec: &Spec) -> Vec<String> {
    let trace = client.root.path().join("trace");
    fs::remove_file(&trace).ok();
    Said(client.command(operation, spec).env(TRACE, &trace).output().must("a call")).well();
    let text = fs::read_to_string(&trace).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// What the volume is after any call: usable, and removable without a trace.
#[track_caller]
fn assert_sound(client: &Client, spec: &Spec) {
    let made = client.create(spec).well();
    assert_eq!(made["path"], json!(client.path(ID)));
    if spec.parameters["read_only"] != "true" {
        fs::write(client.path(ID).join("file"), "x").must("written");
    }
    assert!(client.mounts(ID).len() <= 1, "{:?}", client.mounts(ID));
    client.delete(spec).well();
    client.assert_empty();
}

#[test]
fn a_kill_at_any_failpoint_is_mended_by_the_next_call() {
    kill_at_each_failpoint(&Client::in_memory(), &[Spec::limited(0, 16 * MEBIBYTE), Spec::directory(Json::Null)]);
}

/// Kills `create` and `delete` of these volumes at each failpoint that they pass.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub fn kill_at_each_failpoint(client: &Client, specs: &[Spec]) {
    for spec in specs {
        // What the first call of a node does once is not part of it.
        client.create(spec).well();
        client.delete(spec).well();
        let passed = [points(client, "create", spec), points(client, "delete", spec)];
        if passed.iter().any(Vec::is_empty) {
            return println!("skipped: this is a release build");
        }
        for (operation, points) in ["create", "delete"].into_iter().zip(passed) {
            for point in points {
                for next in ["create", "delete"] {
                    if operation == "delete" {
                        client.create(spec).well();
                    }
                    let killed = client.command(operation, spec).env(POINT, &point).output().must("a call");
                    assert_eq!(killed.status.code(), None, "{point}: {killed:?}");
                    Said(client.command(next, spec).output().must("a call")).well();
                    if next == "create" {
                        assert_sound(client, spec);
                    } else {
                        client.assert_empty();
                    }
                }
            }
        }
    }
}

/// `make volume-kills` kills more often.
#[test]
fn a_kill_at_any_moment_is_mended_by_the_next_call() {
    kill_at_any_moment(&Client::in_memory(), &[Spec::limited(0, 16 * MEBIBYTE)]);
}

/// Kills `create` and `delete` of these volumes, one after the other, at moments that are spread over the call.
pub fn kill_at_any_moment(client: &Client, specs: &[Spec]) {
    let kills = std::env::var("OCI_RS_VOLUME_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8_u32);
    for (number, spec) in (0..kills).zip(specs.iter().cycle()) {
        for operation in ["create", "delete"] {
            let begin = Instant::now();
            client.create(spec).well();
            let took = begin.elapsed();
            if operation == "create" {
                client.delete(spec).well();
            }
            let mut call = client.command(operation, spec).spawn().must("a call");
            // Each moment of the call will do.
            thread::sleep(took * number / kills);
            call.kill().must("killed");
            call.wait().must("ended");
            assert_sound(client, spec);
        }
    }
}
