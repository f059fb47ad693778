//! Names that the node's administrator pins: usable by every job, without a registry, until they are removed by hand.

use std::{fs, os::fd::OwnedFd, sync::Arc, time::Duration};

use fixtures::{
    image::{Built, archive},
    registry::{Action, Auth, Fault},
};
use image_store::{
    Access, FsckOptions, Image, ImageRecord, LoadRequest, Progress, PullError, PullEvent, PullRequest, Retention,
    Silent, Wait, fsck,
};
use serde_json::json;

use crate::common::{Bench, Recorder, Shown, credentials, limits, request, small};

/// A name that no registry can be asked for.
const NAME: &str = "registry.invalid/team/app:1";
const NOW: Retention = Retention { delay: Duration::ZERO, high: 101, low: 100 };

async fn load(bench: &Bench, bytes: &[u8], name: &str, pin: bool) -> Image {
    let path = bench.directory.path().join("image.tar");
    fs::write(&path, bytes).unwrap();
    let source: OwnedFd = fs::File::open(path).unwrap().into();
    let reference = name.parse().unwrap();
    let request = LoadRequest { source, name: "image.tar".into(), reference, pin, timeout: None };
    let image = bench.store.load(request, "operator.1.1").await.unwrap();
    bench.store.release("operator.1.1").unwrap();
    image
}

fn record(bench: &Bench) -> ImageRecord {
    let [record] = &bench.store.list().unwrap()[..] else { panic!("one record is expected") };
    record.clone()
}

