//! Registries that lie, refuse, or are slow while a layer streams, and a disk that is full.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fixtures::{
    image::Built,
    registry::{Action, Auth, Fault, Registry},
};
use image_store::{
    CredentialSources, LayerEventKind, Limits, PartialConfig, PullError, PullRequest, RegistryConfig, Silent, Store,
    StoreConfig,
};
use serde_json::{Value, json};

use super::{
    acquire, bench, content, events, image, is_complete, is_partial, layer, native_layer, next, open, reader,
    stop_after_front,
};
use crate::{
    common::{Bench, Shown, credentials, limits, request},
    disk::{Disk, Kind},
};

/// The bytes of a chunk.
const CHUNK: usize = lazy::CHUNK as usize;

/// Where the data of the layer begins in its file, and where the hash tree does.
fn data(built: &Built) -> std::ops::Range<usize> {
    let manifest: Value = serde_json::from_slice(&built.manifests[1].bytes).unwrap();
    let metadata = manifest["layers"][0]["annotations"]["org.oci-rs.native.metadata"].as_str().unwrap();
    let metadata: usize = metadata.parse().unwrap();
    // The marker has a block, and the large file has whole blocks.
    metadata..metadata + 4096 + content().len().next_multiple_of(4096)
}

fn read(layer: &Path) -> io::Result<Vec<u8>> {
    reader(layer).join().unwrap()
}

/// A mirror changes one byte of the layer, in any chunk, or in the metadata, or in the hash tree.
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_lies_about_any_chunk_is_never_believed() {
    let Some(first) = bench() else { return };
    let (built, mirror) = (image(), Registry::start());
    let (reference, data) = (first.push("team/app:1", &built), data(&built));
    mirror.push("team/app:1", &built);
    let mirrored = RegistryConfig { host: first.registry.host(), mirrors: vec![mirror.host()], ..Default::default() };
    let chunks = data.clone().step_by(CHUNK).enumerate().map(|(number, start)| start + (number * 977) % 2000);
    let positions: Vec<usize> = [1030, data.end + 5000].into_iter().chain(chunks).collect();
    assert!(positions.len() > 16, "{positions:?}");
    for position in positions {
        mirror.heal();
        mirror.fault(Fault::on(layer(&built), Action::Flip(position)));
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("images");
        let registries = vec![mirrored.clone()];
        let store = open(&root, |config| StoreConfig { registries, ..config }, |partial| partial);
        let mut events = events(&store);
        let image = acquire(&store, &reference, "task").await.unwrap();
        assert!(read(&image.layers[0]).unwrap() == content(), "byte {position}");
        if data.contains(&position) {
            let wrong = next(&mut events, |kind| matches!(kind, LayerEventKind::WrongChunk { .. })).await;
            assert_eq!(wrong.kind, LayerEventKind::WrongChunk { source: mirror.host() }, "byte {position}");
        }
        if is_partial(&image) {
            next(&mut events, is_complete).await;
        }
        let file = fs::read(&image.layers[0]).unwrap();
        assert!(file == native_layer(&built).1, "byte {position}");
    }
}

/// The only registry changes one byte, in any chunk.
#[tokio::test(flavor = "multi_thread")]
async fn a_lie_of_the_only_registry_about_any_chunk_is_an_error_of_this_chunk() {
    let Some(first) = bench() else { return };
    let built = image();
    let (reference, data) = (first.push("team/app:1", &built), data(&built));
    let content = content();
    for wrong in data.clone().step_by(CHUNK) {
        first.registry.fault(Fault::on(layer(&built), Action::Flip(wrong + 5)));
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory.path().join("images"), |config| config, |partial| partial);
        let mut events = events(&store);
        let image = acquire(&store, &reference, "task").await.unwrap();
        let shown = Shown::of(&image.layers[0]);
        let failed = tokio::task::block_in_place(|| read_pieces(&shown, &content));
        assert!((1..=3).contains(&failed), "{wrong}: {failed} pieces");
        next(&mut events, |kind| matches!(kind, LayerEventKind::ReadFailed { .. })).await;
        assert_eq!(fs::read_dir(directory.path().join("images/layers")).unwrap().count(), 0);
        first.registry.heal();
        // A background job may still have a wrong answer, which would fail a read of this moment.
        next(&mut events, is_complete).await;
        assert_eq!(tokio::task::block_in_place(|| read_pieces(&shown, &content)), 0);
    }
}

