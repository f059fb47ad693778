//! Sleeps that end on time. The runtime's own timers count whole milliseconds and end up to one too late, which adds up
//! over the legs of a round trip.

use std::time::Instant;

/// Sleeps until an instant, on a thread of its own.
pub async fn sleep_until(due: Instant) -> std::io::Result<()> {
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(());
    }
    tokio::task::spawn_blocking(move || std::thread::sleep(left)).await.map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fixtures::must::Must;

    use super::*;

    #[tokio::test]
    async fn a_sleep_does_not_end_before_its_time() {
        let due = Instant::now() + Duration::from_millis(20);
        sleep_until(due).await.must("slept");
        assert!(Instant::now() >= due);
        sleep_until(due).await.must("an instant that is over");
    }
}
