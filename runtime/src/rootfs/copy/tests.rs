//! Compares copies with overlays of the same layers: the kernel defines the expected result.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, XattrFlags, mknodat, setxattr},
    mount::{MountPropagationFlags, mount_change},
};

use super::{
    merge::{OPAQUE, copy_layers, copy_layers_until},
    part::copy_part,
};
use crate::rootfs::overlay::Overlay;

fn can_mount() -> bool {
    rustix::process::geteuid().is_root()
}

/// An entry of a layer.
#[derive(Debug, Clone)]
enum TestEntry {
    File(u8),
    Directory { mode: u32, opaque: bool },
    Link(u8),
    Fifo,
    Whiteout,
}

/// Entries with short paths of few names, so that layers have names in common.
type Layer = Vec<(Vec<u8>, TestEntry)>;

fn entry() -> impl Strategy<Value = TestEntry> {
    prop_oneof![
        3 => any::<u8>().prop_map(TestEntry::File),
        4 => (prop_oneof![Just(0o755), Just(0o1777), Just(0o700), Just(0o2770)], prop::bool::weighted(0.2))
            .prop_map(|(mode, opaque)| TestEntry::Directory { mode, opaque }),
        1 => any::<u8>().prop_map(TestEntry::Link),
        1 => Just(TestEntry::Fifo),
        2 => Just(TestEntry::Whiteout),
    ]
}

fn stack() -> impl Strategy<Value = Vec<Layer>> {
    let layer = prop::collection::vec((prop::collection::vec(0u8..3, 1..4), entry()), 0..14);
    prop::collection::vec(layer, 1..6)
}

/// Creates a layer. Entries below a file, and second entries of the same path, are skipped.
fn create(layer: &Layer, root: &Path, sockets: bool) {
    fs::create_dir(root).expect("a layer");
    for (names, entry) in layer {
        let path = names.iter().fold(root.to_owned(), |path, name| path.join(((b'a' + name) as char).to_string()));
        let parent = path.parent().expect("a parent");
        let real = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        let way = parent.ancestors().take_while(|above| above.starts_with(root));
        if way.into_iter().any(|above| fs::symlink_metadata(above).is_ok() && !real(above))
            || fs::symlink_metadata(&path).is_ok()
        {
            continue;
        }
        fs::create_dir_all(parent).expect("parents");
        match entry {
            TestEntry::File(number) => {
                fs::write(&path, vec![*number; usize::from(*number)]).expect("a file");
                setxattr(&path, "user.number", &[*number], XattrFlags::empty()).expect("an attribute");
                std::os::unix::fs::chown(&path, Some(u32::from(*number)), Some(7)).expect("an owner");
            }
            TestEntry::Directory { mode, opaque } => {
                fs::create_dir(&path).expect("a directory");
                fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(*mode)).expect("a mode");
                match (opaque, sockets) {
                    (true, false) => setxattr(&path, OPAQUE, b"y", XattrFlags::empty()).expect("a mark"),
                    (true, true) => drop(UnixListener::bind(path.join(".wh..wh..opq")).expect("a mark")),
                    (false, _) => {}
                }
            }
            TestEntry::Link(number) => symlink(number.to_string(), &path).expect("a link"),
            TestEntry::Fifo => mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a FIFO"),
            TestEntry::Whiteout if sockets => drop(UnixListener::bind(&path).expect("a whiteout")),
            TestEntry::Whiteout => {
                mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).expect("a whiteout")
            }
        }
    }
    // Every path gets a different time. The deepest paths come first, because creating a file changes the time of its
    // directory.
    for path in walk(root) {
        let names = path.as_os_str().as_bytes().iter().rev().take_while(|byte| **byte != b'-');
        let number = names.fold(0i64, |sum, byte| (sum * 31 + i64::from(*byte)) % 1_000_003);
        let time = rustix::fs::Timespec { tv_sec: 1_000_000 + number, tv_nsec: 123_456_789 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("a time");
    }
}

