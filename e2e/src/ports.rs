//! Free ports of the loopback address.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

use crate::{Failure, Outcome};

/// A free port of the loopback address, below the range of outgoing connections. It is given out only once per process.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Outcome<u16> {
    // A port stays free until its program listens on it, so the counter prevents that it is given out twice.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..9_000 {
        let offset = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) * 7 + std::process::id() * 131;
        let candidate = 10_000 + (offset % 9_000) as u16;
        if TcpListener::bind(("127.0.0.1", candidate)).is_ok() {
            return Ok(candidate);
        }
    }
    Err(Failure("no free port below 19000".to_owned()))
}
