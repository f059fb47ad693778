//! Layers that exceed a limit or end too early: bytes, entries, depth, attributes.

use std::fs;

use fixtures::image::{Compression, Entry, Image, Layer, digest};
use image_store::{LayerFormat, Limits, PullError, StoreConfig};

use crate::{
    common::{Bench, limits, noise, xattrs},
    hostile::{refused, refused_layer},
};

#[tokio::test(flavor = "multi_thread")]
async fn bombs() {
    let small =
        Limits { layer_bytes: 32 << 20, ratio_grace: 4 << 20, ratio: 50, entries: 100, xattr_bytes: 1000, ..limits() };
    let bench = Bench::full(Vec::new(), small);
    for compression in [Compression::Gzip, Compression::Zstd] {
        let zeros = Layer::of([Entry::file("zeros", vec![0; 24 << 20])]).compression(compression);
        refused_layer(&bench, zeros, "entry \"zeros\": it unpacks to more than 50 times").await;
    }
    let plain = Layer::of([Entry::file("zeros", vec![0; 33 << 20])]).compression(Compression::Plain);
    refused_layer(&bench, plain, "unpacks to more than").await;
    refused_layer(&bench, Layer::of((0..101).map(|at| Entry::file(format!("{at}"), ""))), "more than 100 entries")
        .await;
    refused_layer(&bench, Layer::of([Entry::file("f", "").xattr("user.x", vec![b'x'; 1001])]), "too large").await;
    let sparse = Entry::file("holes", "")
        .pax("GNU.sparse.size", (1u64 << 50).to_string())
        .pax("GNU.sparse.numblocks", "0")
        .pax("GNU.sparse.map", "");
    refused_layer(&bench, Layer::of([sparse]), "sparse files of more").await;
}

/// The default compression level always writes a window of 2 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn a_zstd_window_takes_no_more_memory_than_it_may() {
    let layer = || Layer::of([Entry::file("noise", noise(4 << 20))]).compression(Compression::Zstd);
    let bench = Bench::full(Vec::new(), Limits { zstd_window: (2 << 20) - 1, ..limits() });
    refused_layer(&bench, layer(), "its zstd window is larger than 1048576 bytes (image_limits.zstd_window_mib)").await;
    let bench = Bench::full(Vec::new(), Limits { zstd_window: 2 << 20, ..limits() });
    bench.unpack_layers([layer()]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_sparse_maps() {
    for (map, data) in [("0,10,5,10", 20), ("0,5", 4), ("90,20", 20), ("0,5,10", 5)] {
        let entry = Entry::file("holes", vec![b'x'; data]).pax("GNU.sparse.size", "100").pax("GNU.sparse.map", map);
        refused(vec![entry], "sparse map").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn depth_counts_where_links_lead() {
    let reason = "too deep, or behind too many links";
    refused(vec![Entry::file("d/".repeat(600) + "f", "x")], reason).await;
    // Each link starts at the target of the one before: short names reach any depth.
    let step = "d/".repeat(400);
    let ladder = vec![
        Entry::dir(step.clone()),
        Entry::symlink(format!("{step}up"), "/short"),
        Entry::symlink("short", step.clone()),
        Entry::file(format!("short/{step}f"), "x"),
    ];
    refused(ladder, reason).await;
    // A link's target has at most 1023 bytes on XFS.
    let round = "far/".repeat(12) + "f";
    let circle = vec![Entry::dir("d"), Entry::symlink("far", "d/../".repeat(200)), Entry::file(round, "")];
    refused(circle, reason).await;
    // The greatest allowed depth is made and replaced.
    let bench = Bench::new();
    let deep = "d/".repeat(500);
    let image = bench.unpack([Entry::file(format!("{deep}f"), "deep"), Entry::file("d", "now a file")]).await.unwrap();
    assert_eq!(fs::read_to_string(image.layers[0].join("d")).unwrap(), "now a file");
    refused_layer(&Bench::new(), Layer::of([Entry::file(format!("{deep}f"), ""), Entry::file("..", "")]), "..").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn implied_directories_are_counted() {
    let bench = Bench::full(Vec::new(), Limits { entries: 100, ..limits() });
    let deep = (0..3).map(|at| Entry::file(format!("{at}/{}f", "d/".repeat(40)), ""));
    refused_layer(&bench, Layer::of(deep), "more than 100 entries").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_of_directories_do_not_pile_up_in_memory() {
    let limits = Limits { kept_bytes: 100_000, ..limits() };
    // An EROFS image of this many files becomes a directory earlier.
    let bench = Bench::open(|config| StoreConfig { limits, layers: LayerFormat::Directory, ..config });
    let large = |at: usize| Entry::dir("d").xattr(&format!("user.{at}"), vec![b'x'; 3000]);
    refused_layer(&bench, Layer::of((0..40).map(large)), "names and attributes of directories").await;
    let names = (0..300).map(|at| Entry::whiteout(&format!("{:0>200}/{at:0>200}", at % 2)));
    refused_layer(&bench, Layer::of(names), "names and attributes of directories").await;
    let many = (0..1025).fold(Entry::file("f", ""), |file, at| file.xattr(&format!("user.{at}"), "x"));
    refused(vec![many], "more than 1024 extended attributes").await;
}

/// The file system reports a full disk, but the image is the cause, so another attempt is useless.
#[tokio::test(flavor = "multi_thread")]
async fn attributes_that_no_file_can_hold() {
    let large = |kind: Entry| kind.xattr("user.large", vec![b'x'; 60 << 10]).xattr("user.larger", vec![b'y'; 64 << 10]);
    for entry in [large(Entry::file("f", "")), large(Entry::dir("f"))] {
        let bench = Bench::new();
        match bench.unpack([entry]).await {
            Err(error) => assert!(matches!(error, PullError::Layer { .. }) && !error.recoverable(), "{error}"),
            Ok(image) => assert!(xattrs(&image.layers[0].join("f")).contains("user.large"), "dropped"),
        }
    }
    for key in ["security.capability", "system.posix_acl_access"] {
        refused(vec![Entry::file("f", "").xattr(key, [2, 0, 0, 0, 1, 2, 3])], "extended attributes").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_streams() {
    let layer = Layer::of([Entry::file("first", "x"), Entry::file("cut", noise(100_000))]);
    let tar = layer.tar().to_vec();
    refused_layer(&Bench::new(), Layer::raw(&tar[..50_000]), "entry \"cut\": it ends in the middle").await;
    // The compressed stream ends early, and the manifest gives the truncated size.
    for compression in [Compression::Gzip, Compression::Zstd] {
        let whole = layer.clone().compression(compression);
        let blob = whole.blob();
        let cut = blob[..blob.len() - 20].to_vec();
        let name = digest(&cut);
        let mut built = Image::new().layer(whole.claim_blob(&name)).build();
        built.blobs[0].1 = cut;
        let text = String::from_utf8(built.manifests[0].bytes.clone()).unwrap();
        built.manifests[0].bytes = text
            .replace(&format!("\"size\":{}}}]", blob.len()), &format!("\"size\":{}}}]", blob.len() - 20))
            .into_bytes();
        let bench = Bench::new();
        let error = bench.pull(&bench.push("cut:1", &built)).await.unwrap_err();
        assert!(
            matches!(error, PullError::Layer { .. }) && error.to_string().contains(&name),
            "{compression:?} {error}"
        );
        bench.assert_clean();
    }
}