/// Reads the large file in pieces, and compares. Returns how many of them cannot be read.
fn read_pieces(shown: &Shown, content: &[u8]) -> usize {
    let file = File::open(shown.path().join("data")).unwrap();
    // Without read-ahead, which would touch the next chunk.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let mut failed = 0;
    for start in (0..content.len()).step_by(CHUNK / 2) {
        let mut piece = vec![0; (CHUNK / 2).min(content.len() - start)];
        match file.read_exact_at(&mut piece, start as u64) {
            Ok(()) => assert!(piece == content[start..start + piece.len()], "the piece at {start}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                failed += 1;
            }
        }
    }
    failed
}

/// Access that ends while the layer streams.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_expire_while_a_layer_streams_are_replaced() {
    let Some(bench) = bench() else { return };
    let built = image();
    let reference = bench.push("team/app:1", &built);
    let basic = |password: &str| Auth::Basic { user: "joe".into(), password: password.into() };
    let bearer = |password: &str| Auth::Bearer { user: Some(("joe".into(), password.into())), realm: None };
    for auth in [&basic as &dyn Fn(&str) -> Auth, &bearer] {
        let directory = tempfile::tempdir().unwrap();
        let config_file = directory.path().join("config.json");
        fs::write(&config_file, "{}").unwrap();
        let sources = CredentialSources { config_file: Some(config_file.clone()), helper: None };
        let root = directory.path().join("images");
        let store = open(&root, |config| StoreConfig { credentials: sources, ..config }, |partial| partial);
        let mut events = events(&store);
        bench.registry.auth(auth("first"));
        bench.registry.fault(Fault::on(layer(&built), Action::Cut(300_000)).after(super::FRONT).times(1));
        stop_after_front(&bench.registry, &built);
        let image = acquire_as(&store, &reference, "first").await.unwrap();
        next(&mut events, |kind| matches!(kind, LayerEventKind::Stalled { .. })).await;
        // A token that ends is fetched again with the same password.
        bench.registry.revoke_tokens();
        // The password changes. The job's is refused, and the node has none: reads wait.
        bench.registry.auth(auth("second"));
        bench.registry.heal();
        let refused = |kind: &LayerEventKind| match kind {
            LayerEventKind::Stalled { problem, .. } => !problem.contains("503"),
            _ => false,
        };
        let stalled = next(&mut events, refused).await;
        let LayerEventKind::Stalled { problem, .. } = &stalled.kind else { unreachable!() };
        assert!(!problem.contains("first") && !problem.contains("second"), "{problem}");
        let reading = reader(&image.layers[0]);
        // The administrator writes the new one, which is read at the next attempt.
        let auths = json!({"auths": {bench.registry.host(): {"username": "joe", "password": "second"}}});
        fs::write(&config_file, auths.to_string()).unwrap();
        assert!(reading.join().unwrap().unwrap() == content());
        next(&mut events, is_complete).await;
    }
}

/// The same without credentials of the node: a task that starts again brings the new ones.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_a_task_are_used_for_the_rest_of_its_layers() {
    let Some(bench) = bench() else { return };
    let built = image();
    let reference = bench.push("team/app:1", &built);
    let mut events = events(&bench.store);
    let auth = |password: &str| bench.registry.auth(Auth::Basic { user: "joe".into(), password: password.into() });
    auth("first");
    stop_after_front(&bench.registry, &built);
    let image = acquire_as(&bench.store, &reference, "first").await.unwrap();
    auth("second");
    bench.registry.heal();
    next(&mut events, |kind| matches!(kind, LayerEventKind::Stalled { .. })).await;
    bench.store.renew_credentials(&reference.parse().unwrap(), &credentials("joe", "second").unwrap());
    assert!(read(&image.layers[0]).unwrap() == content());
    next(&mut events, is_complete).await;
}

