//! A pull that is given up at any moment leaves nothing but finished layers, and the next one works.

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

/// The future's value, or nothing if it is dropped after so many polls.
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
            // Cut here rather than when it would go on: whatever it waits for is under way.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Ready when it was polled so many times.
fn ready_after(polls: usize) -> impl Future<Output = ()> {
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        // Whoever waits for it polls it beside its work: again, at once.
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A runtime that does one thing after the other, so that it can be told when it has done everything.
fn one_by_one() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap()
}

/// Waits for what the cancelled work still does: file work that was under way, what undoes it, and the threads that
/// unpack.
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
            world.assert_recovers(directory.path()).await;
            return;
        }
        settles(directory.path()).await;
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
        // Spread over the time that a pull takes, at odd places.
        let limit = whole.mul_f64(f64::from(share * 7919 % 40) / 40.0);
        let pull = store.acquire(request(&world.images[0].0), "task", Arc::new(Silent));
        match tokio::time::timeout(limit, pull).await {
            Ok(image) => drop(image.unwrap()),
            Err(_) => settles(directory.path()).await,
        }
        world.assert_recovers(directory.path()).await;
    }
}

#[test]
fn a_pull_given_up_has_nothing_left_when_that_is_told() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (given_up, done) = runtime().block_on(async {
        let (mut given_up, mut done) = (0, 0);
        let world = World::new().await;
        // An odd step, so that the ends of a pull's parts are met as well as their middles.
        for polls in (0..4000).step_by(97) {
            let directory = tempfile::tempdir().unwrap();
            let store = open(directory.path());
            let request = request(&world.images[0].0);
            match store.acquire_unless(request, "task", Arc::new(Silent), ready_after(polls)).await {
                Ok(_) => done += 1,
                Err(PullError::Cancelled) => {
                    given_up += 1;
                    assert_nothing_left(directory.path());
                }
                Err(error) => panic!("{error}"),
            }
        }
        (given_up, done)
    });
    assert!(given_up > 5, "{given_up} pulls were given up, {done} done");
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
        // What was to be undone on its threads has not begun.
        drop(runtime);
        if let Some(image) = done {
            image.unwrap();
            assert!(polls > 5, "only {polls} polls");
            return;
        }
        assert_eq!(listing(&directory.path().join("leases")), Vec::<std::path::PathBuf>::new(), "after {polls} polls");
    }
}
