//! Host volumes that are copies of other volumes, and read-only ones, on the file systems that a node may have.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use fixtures::{busybox::Images, must::Must, program};
use kit::node::Node;
use rustix::{
    fs::{CWD, FileType, Mode, RenameFlags, XattrFlags, makedev, mknodat, renameat_with, setxattr},
    io::Errno,
    mount::{UnmountFlags, unmount},
    thread::CapabilitySet,
};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::{
    host_volume_content::describe,
    host_volumes::{Client, ID, MEBIBYTE, Said, Spec, kill_at_any_moment, kill_at_each_failpoint},
};

pub const COPY: &str = "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d02";

/// A file system of the node, in a file of its own.
pub struct NodeDisk {
    pub kind: &'static str,
    root: TempDir,
}

impl NodeDisk {
    /// The disk, if this machine can make such a file system.
    pub fn make(kind: &'static str) -> Option<Self> {
        Self::with(kind, &[], "loop")
    }

    /// The disk with these options of the program that makes the file system, and of its mount.
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    pub fn with(kind: &'static str, options: &[&str], mount: &str) -> Option<Self> {
        let program = program::find(&format!("mkfs.{kind}"))?;
        let root = TempDir::with_prefix("oci-rs-disk-").must("a directory");
        let file = root.path().join("disk");
        File::create(&file).and_then(|file| file.set_len(1 << 30)).must("a file");
        fs::create_dir(root.path().join("data")).must("a directory");
        let made = Command::new(program).arg("-q").args(options).arg(&file).status();
        let disk = Self { kind, root };
        if !made.is_ok_and(|status| status.success()) || !disk.mount(mount) {
            println!("skipped: this machine cannot make {kind} {options:?} {mount}");
            return None;
        }
        Some(disk)
    }

    /// Mounts the file system with these options; whether it worked.
    pub fn mount(&self, options: &str) -> bool {
        let [file, data] = ["disk", "data"].map(|name| self.root.path().join(name));
        Command::new("mount")
            .args(["-t", self.kind, "-o", options])
            .args([&file, &data])
            .status()
            .must("mount")
            .success()
    }

    pub fn unmount(&self) {
        unmount(self.root.path().join("data"), UnmountFlags::empty()).must("unmounted");
    }

    /// Lets users of the node reach the volumes of a client.
    pub fn open_to_users(&self, client: &Client) {
        let data = self.root.path().join("data");
        for directory in [self.root.path(), &data, client.root(), &client.volumes()] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).must("a mode");
        }
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.root.path().join("data")
    }

    /// The file that is the disk.
    pub fn file(&self) -> PathBuf {
        self.root.path().join("disk")
    }

    pub fn client(&self) -> Client {
        Client::below(&self.root.path().join("data"))
    }

    /// Whether files can share blocks.
    pub fn has_reflinks(&self) -> bool {
        self.kind != "ext4"
    }
}

impl Drop for NodeDisk {
    fn drop(&mut self) {
        unmount(self.root.path().join("data"), UnmountFlags::DETACH).ok();
    }
}

/// Everything that a volume can have.
pub fn fill(path: &Path) {
    fs::create_dir(path.join("deep")).must("a directory");
    fs::write(path.join("deep/file"), vec![b'x'; 300_000]).must("written");
    fs::hard_link(path.join("deep/file"), path.join("twin")).must("linked");
    setxattr(path.join("twin"), "user.note", b"kept", XattrFlags::empty()).must("set");
    setxattr(path.join("deep"), "trusted.note", b"kept", XattrFlags::empty()).must("set");
    chown(path.join("twin"), Some(1000), Some(50)).must("given");
    symlink("/etc", path.join("link")).must("a link");
    let sparse = File::create(path.join("sparse")).must("a file");
    sparse.set_len(MEBIBYTE).must("a hole");
    mknodat(CWD, path.join("pipe"), FileType::Fifo, Mode::RUSR, 0).must("a FIFO");
}

