//! A pull that is cancelled at any moment leaves only finished layers, and the next pull works.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use image_store::{PullError, Silent};

use crate::{
    child::open,
    common::request,
    crash::{World, assert_nothing_left, listing},
};

/// The value of the future, or `None` if it is dropped after this many polls.
async fn cut_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            // Dropped here and not at its next wake-up: the work that it waits for is still running.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A future that is ready after this many polls.
fn ready_after(polls: usize) -> impl Future<Output = ()> {
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        // The waiter polls it together with its work, so it asks to be polled again immediately.
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A runtime that runs one task at a time, so that the test can wait until all work has finished.
fn one_by_one() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap()
}

/// Waits for the rest of cancelled work: running file work, its undo, and the unpacking threads.
async fn settles(root: &std::path::Path) {
    for _ in 0..4 {
        tokio::task::spawn_blocking(|| {}).await.unwrap();
    }
    let settled = || {
        listing(&root.join("locks")).is_empty()
            && listing(&root.join("staging")).iter().all(|process| listing(process).is_empty())
    };
    assert!(fixtures::wait::eventually(Duration::from_secs(20), settled).await);
    assert_nothing_left(root);
}

#[test]
fn a_pull_dropped_at_any_poll() {
    one_by_one().block_on(drop_at_any_poll());
}

async fn drop_at_any_poll() {
    let world = World::new().await;
    for polls in 1.. {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let pull = store.acquire(request(&world.images[0].0), "task", Arc::new(Silent));
        let done = cut_after(polls, pull).await;
        if let Some(image) = done {
            image.unwrap();
            assert!(polls > 5, "only {polls} polls");
            drop(store);
            world.assert_recovers(directory.path()).await;
            return;
        }
        settles(directory.path()).await;
        drop(store);
        world.assert_recovers(directory.path()).await;
    }
}

#[test]
fn a_pull_dropped_at_any_time() {
    one_by_one().block_on(drop_at_any_time());
}

async fn drop_at_any_time() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let whole = std::time::Instant::now();
    open(directory.path()).acquire(request(&world.images[0].0), "task", Arc::new(Silent)).await.unwrap();
    let whole = whole.elapsed();
    for share in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        // Spread over the duration of a pull in irregular steps.
        let limit = whole.mul_f64(f64::from(share * 7919 % 40) / 40.0);
        let pull = store.acquire(request(&world.images[0].0), "task", Arc::new(Silent));
        match tokio::time::timeout(limit, pull).await {
            Ok(image) => drop(image.unwrap()),
            Err(_) => settles(directory.path()).await,
        }
        drop(store);
        world.assert_recovers(directory.path()).await;
    }
}

#[test]
fn a_cancelled_pull_leaves_no_data_when_the_error_is_returned() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (cancelled, done) = runtime().block_on(async {
        let (mut cancelled, mut done) = (0, 0);
        let world = World::new().await;
        // A step that hits the ends of the phases of a pull as well as their middles.
        for polls in (0..4000).step_by(97) {
            let directory = tempfile::tempdir().unwrap();
            let store = open(directory.path());
            let request = request(&world.images[0].0);
            match store.acquire_unless(request, "task", Arc::new(Silent), ready_after(polls)).await {
                Ok(_) => done += 1,
                Err(PullError::Cancelled) => {
                    cancelled += 1;
                    assert_nothing_left(directory.path());
                }
                Err(error) => panic!("{error}"),
            }
        }
        (cancelled, done)
    });
    assert!(cancelled > 5, "{cancelled} pulls were cancelled, {done} done");
}

#[test]
fn a_pull_dropped_with_its_runtime_is_undone() {
    let serving = tokio::runtime::Runtime::new().unwrap();
    let world = serving.block_on(World::new());
    for polls in 1.. {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let runtime = one_by_one();
        let pull = store.acquire(request(&world.images[0].0), "task", Arc::new(Silent));
        let done = runtime.block_on(cut_after(polls, pull));
        // The undo on the threads of the runtime has not started.
        drop(runtime);
        if let Some(image) = done {
            image.unwrap();
            assert!(polls > 5, "only {polls} polls");
            return;
        }
        assert_eq!(listing(&directory.path().join("leases")), Vec::<std::path::PathBuf>::new(), "after {polls} polls");
    }
}
