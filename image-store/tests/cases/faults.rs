//! Registries and networks that misbehave.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fixtures::{
    image::{Entry, Image, Layer, digest},
    registry::{Action, Fault, Registry},
};
use image_store::{PullError, RegistryConfig, Silent};

use crate::common::{Bench, describe, noise, request, small};

fn big() -> fixtures::image::Built {
    Image::new().layer(Layer::of([Entry::dir("."), Entry::file("noise", noise(3 << 20))])).build()
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_transfers_resume_where_they_broke() {
    let bench = Bench::new();
    let built = big();
    let blob = built.blobs[0].0.clone();
    let reference = bench.push("app:1", &built);
    bench.registry.fault(Fault::on(&blob, Action::Cut(1 << 20)).times(2));
    let image = bench.pull(&reference).await.unwrap();
    assert!(std::fs::read(image.layers[0].join("noise")).unwrap() == noise(3 << 20));
    let ranges: Vec<_> = bench
        .registry
        .requests()
        .iter()
        .filter(|request| request.path.contains(&blob))
        .map(|request| request.header("range").unwrap_or("none").to_owned())
        .collect();
    assert_eq!(ranges, ["none", "bytes=1048576-", "bytes=2097152-"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_ranges_is_read_again_from_the_start() {
    let bench = Bench::new();
    let built = big();
    let blob = built.blobs[0].0.clone();
    let reference = bench.push("app:1", &built);
    bench.registry.fault(Fault::on(&blob, Action::Cut(1 << 20)).times(1));
    bench.registry.fault(Fault::on(&blob, Action::IgnoreRange));
    let image = bench.pull(&reference).await.unwrap();
    assert!(std::fs::read(image.layers[0].join("noise")).unwrap() == noise(3 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_without_progress_end() {
    let bench = Bench::new();
    let built = big();
    let reference = bench.push("app:1", &built);
    bench.registry.fault(Fault::on(&built.blobs[0].0, Action::Cut(10)));
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(error.recoverable(), "{error}");
    assert_eq!(bench.registry.count(&built.blobs[0].0), 5);
    bench.assert_clean();
    bench.registry.heal();
    bench.pull(&reference).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_registries_are_asked_again() {
    for status in [408, 429, 500, 502, 503, 504] {
        let bench = Bench::new();
        let reference = bench.push("app:1", &small("busy"));
        let answer = Action::Status(status, vec![("Retry-After".into(), "0".into())]);
        bench.registry.fault(Fault::on("/", answer).times(3));
        bench.pull(&reference).await.unwrap();
        bench.registry.fault(Fault::on("/", Action::Status(status, Vec::new())));
        bench.registry.forget_requests();
        let error = bench.pull(&bench.registry.reference("app:2")).await.unwrap_err();
        assert!(error.recoverable() && error.to_string().contains(&status.to_string()), "{error}");
        assert_eq!(bench.registry.requests().len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_obeyed() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("patience"));
    bench
        .registry
        .fault(Fault::on("/manifests/", Action::Status(429, vec![("Retry-After".into(), "1".into())])).times(1));
    let started = Instant::now();
    bench.pull(&reference).await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn final_answers_are_not_asked_again() {
    let bench = Bench::new();
    for (status, recoverable) in [(404, false), (403, false), (400, false)] {
        bench.registry.heal();
        bench.registry.forget_requests();
        bench.registry.fault(Fault::on("/", Action::Status(status, Vec::new())));
        let error = bench.pull(&bench.registry.reference("app:1")).await.unwrap_err();
        assert_eq!(error.recoverable(), recoverable, "{error}");
        assert_eq!(bench.registry.requests().len(), 1, "{status}");
    }
    // The registry has stopped listening.
    let stopped = Registry::start().reference("app:1");
    let error = bench.pull(&stopped).await.unwrap_err();
    assert!(matches!(error, PullError::Network { .. }) && error.recoverable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_is_never_kept() {
    let bench = Bench::new();
    let right = Layer::of([Entry::file("a", "right")]);
    let other = Layer::of([Entry::file("a", "other")]);
    // The blob has another digest than the manifest says.
    let built = Image::new().layer(right.clone()).build();
    let reference = bench.push("blob:1", &built);
    bench.registry.fault(Fault::on(&built.blobs[0].0, Action::Body(other.blob())));
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(!error.recoverable(), "{error}");
    bench.registry.heal();
    // The blob unpacks to another digest than the config says.
    let built = Image::new().layer(right.claim_diff_id(&digest(other.tar()))).build();
    let error = bench.pull(&bench.push("diff:1", &built)).await.unwrap_err();
    assert!(error.to_string().contains("diff id") && !error.recoverable(), "{error}");
    assert_eq!(bench.layer_count(), 0);
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn knowing_a_diff_id_does_not_give_the_layer() {
    let bench = Bench::new();
    let secret = Layer::of([Entry::file("secret", "s")]);
    bench.pull(&bench.push("private:1", &Image::new().layer(secret.clone()).build())).await.unwrap();
    let thief = Layer::of([Entry::file("bait", "")]).claim_diff_id(&digest(secret.tar()));
    let error = bench.pull(&bench.push("thief:1", &Image::new().layer(thief).build())).await.unwrap_err();
    assert!(matches!(error, PullError::DigestMismatch { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_by_digest_must_be_that_manifest() {
    let bench = Bench::new();
    let built = small("real");
    bench.push("app:1", &built);
    bench.registry.fault(Fault::on("/manifests/", Action::Body(small("forged").top().bytes.clone())));
    let by_digest = bench.registry.reference(&format!("app@{}", built.digest()));
    let error = bench.pull(&by_digest).await.unwrap_err();
    assert!(matches!(error, PullError::DigestMismatch { .. }) && !error.recoverable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_are_enforced() {
    let bench = Bench::new();
    let built = big();
    let (name, blob) = built.blobs[0].clone();
    let reference = bench.push("app:1", &built);
    for body in [[&blob[..], b"more"].concat(), blob[..blob.len() - 1].to_vec()] {
        bench.registry.heal();
        bench.registry.fault(Fault::on(&name, Action::Body(body)));
        let error = bench.pull(&reference).await.unwrap_err();
        assert!(error.to_string().contains("size") && !error.recoverable(), "{error}");
    }
    for path in ["/manifests/", "/blobs/"] {
        bench.registry.heal();
        bench.registry.fault(Fault::on(path, Action::Endless));
        let error = bench.pull(&reference).await.unwrap_err();
        assert!(!error.recoverable(), "{error}");
        assert!(error.to_string().contains("limit") || error.to_string().contains("size"), "{error}");
    }
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_a_pull() {
    for path in ["/manifests/", "/blobs/"] {
        let bench = Bench::new();
        let reference = bench.push("app:1", &big());
        bench.registry.fault(Fault::on(path, Action::Stall(100)));
        let request = image_store::PullRequest { idle_timeout: Duration::from_millis(300), ..request(&reference) };
        let started = Instant::now();
        let error = bench.store.acquire(request, "task", Arc::new(Silent)).await.unwrap_err();
        assert!(matches!(error, PullError::IdleTimeout { .. }) && error.recoverable(), "{error}");
        assert!(started.elapsed() < Duration::from_secs(60));
        bench.assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_pull_has_a_limit_and_leaves_nothing() {
    let bench = Bench::new();
    let built = big();
    let reference = bench.push("app:1", &built);
    bench.registry.fault(Fault::on(&built.blobs[0].0, Action::Stall(1 << 20)));
    let request = image_store::PullRequest { timeout: Some(Duration::from_millis(400)), ..request(&reference) };
    let error = bench.store.acquire(request, "task", Arc::new(Silent)).await.unwrap_err();
    assert!(matches!(error, PullError::Timeout { .. }) && error.recoverable(), "{error}");
    // The unpacking thread and the restoration of the lease end soon after.
    fixtures::wait::eventually(Duration::from_secs(10), || {
        bench.store.leases().unwrap().is_empty()
            && std::fs::read_dir(bench.root().join("staging"))
                .unwrap()
                .all(|directory| std::fs::read_dir(directory.unwrap().path()).unwrap().next().is_none())
    })
    .await;
    bench.assert_clean();
    bench.registry.heal();
    bench.pull(&reference).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_without_head_works() {
    let bench = Bench::new();
    let reference = bench.push("app:latest", &small("one"));
    bench.pull(&reference).await.unwrap();
    bench.push("app:latest", &small("two"));
    bench.registry.fault(Fault::on("/", Action::Status(405, Vec::new())).method("HEAD"));
    let image = bench.pull(&reference).await.unwrap();
    assert_eq!(std::fs::read_to_string(image.layers[0].join("etc/marker")).unwrap(), "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_come_first_and_fail_over_even_in_the_middle() {
    let (mirror, upstream) = (Registry::start(), Registry::start());
    let config = RegistryConfig { host: upstream.host(), mirrors: vec![mirror.host()], ..Default::default() };
    let bench = Bench::with(vec![config]);
    let built = big();
    upstream.push("app:1", &built);
    mirror.push("app:1", &built);
    // The mirror has the image and always breaks off in the middle of the layer.
    mirror.fault(Fault::on(&built.blobs[0].0, Action::Cut(1 << 20)).times(1));
    mirror.fault(Fault::on(&built.blobs[0].0, Action::Status(404, Vec::new())));
    let image = bench.pull(&upstream.reference("app:1")).await.unwrap();
    assert_eq!(describe(&image.layers[0]).len(), 2);
    assert_eq!(upstream.count("/manifests/"), 0);
    let requests = upstream.requests();
    assert_eq!(requests[0].header("range"), Some("bytes=1048576-"));
    assert!(mirror.requests()[0].path.contains(&format!("ns={}", upstream.host().replace(':', "%3A"))));
    // An unreachable mirror is skipped.
    drop(mirror);
    upstream.push("app:2", &small("two"));
    bench.pull(&upstream.reference("app:2")).await.unwrap();
}