/// A copy of the volume [`ID`].
pub fn copy(id: &'static str, max: u64, parameters: &Json) -> Spec {
    let mut parameters = parameters.clone();
    parameters["from"] = json!(ID);
    Spec { id, min: 0, max, parameters }
}

/// What the agent's log says of a call.
pub fn log(said: &Said) -> String {
    String::from_utf8_lossy(&said.0.stderr).into_owned()
}

#[test]
fn a_copy_of_a_volume_has_its_files_and_is_independent_in_all_combinations() {
    let forms = [(0, Json::Null), (32, json!({"fs": "ext4"})), (320, json!({"fs": "xfs"}))];
    for disk in ["ext4", "xfs", "btrfs"].into_iter().filter_map(NodeDisk::make) {
        let client = disk.client();
        for (max, parameters) in &forms {
            let source = Spec { parameters: parameters.clone(), ..Spec::limited(0, max * MEBIBYTE) };
            client.create(&source).well();
            fill(&client.path(ID));
            let expected = describe(&client.path(ID));
            for (copy_max, copy_parameters) in
                [(0, json!({})), (400, json!({})), (400, json!({"fs": "ext4"})), (400, json!({"fs": "xfs"}))]
            {
                let context = format!("{} {max} {parameters} {copy_max} {copy_parameters}", disk.kind);
                for read_only in ["false", "true"] {
                    let mut wanted = copy_parameters.clone();
                    wanted["read_only"] = json!(read_only);
                    let spec = copy(COPY, copy_max * MEBIBYTE, &wanted);
                    let said = client.create(&spec);
                    let made = said.well();
                    assert_eq!(describe(&client.path(COPY)), expected, "{context}");
                    let same_form = copy_max == 0
                        || *max > 0 && copy_parameters.get("fs").is_none_or(|wanted| *wanted == parameters["fs"]);
                    let is_ext4 = parameters["fs"] == "ext4";
                    let is_shared = disk.has_reflinks() && same_form && (copy_max == 0 || !is_ext4 || grows_ext4());
                    let method = if is_shared { "by reflink" } else { "by a full copy" };
                    let told = log(&said);
                    assert!(told.contains(&format!("filled from volume {ID} {method}")), "{context}: {told}");
                    let bytes = made["bytes"].as_u64().must("bytes");
                    assert_eq!(bytes > max * MEBIBYTE, copy_max > 0, "{context}: {bytes}");
                    let written = fs::write(client.path(COPY).join("new"), "");
                    if read_only == "true" {
                        let refused = written.err().must("a refusal");
                        assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()), "{context}");
                    } else {
                        written.must("written");
                    }
                    // The agent repeats the call after a reboot, when the source may be gone.
                    unmount(client.path(COPY), UnmountFlags::empty()).ok();
                    assert_eq!(client.create(&spec).well(), made, "{context}");
                    client.delete(&spec).well();
                }
            }
            // The source has shared its blocks. It is still what it was, also after a reboot.
            unmount(client.path(ID), UnmountFlags::empty()).ok();
            client.create(&source).well();
            assert_eq!(describe(&client.path(ID)), expected, "{} {parameters}", disk.kind);
            client.delete(&source).well();
            client.assert_empty();
        }
    }
}

#[test]
fn a_copy_that_cannot_be_made_is_refused_and_leaves_nothing() {
    let client = Client::new();
    let missing = "has no volume";
    let other = |parameters: Json, max: u64| copy(COPY, max * MEBIBYTE, &parameters);
    assert!(client.create(&other(json!({}), 0)).refusal().contains(missing));
    client.assert_empty();
    let source = Spec::limited(0, 16 * MEBIBYTE);
    client.create(&source).well();
    let refusal = client.create(&other(json!({}), 8)).refusal();
    assert!(refusal.contains("capacity_max") && refusal.contains("cannot be smaller"), "{refusal}");
    // The volumes of another namespace do not exist for the author of this one.
    let mut foreign = client.command("create", &other(json!({}), 0));
    let refusal = Said(foreign.env("DHV_NAMESPACE", "other").output().must("a call")).refusal();
    assert!(refusal.contains(missing) && refusal.contains("namespace other"), "{refusal}");
    assert_eq!(client.own(), [ID]);
    let itself = Spec { id: COPY, ..Spec::directory(json!({"from": COPY})) };
    assert!(client.create(&itself).refusal().contains(missing));
    assert!(client.create(&copy(ID, 16 * MEBIBYTE, &json!({}))).refusal().contains("was made empty"));
    client.delete(&source).well();
    client.assert_empty();
}

