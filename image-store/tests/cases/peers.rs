//! The same image unpacked by this store and by umoci: a mount of the layers shows the same tree as umoci's directory.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::{
    image::{Built, Compression, Entry, Image, Layer},
    program::missing,
};
use serde_json::json;

use crate::{
    common::{Bench, describe, noise},
    layers::{Mounted, attributes},
};

/// The tree of umoci in a temporary directory, if umoci is installed.
fn umoci(image: &Built) -> Option<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir().unwrap();
    let layout = directory.path().join("layout");
    for entry in image.layout(json!({"org.opencontainers.image.ref.name": "test"})) {
        entry.write_below(&layout);
    }
    let bundle = directory.path().join("bundle");
    let output = Command::new("umoci")
        .args(["unpack", "--keep-dirlinks", "--image", &format!("{}:test", layout.display())])
        .arg(&bundle)
        .output();
    let Ok(output) = output else {
        missing("umoci");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some((directory, bundle.join("rootfs")))
}

/// The names of each file that has several.
fn groups(root: &Path) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                open.push(path);
            } else {
                groups
                    .entry((meta.dev(), meta.ino()))
                    .or_default()
                    .push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    let mut groups: Vec<_> = groups.into_values().filter(|names| names.len() > 1).collect();
    groups.iter_mut().for_each(|names| names.sort());
    groups.sort();
    groups
}

/// Intended differences.
const KNOWN: &[(&str, &str)] =
    &[("", "overlay shows the writable layer's root, which the runtime makes like the topmost layer's")];

/// Compares the trees, apart from `known` differences: path and reason.
async fn same(image: Built, known: &[(&str, &str)]) {
    let Some((_directory, theirs)) = umoci(&image) else { return };
    let bench = Bench::new();
    let ours = bench.pull(&bench.push("test:1", &image)).await.unwrap();
    assert_eq!(attributes(&theirs), attributes(&ours.layers[0]), "the root");
    let ours = Mounted::new(&ours);
    let (mut expected, mut found) = (describe(&theirs), describe(&ours.root));
    assert!(expected.len() > 10);
    for (path, reason) in known {
        let (expected, found) = (expected.remove(*path), found.remove(*path));
        assert_ne!(expected, found, "{path} is the same, although: {reason}");
    }
    let paths: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).cloned().collect();
    let differences: Vec<_> = paths
        .into_iter()
        .filter(|path| expected.get(path) != found.get(path))
        .map(|path| format!("{path}\n  umoci {:?}\n  ours  {:?}", expected.get(&path), found.get(&path)))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(groups(&theirs), groups(&ours.root));
}

fn base() -> Layer {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let long = format!("{}/{}", "long".repeat(30), "name".repeat(30));
    Layer::of([
        Entry::dir("./").mode(0o751).owner(3, 4).mtime(1_500_000_000, 0),
        Entry::dir("etc"),
        Entry::file("etc/passwd", "root:x:0:0::/:/bin/sh\n"),
        Entry::dir("setgid").mode(0o2775).owner(0, 50),
        Entry::file("setgid/inherits-nothing", "x").owner(1, 1),
        Entry::dir("tmp").mode(0o1777),
        Entry::dir("closed").mode(0o000).owner(1000, 1000),
        Entry::file("closed/inside", "filled before it was closed"),
        Entry::file("setuid", "#!").mode(0o4755).owner(1000, 1000),
        Entry::file("setgid-file", "#!").mode(0o6711).owner(12, 34),
        Entry::file("capable", "elf").mode(0o755).owner(8, 8).xattr("security.capability", capability),
        Entry::file("attributes", "x").xattr("user.binary", *b"a\nb=c\0d"),
        Entry::dir("attributes-dir").xattr("user.on-a-dir", "1").mtime(1_400_000_000, 5),
        Entry::symlink("capable-link", "capable").xattr("security.capability", capability),
        Entry::file("nanoseconds", "x").mtime(1_234_567_890, 123_456_789),
        Entry::file("large-ids", "x").pax("uid", "4000000").pax("gid", "3000000"),
        Entry::file("empty", ""),
        Entry::file("sizes", noise(300_000)),
        Entry::symlink("link", "sizes").owner(5, 6).mtime(1_111_111_111, 1),
        Entry::symlink("dangling", "/no/where"),
        Entry::hard_link("second-name", "sizes"),
        Entry::hard_link("setgid/third-name", "/sizes"),
        Entry::hard_link("second-link", "link").owner(5, 6).mtime(1_111_111_111, 1),
        Entry::char_device("null", 1, 3),
        Entry::char_device("far", 259, 70000).owner(1, 5).mode(0o640),
        Entry::block_device("disk", 8, 1),
        Entry::fifo("pipe").mode(0o620).owner(2, 2),
        Entry::dir("long".repeat(30)),
        Entry::file(long, "long names go through PAX"),
        Entry::file("n\u{e4}me with space", "x"),
        Entry::file("again", "first").mode(0o600),
        Entry::file("again", "second").mode(0o644),
        Entry::dir("usr"),
        Entry::dir("usr/lib").mtime(1_300_000_000, 0),
        Entry::symlink("lib", "usr/lib"),
        Entry::dir("gone"),
        Entry::file("gone/file", "x"),
        Entry::dir("emptied"),
        Entry::file("emptied/old", "x"),
        Entry::dir("kind"),
        Entry::file("kind/inside", "x"),
        Entry::file("other-kind", "x"),
    ])
}

fn above() -> Layer {
    Layer::of([
        Entry::whiteout("gone"),
        Entry::dir("emptied").mode(0o700),
        Entry::opaque("emptied"),
        Entry::file("emptied/new", "x"),
        Entry::file("kind", "now a file"),
        Entry::dir("other-kind").mode(0o711),
        Entry::file("other-kind/inside", "x"),
        Entry::file("again", "third").mtime(1, 999_999_999),
        Entry::whiteout("dangling"),
        Entry::dir("etc").mode(0o755).owner(0, 1),
        Entry::file("etc/added", "x").mode(0o640),
        Entry::hard_link("etc/added-too", "etc/added").mode(0o640),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_odd_entries_is_what_umoci_makes_of_it() {
    let image = Image::new().layer(base()).layer(above().compression(Compression::Gzip)).build();
    same(image, KNOWN).await;
}

/// Files like those of a distribution, packed by GNU tar.
#[tokio::test(flavor = "multi_thread")]
async fn a_piece_of_a_distribution_is_what_umoci_makes_of_it() {
    let directories =
        ["etc/alternatives", "usr/share/zoneinfo", "usr/share/doc/tar", "usr/lib/python3", "usr/share/perl5"];
    let there = directories.iter().filter(|directory| Path::new("/").join(directory).is_dir());
    let output =
        Command::new("tar").args(["--create", "--format=pax", "--directory=/", "--file=-"]).args(there).output();
    let output = output.unwrap();
    assert!(output.status.success());
    let parents = Layer::of(["etc", "usr", "usr/share", "usr/share/doc", "usr/lib"].map(Entry::dir));
    let tar = [&parents.tar()[..parents.tar().len() - 1024], &output.stdout].concat();
    same(Image::new().layer(Layer::raw(tar)).build(), KNOWN).await;
}
