//! Making the root: overlays of many layers on common file systems, and copies where overlays do not work.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use runtime::{
    Runtime,
    plan::{ContainerPlan, Mount, MountKind, NamedVolume, Propagation, RootStorage},
};
use rustix::{
    fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr},
    mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount},
};

use crate::common::Node;

pub const CASES: &[(&str, fn())] = &[
    ("roots_on_ext4", || on_disk("ext4", &["mkfs.ext4", "-q"])),
    ("roots_on_xfs", || on_disk("xfs", &["mkfs.xfs", "-q"])),
    ("roots_on_btrfs", || on_disk("btrfs", &["mkfs.btrfs", "-q"])),
    ("roots_on_tmpfs", on_tmpfs),
    ("roots_on_an_overlay", on_an_overlay),
    ("roots_on_ramfs", on_ramfs),
    ("roots_on_a_restricted_mount", on_a_restricted_mount),
    ("roots_many_layers", many_layers),
    ("roots_too_many_layers", too_many_layers),
    ("roots_mount_points_take_no_writes", mount_points_take_no_writes),
    ("roots_mount_points_of_the_image_go_before", mount_points_of_the_image_go_before),
    ("roots_mount_points_without_mounts", mount_points_without_mounts),
    ("roots_mount_points_on_a_broken_disk", mount_points_on_a_broken_disk),
    ("roots_leftovers_without_an_owner", leftovers_without_an_owner),
    ("roots_creator_killed_at_every_point", creator_killed_at_every_point),
    ("measure_roots", measure),
];

/// A mounted file system in a temporary directory; unmounted when it goes.
pub struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("root")).expect("a directory");
        Self { directory }
    }

    /// One in memory.
    pub fn nodev(kind: &str, flags: MountFlags, data: Option<&str>) -> Self {
        let disk = Self::new();
        let data = data.map(|data| std::ffi::CString::new(data).expect("no NUL"));
        mount(kind, disk.root(), kind, flags, data.as_deref()).expect("a mount");
        disk
    }

    /// An overlay on the temporary directory's file system.
    fn overlay() -> Self {
        let disk = Self::new();
        let at = |name: &str| disk.directory.path().join(name);
        for name in ["lower", "upper", "work"] {
            fs::create_dir(at(name)).expect("a directory");
        }
        let (lower, upper, work) = (at("lower"), at("upper"), at("work"));
        let data = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let data = std::ffi::CString::new(data).expect("no NUL");
        mount("overlay", disk.root(), "overlay", MountFlags::empty(), data.as_c_str()).expect("a mount");
        disk
    }

    /// One in a file, if the kernel and the machine can; says why not.
    fn made_by(kind: &str, mkfs: &[&str]) -> Option<Self> {
        let known =
            || fs::read_to_string("/proc/filesystems").expect("known file systems").contains(&format!("\t{kind}\n"));
        // Where it is a module, asking for it loads it; a kernel without any has no modprobe either.
        if !known() && (Command::new("modprobe").arg(kind).status().is_err() || !known()) {
            println!("skipped: the kernel has no {kind}");
            return None;
        }
        let disk = Self::new();
        let image = disk.directory.path().join("image");
        fs::File::create(&image).expect("a file").set_len(512 << 20).expect("a length");
        let run = |program: &str, args: &[&str], more: &[&Path]| {
            let output = Command::new(program)
                .args(args)
                .args(more)
                .output()
                .unwrap_or_else(|error| panic!("{program}: {error}"));
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(mkfs[0], &mkfs[1..], &[&image]);
        run("mount", &["-t", kind, "-o", "loop"], &[&image, &disk.root()]);
        Some(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.root(), UnmountFlags::DETACH) {
            println!("unmounting {}: {error}", self.root().display());
        }
    }
}

/// Two layers over the node's own: one hides, the other one adds.
fn layers(node: &Node) -> Vec<PathBuf> {
    let at = |name: &str| node.directory.path().join(name);
    fs::create_dir_all(at("middle/home")).expect("a directory");
    fs::create_dir_all(at("top/tmp/new")).expect("a directory");
    fs::write(at("top/tmp/new/file"), "new").expect("written");
    fs::hard_link(at("top/tmp/new/file"), at("top/second")).expect("linked");
    vec![at("top"), at("middle"), at("layer")]
}

