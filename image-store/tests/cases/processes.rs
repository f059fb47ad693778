//! Two processes, one store: the same content is fetched once, and the end of one process is not a failure of the
//! other.

use std::{sync::Arc, time::Duration};

use fixtures::registry::{Action, Auth, Fault};
use image_store::{Access, PullError, PullRequest, Silent};

use crate::{
    child::{Scene, open},
    common::{Bench, Shown, credentials, noise, request, small},
    crash::{World, assert_nothing_left, layers_of},
};

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_fetch_a_layer_once() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("images");
    let (reference, built) = &world.images[0];
    world.registry.forget_requests();
    for (blob, _) in layers_of(built) {
        world.registry.fault(Fault::on(&blob, Action::Delay(Duration::from_millis(300))));
    }
    let processes: Vec<_> = (0..3).map(|_| Scene::Pull(reference.clone()).start(&root)).collect();
    for process in processes {
        process.succeeds().await;
    }
    for (blob, _) in layers_of(built) {
        assert_eq!(world.registry.count(&blob), 1);
    }
    world.registry.heal();
    world.assert_recovers(&root).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_goes_on_when_the_first_is_killed() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("images");
    let (reference, built) = &world.images[0];
    let (blob, _) = &layers_of(built)[0];
    world.registry.forget_requests();
    world.registry.fault(Fault::on(blob, Action::Stall(1000)).times(1));
    let mut first = Scene::Pull(reference.clone()).start(&root);
    assert!(fixtures::wait::eventually(Duration::from_secs(30), || world.registry.count(blob) == 1).await);
    let second = Scene::Pull(reference.clone()).start(&root);
    second.waits_for_a_lock().await;
    first.kill();
    second.succeeds().await;
    assert_eq!(world.registry.count(blob), 2);
    world.assert_recovers(&root).await;
}

/// Two pulls of this process wait for another process. The first is cancelled, which has no effect on the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_waiter_does_not_fail_the_others() {
    let bench = Bench::new();
    let built = fixtures::image::Image::new()
        .layer(fixtures::image::Layer::of([fixtures::image::Entry::file("noise", noise(300_000))]))
        .build();
    let (reference, blob) = (bench.push("app:1", &built), built.blobs[0].0.clone());
    bench.registry.fault(Fault::on(&blob, Action::Stall(1000)).times(1));
    let mut other = Scene::Pull(reference.clone()).start(&bench.root());
    assert!(fixtures::wait::eventually(Duration::from_secs(30), || bench.registry.count(&blob) == 1).await);
    let hasty = PullRequest { timeout: Some(Duration::from_secs(1)), ..request(&reference) };
    let error = bench.store.acquire(hasty.clone(), "hasty", Arc::new(Silent)).await.unwrap_err();
    assert!(matches!(error, PullError::Timeout { .. }) && error.recoverable(), "{error}");
    let error = bench.store.acquire(hasty, "hasty", Arc::new(Silent)).await.unwrap_err();
    assert!(matches!(error, PullError::Timeout { .. }), "{error}");
    // After any number of cancelled pulls, one thread of this process waits.
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "layer-lock").count()
    };
    assert!(threads() >= 1);
    let patient = tokio::spawn({
        let (store, request) = (bench.store.clone(), request(&reference));
        async move { store.acquire(request, "patient", Arc::new(Silent)).await }
    });
    assert!(
        fixtures::wait::eventually(Duration::from_secs(30), || {
            bench.store.leases().unwrap().contains(&"patient".into())
        })
        .await
    );
    assert_eq!(bench.registry.count(&blob), 1);
    other.kill();
    patient.await.unwrap().unwrap();
    assert_eq!(bench.registry.count(&blob), 2);
    bench.store.release("patient").unwrap();
    bench.store.release("task").unwrap();
    let second = bench.second_store();
    second.sweep().unwrap();
    assert_nothing_left(&bench.root());
}

/// A lock that is acquired after its last waiter was cancelled is released.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_waiters_is_released() {
    let bench = Bench::new();
    let built = small("cancelled");
    let (reference, blob) = (bench.push("app:1", &built), built.blobs[0].0.clone());
    bench.registry.fault(Fault::on(&blob, Action::Stall(10)).times(1));
    let mut other = Scene::Pull(reference.clone()).start(&bench.root());
    assert!(fixtures::wait::eventually(Duration::from_secs(30), || bench.registry.count(&blob) == 1).await);
    let hasty = PullRequest { timeout: Some(Duration::from_millis(200)), ..request(&reference) };
    bench.store.acquire(hasty, "hasty", Arc::new(Silent)).await.unwrap_err();
    other.kill();
    let third = open(&bench.root());
    third.acquire(request(&reference), "third", Arc::new(Silent)).await.unwrap();
}

/// Job 1 had the image before, and its access is checked. Meanwhile job 2 pulls the new content of the name. The result
/// of the check must not restore the record of the old content.
#[tokio::test(flavor = "multi_thread")]
async fn an_access_check_does_not_undo_a_pull() {
    let bench = Bench::new();
    let user = |password: &str| Auth::Basic { user: "u".into(), password: password.into() };
    let reference = bench.push("app:1", &small("old"));
    let with =
        |password: &str, force| PullRequest { credentials: credentials("u", password), force, ..request(&reference) };
    bench.registry.auth(user("one"));
    bench.store.acquire(with("one", false), "before", Arc::new(Silent)).await.unwrap();
    bench.registry.auth(user("two"));
    let (first, second) = (bench.second_store(), bench.second_store());
    bench.registry.forget_requests();
    bench.registry.fault(Fault::on("/manifests/", Action::Delay(Duration::from_secs(1))).method("HEAD").times(1));
    let check = tokio::spawn({
        let request = with("two", false);
        async move { first.acquire(request, "check", Arc::new(Silent)).await.unwrap() }
    });
    assert!(fixtures::wait::eventually(Duration::from_secs(30), || bench.registry.count("/manifests/") > 0).await);
    let new = small("new");
    bench.push("app:1", &new);
    second.acquire(with("two", true), "pull", Arc::new(Silent)).await.unwrap();
    let old = check.await.unwrap();
    assert_eq!(Shown::nth(&old, 0).read("etc/marker"), "old");
    let records = bench.store.list().unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].manifest.to_string(), new.digest());
}

/// Two jobs get the same content with different credentials at the same time: the record contains both.
#[tokio::test(flavor = "multi_thread")]
async fn access_that_two_jobs_get_at_once_is_kept() {
    let bench = Bench::new();
    let built = small("both");
    let reference = bench.push("app:1", &built);
    bench.registry.fault(Fault::on(&built.blobs[0].0, Action::Delay(Duration::from_millis(500))));
    let with = |password: &str| PullRequest { credentials: credentials("u", password), ..request(&reference) };
    let other = bench.second_store();
    let (one, two) = tokio::join!(
        bench.store.acquire(with("one"), "one", Arc::new(Silent)),
        other.acquire(with("two"), "two", Arc::new(Silent)),
    );
    assert_eq!(one.unwrap().layers, two.unwrap().layers);
    assert_eq!(bench.registry.count(&built.blobs[0].0), 1);
    let records = bench.store.list().unwrap();
    assert!(matches!(&records[0].access, Access::Holders(holders) if holders.len() == 2), "{records:?}");
}
