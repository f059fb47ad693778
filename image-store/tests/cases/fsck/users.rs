//! Leases of tasks and pulls, and what they left behind.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fixtures::{
    image::{Entry, Image, Layer, digest},
    registry::{Action, Fault},
};
use image_store::{FindingKind, FsckOptions, Outcome, Silent, StoreError, fsck};

use super::{Good, base, check, edit, kinds, repair};
use crate::common::{Bench, request};

#[tokio::test(flavor = "multi_thread")]
async fn layers_in_use_are_reported_and_kept() {
    let good = Good::new().await;
    good.bench.pull(&good.reference).await.unwrap();
    let marker = base(&good).join("fs/etc/marker");
    fs::write(&marker, "changed").unwrap();
    let report = repair(&good.bench);
    assert_eq!(kinds(&report), [FindingKind::LayerChanged]);
    assert_eq!(report.findings[0].held_by, ["task"]);
    assert!(matches!(report.findings[0].outcome, Outcome::Manual(_)) && !report.is_sound(), "{report:?}");
    assert!(marker.exists() && good.bench.store.list().unwrap().len() == 1);
    good.bench.store.release("task").unwrap();
    assert!(repair(&good.bench).is_sound());
    good.usable().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_repairs_a_lease_of_a_missing_layer() {
    let good = Good::new().await;
    good.bench.pull(&good.reference).await.unwrap();
    edit(&good.only("leases"), |lease| lease["layers"][0] = digest(b"gone").into());
    let report = repair(&good.bench);
    assert_eq!(kinds(&report), [FindingKind::LeaseDangling]);
    assert_eq!(report.findings[0].held_by, ["task"]);
    assert!(matches!(report.findings[0].outcome, Outcome::Manual(_)), "{report:?}");
    good.usable().await;
    // A missing layer is also reported for its image, and a pull under the same lease fetches it again.
    good.bench.pull(&good.reference).await.unwrap();
    fs::remove_dir_all(base(&good)).unwrap();
    assert_eq!(kinds(&repair(&good.bench)), [FindingKind::ImageIncomplete, FindingKind::LeaseDangling]);
    assert_eq!(kinds(&check(&good.bench)), [FindingKind::LeaseDangling]);
    let other = good.bench.store.acquire(request(&good.reference), "other", Arc::new(Silent)).await.unwrap();
    assert_eq!(check(&good.bench).findings, []);
    assert!(other.layers.iter().all(|layer| layer.exists()));
    good.bench.store.release("other").unwrap();
    good.usable().await;
}

/// A command of an operator that was killed keeps its image from no other command.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_an_ended_command_holds_nothing() {
    for written_by_this_version in [true, false] {
        let good = Good::new().await;
        let command = good.bench.second_store();
        // No process has this number.
        command.acquire(request(&good.reference), "operator.4194305.1", Arc::new(Silent)).await.unwrap();
        let reference = good.reference.parse().unwrap();
        assert!(matches!(good.bench.store.remove(&reference), Err(StoreError::InUse { .. })));
        assert_eq!(check(&good.bench).findings, []);
        if written_by_this_version {
            drop(command);
        } else {
            edit(&good.only("leases"), |lease| drop(lease.as_object_mut().unwrap().remove("staging")));
        }
        let abandoned = || kinds(&check(&good.bench)) == [FindingKind::LeaseWithoutOwner];
        assert!(fixtures::wait::eventually(Duration::from_secs(30), abandoned).await, "{:?}", check(&good.bench));
        assert!(good.bench.store.usage().unwrap()[0].held_by.is_empty());
        assert!(good.bench.store.remove(&reference).unwrap());
        assert_eq!(check(&good.bench).findings, []);
        assert_eq!((good.bench.layer_count(), fs::read_dir(good.bench.root().join("leases")).unwrap().count()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_are_torn_or_without_owner() {
    let good = Good::new().await;
    good.bench.pull(&good.reference).await.unwrap();
    let lease = good.only("leases");
    // A caller that knows all owners can say that one is gone, but not of an owner that may be just starting.
    let with = |owners: &[&str], repair| FsckOptions {
        repair,
        owners: Some(owners.iter().map(|name| (*name).into()).collect()),
    };
    let root = good.bench.root();
    assert_eq!(fsck(&root, &with(&[], true)).unwrap().findings, []);
    let long_ago = SystemTime::now() - Duration::from_secs(FsckOptions::GRACE_SECONDS + 1);
    fs::File::open(&lease).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(fsck(&root, &with(&["task"], true)).unwrap().findings, []);
    assert_eq!(check(&good.bench).findings, []);
    let report = fsck(&root, &with(&[], true)).unwrap();
    assert_eq!(kinds(&report), [FindingKind::LeaseWithoutOwner]);
    assert!(!lease.exists() && report.is_sound());
    good.bench.pull(&good.reference).await.unwrap();
    fs::write(&lease, "{").unwrap();
    assert_eq!(kinds(&repair(&good.bench)), [FindingKind::LeaseUnreadable]);
    assert_eq!(check(&good.bench).findings, []);
    good.usable().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_implied_directories_are_kept_while_they_are_used() {
    let bench = Bench::in_directories();
    let image =
        Image::new().layer(Layer::of([Entry::dir("tmp").mode(0o1777)])).layer(Layer::of([Entry::file("tmp/x", "x")]));
    let reference = bench.push("fix:1", &image.build());
    let before = bench.pull(&reference).await.unwrap();
    let implied = before.layers[0].parent().unwrap().to_owned();
    assert!(implied.parent().unwrap().ends_with("fixups") && before.layers.len() == 3);
    bench.store.sync().unwrap();
    assert_eq!(check(&bench).findings, []);
    fs::remove_dir_all(implied.join("fs")).unwrap();
    let report = repair(&bench);
    assert_eq!(kinds(&report), [FindingKind::ImpliedEmptied]);
    assert_eq!(report.findings[0].held_by, ["task"]);
    bench.store.release("task").unwrap();
    assert_eq!(kinds(&repair(&bench)), [FindingKind::ImpliedUnused]);
    let after = bench.pull(&reference).await.unwrap();
    assert_eq!(after, before);
    assert_eq!(fs::metadata(after.layers[0].join("tmp")).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(check(&bench).findings, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_runs_is_no_damage() {
    let good = Good::new().await;
    let other = Image::new().layer(Layer::of([Entry::file("other", crate::common::noise(200_000))])).build();
    let reference = good.bench.push("other:1", &other);
    good.bench.registry.fault(Fault::on(&other.blobs[0].0, Action::Stall(1000)).times(1));
    let pull = good.bench.pull(&reference);
    tokio::pin!(pull);
    let halfway = || {
        let requests = good.bench.registry.requests();
        requests.iter().any(|request| request.path.contains(&other.blobs[0].0))
    };
    tokio::select! {
        result = &mut pull => panic!("{result:?}"),
        reached = fixtures::wait::eventually(Duration::from_secs(20), halfway) => assert!(reached),
    }
    assert_eq!(good.bench.store.leases().unwrap(), ["task"]);
    assert_eq!(repair(&good.bench).findings, []);
}