/// Hides `/etc/group` and what is in `/home` in the second layer, with the marks of overlayfs.
fn hide(middle: &Path) {
    fs::create_dir_all(middle.join("etc")).expect("a directory");
    mknodat(CWD, middle.join("etc/group"), FileType::CharacterDevice, Mode::empty(), 0).expect("a whiteout");
    setxattr(middle.join("home"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).expect("an opaque directory");
}

/// The same where the file system does not take them, as the image store does it.
fn hide_by_sockets(middle: &Path) {
    fs::create_dir_all(middle.join("etc")).expect("a directory");
    for path in ["etc/group", "home/.wh..wh..opq"] {
        mknodat(CWD, middle.join(path), FileType::Socket, Mode::empty(), 0).expect("a whiteout");
    }
}

/// Prints what shows, changes something, and looks at it again.
const SCRIPT: &str = "ls -A /home; ls /etc; cat /second; stat -c %h /second; \
                      echo more >> /second && cat /tmp/new/file; \
                      rm -r /tmp/new && mkdir /tmp/new && ls -A /tmp/new; mv /etc/passwd /etc/moved && ls /etc";

/// Runs the script on a root made in this way.
fn check(node: &Node, storage: RootStorage, layers: Vec<PathBuf>) {
    let before = listing(&layers[0]);
    let mut plan = node.plan(SCRIPT);
    plan.root.storage = storage;
    plan.root.layers.clone_from(&layers);
    let mut container = node.start(plan);
    let exit = container.wait();
    let (out, err) = container.output();
    // In an overlay, the first write to a hard link copies the file up, which breaks the link. In a copy it stays one
    // file.
    let linked = if storage == RootStorage::Copy { "newmore\n" } else { "new" };
    assert_eq!(out, format!("passwd\nnew2\n{linked}moved\n"), "{storage:?}: {err}");
    assert_eq!(exit.exit_code, 0);
    drop(container);
    assert_eq!(listing(&layers[0]), before, "a layer was changed");
}

fn listing(directory: &Path) -> Vec<(PathBuf, u64, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("metadata");
        found.push((path.clone(), meta.size(), meta.ino()));
        if meta.is_dir() {
            found.extend(listing(&path));
        }
    }
    found.sort();
    found
}

fn both_ways(place: &Path) {
    let node = Node::on(place);
    assert_eq!(node.runtime.overlay_problem().expect("a probe"), None);
    assert_eq!(
        fs::read_dir(node.directory.path().join("data/containers")).expect("a directory").count(),
        0,
        "probe is left"
    );
    let layers = layers(&node);
    hide(&layers[1]);
    for storage in [RootStorage::Overlay, RootStorage::Copy] {
        check(&node, storage, layers.clone());
    }
}

fn on_disk(kind: &str, mkfs: &[&str]) {
    if let Some(disk) = Disk::made_by(kind, mkfs) {
        both_ways(&disk.root());
    }
}

fn on_tmpfs() {
    both_ways(&Disk::nodev("tmpfs", MountFlags::empty(), None).root());
}

/// As in CI, where everything runs in another container.
fn on_an_overlay() {
    let disk = Disk::overlay();
    let node = Node::on(&disk.root());
    let problem =
        node.runtime.overlay_problem().expect("a probe").expect("overlayfs takes no overlay as upper directory");
    assert!(problem.contains("overlayfs cannot be mounted") && problem.contains("is on overlayfs"), "{problem}");
    assert_eq!(node.runtime.overlay_problem().expect("remembered"), Some(problem));
    let layers = layers(&node);
    hide_by_sockets(&layers[1]);
    check(&node, RootStorage::Copy, layers.clone());
    // The other way is no way, and leaves nothing.
    let mut plan = node.plan("true");
    plan.root.layers = layers;
    plan.root.storage = RootStorage::Overlay;
    let error = node.refuse(&plan);
    assert!(error.message.contains("mounting an overlay of 3 layers"), "{error}");
}

/// It lets overlayfs mount it as upper directory, but holds no extended attributes.
fn on_ramfs() {
    let disk = Disk::nodev("ramfs", MountFlags::empty(), None);
    let node = Node::on(&disk.root());
    let problem = node.runtime.overlay_problem().expect("a probe").expect("ramfs has no attributes");
    assert!(problem.contains("is on ramfs"), "{problem}");
    let layers = layers(&node);
    hide_by_sockets(&layers[1]);
    check(&node, RootStorage::Copy, layers);
}

