//! Uploads of layouts to registries, and downloads of images as layouts.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use fixtures::{
    image::{Built, Entry, Image, Layer, archive, digest},
    registry::{Action, Auth, DockerRegistry, Fault, Registry, Relay, Request},
};
use image_store::{
    LayoutImage, Limits, Progress, PullError, PullEvent, PushRequest, Pushed, RegistryConfig, Secret, Silent,
    StoreConfig,
};
use serde_json::json;

use crate::common::{Bench, limits, noise, shown};

const IDLE: Duration = Duration::from_secs(20);
/// Bytes of a chunk in these tests.
const CHUNK: u64 = 64 << 10;

fn config() -> StoreConfig {
    StoreConfig { limits: Limits { upload_chunk: CHUNK, ..limits() }, ..StoreConfig::default() }
}

/// Two images that share a layer of several chunks, in an index.
fn images() -> Built {
    let base = Layer::of([Entry::dir("etc"), Entry::file("etc/noise", noise(5 * CHUNK as usize / 2))]);
    let image = |architecture: &str| {
        let own = Layer::of([Entry::file("etc/own", architecture)]);
        Image::new().platform("linux", architecture, "").layer(base.clone()).layer(own).build()
    };
    let mut built = Built::index(&[image("amd64"), image("arm64")], false);
    // A layout has the common layer once.
    built.blobs.sort();
    built.blobs.dedup();
    built
}

/// Writes a layout as an archive.
fn layout(directory: &Path, built: &Built) -> LayoutImage {
    let path = directory.join("layout.tar");
    fs::write(&path, archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})))).unwrap();
    LayoutImage { file: fs::File::open(path).unwrap().into(), name: "layout".into(), image: None }
}

async fn push_as(config: &StoreConfig, built: &Built, name: &str, from: Option<&str>) -> Result<Pushed, PullError> {
    let directory = tempfile::tempdir().unwrap();
    let request = PushRequest {
        layout: layout(directory.path(), built),
        reference: name.parse().unwrap(),
        mount_from: from.map(str::to_owned),
        idle_timeout: IDLE,
    };
    config.push(request, Arc::new(Silent)).await
}

async fn push(built: &Built, name: &str) -> Result<Pushed, PullError> {
    push_as(&config(), built, name, None).await
}