/// All paths below a directory, and the directory itself, the deepest first.
fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(root).expect("a directory").map(|entry| entry.expect("an entry")).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    // If there is nothing to merge, the kernel lists whiteouts, but they cannot be looked up.
    entries.retain(|entry| entry.metadata().is_ok());
    for entry in entries {
        match entry.file_type().expect("a kind").is_dir() {
            true => found.extend(walk(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.push(root.to_owned());
    found
}

/// One line for each path, with everything that images can describe.
fn describe(root: &Path) -> BTreeMap<String, String> {
    let line = |path: &Path| {
        let found = fs::symlink_metadata(path).expect("metadata");
        let kind = found.file_type();
        let content = match () {
            () if kind.is_symlink() => fs::read_link(path).expect("a link").into_os_string(),
            () if kind.is_file() => fs::read(path).expect("content").len().to_string().into(),
            () => "".into(),
        };
        let mut value = [0u8; 8];
        let number = rustix::fs::lgetxattr(path, "user.number", &mut value).map(|length| value[..length].to_vec());
        format!(
            "{:o} {}:{} {}.{} {} {:?} {:?}",
            found.mode(),
            found.uid(),
            found.gid(),
            found.mtime(),
            found.mtime_nsec(),
            kind.is_fifo(),
            content,
            number.ok()
        )
    };
    let name = |path: &Path| path.strip_prefix(root).expect("below").display().to_string();
    walk(root).iter().map(|path| (name(path), line(path))).collect()
}

/// What an overlay of the layers shows, mounted in a mount namespace of a thread of its own.
fn overlay_shows(layers: Vec<PathBuf>, directory: &Path) -> BTreeMap<String, String> {
    let at = |name: &str| directory.join(name);
    let [upper, work, root] = ["upper", "work", "root"].map(at);
    for path in [&upper, &work, &root] {
        fs::create_dir(path).expect("a directory");
    }
    let top = fs::metadata(&layers[0]).expect("a layer");
    let time = fs::FileTimes::new().set_modified(top.modified().expect("a time"));
    fs::File::open(&upper).expect("a directory").set_times(time).expect("a time");
    std::thread::spawn(move || {
        crate::sys::unshare_mounts().expect("a mount namespace");
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
        Overlay::open(&layers, &upper, &work).expect("a stack").mount(&root).expect("an overlay");
        describe(&root)
    })
    .join()
    .expect("a thread")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_is_what_the_kernel_shows(stack in stack()) {
        if !can_mount() {
            return Ok(());
        }
        let directory = tempfile::tempdir().expect("a directory");
        let made = |name: &str, sockets: bool| -> Vec<PathBuf> {
            let paths = (0..stack.len()).map(|number| directory.path().join(format!("{name}-{number}")));
            stack.iter().zip(paths).map(|(layer, path)| { create(layer, &path, sockets); path }).collect()
        };
        let (overlays, sockets) = (made("overlay", false), made("socket", true));
        let expected = overlay_shows(overlays.clone(), directory.path());
        for layers in [overlays, sockets] {
            let target = tempfile::tempdir_in(directory.path()).expect("a directory");
            copy_layers(&layers, target.path()).expect("copied");
            prop_assert_eq!(describe(target.path()), expected.clone());
            for (path, line) in &expected {
                let part = tempfile::tempdir_in(directory.path()).expect("a directory");
                let copied = copy_part(&layers, &Path::new("/").join(path), part.path(), &|| false);
                // The first part of a line is the mode.
                if line.starts_with("4") {
                    copied.expect("copied");
                    prop_assert_eq!(describe(part.path()), below(&expected, path));
                } else {
                    prop_assert!(copied.is_err(), "{} is no directory", path);
                }
            }
        }
    }
}

/// The description of a directory in that of the whole.
fn below(all: &BTreeMap<String, String>, directory: &str) -> BTreeMap<String, String> {
    let inside = all.iter().filter_map(|(path, line)| {
        Some((Path::new(path).strip_prefix(directory).ok()?.display().to_string(), line.clone()))
    });
    inside.collect()
}

#[test]
fn a_part_is_found_as_in_a_container_of_the_image() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    for name in ["top/srv/models", "low/srv/models/deep", "low/hidden/below", "low/etc", "outside"] {
        fs::create_dir_all(at(name)).expect("a directory");
    }
    fs::write(at("top/srv/models/new"), "").expect("written");
    fs::write(at("low/srv/models/old"), "").expect("written");
    fs::write(at("outside/secret"), "").expect("written");
    mknodat(CWD, at("top/hidden"), FileType::CharacterDevice, Mode::empty(), 0).expect("a whiteout");
    for (name, text) in [
        ("top/latest", "srv/models"),
        ("low/srv/absolute", "/srv/./models/"),
        ("low/srv/up", "../../../../srv/models"),
        ("low/etc/chain", "../latest"),
        ("top/loop", "loop"),
        ("top/out", &at("outside").display().to_string()),
    ] {
        symlink(text, at(name)).expect("a link");
    }
    let layers = [at("top"), at("low")];
    let copy = |part: &str| {
        let target = tempfile::tempdir().expect("a directory");
        let copied = copy_part(&layers, Path::new(part), target.path(), &|| false);
        copied.map(|()| describe(target.path()).into_keys().collect::<Vec<_>>()).map_err(|error| error.to_string())
    };
    for part in ["srv/models", "/srv/models/", "latest", "srv/absolute", "srv/up", "etc/chain", "srv/../../latest/."] {
        assert_eq!(copy(part), Ok(["", "deep", "new", "old"].map(str::to_owned).to_vec()), "{part}");
    }
    for (part, problem) in [
        ("hidden/below", "No such file"),
        ("missing", "No such file"),
        ("srv/models/new", "Not a directory"),
        ("srv/models/new/x", "Not a directory"),
        ("loop", "os error 40"),
        ("out", "No such file"),
    ] {
        let error = copy(part).expect_err("refused");
        assert!(error.contains(part) && error.contains(problem), "{error}");
    }
}

#[test]
fn links_holes_devices_capabilities_and_special_bits_are_kept() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join("layer").join(name);
    fs::create_dir_all(at("deep/er")).expect("directories");
    fs::create_dir(directory.path().join("copy")).expect("a directory");
    fs::write(at("one"), "same").expect("written");
    fs::hard_link(at("one"), at("deep/er/two")).expect("linked");
    symlink("nowhere", at("three")).expect("a link");
    fs::hard_link(at("three"), at("deep/four")).expect("linked");
    mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3)).expect("a device");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for name in ["null", "three"] {
        rustix::fs::lsetxattr(at(name), "security.capability", &capability, XattrFlags::empty()).expect("a capability");
    }
    let sparse = fs::File::create(at("sparse")).expect("a file");
    std::os::unix::fs::FileExt::write_at(&sparse, b"middle", 32 << 20).expect("written");
    sparse.set_len(64 << 20).expect("longer");
    fs::write(at("program"), "x").expect("written");
    std::os::unix::fs::chown(at("program"), Some(3), Some(4)).expect("an owner");
    fs::set_permissions(at("program"), std::os::unix::fs::PermissionsExt::from_mode(0o6755)).expect("a mode");
    setxattr(at("program"), "security.capability", &capability, XattrFlags::empty()).expect("a capability");
    let long = "n".repeat(255);
    fs::create_dir(at(&long)).expect("a directory");
    fs::write(at(&long).join(std::ffi::OsStr::from_bytes(b"bytes-\xff")), "").expect("written");

    let copy = directory.path().join("copy");
    copy_layers(&[directory.path().join("layer")], &copy).expect("copied");
    let meta = |name: &str| fs::symlink_metadata(copy.join(name)).expect("metadata");
    assert_eq!((meta("one").ino(), meta("one").nlink()), (meta("deep/er/two").ino(), 2));
    assert_eq!((meta("three").ino(), meta("three").nlink()), (meta("deep/four").ino(), 2));
    assert!(meta("null").file_type().is_char_device() && meta("null").rdev() == 0x103);
    assert_eq!(meta("sparse").len(), 64 << 20);
    assert!(meta("sparse").blocks() < 1024, "{} blocks of a sparse file", meta("sparse").blocks());
    let content = fs::read(copy.join("sparse")).expect("read");
    assert!(content[32 << 20..].starts_with(b"middle") && content[..32 << 20].iter().all(|byte| *byte == 0));
    assert_eq!((meta("program").mode() & 0o7777, meta("program").uid(), meta("program").gid()), (0o6755, 3, 4));
    let mut value = [0u8; 32];
    for name in ["program", "null", "three"] {
        let length = rustix::fs::lgetxattr(copy.join(name), "security.capability", &mut value).expect("kept");
        assert_eq!(value[..length], capability, "{name}");
    }
    assert!(copy.join(&long).join(std::ffi::OsStr::from_bytes(b"bytes-\xff")).exists());
}