/// The root of a container is as free as an overlay's, wherever the data directory is.
fn on_a_restricted_mount() {
    let disk = Disk::nodev("tmpfs", MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV, None);
    let node = Node::on(&disk.root());
    let mut plan = node
        .plan("while read _ _ _ _ target options _; do [ $target = / ] && echo $options; done < /proc/self/mountinfo");
    plan.root.storage = RootStorage::Copy;
    let (_, out, err) = node.run(plan);
    let options: Vec<&str> = out.trim().split(',').collect();
    assert!(
        options.contains(&"rw") && !["noexec", "nosuid", "nodev"].iter().any(|no| options.contains(no)),
        "{out} {err}"
    );
}

fn many_layers() {
    let disk = Disk::nodev("tmpfs", MountFlags::empty(), None);
    let node = Node::on(&disk.root());
    for count in [36usize, 128, 300, 500] {
        let mut plan = node.plan("ls /many | wc -l; cat /many/who");
        let made = (1..count).map(|number| {
            let layer = node.directory.path().join(format!("many-{count}/{number}/fs"));
            fs::create_dir_all(layer.join("many")).expect("a layer");
            fs::write(layer.join("many").join(number.to_string()), "").expect("written");
            fs::write(layer.join("many/who"), number.to_string()).expect("written");
            layer
        });
        plan.root.layers = made.chain([node.directory.path().join("layer")]).collect();
        for storage in [RootStorage::Overlay, RootStorage::Copy] {
            let mut plan = plan.clone();
            plan.id = format!("{}-{storage:?}", plan.id).parse().expect("an id");
            plan.root.storage = storage;
            let (_, out, err) = node.run(plan);
            assert_eq!(out, format!("{count}\n1"), "{count} layers, {storage:?}: {err}");
        }
    }
}

/// A plan with the mounts that every task has.
fn with_usual_mounts(node: &Node, script: &str) -> ContainerPlan {
    let mut plan = node.plan(script);
    for name in ["alloc", "local", "secrets"] {
        let source = node.directory.path().join("nomad").join(name);
        fs::create_dir_all(&source).expect("a directory");
        let (destination, kind) = (format!("/{name}"), MountKind::Bind { source });
        plan.mounts.push(Mount { destination, kind, readonly: false, propagation: Propagation::Private });
    }
    plan.files =
        ["hostname", "hosts", "resolv.conf"].map(|name| (format!("/etc/{name}"), format!("{name}\n"))).to_vec();
    plan
}

/// What is in the writable layer of a container.
fn written(node: &Node, plan: &ContainerPlan) -> Vec<PathBuf> {
    let upper = node.directory.path().join("data/containers").join(plan.id.as_str()).join("upper");
    let below = |path: PathBuf| path.strip_prefix(&upper).expect("a path in the layer").to_owned();
    listing(&upper).into_iter().map(|(path, ..)| below(path)).collect()
}

fn mount_points_take_no_writes() {
    let node = Node::new();
    let plan =
        with_usual_mounts(&node, "cat /etc/hostname /etc/hosts /etc/resolv.conf; echo x > /local/x; ls -d /alloc");
    let overlay = plan.root.storage == RootStorage::Overlay;
    let mut container = node.start(plan);
    container.wait();
    assert_eq!(container.output().0, "hostname\nhosts\nresolv.conf\n/alloc\n");
    if overlay {
        assert_eq!(written(&node, &container.plan), [""; 0].map(PathBuf::from));
    }
}

