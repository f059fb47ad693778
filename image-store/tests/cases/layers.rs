//! Well-formed layers: every kind of entry as GNU tar unpacks it, whiteouts in overlay's form, and the mounted result.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    process::Command,
};

use fixtures::{
    image::{Compression, Entry, Image, Layer},
    program::missing,
};
use image_store::Limits;

use crate::common::{Bench, describe, limits, noise, xattrs};

fn mixed() -> Vec<Entry> {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let long = format!("{}/{}", "long".repeat(30), "name".repeat(30));
    vec![
        Entry::dir("./").mode(0o751).owner(3, 4).mtime(1_500_000_000, 0),
        Entry::dir("setgid").mode(0o2775).owner(0, 50),
        Entry::file("setgid/inherits-nothing", "x").owner(1, 1),
        Entry::dir("sticky").mode(0o1777),
        Entry::dir("closed").mode(0o000).owner(1000, 1000),
        Entry::file("closed/inside", "filled before it was closed"),
        Entry::file("setuid", "#!").mode(0o4755).owner(1000, 1000),
        Entry::file("setgid-file", "#!").mode(0o6711).owner(12, 34),
        Entry::file("unreadable", "x").mode(0o000),
        Entry::file("capable", "elf").mode(0o755).owner(8, 8).xattr("security.capability", capability),
        Entry::file("attributes", "x").xattr("user.binary", *b"a\nb=c\0d").xattr("user.empty-is-none", "1"),
        Entry::dir("attributes-dir").xattr("user.on-a-dir", "1"),
        Entry::file("nanoseconds", "x").mtime(1_234_567_890, 123_456_789),
        Entry::file("before-1970", "x").pax("mtime", "-1.5"),
        Entry::file("large-ids", "x").pax("uid", "4000000000").pax("gid", "3000000"),
        Entry::file("empty", ""),
        Entry::file("sizes", noise(300_000)),
        Entry::symlink("link", "sizes").owner(5, 6).mtime(1_111_111_111, 1),
        Entry::symlink("dangling", "/no/where"),
        Entry::hard_link("second-name", "sizes"),
        Entry::char_device("null", 1, 3),
        Entry::char_device("far", 259, 70000).owner(1, 5).mode(0o640),
        Entry::block_device("disk", 8, 1),
        Entry::fifo("pipe").mode(0o620).owner(2, 2),
        Entry::file(long, "long names go through PAX"),
        Entry::file("n\u{e4}me with space", "x"),
        Entry::file(*b"bytes-\xff-no-utf8", "x"),
        Entry::file("again", "first").mode(0o600),
        Entry::file("again", "second").mode(0o644),
        Entry::dir("usr/lib"),
        Entry::symlink("lib", "usr/lib"),
        Entry::file("lib/through-a-link", "x"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_entry_of_a_name_counts() {
    let bench = Bench::new();
    let image = bench
        .unpack([
            Entry::dir("tree").mode(0o700),
            Entry::dir("tree/deep"),
            Entry::file("tree/deep/inside", "x"),
            Entry::file("tree", "now a file"),
            Entry::file("file", "x"),
            Entry::dir("file").mode(0o711),
            Entry::file("file/inside", "x"),
            Entry::dir("dir").mode(0o700),
            Entry::file("dir/kept", "x"),
            Entry::dir("dir").mode(0o755).owner(1, 2),
            Entry::symlink("way", "dir"),
            Entry::file("way/through", "old place"),
            Entry::dir("other"),
            Entry::symlink("way", "other"),
            Entry::file("way/through", "new place"),
        ])
        .await
        .unwrap();
    let at = |name: &str| image.layers[0].join(name);
    assert_eq!(fs::read_to_string(at("tree")).unwrap(), "now a file");
    assert_eq!(attributes(&at("file")), (0o711, 0, 0));
    assert!(at("file/inside").exists() && at("dir/kept").exists());
    assert_eq!(attributes(&at("dir")), (0o755, 1, 2));
    assert_eq!(fs::read_to_string(at("dir/through")).unwrap(), "old place");
    assert_eq!(fs::read_to_string(at("other/through")).unwrap(), "new place");
}

fn gnu_tar(tar: &[u8]) -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive.tar");
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(&archive, tar).unwrap();
    let output = Command::new("tar")
        .args([
            "--extract",
            "--numeric-owner",
            "--same-owner",
            "--same-permissions",
            "--xattrs",
            "--xattrs-include=*",
            "--keep-directory-symlink",
            "--file",
        ])
        .arg(&archive)
        .arg("--directory")
        .arg(&tree)
        .output();
    let Ok(output) = output else {
        missing("tar");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(directory)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_layer_is_what_gnu_tar_makes_of_it() {
    let layer = Layer::of(mixed());
    let Some(expected) = gnu_tar(layer.tar()) else { return };
    let mut expected = describe(&expected.path().join("tree"));
    let image = Bench::new();
    let image = image.unpack_layers([layer]).await.unwrap();
    let mut found = describe(&image.layers[0]);
    for tree in [&mut expected, &mut found] {
        // The archive does not describe them, or changes them later, so their times are the time of unpacking.
        for implicit in ["usr", "usr/lib", &"long".repeat(30)] {
            tree.remove(implicit).unwrap();
        }
    }
    let differences: BTreeMap<_, _> = expected
        .iter()
        .filter(|(path, line)| found.get(*path) != Some(line))
        .map(|(path, line)| (path, (line, found.get(path))))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(expected.len(), found.len(), "{:?}", found.keys());
}

/// A layer that exceeds the memory limit continues as a directory, with all earlier entries.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_of_very_many_files_is_what_a_smaller_one_is() {
    let more = [Entry::whiteout("below"), Entry::opaque("setgid"), Entry::file("end", "x")];
    let holes = Entry::file("holes", "abc").pax("GNU.sparse.size", "9000000").pax("GNU.sparse.map", "1,2,8000000,1");
    let entries = || mixed().into_iter().chain([holes.clone()]).chain(more.clone());
    let directories = Bench::in_directories();
    let expected = directories.unpack(entries()).await.unwrap();
    let expected = describe(&expected.layers[0]);
    for kept_bytes in [300, 1000, 3000, 8000, 1 << 20] {
        let bench = Bench::full(Vec::new(), Limits { kept_bytes, ..limits() });
        let image = bench.unpack(entries()).await;
        // In a directory, the memory limit counts the data of directories.
        let Ok(image) = image else { continue };
        let mut found = describe(&image.layers[0]);
        let mut expected = expected.clone();
        for tree in [&mut expected, &mut found] {
            for implicit in ["usr", "usr/lib", "below", &"long".repeat(30)] {
                tree.remove(implicit).unwrap();
            }
        }
        assert_eq!(found, expected, "{kept_bytes}");
        let raw = bench.lease(&bench.push("again:1", &Image::new().layer(Layer::of(entries())).build())).await.unwrap();
        assert!(std::fs::metadata(&raw.layers[0]).unwrap().is_dir() || kept_bytes > 8000, "{kept_bytes}");
    }
}

/// The same layers in both forms; nothing if this kernel mounts no images.
async fn in_both_forms(layers: &[Layer]) -> Vec<BTreeMap<String, String>> {
    let mut shown = Vec::new();
    for bench in [Some(Bench::in_directories()), Bench::in_images()].into_iter().flatten() {
        let image = bench.unpack_layers(layers.to_vec()).await.unwrap();
        let mut tree = describe(&Mounted::new(&image).root);
        // The root is the writable layer's.
        tree.remove("");
        shown.push(tree);
    }
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn both_forms_show_the_same() {
    let capability: &[u8] = &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let times = [-(1 << 33), -5, 0, (1 << 31) - 1, 1 << 31, 1 << 34, 1 << 40]
        .map(|seconds: i64| Entry::file(format!("time {seconds}"), "").pax("mtime", format!("{seconds}.5")));
    let layer = Layer::of(times.into_iter().chain([
        Entry::dir(".").pax("mtime", "17179869184"),
        Entry::file("empty", "").xattr("user.empty", "").xattr("user.full", "1"),
        Entry::dir("empty-dir").xattr("user.empty", ""),
        Entry::file("no-capability", "").xattr("security.capability", ""),
        Entry::file("no-list", "").xattr("system.posix_acl_access", "").mode(0o640),
        Entry::file("f", "").mode(0o4755).owner(1, 2).xattr("security.capability", capability).xattr("user.a", "1"),
        Entry::hard_link("f-too", "f").mode(0o2710).owner(3, 4).mtime(1_600_000_000, 7).xattr("user.b", "2"),
        Entry::file("g", "").xattr("security.capability", capability),
        Entry::hard_link("g-too", "g").xattr("security.capability", capability).owner(5, 6),
        Entry::symlink("s", "f").owner(1, 1),
        Entry::hard_link("s-too", "s").mode(0o600).owner(7, 8).mtime(1_500_000_000, 0),
    ]));
    let shown = in_both_forms(&[layer]).await;
    let line = |name: &str| shown[0][name].clone();
    // As containerd does: the entry of the second name counts, and a change of the owner removes the capability.
    assert_eq!(line("f"), line("f-too"));
    assert!(line("f").starts_with("102710 3:4 1600000000.000000007 links 2"), "{}", line("f"));
    assert!(line("f").ends_with("user.a=31,user.b=32"), "{}", line("f"));
    assert!(line("g").contains("5:6") && line("g").contains("security.capability="), "{}", line("g"));
    assert!(line("s").starts_with("120777 7:8 1500000000"), "{}", line("s"));
    assert!(line("empty").ends_with("user.empty=,user.full=31"), "{}", line("empty"));
    assert!(!line("no-capability").contains("security"), "{}", line("no-capability"));
    assert!(line("no-list").starts_with("100640") && !line("no-list").contains("acl"), "{}", line("no-list"));
    assert!(shown.windows(2).all(|pair| pair[0] == pair[1]), "{shown:#?}");
}

/// ext4 gives a file 65,000 names and a few kilobytes for extended attributes.
#[tokio::test(flavor = "multi_thread")]
async fn both_forms_refuse_the_same() {
    let links = (0..65_000).map(|at| Entry::hard_link(format!("{at}"), "f"));
    let links = Layer::of([Entry::file("f", "x")].into_iter().chain(links));
    let large = |entry: Entry, length| Layer::of([entry.xattr("user.large", vec![b'x'; length])]);
    let layers = [
        (links, Some("65000 names")),
        (large(Entry::file("f", ""), 60 << 10), None),
        (large(Entry::dir("f"), 60 << 10), None),
        (large(Entry::file("f", ""), 4010), None),
        (Layer::of([Entry::file("f", "").xattr("user.", "x")]), Some("\"user.\"")),
        (Layer::of([Entry::file("f", "").xattr("security.capability", "x")]), Some("security.capability")),
    ];
    for (layer, expected) in layers {
        let mut verdicts = Vec::new();
        for bench in [Some(Bench::in_directories()), Bench::in_images()].into_iter().flatten() {
            let error = bench.unpack_layers([layer.clone()]).await.err();
            if let Some(error) = &error {
                let text = error.to_string();
                assert!(
                    !error.recoverable() && text.contains("entry \"f\"") || expected == Some("65000 names"),
                    "{text}"
                );
                assert!(text.contains(expected.unwrap_or("extended attributes")), "{text}");
                bench.assert_clean();
            }
            assert!(error.is_some() || expected.is_none());
            verdicts.push(error.is_some());
        }
        assert!(verdicts.windows(2).all(|pair| pair[0] == pair[1]), "{verdicts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn default_acls_do_not_leak_into_children() {
    // version 2; user::rwx group::--- mask::--- other::---
    let acl: Vec<u8> = [2u32.to_le_bytes().to_vec()]
        .into_iter()
        .chain([(1u16, 7u16), (4, 0), (0x20, 0)].map(|(tag, permissions)| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
        }))
        .flatten()
        .collect();
    let bench = Bench::new();
    let image = bench
        .unpack([Entry::dir("d").xattr("system.posix_acl_default", acl), Entry::file("d/f", "x").mode(0o666)])
        .await
        .unwrap();
    assert!(xattrs(&image.layers[0].join("d")).contains("posix_acl_default"));
    assert_eq!(fs::metadata(image.layers[0].join("d/f")).unwrap().mode() & 0o7777, 0o666);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_umask_does_not_matter() {
    let bench = Bench::new();
    let image = bench.unpack([Entry::file("f", "").mode(0o777), Entry::fifo("p").mode(0o666)]).await.unwrap();
    assert_eq!(fs::metadata(image.layers[0].join("f")).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(fs::metadata(image.layers[0].join("p")).unwrap().mode() & 0o7777, 0o666);
}

#[tokio::test(flavor = "multi_thread")]
async fn sparse_files_of_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("holes");
    let file = fs::File::create(&path).unwrap();
    file.set_len(40 << 20).unwrap();
    // More parts than fit into one GNU header.
    for at in 0..30u64 {
        std::os::unix::fs::FileExt::write_all_at(&file, format!("piece {at}").as_bytes(), at << 20).unwrap();
    }
    drop(file);
    let content = fs::read(&path).unwrap();
    for format in [
        &["--format=gnu"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ] {
        let output = Command::new("tar")
            .args(["--create", "--sparse"])
            .args(format)
            .arg("--directory")
            .arg(directory.path())
            .args(["--file=-", "holes"])
            .output();
        let Ok(output) = output else { return missing("tar") };
        assert!(output.status.success() && output.stdout.len() < 1 << 20);
        let bench = Bench::new();
        let image = bench
            .unpack_layers([Layer::raw(output.stdout)])
            .await
            .unwrap_or_else(|error| panic!("{format:?}: {error}"));
        let made = image.layers[0].join("holes");
        assert!(fs::read(&made).unwrap() == content, "{format:?}");
        // The EROFS image contains the hole.
        let image = fs::read_dir(bench.root().join("layers")).unwrap().next().unwrap().unwrap().path().join("fs.erofs");
        let file = if image.exists() { image } else { made };
        assert!(fs::metadata(file).unwrap().blocks() * 512 < 2 << 20, "{format:?}: holes were written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_tar_dialect() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), noise(5000)).unwrap();
    std::os::unix::fs::symlink("b/file", tree.join("a/link")).unwrap();
    fs::hard_link(tree.join("a/b/file"), tree.join("a/hard")).unwrap();
    let mut trees = Vec::new();
    for format in ["v7", "oldgnu", "gnu", "ustar", "posix"] {
        let output = Command::new("tar")
            .arg(format!("--format={format}"))
            .args(["--create", "--mtime=@1234567890", "--numeric-owner", "--directory"])
            .arg(&tree)
            .args(["--file=-", "."])
            .output();
        let Ok(output) = output else { return missing("tar") };
        assert!(output.status.success());
        let bench = Bench::new();
        let image =
            bench.unpack_layers([Layer::raw(output.stdout)]).await.unwrap_or_else(|error| panic!("{format}: {error}"));
        trees.push(describe(&image.layers[0]));
    }
    assert_eq!(trees[0].len(), 6);
    assert!(trees.windows(2).all(|pair| pair[0] == pair[1]), "{trees:#?}");
}

fn is_whiteout(path: &Path) -> bool {
    let meta = fs::symlink_metadata(path).unwrap();
    meta.file_type().is_char_device() && meta.rdev() == 0
}

fn is_opaque(path: &Path) -> bool {
    xattrs(path).contains("trusted.overlay.opaque=79")
}

#[tokio::test(flavor = "multi_thread")]
async fn whiteouts_take_overlays_form_in_any_order() {
    let bench = Bench::new();
    let image = bench
        .unpack([
            Entry::dir("d"),
            Entry::whiteout("d/gone"),
            Entry::file("d/stays", "new"),
            Entry::whiteout("d/stays"),
            Entry::whiteout("d/comes"),
            Entry::file("d/comes", "new"),
            Entry::opaque("o"),
            Entry::dir("o"),
            Entry::whiteout("again"),
            Entry::dir("again"),
            Entry::file("again-implicit/x", ""),
            Entry::whiteout("again-implicit"),
            Entry::file(".wh..wh.plnk/1.2", ""),
            Entry::char_device("d/device", 0, 0),
        ])
        .await
        .unwrap();
    let at = |name: &str| image.layers[0].join(name);
    assert!(is_whiteout(&at("d/gone")) && is_whiteout(&at("d/device")));
    for kept in ["d/stays", "d/comes"] {
        assert_eq!(fs::read_to_string(at(kept)).unwrap(), "new");
    }
    assert!(is_opaque(&at("o")) && is_opaque(&at("again")) && is_opaque(&at("again-implicit")));
    assert!(!is_opaque(&at("d")) && !at(".wh..wh.plnk").exists());
}

/// Regression: the whiteout was made in the target of the link.
#[tokio::test(flavor = "multi_thread")]
async fn a_whiteout_stays_in_its_directory_when_that_becomes_a_link() {
    let bench = Bench::new();
    let image = bench
        .unpack([
            Entry::dir("a"),
            Entry::whiteout("a/x"),
            Entry::whiteout("a/d"),
            Entry::dir("b/d"),
            Entry::symlink("a", "b"),
            Entry::whiteout("a/y"),
        ])
        .await
        .unwrap();
    let at = |name: &str| image.layers[0].join(name);
    assert!(is_whiteout(&at("b/y")), "what comes after the link goes through it");
    assert!(!at("b/x").exists() && !is_opaque(&at("b/d")));
}

/// The layers as a container sees them.
pub struct Mounted {
    _directory: tempfile::TempDir,
    pub root: std::path::PathBuf,
}

impl Mounted {
    pub fn new(image: &image_store::Image) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (root, upper, work) = (at("root"), at("upper"), at("work"));
        // Short names: all options of mount(2) fit one page.
        let short = |(at, layer): (usize, &std::path::PathBuf)| {
            let link = directory.path().join(at.to_string());
            std::os::unix::fs::symlink(layer, &link).unwrap();
            link.display().to_string()
        };
        let layers: Vec<String> = image.layers.iter().enumerate().map(short).collect();
        let (lower, upper, work) = (layers.join(":"), upper.display(), work.display());
        let options = format!("xino=on,lowerdir={lower},upperdir={upper},workdir={work}");
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("overlay", &root, "overlay", rustix::mount::MountFlags::empty(), &*options).unwrap();
        Self { _directory: directory, root }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.root, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

pub fn attributes(path: &Path) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.mode() & 0o7777, meta.uid(), meta.gid())
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_a_layer_does_not_describe_keep_their_attributes() {
    let base = Layer::of([
        Entry::dir("./").mode(0o755),
        Entry::dir("tmp").mode(0o1777).xattr("user.kept", "1"),
        Entry::dir("srv").mode(0o750).owner(10, 20),
        Entry::dir("srv/deep").mode(0o700).owner(30, 40),
        Entry::dir("plain"),
        Entry::dir("gone").mode(0o700),
        Entry::dir("hidden").mode(0o700),
        Entry::file("hidden/old", ""),
    ]);
    let middle = Layer::of([Entry::file("tmp/middle", ""), Entry::whiteout("gone")]);
    let top = Layer::of([
        Entry::file("tmp/top", ""),
        Entry::file("srv/deep/er/file", ""),
        Entry::file("plain/file", ""),
        Entry::file("gone/new", ""),
        Entry::opaque("hidden"),
        Entry::file("hidden/new", ""),
    ]);
    let bench = Bench::new();
    let image = bench.unpack_layers([base, middle, top]).await.unwrap();
    let mounted = Mounted::new(&image);
    let at = |name: &str| mounted.root.join(name);
    assert_eq!(attributes(&at("tmp")), (0o1777, 0, 0));
    assert_eq!(xattrs(&at("tmp")), "user.kept=31");
    assert_eq!(attributes(&at("srv")), (0o750, 10, 20));
    assert_eq!(attributes(&at("srv/deep")), (0o700, 30, 40));
    assert_eq!(attributes(&at("srv/deep/er")), (0o755, 0, 0));
    assert_eq!(attributes(&at("plain")), (0o755, 0, 0));
    assert_eq!(attributes(&at("gone")), (0o755, 0, 0), "a new directory after a whiteout");
    assert_eq!(attributes(&at("hidden")), (0o700, 0, 0));
    assert!(at("tmp/middle").exists() && at("tmp/top").exists() && at("hidden/new").exists());
    assert!(!at("hidden/old").exists());
    // The layer of implied directories is made once and found the second time.
    assert_eq!(bench.pull(&bench.registry.reference("test:1")).await.unwrap(), image);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_layer_over_another_base_gets_that_bases_attributes() {
    let bench = Bench::new();
    let base = |mode| Layer::of([Entry::dir("tmp").mode(mode)]);
    let top = || Layer::of([Entry::file("tmp/x", "")]);
    for (name, mode) in [("one:1", 0o1777), ("two:1", 0o700), ("three:1", 0o755)] {
        let built = Image::new().layer(base(mode)).layer(top()).build();
        let image = bench.pull(&bench.push(name, &built)).await.unwrap();
        assert_eq!(attributes(&Mounted::new(&image).root.join("tmp")).0, mode);
        assert_eq!(image.layers.len(), if mode == 0o755 { 2 } else { 3 });
    }
    assert_eq!(bench.layer_count(), 4);
}

/// However many layers use a directory without describing it, one more layer has its attributes.
#[tokio::test(flavor = "multi_thread")]
async fn directories_that_many_layers_imply_take_one_layer() {
    let base = [Entry::dir("srv").mode(0o750).owner(10, 20), Entry::dir("srv/deep").mode(0o1700)];
    let users = (0..60).map(|at| {
        let gone = Entry::whiteout(&format!("srv/deep/{}", at - 1));
        let described = Entry::dir(format!("own-{at}/inner")).mode(0o711);
        let used = Entry::file(format!("own-{}/inner/later", at - 1), "");
        Layer::of([gone, Entry::file(format!("srv/deep/{at}"), ""), described, used])
    });
    let layers: Vec<Layer> = [Layer::of(base)].into_iter().chain(users).collect();
    for bench in [Some(Bench::in_directories()), Bench::in_images()].into_iter().flatten() {
        let image = bench.unpack_layers(layers.clone()).await.unwrap();
        assert_eq!(image.layers.len(), 62);
        let mounted = Mounted::new(&image);
        let at = |name: &str| mounted.root.join(name);
        assert_eq!(attributes(&at("srv")), (0o750, 10, 20));
        assert_eq!(attributes(&at("srv/deep")), (0o1700, 0, 0));
        assert_eq!(attributes(&at("own-7/inner")), (0o711, 0, 0));
        assert_eq!(fs::read_dir(at("srv/deep")).unwrap().count(), 1);
        assert!(at("own-7/inner/later").exists());
    }
}

/// Nothing of a hidden layer shows, not even the mode of a directory.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_layers_give_no_attributes() {
    let base = Layer::of([Entry::dir("d").mode(0o700), Entry::dir("e").mode(0o700), Entry::dir("f").mode(0o700)]);
    let whiteouts = Layer::of([Entry::whiteout("e"), Entry::file("f/x", "")]);
    let hides = Layer::of([Entry::opaque(""), Entry::file("d/x", "")]);
    let top = Layer::of([Entry::file("d/y", ""), Entry::file("e/x", "")]);
    for (layers, expected) in [
        (vec![base.clone(), hides.clone()], [Some(0o755), None, None]),
        (vec![base.clone(), hides, top.clone()], [Some(0o755), Some(0o755), None]),
        (vec![base.clone(), whiteouts.clone(), top], [Some(0o700), Some(0o755), Some(0o700)]),
        (vec![base, whiteouts, Layer::of([Entry::whiteout("f")])], [Some(0o700), None, None]),
    ] {
        for shown in in_both_forms(&layers).await {
            let mode = |name: &str| shown.get(name).map(|line| u32::from_str_radix(&line[..5], 8).unwrap() & 0o7777);
            assert_eq!(["d", "e", "f"].map(mode), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opaque_root_hides_all_lower_layers() {
    let bench = Bench::new();
    let base = Layer::of([Entry::file("old", "")]);
    let top = Layer::of([Entry::opaque(""), Entry::file("new", "")]);
    let image = bench.unpack_layers([base, top]).await.unwrap();
    assert_eq!(image.layers.len(), 1);
    assert!(image.layers[0].join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_side_by_side_mount_as_if_in_order() {
    let bench = Bench::new();
    let layers = (0..12).map(|at| {
        let compression = [Compression::Gzip, Compression::Zstd, Compression::Plain][at % 3];
        let gone = if at > 0 { Entry::whiteout(&format!("file-{}", at - 1)) } else { Entry::dir("d") };
        Layer::of([gone, Entry::file(format!("file-{at}"), ""), Entry::file("d/who", format!("{at}"))])
            .compression(compression)
    });
    let image = bench.unpack_layers(layers.collect::<Vec<_>>()).await.unwrap();
    let mounted = Mounted::new(&image);
    let mut names: Vec<_> = fs::read_dir(&mounted.root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["d", "file-11"]);
    assert_eq!(fs::read_to_string(mounted.root.join("d/who")).unwrap(), "11");
}