#[test]
fn a_cancelled_copy_ends_within_a_file() {
    const DISTANCE: u64 = 4 << 20;
    // On this file system there are no reflinks, with which a file is copied at once.
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (layer, copy) = (directory.path().join("layer"), directory.path().join("copy"));
    [&layer, &copy].into_iter().for_each(|path| fs::create_dir(path).expect("a directory"));
    let file = fs::File::create(layer.join("large")).expect("a file");
    for part in 0..3 {
        std::os::unix::fs::FileExt::write_all_at(&file, b"part", part * DISTANCE).expect("written");
    }
    let asked = std::cell::Cell::new(0);
    let cancelled = || asked.replace(asked.get() + 1) == 2;
    let error = copy_layers_until(&[layer], &copy, &cancelled).expect_err("cancelled").to_string();
    assert!(error.contains("the copy was cancelled"), "{error}");
    assert_eq!(asked.get(), 3, "before the file, and before each of its parts");
    let content = fs::read(copy.join("large")).expect("a part of the file");
    let second = usize::try_from(DISTANCE).expect("a small number");
    assert!(content.starts_with(b"part") && !content[second..].contains(&b'p'), "the second part is not copied");
}

#[test]
fn what_cannot_be_copied_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(directory.path().join("layer/etc")).expect("a directory");
    fs::write(directory.path().join("layer/etc/passwd"), "").expect("written");
    fs::create_dir_all(directory.path().join("copy/etc")).expect("in the way");
    let error = copy_layers(&[directory.path().join("layer")], &directory.path().join("copy")).expect_err("in the way");
    assert!(error.to_string().contains("copying / of the image to "), "{error}");
}