/// The image's /etc has another mode and hides what is below it.
fn mount_points_of_the_image_go_before() {
    let node = Node::new();
    let top = node.directory.path().join("top");
    fs::create_dir_all(top.join("etc")).expect("a directory");
    fs::set_permissions(top.join("etc"), fs::Permissions::from_mode(0o711)).expect("a mode");
    fs::write(top.join("etc/hosts"), "of the image").expect("written");
    setxattr(top.join("etc"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).expect("an opaque directory");
    mknodat(CWD, top.join("local"), FileType::CharacterDevice, Mode::empty(), 0).expect("a whiteout");
    let mut plan = with_usual_mounts(&node, "stat -c '%a %u' /etc /local; ls /etc; cat /etc/hosts");
    plan.root.layers.insert(0, top);
    let overlay = plan.root.storage == RootStorage::Overlay;
    let mut container = node.start(plan);
    container.wait();
    let (out, err) = container.output();
    assert!(out.ends_with("\nhostname\nhosts\nresolv.conf\nhosts\n") && out.starts_with("711 0\n"), "{out}{err}");
    if overlay {
        let places = ["etc", "etc/hostname", "etc/resolv.conf", "local"].map(PathBuf::from);
        assert_eq!(written(&node, &container.plan), places);
    }
}

/// No container sees a place on which it has no mount.
fn mount_points_without_mounts() {
    let node = Node::new();
    let mut plan = with_usual_mounts(&node, "ls -d /alloc /secrets; ls /etc");
    plan.mounts.retain(|mount| mount.destination != "/secrets");
    assert_eq!(node.run(plan).1, "/alloc\ngroup\nhostname\nhosts\npasswd\nresolv.conf\n");
    let mut plan = with_usual_mounts(&node, "ls -d /alloc; ls /etc");
    plan.files.retain(|(destination, _)| destination != "/etc/hosts");
    assert_eq!(node.run(plan).1, "/alloc\ngroup\nhostname\npasswd\nresolv.conf\n");
}

/// A disk that became read-only does not keep the driver from its running containers.
fn mount_points_on_a_broken_disk() {
    let disk = Disk::nodev("tmpfs", MountFlags::empty(), None);
    let node = Node::on(&disk.root());
    let [state, data] = ["state", "data"].map(|name| node.directory.path().join(name));
    fs::remove_dir_all(data.join("mount-points")).expect("removed");
    mount_remount(disk.root(), MountFlags::RDONLY, c"").expect("read-only");
    let opened = Runtime::open(&state, &data).map(|runtime| runtime.list().expect("a list"));
    mount_remount(disk.root(), MountFlags::empty(), c"").expect("writable");
    assert_eq!(opened.expect("a runtime"), []);
    // The layer is made by the next one that opens the directories, and a start works without it.
    let plan = with_usual_mounts(&node, "cat /etc/hosts");
    assert_eq!(node.run(plan).1, "hosts\n");
    Runtime::open(&state, &data).expect("a runtime");
    assert!(data.join("mount-points/etc/hosts").is_file());
}

fn too_many_layers() {
    let disk = Disk::nodev("tmpfs", MountFlags::empty(), None);
    let node = Node::on(&disk.root());
    let mut plan = node.plan("echo copied");
    let empty = (0..500).map(|number| {
        let layer = node.directory.path().join(format!("empty/{number}"));
        fs::create_dir_all(&layer).expect("a layer");
        layer
    });
    plan.root.layers = empty.chain([node.directory.path().join("layer")]).collect();
    plan.root.storage = RootStorage::Overlay;
    let error = node.refuse(&plan);
    assert!(error.message.contains("501 layers"), "{error}");
    plan.root.storage = RootStorage::Copy;
    assert_eq!(node.run(plan).1, "copied\n");
}

/// A start was killed before it recorded the owner of the directory.
fn leftovers_without_an_owner() {
    let node = Node::new();
    let containers = node.directory.path().join("data/containers");
    fs::create_dir(containers.join("nobody")).expect("a directory");
    fs::create_dir_all(containers.join("somebody/upper")).expect("a directory");
    std::os::unix::fs::symlink("/run/another", containers.join("somebody/owner")).expect("a link");
    fs::create_dir_all(containers.join("ours/root.tmp")).expect("a directory");
    std::os::unix::fs::symlink(node.directory.path().join("state"), containers.join("ours/owner")).expect("a link");
    // As an earlier build wrote it.
    fs::create_dir_all(containers.join("old/upper")).expect("a directory");
    fs::write(containers.join("old/owner"), node.directory.path().join("state").as_os_str().as_encoded_bytes())
        .expect("written");
    let mut swept = node.runtime.sweep().expect("swept");
    swept.sort();
    assert_eq!(swept, ["old", "ours"]);
    let left: Vec<_> =
        fs::read_dir(&containers).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["somebody"]);
    // Nor does what an earlier start of the same container left show in the next one.
    let mut plan = node.plan("ls /left || echo gone");
    plan.root.storage = RootStorage::Copy;
    let left = containers.join(plan.id.as_str());
    for directory in ["root", "root.tmp"] {
        fs::create_dir_all(left.join(directory).join("left")).expect("a directory");
    }
    assert_eq!(node.run(plan).1, "gone\n");
}