/// In a file system of its own, or behind a read-only mount, programs and devices have no effect. A copy must not give
/// it back to them where users of the node reach it.
#[test]
fn a_copy_gives_no_effect_to_programs_that_had_none() {
    let client = Client::new();
    fs::create_dir(client.volumes()).must("a directory");
    let set_mode = |mode: u32| {
        fs::set_permissions(client.volumes(), fs::Permissions::from_mode(mode)).must("a mode");
    };
    set_mode(0o755);
    client.create(&Spec::directory(json!({"read_only": "true"}))).well();
    let refusal = client.create(&copy(COPY, 0, &json!({}))).refusal();
    assert!(refusal.contains("parameter from: users of the node"), "{refusal}");
    for (max, parameters) in [(0, json!({"read_only": "true"})), (16, json!({}))] {
        let spec = copy(COPY, max * MEBIBYTE, &parameters);
        client.create(&spec).well();
        let [mounted] = &client.mounts(COPY)[..] else { panic!("{:?}", client.mounts(COPY)) };
        assert!(mounted.contains("nosuid") && mounted.contains("nodev"), "{mounted}");
        client.delete(&spec).well();
    }
    set_mode(0o700);
    let spec = copy(COPY, 0, &json!({}));
    client.create(&spec).well();
    client.delete(&spec).well();
    client.delete(&Spec::directory(Json::Null)).well();
    client.assert_empty();
}

/// Ends a thread when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether this process, and so the plugin, can let a mounted ext4 file system grow.
pub fn grows_ext4() -> bool {
    rustix::thread::capabilities(None).must("the capabilities").effective.contains(CapabilitySet::SYS_RESOURCE)
}

/// A task that writes while its volume is cloned loses nothing that it has synced before.
#[test]
fn a_copy_by_reflink_has_what_was_synced_before() {
    for disk in ["xfs", "btrfs"].into_iter().filter_map(NodeDisk::make) {
        let client = disk.client();
        for parameters in [json!({"fs": "ext4"}), json!({"fs": "xfs"})] {
            let source = Spec { parameters, ..Spec::limited(0, 320 * MEBIBYTE) };
            client.create(&source).well();
            let (synced, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                // Also when an assertion fails, because the scope waits for the thread.
                let _end = End(&ends);
                scope.spawn(|| {
                    let mut file = File::create(client.path(ID).join("lines")).must("a file");
                    for number in 0.. {
                        if ends.load(Ordering::SeqCst) {
                            break;
                        }
                        writeln!(file, "{number}").and_then(|()| file.sync_data()).must("synced");
                        synced.store(number, Ordering::SeqCst);
                        fs::write(client.path(ID).join(format!("file-{}", number % 50)), "x").must("written");
                    }
                });
                for _ in 0..5 {
                    let before = synced.load(Ordering::SeqCst);
                    let spec = copy(COPY, 0, &json!({}));
                    client.create(&spec).well();
                    let lines = fs::read_to_string(client.path(COPY).join("lines")).unwrap_or_default();
                    let has = lines.lines().enumerate().filter(|(number, line)| *line == number.to_string()).count();
                    assert!(has >= before, "{has} of {before} lines");
                    client.delete(&spec).well();
                }
            });
            client.delete(&source).well();
            client.assert_empty();
        }
    }
}

