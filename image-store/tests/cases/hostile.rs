//! Hostile layers: entries that try to leave the layer, change other files, fill the disk or confuse readers. A refusal
//! names the layer's digest and the entry.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use fixtures::image::{Entry, Image, Layer, digest, pax_record};
use image_store::PullError;

use crate::common::{Bench, xattrs};

/// Checks that the layer is refused with an error that names the layer and contains `reason`, and that no data is left.
pub async fn refused(entries: Vec<Entry>, reason: &str) {
    refused_layer(&Bench::new(), Layer::of(entries), reason).await;
}

pub async fn refused_layer(bench: &Bench, layer: Layer, reason: &str) {
    let blob = digest(&layer.blob());
    let error = bench.unpack_layers([layer]).await.unwrap_err();
    assert!(matches!(error, PullError::Layer { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(reason) && text.contains(&blob), "{reason:?} expected: {text}");
    assert!(!error.recoverable());
    assert_eq!(bench.layer_count(), 0);
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn large_layers_are_refused_at_either_end() {
    let data = || Entry::file("noise", crate::common::noise(20 << 20));
    refused(vec![Entry::file("../first", ""), data()], "..").await;
    refused(vec![data(), Entry::file("../last", "")], "..").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_names() {
    let long = format!("d/{}", "n".repeat(256));
    for (name, reason) in [
        ("../escape", ".."),
        ("a/../../escape", ".."),
        ("a/..", ".."),
        (long.as_str(), "longer than 255"),
        ("a/.wh.", "whiteout without a name"),
        ("a/.wh..", "whiteout without a name"),
        ("a/.wh...", "whiteout without a name"),
        ("a/.wh.b/c", "inside a whiteout"),
    ] {
        refused(vec![Entry::file(name, "x")], reason).await;
    }
    refused(vec![Entry::file("a", "").pax("path", *b"a\0b")], "NUL").await;
    refused(vec![Entry::file(".", "x")], "root must be a directory").await;
    refused(vec![Entry::symlink("./", "/etc")], "root must be a directory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn absolute_names_mean_the_layers_root() {
    let canary = Canary::new();
    let bench = Bench::new();
    let entries = [
        Entry::file(format!("{}/file", canary.path()), "inside"),
        Entry::file(format!("//{}//./other", canary.path()), "x"),
        Entry::hard_link("/link", format!("{}/file", canary.path())),
        Entry::dir("///"),
    ];
    let image = bench.unpack(entries).await.unwrap();
    canary.assert_alive();
    let inside = image.layers[0].join(canary.path().trim_start_matches('/'));
    assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "inside");
    assert!(inside.join("other").exists() && image.layers[0].join("link").exists());
}

/// A directory outside the layer that must not change.
struct Canary {
    directory: tempfile::TempDir,
}

impl Canary {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "canary").unwrap();
        Self { directory }
    }

    fn path(&self) -> String {
        self.directory.path().display().to_string()
    }

    fn assert_alive(&self) {
        let meta = fs::metadata(self.directory.path().join("file")).unwrap();
        assert_eq!(fs::read_to_string(self.directory.path().join("file")).unwrap(), "canary");
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.nlink()), (0o644, 0, 1));
        assert_eq!(fs::read_dir(self.directory.path()).unwrap().count(), 1);
        assert_eq!(xattrs(&self.directory.path().join("file")), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_lead_nowhere_but_inside() {
    let canary = Canary::new();
    let out = canary.path();
    let up = format!("../../../../../../../../../../..{out}");
    for target in [&out, &up] {
        let bench = Bench::new();
        let image = bench
            .unpack([
                Entry::symlink("link", target.as_str()),
                Entry::file("link/file", "inside").mode(0o777).owner(7, 7).xattr("user.x", "1"),
                Entry::dir("link/dir"),
                Entry::whiteout("link/gone"),
                Entry::opaque("link"),
            ])
            .await
            .unwrap();
        canary.assert_alive();
        let inside = image.layers[0].join(out.trim_start_matches('/'));
        assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "inside");
        assert!(xattrs(&inside).contains("trusted.overlay.opaque=79"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_never_act_through_a_link_of_their_own_name() {
    let canary = Canary::new();
    let file = format!("{}/file", canary.path());
    let image = Bench::new();
    let image = image
        .unpack([
            Entry::symlink("f", file.as_str()),
            Entry::file("f", "new").mode(0o4777),
            Entry::symlink("d", canary.path()),
            Entry::dir("d").mode(0o777).owner(9, 9),
            Entry::file("d/file", "in d"),
            Entry::symlink("n", file.as_str()),
            Entry::fifo("n"),
            Entry::symlink("s", file.as_str()).owner(5, 5).mtime(1, 0),
            Entry::symlink("w", canary.path()),
            Entry::whiteout("w"),
        ])
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    canary.assert_alive();
    let root = &image.layers[0];
    assert_eq!(fs::read_to_string(root.join("f")).unwrap(), "new");
    assert_eq!(fs::symlink_metadata(root.join("d")).unwrap().mode() & 0o7777, 0o777);
    assert!(fs::symlink_metadata(root.join("d")).unwrap().is_dir());
    assert_eq!(fs::symlink_metadata(root.join("s")).unwrap().uid(), 5);
    // The entry overrides the whiteout of its own name.
    assert!(fs::symlink_metadata(root.join("w")).unwrap().is_symlink());
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_links_reach_only_what_this_layer_made() {
    let canary = Canary::new();
    let file = format!("{}/file", canary.path());
    for (target, reason) in [
        ("missing", "does not have"),
        (file.as_str(), "does not have"),
        ("../file", ".."),
        ("etc", "to a directory"),
        ("/", "root"),
    ] {
        refused(vec![Entry::dir("etc"), Entry::hard_link("link", target)], reason).await;
    }
    let through = vec![Entry::symlink("out", canary.path()), Entry::hard_link("link", "out/file")];
    refused(through, "does not have").await;
    refused(vec![Entry::file("d/f", ""), Entry::hard_link("d", "d/f")], "own target").await;
    // Nor a file of a lower layer.
    let bench = Bench::new();
    let lower = Layer::of([Entry::file("lower", "")]);
    let error = bench.unpack_layers([lower, Layer::of([Entry::hard_link("link", "lower")])]).await.unwrap_err();
    assert!(error.to_string().contains("does not have"), "{error}");
    canary.assert_alive();
    // A link to a link is a second name of the link.
    let bench = Bench::new();
    let image = bench
        .unpack([Entry::symlink("s", file.as_str()), Entry::hard_link("h", "s").mode(0o777).owner(3, 3)])
        .await
        .unwrap();
    assert!(fs::symlink_metadata(image.layers[0].join("h")).unwrap().is_symlink());
    canary.assert_alive();
}

#[tokio::test(flavor = "multi_thread")]
async fn parents_must_be_directories() {
    refused(vec![Entry::file("f", ""), Entry::file("f/x", "")], "parent is no directory").await;
    refused(vec![Entry::symlink("a", "b"), Entry::symlink("b", "a"), Entry::file("a/x", "")], "parent is no directory")
        .await;
    refused(vec![Entry::file("f", ""), Entry::whiteout("f/x")], "parent is no directory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlays_own_marks_cannot_be_injected() {
    let bench = Bench::new();
    let image = bench
        .unpack([
            Entry::dir("d")
                .xattr("trusted.overlay.opaque", "y")
                .xattr("trusted.overlay.redirect", "/etc")
                .xattr("user.overlay.opaque", "y")
                .xattr("security.selinux", "x")
                .xattr("user.kept", "1"),
            Entry::file("f", "").xattr("trusted.overlay.metacopy", "").xattr("user.kept", "2"),
        ])
        .await
        .unwrap();
    assert_eq!(xattrs(&image.layers[0].join("d")), "user.kept=31");
    assert_eq!(xattrs(&image.layers[0].join("f")), "user.kept=32");
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_and_devices_out_of_range() {
    // For the kernel, -1 means "do not change": a setuid file would keep root as its owner.
    for uid in [u64::from(u32::MAX), 1 << 32, u64::MAX] {
        refused(vec![Entry::file("f", "").pax("uid", uid.to_string())], "out of range").await;
        refused(vec![Entry::dir("f").pax("gid", uid.to_string())], "out of range").await;
    }
    refused(vec![Entry::file("f", "").pax("uid", "-1")], "no number").await;
    refused(vec![Entry::char_device("c", 5000, 1)], "device number").await;
    refused(vec![Entry::block_device("b", 1, 1 << 20)], "device number").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_readers_understand_differently() {
    refused(vec![Entry::of_kind(b'V', "label")], "unknown entry type").await;
    refused(vec![Entry::of_kind(b'M', "multi")], "unknown entry type").await;
    refused(vec![Entry::file("f", "x").pax("size", "-1")], "no number").await;
    refused(vec![Entry::file("f", "x").pax("size", "99999999999999999999")], "no number").await;
    // According to PAX, the data continues beyond the end.
    refused(vec![Entry::file("f", "x").pax("size", "100000")], "ends in the middle").await;
    let bench = Bench::new();
    let entry = Layer::of([Entry::file("f", "x")]).tar().to_vec();
    let mut flipped = entry.clone();
    flipped[0] ^= 1;
    refused_layer(&bench, Layer::raw(flipped), "checksum").await;
    refused_layer(&bench, Layer::raw(&entry[..700]), "ends in the middle").await;
    let zero_inside = [&[0; 512][..], &entry].concat();
    refused_layer(&bench, Layer::raw(zero_inside), "after a block of zeros").await;
    // A global header that renames everything.
    let global = pax_record("path", b"etc/passwd");
    let mut tar = tar_entry(b'g', &global);
    tar.extend_from_slice(&entry);
    refused_layer(&bench, Layer::raw(tar), "global PAX header").await;
    let mut twice = tar_entry(b'x', &pax_record("path", b"a"));
    twice.extend(tar_entry(b'x', &pax_record("path", b"b")));
    twice.extend_from_slice(&entry);
    refused_layer(&bench, Layer::raw(twice), "two PAX headers").await;
    let mut contradiction = tar_entry(b'L', b"long\0");
    contradiction.extend(tar_entry(b'x', &pax_record("path", b"other")));
    contradiction.extend_from_slice(&entry);
    refused_layer(&bench, Layer::raw(contradiction), "differently").await;
    let mut alone = tar_entry(b'x', &pax_record("path", b"a"));
    alone.extend([0; 1024]);
    refused_layer(&bench, Layer::raw(alone), "ends after an extension").await;
    let huge = tar_entry(b'x', &pax_record("comment", &vec![b'x'; 2 << 20]));
    refused_layer(&bench, Layer::raw(huge), "extension header of").await;
    refused_layer(
        &bench,
        Layer::raw(&b"this is no tar archive at all, but it is longer than one block".repeat(20)[..]),
        "checksum",
    )
    .await;
}

fn tar_entry(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().linkflag = [kind];
    header.as_old_mut().name[..1].copy_from_slice(b"x");
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(data.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_after_the_compressed_stream() {
    for junk in [&b"junk"[..], &[0; 512]] {
        let layer = Layer::of([Entry::file("f", "x")]);
        let blob = [&layer.blob()[..], junk].concat();
        let mut built = Image::new().layer(layer.clone().claim_blob(&digest(&blob))).build();
        built.blobs[0].1 = blob.clone();
        let text = String::from_utf8(built.manifests[0].bytes.clone()).unwrap();
        let text = text.replace(&format!("\"size\":{}}}]", layer.blob().len()), &format!("\"size\":{}}}]", blob.len()));
        built.manifests[0].bytes = text.into_bytes();
        let bench = Bench::new();
        let error = bench.pull(&bench.push("junk:1", &built)).await.unwrap_err();
        assert!(matches!(error, PullError::Layer { .. }) && !error.recoverable(), "{error}");
    }
}

/// Which attributes a kind of file can have depends on the kernel: these are set, the others are left out and logged.
#[tokio::test(flavor = "multi_thread")]
async fn attributes_of_links_devices_and_pipes() {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // version 2; user::rw- user:5:r-- group::r-- mask::r-- other::---
    let acl: Vec<u8> = [2u32.to_le_bytes().to_vec()]
        .into_iter()
        .chain([(1u16, 6u16, u32::MAX), (2, 4, 5), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)].map(
            |(tag, permissions, id)| [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat(),
        ))
        .flatten()
        .collect();
    let canary = Canary::new();
    let all = |entry: Entry| {
        entry
            .xattr("security.capability", capability)
            .xattr("system.posix_acl_access", acl.clone())
            .xattr("system.posix_acl_default", acl.clone())
            .xattr("user.note", "1")
            .xattr("trusted.overlay.opaque", "y")
    };
    let bench = Bench::new();
    let image = bench
        .unpack([
            Entry::dir("sub"),
            all(Entry::symlink("sub/link", format!("{}/file", canary.path()))),
            all(Entry::fifo("sub/pipe")).mode(0o640),
            all(Entry::char_device("sub/null", 1, 3)).mode(0o640),
            all(Entry::block_device("disk", 8, 1)).mode(0o640),
            all(Entry::file("file", "x")).mode(0o640),
            Entry::file("sub/after", "in the right directory"),
        ])
        .await
        .unwrap();
    canary.assert_alive();
    let root = &image.layers[0];
    let (capability, acl) = (
        format!("security.capability={}", hex::encode(capability)),
        format!("system.posix_acl_access={}", hex::encode(acl)),
    );
    assert_eq!(xattrs(&root.join("sub/link")), capability);
    for name in ["sub/pipe", "sub/null", "disk"] {
        assert_eq!(xattrs(&root.join(name)), format!("{capability},{acl}"), "{name}");
        assert_eq!(fs::symlink_metadata(root.join(name)).unwrap().mtime(), 1_600_000_000, "{name}");
    }
    assert_eq!(xattrs(&root.join("file")), format!("{capability},{acl},user.note=31"));
    assert!(root.join("sub/after").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_layer_and_entry_in_letters_that_a_terminal_can_bear() {
    let name = "a\u{1b}[31m\n\"b\u{202e}";
    for (entry, reason) in [
        (Entry::file(name, "x").pax("uid", "4294967295"), "out of range"),
        (Entry::hard_link(name, "missing"), "does not have"),
        (Entry::char_device(name, 5000, 1), "device number"),
        (Entry::symlink(name, ""), "impossible target"),
        (Entry::file(name, "x").pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0"), "sparse map"),
        (Entry::file(name, "x").pax("size", "5000"), "ends in the middle"),
    ] {
        let layer = Layer::of([Entry::dir("before"), entry]);
        let blob = digest(&layer.blob());
        let error = Bench::new().unpack_layers([layer]).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&blob) && text.contains(reason) && text.contains("[31m"), "{text}");
        assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
    }
    // Without an entry, the error names the last one before it.
    let mut tar = Layer::of([Entry::file("last-good", "x")]).tar().to_vec();
    tar.truncate(1024);
    tar.extend([b'?'; 512]);
    refused_layer(&Bench::new(), Layer::raw(tar), "after entry \"last-good\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_closed_to_others() {
    let bench = Bench::in_directories();
    let image = bench.unpack([Entry::file("su", "#!").mode(0o4755)]).await.unwrap();
    let su = image.layers[0].join("su");
    assert_eq!(fs::metadata(&su).unwrap().mode() & 0o7777, 0o4755);
    let closed: Vec<&Path> = su.ancestors().skip(1).take_while(|path| path.starts_with(bench.root())).collect();
    assert!(closed.iter().any(|path| fs::metadata(path).unwrap().mode() & 0o077 == 0));
}
