//! Another address of the registry, for downloads that stop in the middle. Each connection slowly passes on a number of
//! bytes, and then nothing more.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{Context, Outcome};

/// The bytes that are passed on at once, and the pause after them.
const PART: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(50);

/// The address. It ends with this value.
#[derive(Debug)]
pub struct Stall {
    port: u16,
    closing: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Stall {
    /// Listens on the loopback address and passes on `bytes` of each connection to the registry at `target`.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) fn start(target: u16, bytes: u64) -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a port")?;
        let port = listener.local_addr()?.port();
        let closing = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&closing);
        let thread = thread::spawn(move || {
            for client in listener.incoming().flatten().take_while(|_| !closed.load(Ordering::Relaxed)) {
                // Each connection ends when the client or the registry closes it.
                thread::spawn(move || pass_on(&client, target, bytes));
            }
        });
        Ok(Self { port, closing, listener: Some(thread) })
    }

    /// The name of an image of the registry at this address.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes the listener.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(listener) = self.listener.take() {
            drop(listener.join());
        }
    }
}

/// Passes on everything from the client, and `bytes` of the answers. Returns when the client has closed the connection.
fn pass_on(client: &TcpStream, target: u16, bytes: u64) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", target))?;
    thread::scope(|scope| {
        scope.spawn(|| {
            // After the last byte the connection stays open. An end of the registry's side is passed on.
            if trickle(&server, client, bytes).is_ok_and(|passed| passed < bytes) {
                client.shutdown(Shutdown::Both).ok();
            }
        });
        let asked = io::copy(&mut &*client, &mut &server).map(drop);
        server.shutdown(Shutdown::Both).ok();
        asked
    })
}

/// Passes on at most `bytes`. Returns their number.
fn trickle(mut from: &TcpStream, mut to: &TcpStream, bytes: u64) -> io::Result<u64> {
    let (mut passed, mut part) = (0, [0; PART]);
    while passed < bytes {
        let length = from.read(&mut part)?;
        if length == 0 {
            break;
        }
        to.write_all(&part[..length])?;
        passed += length as u64;
        thread::sleep(PAUSE);
    }
    Ok(passed)
}
