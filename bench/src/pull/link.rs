//! A network link in front of the registry: a proxy with one byte budget for all connections, and a delay.
//!
//! The delay does not lower the rate: bytes that are on their way do not hold up the next ones. A new connection waits
//! for one round trip. There is neither loss nor slow start.

use std::{
    fmt,
    net::SocketAddr,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fixtures::must::Must;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc},
};

use crate::timer::sleep_until;

/// The payload of Gigabit Ethernet with full frames: 1448 of every 1538 bytes.
pub const GIGABIT: u64 = 125_000_000 / 1538 * 1448;

/// Bytes that are passed on together.
const PIECE: usize = 64 << 10;
/// Bytes of a connection that may wait for the receiver, in addition to those that the delay keeps on their way.
const QUEUE: usize = 4 * PIECE;

/// The properties of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Bytes per second from the registry.
    pub rate: u64,
    /// The time of a packet to the registry and of its answer back.
    pub round_trip: Duration,
}

impl Line {
    /// A link of 1 Gbit/s without delay.
    pub const GIGABIT: Self = Self { rate: GIGABIT, round_trip: Duration::ZERO };

    /// The time of the link alone.
    pub fn time_of(self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.rate as f64)
    }

    fn window(self) -> usize {
        let on_the_way = self.rate as f64 * self.round_trip.as_secs_f64() / 2.0;
        on_the_way as usize + QUEUE
    }
}

/// `1000` is 1 Gbit/s, `1000+20` the same with a round trip of 20 ms.
impl FromStr for Line {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (megabits, milliseconds) = text.split_once('+').unwrap_or((text, "0"));
        let round_trip = Duration::from_millis(milliseconds.parse()?);
        Ok(Self { rate: GIGABIT / 1000 * megabits.parse::<std::num::NonZeroU32>()?.get() as u64, round_trip })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate / (GIGABIT / 1000) {
            megabits if megabits % 1000 == 0 => write!(f, "{} Gbit/s", megabits / 1000)?,
            megabits => write!(f, "{megabits} Mbit/s")?,
        }
        if self.round_trip.is_zero() { Ok(()) } else { write!(f, ", {} ms", self.round_trip.as_millis()) }
    }
}

/// What went through a link so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests of clients.
    pub requests: u64,
    /// Bytes from the registry.
    pub bytes: u64,
}

/// The proxy. It ends when the value is dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
    wire: Arc<Wire>,
}

/// What the connections share.
#[derive(Debug)]
struct Wire {
    line: Line,
    /// The time of the next byte.
    free_at: Mutex<Instant>,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Link {
    /// Opens a link to the address.
    pub async fn open(to: String, line: Line) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.must("a port for the link");
        let address = listener.local_addr().must("the link's address");
        let free_at = Mutex::new(Instant::now());
        let wire = Arc::new(Wire { line, free_at, requests: AtomicU64::new(0), bytes: AtomicU64::new(0) });
        let shared = Arc::clone(&wire);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (to, wire) = (to.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    // Both sides handle a broken connection themselves.
                    carry(client, &to, &wire).await.ok();
                });
            }
        });
        Self { address, task, wire }
    }

    /// The proxy's address.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// What went through so far.
    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic { requests: count(&self.wire.requests), bytes: count(&self.wire.bytes) }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, to: &str, wire: &Wire) -> std::io::Result<()> {
    sleep_until(Instant::now() + wire.line.round_trip).await?;
    let server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = pass(from_client, to_server, wire.line, |piece| wire.sent(piece));
    let down = pass(from_server, to_client, wire.line, |piece| wire.received(piece.len() as u64));
    tokio::try_join!(up, down).map(drop)
}

/// Passes the bytes of one direction on. A piece gets its turn, and is then on its way for half of the round trip.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: Line,
    turn: impl Fn(&[u8]) -> Instant,
) -> std::io::Result<()> {
    let window = Arc::new(Semaphore::new(line.window()));
    let (sender, mut pieces) = mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = vec![0; PIECE];
        loop {
            let length = from.read(&mut buffer).await?;
            let room = Arc::clone(&window).acquire_many_owned(length as u32).await.map_err(std::io::Error::other)?;
            if length == 0 {
                return Ok(());
            }
            let due = turn(&buffer[..length]);
            sleep_until(due).await?;
            if sender.send((due + line.round_trip / 2, buffer[..length].to_vec(), room)).is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, piece, _room)) = pieces.recv().await {
            sleep_until(due).await?;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}

impl Wire {
    /// Counts a client's bytes. They need no time of the link.
    fn sent(&self, piece: &[u8]) -> Instant {
        // A client sends the head of a request at once.
        if piece.starts_with(b"GET ") || piece.starts_with(b"HEAD ") {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        Instant::now()
    }

    /// Reserves the link's time for a number of bytes. Returns the end of that time.
    fn received(&self, bytes: u64) -> Instant {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        // This program wakes late when the processors are busy. A burst makes up for a shorter time than this.
        let earliest = Instant::now().checked_sub(Duration::from_millis(2)).unwrap_or(*free_at);
        *free_at = (*free_at).max(earliest) + Duration::from_nanos(bytes * 1_000_000_000 / self.line.rate);
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches a mebibyte with a request through a link. Returns the time, and what the link counted.
    async fn fetch(line: Line) -> (Duration, Traffic) {
        let listener = TcpListener::bind("127.0.0.1:0").await.must("a port");
        let to = listener.local_addr().must("an address").to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.must("a connection");
            stream.read_exact(&mut [0; 16]).await.must("a request");
            stream.write_all(&[7; 1 << 20]).await.must("sent");
        });
        let link = Link::open(to, line).await;
        let begun = Instant::now();
        let mut stream = TcpStream::connect(link.host()).await.must("the link");
        stream.write_all(b"GET / HTTP/1.0\r\n").await.must("sent");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.must("received");
        server.await.must("the server");
        assert_eq!(all, vec![7; 1 << 20]);
        (begun.elapsed(), link.traffic())
    }

    #[tokio::test]
    async fn bytes_pass_and_take_their_time() {
        let (took, traffic) = fetch(Line { rate: 10 << 20, round_trip: Duration::ZERO }).await;
        // The link needs a tenth of a second; the burst saves two milliseconds.
        assert!(took >= Duration::from_millis(95), "{took:?}");
        assert_eq!(traffic, Traffic { requests: 1, bytes: 1 << 20 });
    }

    #[tokio::test]
    async fn a_delay_is_added_once_for_the_connection_and_once_for_the_request() {
        let (took, _) = fetch(Line { rate: 1 << 30, round_trip: Duration::from_millis(50) }).await;
        assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(400), "{took:?}");
    }

    #[test]
    fn lines_are_parsed_and_shown() {
        for (text, shown) in [("1000", "1 Gbit/s"), ("100", "100 Mbit/s"), ("1000+20", "1 Gbit/s, 20 ms")] {
            assert_eq!(text.parse::<Line>().must("a line").to_string(), shown);
        }
        assert_eq!("1000+20".parse(), Ok(Line { rate: GIGABIT / 1000 * 1000, round_trip: Duration::from_millis(20) }));
        for text in ["", "fast", "0", "100+", "-1"] {
            assert!(text.parse::<Line>().is_err(), "{text}");
        }
        assert_eq!(Line::GIGABIT.time_of(2 * GIGABIT), Duration::from_secs(2));
    }
}
