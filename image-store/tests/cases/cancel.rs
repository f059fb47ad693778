//! A pull that is given up at any moment leaves nothing but finished layers, and the next one works.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use image_store::Silent;

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

/// A runtime that does one thing after the other, so that it can be told when it has done everything.
fn one_by_one() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap()
}

/// Waits for what the cancelled work still does: file work that was under way, what undoes it, and the threads that unpack.
async fn settles(root: &std::path::Path) {
    for _ in 0..4 {
        tokio::task::spawn_blocking(|| {}).await.unwrap();
    }
    let settled = || {
        listing(&root.join("locks")).is_empty()
            && listing(&root.join("staging")).iter().all(|process| listing(process).is_empty())
    };
    assert!(kit::must::eventually(Duration::from_secs(20), settled).await);
    assert_nothing_left(root);
}

#[test]
fn a_pull_dropped_at_any_poll() {
    one_by_one().block_on(drop_at_any_poll());
}

async fn drop_at_any_poll() {
    let world = World::new().await;
    for polls in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let pull = store.acquire(request(&world.images[0].0), "task", Arc::new(Silent));
        let done = cut_after(polls, pull).await;
        if let Some(image) = done {
            image.unwrap();
            assert!(polls > 5, "only {polls} polls");
            world.assert_recovers(folder.path()).await;
            return;
        }
        settles(folder.path()).await;
        world.assert_recovers(folder.path()).await;
    }
}

#[test]
fn a_pull_dropped_at_any_time() {
    one_by_one().block_on(drop_at_any_time());
}

async fn drop_at_any_time() {
    let world = World::new().await;
    let folder = tempfile::tempdir().unwrap();
    let whole = std::time::Instant::now();
    open(folder.path()).acquire(request(&world.images[0].0), "task", Arc::new(Silent)).await.unwrap();
    let whole = whole.elapsed();
    for share in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        // Spread over the time that a pull takes, at odd places.
        let limit = whole.mul_f64(f64::from(share * 7919 % 40) / 40.0);
        let pull = store.acquire(request(&world.images[0].0), "task", Arc::new(Silent));
        match tokio::time::timeout(limit, pull).await {
            Ok(image) => drop(image.unwrap()),
            Err(_) => settles(folder.path()).await,
        }
        world.assert_recovers(folder.path()).await;
    }
}
