//! A client that only reads a native image, and keeps none of it. No pull through the same link takes less: it too
//! connects, asks for the index and then for the layers.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Reads the index at this path, and after it all blobs: the first one on the same connection, the others at the same
/// time on connections of their own. Returns the time. Blocks.
pub fn read(host: &str, index: &str, blobs: &[String]) -> io::Result<Duration> {
    let begun = Instant::now();
    let mut connection = Connection::open(host)?;
    connection.get(index)?;
    let Some((first, others)) = blobs.split_first() else { return Ok(begun.elapsed()) };
    thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|blob| scope.spawn(|| Connection::open(host)?.get(blob))).collect();
        connection.get(first)?;
        others.into_iter().try_for_each(|other| {
            other.join().unwrap_or_else(|_| Err(io::Error::other("a thread that reads panicked"))).map(drop)
        })
    })?;
    Ok(begun.elapsed())
}

struct Connection<'a> {
    host: &'a str,
    stream: BufReader<TcpStream>,
}

impl<'a> Connection<'a> {
    fn open(host: &'a str) -> io::Result<Self> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        Ok(Self { host, stream: BufReader::with_capacity(PIECE, stream) })
    }

    /// Reads the answer to a request to its end. Returns the size of its body.
    fn get(&mut self, path: &str) -> io::Result<u64> {
        let accept = "application/vnd.oci.image.index.v1+json, */*";
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: {accept}\r\n\r\n", self.host);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut status, mut line, mut size) = (String::new(), String::new(), None);
        self.stream.read_line(&mut status)?;
        while line != "\r\n" {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                size = value.trim().parse().ok();
            }
        }
        match size {
            Some(size) if status.contains(" 200 ") => self.skip(size).map(|()| size),
            _ => Err(io::Error::other(format!("{path}: {}", status.trim()))),
        }
    }

    fn skip(&mut self, size: u64) -> io::Result<()> {
        match io::copy(&mut self.stream.by_ref().take(size), &mut io::sink())? {
            read if read == size => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use fixtures::must::Must;

    use super::*;

    /// Answers one request on each connection after the first, and all requests on the first one.
    fn serve(listener: &TcpListener, connections: usize, answer: &str) {
        thread::scope(|scope| {
            for _ in 0..connections {
                let mut stream = listener.accept().must("a connection").0;
                scope.spawn(move || {
                    let mut requests = BufReader::new(stream.try_clone().must("a copy")).lines();
                    while let Some(Ok(line)) = requests.next() {
                        if line.is_empty() {
                            stream.write_all(answer.as_bytes()).must("sent");
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn the_index_and_all_blobs_are_read_to_their_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").must("a port");
        let host = listener.local_addr().must("an address").to_string();
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, 2, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde"));
            read(&host, "/index", &["/largest".to_owned(), "/other".to_owned()]).must("read");
        });
        for (answer, error) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "/index: HTTP/1.1 404 Not Found"),
            ("HTTP/1.1 200 OK\r\n\r\n", "/index: HTTP/1.1 200 OK"),
        ] {
            thread::scope(|scope| {
                scope.spawn(|| serve(&listener, 1, answer));
                assert_eq!(read(&host, "/index", &[]).err().must("an error").to_string(), error);
            });
        }
    }
}