/// If the creator dies at any point while it makes a root, the start fails with an error, nothing is left, and the next
/// start works. A named volume is then there with all that the image has, or it is not there.
fn creator_killed_at_every_point() {
    let node = Node::new();
    let at = |name: &str| node.directory.path().join(name);
    for storage in [RootStorage::Overlay, RootStorage::Copy] {
        let mut plan = node.plan("true");
        plan.root.storage = storage;
        let volume = at(&format!("data/volumes/etc-{storage:?}"));
        plan.volumes =
            vec![NamedVolume { directory: volume.clone(), destination: "/etc".to_owned(), copy: true, mounted: false }];
        let kind = MountKind::Bind { source: volume.clone() };
        plan.mounts =
            vec![Mount { destination: "/etc".to_owned(), kind, readonly: false, propagation: Propagation::Private }];
        let complete = || volume.join("passwd").exists() && volume.join("group").exists();
        fs::write(at("plan"), serde_json::to_vec(&plan).expect("text")).expect("written");
        let start = |variable: &str, value: &std::ffi::OsStr| {
            let program = std::env::current_exe().expect("this program");
            let args = [at("state"), at("data"), at("plan")];
            Command::new(program).arg("start").args(args).env(variable, value).output().expect("a start")
        };
        let trace = at("trace");
        assert!(start("OCI_RS_FAILPOINT_TRACE", trace.as_os_str()).status.success());
        node.runtime.destroy(&plan.id).expect("destroyed");
        let points: Vec<String> = fs::read_to_string(&trace).expect("a trace").lines().map(str::to_owned).collect();
        let points: Vec<&String> = points.iter().filter(|point| point.starts_with("root-")).collect();
        assert!(points.len() >= if storage == RootStorage::Copy { 6 } else { 3 }, "{storage:?}: {points:?}");
        for point in points {
            assert!(complete(), "before {point}");
            fs::remove_dir_all(&volume).expect("removed");
            let output = start("OCI_RS_FAILPOINT", point.as_ref());
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success() && text.contains("ended without a word"), "{point}: {text}");
            node.assert_clean(&plan);
            assert!(complete() || !volume.exists(), "{point}: half a volume");
            assert!(start("OCI_RS_FAILPOINT_TRACE", at("other").as_os_str()).status.success());
            node.runtime.destroy(&plan.id).expect("destroyed");
        }
        assert!(complete());
        fs::remove_file(trace).expect("removed");
    }
}

/// The duration of a start with a mounted and with a copied image of 4000 files in 200 directories, 64 MB, and of the
/// probe.
fn measure() {
    let disks = [
        ("ext4", Disk::made_by("ext4", &["mkfs.ext4", "-q"])),
        ("xfs", Disk::made_by("xfs", &["mkfs.xfs", "-q"])),
        ("btrfs", Disk::made_by("btrfs", &["mkfs.btrfs", "-q"])),
        ("tmpfs", Some(Disk::nodev("tmpfs", MountFlags::empty(), None))),
        ("overlay", Some(Disk::overlay())),
    ];
    for (kind, disk) in disks {
        let Some(disk) = disk else { continue };
        let node = Node::on(&disk.root());
        for number in 0..4000 {
            let directory = node.directory.path().join(format!("layer/many/{}", number / 20));
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(directory.join(number.to_string()), vec![7; 16 << 10]).expect("written");
        }
        let begun = Instant::now();
        let problem = node.runtime.overlay_problem().expect("a probe");
        print!("{kind}: probe {} us", begun.elapsed().as_micros());
        let ways: &[RootStorage] =
            if problem.is_some() { &[RootStorage::Copy] } else { &[RootStorage::Overlay, RootStorage::Copy] };
        for storage in ways {
            let mut times: Vec<u128> = (0..5)
                .map(|_| {
                    let mut plan = node.plan("true");
                    plan.root.storage = *storage;
                    let begun = Instant::now();
                    let container = node.start(plan);
                    let time = begun.elapsed().as_millis();
                    container.wait();
                    time
                })
                .collect();
            times.sort_unstable();
            print!(", {storage:?} {} ms", times[2]);
        }
        println!();
    }
}