fn assert_sound(bench: &Bench) {
    let report = fsck(&bench.root(), &FsckOptions { repair: false, owners: None }).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

fn archives(built: &Built) -> [Vec<u8>; 3] {
    [
        archive(built.saved(&[NAME])),
        archive(built.saved_as_layout(NAME)),
        archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"}))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_name_is_used_without_its_registry() {
    let built = small("loaded");
    for bytes in archives(&built) {
        let bench = Bench::new();
        let loaded = load(&bench, &bytes, NAME, true).await;
        assert_eq!(bench.store.retain(&NOW).unwrap().removed, []);
        // Another process with other credentials: the name is for every caller.
        let progress = Arc::new(Recorder::default());
        let caller = PullRequest { credentials: credentials("joe", "x"), ..request(NAME) };
        let (other, report) = (bench.second_store(), Arc::clone(&progress) as Arc<dyn Progress>);
        let image = other.acquire(caller, "task", report).await.unwrap();
        assert_eq!((&image.digest, &image.layers), (&loaded.digest, &loaded.layers));
        assert_eq!(Shown::nth(&image, 0).read("etc/marker"), "loaded");
        let events = progress.0.lock().unwrap().clone();
        let Some(PullEvent::Done { digest, cached: true, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(digest.to_string(), loaded.digest);
        // A job can force a question to the registry.
        let forced = PullRequest { force: true, timeout: Some(Duration::from_millis(200)), ..request(NAME) };
        assert!(bench.store.acquire(forced, "forced", Arc::new(Silent)).await.unwrap_err().recoverable());
        bench.store.release("task").unwrap();
        assert_eq!(bench.store.retain(&NOW).unwrap().removed, []);
        assert_sound(&bench);
        assert!(bench.store.remove(&NAME.parse().unwrap()).unwrap());
        assert_eq!((bench.store.list().unwrap().len(), bench.layer_count()), (0, 0));
    }
}

/// With a digest, the content is the same under each name of a repository. Docker runs such an image also without its
/// registry.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_is_found_under_another_name() {
    let bench = Bench::new();
    let pulled = bench.push("team/app:1", &small("pulled"));
    let repository = pulled.strip_suffix(":1").unwrap();
    let digest = bench.pull(&pulled).await.unwrap().digest;
    bench.registry.fault(Fault::on("/", Action::Status(503, Vec::new())));
    let short = |name: String| PullRequest { timeout: Some(Duration::from_millis(300)), ..request(&name) };
    let acquire = async |name: String| bench.second_store().acquire(short(name), "task", Arc::new(Silent)).await;
    for name in [format!("{repository}@{digest}"), format!("{repository}:other@{digest}")] {
        let image = acquire(name).await.unwrap();
        assert_eq!((&image.digest, Shown::nth(&image, 0).read("etc/marker").as_str()), (&digest, "pulled"));
    }
    assert!(acquire(format!("{repository}2@{digest}")).await.is_err(), "another repository");
    assert!(acquire(format!("{repository}@sha256:{}", "0".repeat(64))).await.is_err(), "another digest");
    assert!(acquire(format!("{repository}:2")).await.is_err(), "a name without a digest");
    bench.store.release("task").unwrap();
    assert_sound(&bench);

    let bench = Bench::new();
    let digest = load(&bench, &archive(small("loaded").saved_as_layout(NAME)), NAME, true).await.digest;
    let image = bench.lease(&format!("registry.invalid/team/app@{digest}")).await.unwrap();
    assert_eq!(Shown::nth(&image, 0).read("etc/marker"), "loaded");
    assert!(record(&bench).pinned);
    assert_sound(&bench);
}

/// The archive of a task is for that task, also beside a pinned name.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_of_a_task_changes_no_pinned_name() {
    let bench = Bench::new();
    load(&bench, &archive(small("pinned").saved(&[NAME])), NAME, true).await;
    let own = load(&bench, &archive(small("own").saved(&[NAME])), NAME, false).await;
    assert_eq!(Shown::nth(&own, 0).read("etc/marker"), "own");
    let image = bench.lease(NAME).await.unwrap();
    assert_eq!(Shown::nth(&image, 0).read("etc/marker"), "pinned");
    // A second load by the administrator replaces the first.
    load(&bench, &archive(small("newer").saved(&[NAME])), NAME, true).await;
    let image = bench.lease(NAME).await.unwrap();
    assert_eq!(Shown::nth(&image, 0).read("etc/marker"), "newer");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_image_of_an_archive_is_unknown() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("registry"));
    load(&bench, &archive(small("loaded").saved(&[&reference])), &reference, true).await;
    for layer in fs::read_dir(bench.root().join("layers")).unwrap() {
        fs::remove_file(layer.unwrap().path().join("meta.json")).unwrap();
    }
    let image = bench.lease(&reference).await.unwrap();
    assert_eq!(Shown::nth(&image, 0).read("etc/marker"), "registry");
    assert!(!record(&bench).pinned && !record(&bench).loaded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_pull_is_for_every_job_and_another_pull_is_not() {
    for pin in [true, false] {
        let bench = Bench::new();
        let reference = bench.push("app:1", &small("private"));
        bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
        let joe =
            |force, pin| PullRequest { credentials: credentials("joe", "secret"), force, pin, ..request(&reference) };
        let by_hand = async |pin| {
            bench.store.acquire(joe(true, pin), "operator.1.1", Arc::new(Silent)).await.unwrap();
            bench.store.release("operator.1.1").unwrap();
        };
        by_hand(pin).await;
        // A pull without the pin does not end it: the content is the same.
        by_hand(false).await;
        bench.registry.fault(Fault::on("/", Action::Status(503, Vec::new())));
        let anonymous = bench.second_store().acquire(request(&reference), "task", Arc::new(Silent)).await;
        assert_eq!(anonymous.is_ok(), pin);
        bench.store.release("task").unwrap();
        assert_eq!(record(&bench).access == Access::Anyone, pin);
        if pin {
            // A job that asks for the name's new content gets it, and the name is no longer the administrator's.
            bench.registry.heal();
            bench.push("app:1", &small("new"));
            bench.store.acquire(joe(true, false), "task", Arc::new(Silent)).await.unwrap();
            let error = bench.second_store().acquire(request(&reference), "other", Arc::new(Silent)).await.unwrap_err();
            assert!(matches!(error, PullError::Access { .. }), "{error}");
            bench.store.release("task").unwrap();
        }
        assert_eq!(bench.store.retain(&NOW).unwrap().removed.len(), 1);
    }
}

/// The registry answers after the caller's patience is over: the caller gets its image, and a refusal counts later.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_had_the_image_waits_only_a_moment() {
    let bench = Bench::open(|config| {
        let limits = image_store::Limits { access_wait: Duration::from_millis(10), ..limits() };
        image_store::StoreConfig { limits, ..config }
    });
    let reference = bench.push("app:1", &small("slow"));
    let joe = || PullRequest { credentials: credentials("joe", "secret"), ..request(&reference) };
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    bench.store.acquire(joe(), "first", Arc::new(Silent)).await.unwrap();
    // As a plugin that has just started.
    let limits = image_store::Limits { access_wait: Duration::from_millis(10), ..limits() };
    let config = image_store::StoreConfig { limits, ..crate::common::config(&bench.root()) };
    let store = image_store::Store::open(config).unwrap();
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "changed".into() });
    bench.registry.fault(Fault::on("/manifests/", Action::Delay(Duration::from_millis(300))));
    store.acquire(joe(), "second", Arc::new(Silent)).await.unwrap();
    let mut refused = None;
    for _ in 0..100 {
        refused = store.acquire(joe(), "third", Arc::new(Silent)).await.err();
        if refused.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(matches!(&refused, Some(PullError::Access { reason }) if !reason.recoverable()), "{refused:?}");
}

/// Every wait has a reason, which task events repeat.
#[tokio::test(flavor = "multi_thread")]
async fn waits_are_reported_with_their_reason() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("waits"));
    bench.registry.fault(Fault::on("/manifests/", Action::Status(503, Vec::new())).times(2));
    let progress = Arc::new(Recorder::default());
    bench.store.acquire(request(&reference), "task", Arc::clone(&progress) as Arc<dyn Progress>).await.unwrap();
    let events = progress.0.lock().unwrap().clone();
    let waits: Vec<&Wait> = events
        .iter()
        .filter_map(|event| if let PullEvent::Waiting(wait) = event { Some(wait) } else { None })
        .collect();
    assert!(matches!(waits[0], Wait::Credentials { registry } if *registry == bench.registry.host()), "{waits:?}");
    let host = |wait: &&&Wait| matches!(wait, Wait::Answer { host, .. } if *host == bench.registry.host());
    assert!(waits.iter().filter(host).count() >= 3, "{waits:?}");
    let retries: Vec<u32> = waits
        .iter()
        .filter_map(|wait| if let Wait::Retry { attempt, .. } = wait { Some(*attempt) } else { None })
        .collect();
    assert_eq!(retries, [1, 2], "{waits:?}");
    assert!(waits.iter().any(|wait| wait.to_string().contains("1 of 5 failed: ") && wait.to_string().contains("503")));
}
