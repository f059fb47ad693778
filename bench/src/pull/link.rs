//! A network link of limited speed in front of the registry: a proxy with one byte budget for all connections.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use fixtures::must::Must;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The payload of Gigabit Ethernet with full frames: 1448 of every 1538 bytes.
pub const GIGABIT: u64 = 125_000_000 / 1538 * 1448;

/// The proxy. It ends when the value is dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

/// The time of the next byte.
struct Budget {
    rate: u64,
    free_at: Mutex<Instant>,
}

impl Link {
    /// Opens a link to the address with this number of bytes per second from the address.
    pub async fn open(to: String, rate: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.must("a port for the link");
        let address = listener.local_addr().must("the link's address");
        let budget = Arc::new(Budget { rate, free_at: Mutex::new(Instant::now()) });
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (to, budget) = (to.clone(), Arc::clone(&budget));
                tokio::spawn(async move {
                    // Both sides handle a broken connection themselves.
                    carry(client, &to, &budget).await.ok();
                });
            }
        });
        Self { address, task }
    }

    /// The proxy's address.
    pub fn host(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, to: &str, budget: &Budget) -> std::io::Result<()> {
    let server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let down = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            tokio::time::sleep_until(budget.take(length as u64).into()).await;
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::try_join!(up, down).map(drop)
}

impl Budget {
    /// Reserves the link's time for a number of bytes. Returns the end of that time.
    fn take(&self, bytes: u64) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        // A timer wakes up to a millisecond late. A burst makes up for an unused time of less than that.
        let earliest = Instant::now().checked_sub(Duration::from_millis(2)).unwrap_or(*free_at);
        *free_at = (*free_at).max(earliest) + Duration::from_nanos(bytes * 1_000_000_000 / self.rate);
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_pass_and_take_their_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.must("a port");
        let to = listener.local_addr().must("an address").to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.must("a connection");
            stream.write_all(&[7; 1 << 20]).await.must("sent");
        });
        let link = Link::open(to, 10 << 20).await;
        let begun = Instant::now();
        let mut stream = TcpStream::connect(link.host()).await.must("the link");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.must("received");
        server.await.must("the server");
        assert_eq!(all, vec![7; 1 << 20]);
        // The link needs a tenth of a second; the burst saves two milliseconds.
        assert!(begun.elapsed() >= Duration::from_millis(95), "{:?}", begun.elapsed());
    }
}