/// A task may exchange a file for a device while the file is opened. The copy then fails, and never has the content of
/// the device.
#[test]
fn a_device_in_the_place_of_a_file_is_not_read() {
    let client = Client::in_memory();
    let source = Spec::directory(Json::Null);
    client.create(&source).well();
    let [file, device] = ["file", "device"].map(|name| client.path(ID).join(name));
    fs::write(&file, vec![b'x'; 4096]).must("written");
    mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, makedev(1, 5)).must("/dev/zero");
    let ends = AtomicBool::new(false);
    let mut copies = 0;
    thread::scope(|scope| {
        let _end = End(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                renameat_with(CWD, &file, CWD, &device, RenameFlags::EXCHANGE).must("exchanged");
            }
        });
        for _ in 0..60 {
            let spec = copy(COPY, 0, &json!({}));
            let said = client.create(&spec);
            if said.0.status.success() {
                for entry in fs::read_dir(client.path(COPY)).must("the copy").flatten() {
                    if entry.file_type().must("a type").is_file() {
                        copies += 1;
                        assert_eq!(fs::read(entry.path()).must("a file"), vec![b'x'; 4096], "{:?}", entry.path());
                    }
                }
            } else {
                let refusal = said.refusal();
                assert!(refusal.contains("parameter from: copying /"), "{refusal}");
            }
            client.delete(&spec).well();
        }
    });
    assert!(copies > 0, "no copy was made");
    client.delete(&source).well();
    client.assert_empty();
}

/// Both ways of a task to a volume: with a mount of its own, and with a mount that follows those of the node.
#[tokio::test]
async fn a_task_cannot_write_to_a_read_only_volume() {
    let (node, images, client) = (Node::new(), Images::start().await, Client::new());
    let mut plugin = node.launch().await;
    for max in [0, 16] {
        let spec = Spec { parameters: json!({"read_only": "true"}), ..Spec::limited(0, max * MEBIBYTE) };
        client.create(&spec).well();
        let path = client.path(ID);
        for propagation in ["private", "host-to-task"] {
            let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done");
            let task = task.mount(&path, "/data", false, propagation).build(&mut plugin).await;
            plugin.started(&task).await;
            let attempt = "touch /data/x 2>&1; mount -o remount,rw /data 2>/dev/null; touch /data/y 2>&1; ls /data";
            let said = plugin.sh(&task, attempt).await;
            assert_eq!(said.matches("Read-only file system").count(), 2, "{propagation}: {said}");
            plugin.end(&task).await;
        }
        client.delete(&spec).well();
    }
    client.assert_empty();
    node.finish(plugin).await;
}

/// All forms of volumes that need neither quotas nor encryption, and copies of a volume in each of them.
fn forms(max: u64, from: &str) -> Vec<Spec> {
    let of = |max: u64, parameters: Json| Spec { parameters, ..Spec::limited(0, max * MEBIBYTE) };
    vec![
        of(0, json!({"read_only": "true"})),
        of(16, json!({"read_only": "true"})),
        of(0, json!({"from": from})),
        of(max + 8, json!({"from": from})),
        of(max, json!({"from": from, "read_only": "true"})),
    ]
}

#[test]
fn a_kill_of_a_copy_or_of_a_read_only_volume_is_mended_by_the_next_call() {
    for disk in ["ext4", "xfs"].into_iter().filter_map(NodeDisk::make) {
        let client = disk.client().keeping(COPY);
        for max in [0, 16] {
            let source = Spec { id: COPY, ..Spec::limited(0, max * MEBIBYTE) };
            client.create(&source).well();
            fs::write(client.path(COPY).join("kept"), "x").must("written");
            kill_at_each_failpoint(&client, &forms(max, COPY));
            assert_eq!(fs::read_to_string(client.path(COPY).join("kept")).must("the source"), "x");
            client.delete(&source).well();
        }
    }
}

/// `make volume-kills` kills more often.
#[test]
fn a_kill_of_any_form_at_any_moment_is_mended_by_the_next_call() {
    for disk in ["ext4", "xfs", "btrfs"].into_iter().filter_map(NodeDisk::make) {
        let client = disk.client().keeping(COPY);
        let source = Spec { id: COPY, ..Spec::limited(0, 16 * MEBIBYTE) };
        client.create(&source).well();
        fill(&client.path(COPY));
        kill_at_any_moment(&client, &forms(16, COPY));
        client.delete(&source).well();
    }
}