/// Checks that an image is pulled as it was built.
async fn assert_whole(bench: &Bench, name: &str) {
    let image = bench.pull(name).await.unwrap();
    let bottom = shown(image.layers.last().unwrap());
    assert!(fs::read(bottom.join("etc/noise")).unwrap() == noise(5 * CHUNK as usize / 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_uploaded_once_and_taken_from_another_repository() {
    let (Some(registry), bench, built) = (DockerRegistry::start(), Bench::new(), images()) else { return };
    let name = |repository: &str| format!("{}/{repository}:1", registry.host());
    let blobs = built.blobs.iter().map(|(digest, _)| digest).collect::<std::collections::BTreeSet<_>>();
    let first = push(&built, &name("team/app")).await.unwrap();
    assert_eq!((first.digest.as_str(), first.uploaded, first.present), (built.digest().as_str(), blobs.len(), 0));
    assert!(first.uploaded_bytes > 2 * CHUNK);
    assert_whole(&bench, &name("team/app")).await;
    let again = push(&built, &name("team/app")).await.unwrap();
    assert_eq!((again.uploaded, again.present), (0, blobs.len()));
    let other = push_as(&config(), &built, &name("team/other"), Some("team/app")).await.unwrap();
    assert_eq!((other.uploaded, other.mounted), (0, blobs.len()));
    assert_whole(&bench, &name("team/other")).await;
    let unknown = push_as(&config(), &built, &name("team/third"), Some("team/none")).await.unwrap();
    assert_eq!((unknown.uploaded, unknown.mounted), (blobs.len(), 0), "the other repository does not have them");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_connections_that_break() {
    let (Some(registry), bench, built) = (DockerRegistry::start(), Bench::new(), images()) else { return };
    // In the first chunk, in a later one, and between them.
    for (at, bytes) in [CHUNK / 2, 3 * CHUNK / 2, CHUNK + 1000].into_iter().enumerate() {
        let relay = Relay::start(&registry.host(), i64::try_from(bytes).unwrap());
        let (near, far) = (format!("{}/team/cut-{at}:1", relay.host()), format!("{}/team/cut-{at}:1", registry.host()));
        push(&built, &near).await.unwrap();
        assert_whole(&bench, &far).await;
    }
}

/// Uploads an image with one blob that the registry lacks. Returns where its chunks began, behind the first one.
async fn chunks(faults: impl IntoIterator<Item = Fault>) -> Vec<u64> {
    let built = Image::new().layer(Layer::of([Entry::file("noise", noise(5 * CHUNK as usize / 2))])).build();
    let registry = Registry::start();
    let mut without_layer = built.clone();
    without_layer.blobs.remove(0);
    registry.push("other:1", &without_layer);
    faults.into_iter().for_each(|fault| registry.fault(fault));
    let pushed = push(&built, &registry.reference("app:1")).await.unwrap();
    assert_eq!((pushed.uploaded, pushed.present), (1, 1));
    let begin = |request: Request| request.header("content-range")?.split_once('-')?.0.parse().ok();
    registry.requests().into_iter().filter_map(begin).filter(|begin| *begin > 0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_continues_where_the_registry_has_it() {
    assert_eq!(chunks([]).await, [CHUNK, 2 * CHUNK]);
    let later = |action| Fault::on("/blobs/uploads/", action).method("PATCH").after(1).times(1);
    // 1000 bytes of the second chunk arrive, all of it, or none of it.
    assert_eq!(chunks([later(Action::CutRequest(1000))]).await, [CHUNK, CHUNK + 1000, 2 * CHUNK + 1000]);
    assert_eq!(chunks([later(Action::CutRequest(CHUNK as usize))]).await, [CHUNK, 2 * CHUNK]);
    assert_eq!(chunks([later(Action::CutRequest(0))]).await, [CHUNK, CHUNK, 2 * CHUNK]);
    assert_eq!(chunks([later(Action::Status(503, Vec::new()))]).await, [CHUNK, 2 * CHUNK]);
    let forgotten = Fault::on("/blobs/uploads/", Action::Status(404, Vec::new())).method("GET").times(1);
    assert_eq!(chunks([later(Action::CutRequest(1000)), forgotten]).await, [CHUNK, CHUNK, 2 * CHUNK]);
    let answer_is_lost = Fault::on("digest=", Action::CutRequest(0)).method("PUT").times(1);
    assert_eq!(chunks([answer_is_lost]).await, [CHUNK, 2 * CHUNK]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_never_takes_a_chunk_ends_the_upload() {
    let (registry, built) = (Registry::start(), images());
    registry.fault(Fault::on("/blobs/uploads/", Action::CutRequest(10)).method("PATCH"));
    registry.fault(Fault::on("/blobs/uploads/", Action::Status(404, Vec::new())).method("GET"));
    let error = push(&built, &registry.reference("app:1")).await.unwrap_err();
    assert!(error.recoverable(), "{error}");
    let registry = Registry::start();
    registry.fault(Fault::on("digest=", Action::Status(400, Vec::new())).method("PUT"));
    let error = push(&built, &registry.reference("app:1")).await.unwrap_err();
    assert!(!error.recoverable() && error.to_string().contains("400"), "{error}");
    assert!(!registry.requests().iter().any(|request| request.path.contains("/manifests/")), "no manifest without it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_the_registry_did_not_take_is_sent_again() {
    let built = images();
    let takes_nothing = |registry: &Registry, times| {
        let headers =
            vec![("Location".to_owned(), "/v2/app/blobs/uploads/1".to_owned()), ("Range".to_owned(), "0-0".to_owned())];
        registry.fault(Fault::on("/blobs/uploads/1", Action::Status(202, headers)).method("PATCH").times(times));
    };
    let one = StoreConfig { limits: Limits { parallel_per_pull: 1, ..config().limits }, ..config() };
    let registry = Registry::start();
    takes_nothing(&registry, 1);
    push_as(&one, &built, &registry.reference("app:1"), None).await.unwrap();
    let registry = Registry::start();
    takes_nothing(&registry, usize::MAX);
    let error = push_as(&one, &built, &registry.reference("app:1"), None).await.unwrap_err();
    assert!(error.to_string().contains("took no byte"), "{error}");
}

/// Notes the last state of a push.
#[derive(Default)]
struct Noted(Mutex<(u64, u64)>);

impl Progress for Noted {
    fn report(&self, event: PullEvent) {
        if let PullEvent::Advanced { bytes_done, bytes_total, .. } = event {
            let mut noted = self.0.lock().unwrap();
            *noted = (noted.0.max(bytes_done), bytes_total);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_progress_of_a_push_counts_blobs_that_are_there() {
    let (registry, built, directory) = (Registry::start(), images(), tempfile::tempdir().unwrap());
    for name in ["app:1", "app:2"] {
        let noted = Arc::new(Noted::default());
        let request = PushRequest {
            layout: layout(directory.path(), &built),
            reference: registry.reference(name).parse().unwrap(),
            mount_from: None,
            idle_timeout: IDLE,
        };
        config().push(request, Arc::clone(&noted) as Arc<dyn Progress>).await.unwrap();
        let (done, total) = *noted.0.lock().unwrap();
        assert!(done == total && total > 2 * CHUNK, "{name}: {done} of {total}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_use_the_credentials_of_pulls() {
    let (registry, built) = (Registry::start(), images());
    let name = registry.reference("app:1");
    let own = |password: &str| RegistryConfig {
        host: registry.host(),
        username: Some("joe".into()),
        password: Some(Secret::new(password)),
        ..RegistryConfig::default()
    };
    let with = |password: &str| StoreConfig { registries: vec![own(password)], ..config() };
    registry.auth(Auth::Bearer { user: Some(("joe".into(), "secret".into())), realm: None });
    let error = push(&built, &name).await.unwrap_err();
    assert!(matches!(error, PullError::Denied { anonymous: true, .. }), "{error}");
    let error = push_as(&with("wrong-secret"), &built, &name, None).await.unwrap_err();
    assert!(matches!(error, PullError::Denied { .. }) && !error.to_string().contains("wrong-secret"), "{error}");
    push_as(&with("secret"), &built, &name, None).await.unwrap();
    let mut tokens = registry.requests().into_iter().filter(|request| request.path.starts_with("/token"));
    assert!(tokens.next_back().unwrap().path.contains("scope=repository%3Aapp%3Apull%2Cpush"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_without_a_part_is_refused() {
    let (registry, mut built) = (Registry::start(), images());
    let (lost, _) = built.blobs.remove(0);
    built.blobs.retain(|(digest, _)| *digest != lost);
    let error = push(&built, &registry.reference("app:1")).await.unwrap_err();
    assert!(error.to_string().contains(&lost) && error.to_string().contains("--all"), "{error}");
    let other = format!("{}@{}", registry.reference("app"), digest(b"other"));
    let error = push(&images(), &other).await.unwrap_err();
    assert!(error.to_string().contains("the image of the layout is"), "{error}");
    assert!(!registry.requests().iter().any(|request| request.path.contains("/manifests/")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_comes_back_as_a_layout() {
    let (bench, built, directory) = (Bench::new(), images(), tempfile::tempdir().unwrap());
    let name = bench.push("app:1", &built);
    let fetch = async |name: &str, target: &Path| {
        config().fetch_layout(&name.parse().unwrap(), target, IDLE, Arc::new(Silent)).await
    };
    let target = directory.path().join("target");
    fetch(&name, &target).await.unwrap();
    for (digest, bytes) in &built.blobs {
        assert!(fs::read(target.join("blobs").join(digest.replace(':', "/"))).unwrap() == *bytes, "{digest}");
    }
    let layout =
        LayoutImage { file: fs::File::open(&target).unwrap().into(), name: "x".into(), image: Some("1".into()) };
    let reference = bench.registry.reference("again:1").parse().unwrap();
    let request = PushRequest { layout, reference, mount_from: None, idle_timeout: IDLE };
    let pushed = config().push(request, Arc::new(Silent)).await.unwrap();
    assert_eq!(pushed.digest, built.digest());
    // What is wrong, or lacks a part, leaves nothing.
    let broken = directory.path().join("broken");
    bench.registry.fault(Fault::on(&built.blobs[0].0, Action::Body(vec![0; built.blobs[0].1.len()])));
    let error = fetch(&name, &broken).await.unwrap_err();
    assert!(matches!(error, PullError::DigestMismatch { .. }), "{error}");
    assert!(!broken.exists());
    let error = fetch(&name, &target).await.unwrap_err();
    assert!(error.to_string().contains("target"), "it exists: {error}");
    assert!(target.join("index.json").exists());
}