async fn acquire_as(store: &Store, reference: &str, password: &str) -> Result<image_store::Image, PullError> {
    let request = PullRequest { lazy: true, credentials: credentials("joe", password), ..request(reference) };
    store.acquire(request, "task", Arc::new(Silent)).await
}

/// The bandwidth holds for what streams in the background, not for reads.
#[tokio::test(flavor = "multi_thread")]
async fn the_bandwidth_slows_the_rest_and_no_read() {
    let Some(bench) = bench() else { return };
    let built = image();
    let reference = bench.push("team/app:1", &built);
    let slow = |partial| PartialConfig { bandwidth: Some(500_000), ..partial };
    let store = open(&bench.root(), |config| config, slow);
    let mut events = events(&store);
    let began = Instant::now();
    let image = acquire(&store, &reference, "task").await.unwrap();
    let shown = Shown::of(&image.layers[0]);
    let (at, mut block) = (content().len() - 4096, vec![0; 4096]);
    let asked = Instant::now();
    tokio::task::block_in_place(|| {
        File::open(shown.path().join("data")).unwrap().read_exact_at(&mut block, at as u64).unwrap();
    });
    assert!(block == content()[at..] && asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    next(&mut events, is_complete).await;
    // 2 MB without the few chunks that the read brings.
    let took = began.elapsed();
    assert!(took > Duration::from_millis(2500) && took < Duration::from_secs(20), "{took:?}");
}

/// The disk is full after the front of a layer has arrived.
#[tokio::test(flavor = "multi_thread")]
async fn reads_fail_on_a_full_disk_and_succeed_when_it_has_space() {
    let Some(bench) = bench() else { return };
    let Some(disk) = Disk::new(Kind::Ext4, 32, 1024) else { return };
    let built = image();
    let reference = bench.push("team/app:1", &built);
    let hasty = |partial| PartialConfig { read_timeout: Duration::from_secs(2), ..partial };
    let limits = Limits { free_bytes: 0, ..limits() };
    let store = open(&disk.root(), |config| StoreConfig { limits, ..config }, hasty);
    let mut events = events(&store);
    stop_after_front(&bench.registry, &built);
    let image = acquire(&store, &reference, "task").await.unwrap();
    next(&mut events, |kind| matches!(kind, LayerEventKind::Stalled { .. })).await;
    let filler = disk.path().join("filler");
    fill(&filler);
    bench.registry.heal();
    let full = |kind: &LayerEventKind| match kind {
        LayerEventKind::Stalled { problem, .. } => problem.contains("os error 28"),
        _ => false,
    };
    next(&mut events, full).await;
    let error = read(&image.layers[0]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    next(&mut events, |kind| matches!(kind, LayerEventKind::ReadFailed { .. })).await;
    // A pull that needs the whole layer says what is wrong, and leaves the layer alone.
    let error = store.acquire(request(&reference), "whole", Arc::new(Silent)).await.unwrap_err();
    assert!(matches!(error, PullError::DiskFull { .. }) && error.recoverable(), "{error:?}");
    fs::remove_file(&filler).unwrap();
    let found = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            match read(&image.layers[0]) {
                Ok(read) => return read,
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    });
    assert!(found.await.unwrap() == content());
    next(&mut events, is_complete).await;
    let bench = Bench { store, ..bench };
    bench.store.release("task").unwrap();
    bench.store.prune().unwrap();
}

/// Writes until nothing is left.
fn fill(path: &Path) {
    let file = File::create(path).unwrap();
    for size in [1 << 20, 4096] {
        let block = vec![1; size];
        while io::Write::write_all(&mut &file, &block).is_ok() {}
    }
    // What is reserved for delayed writes counts when it is written.
    file.sync_all().ok();
}
