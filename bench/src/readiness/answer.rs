//! The first correct answer of a service.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use fixtures::must::Must;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(2);
/// How long an answer to one request is awaited.
const PATIENCE: Duration = Duration::from_secs(120);

/// A port of loopback that is free.
pub fn free_port() -> u16 {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).must("a free port");
    probe.local_addr().must("an address").port()
}

/// Asks the port of loopback until the answer contains the text. Returns the time since `begun`. Blocks until `limit`
/// is over, or until `stop` is set.
pub fn first(
    (port, text): (u16, &str),
    begun: Instant,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Duration, String> {
    let mut last = "no attempt".to_owned();
    while begun.elapsed() < limit && !stop.load(Ordering::Relaxed) {
        match ask(port) {
            Ok(answer) if is_correct(&answer, text) => return Ok(begun.elapsed()),
            Ok(answer) => last = answer,
            Err(error) => last = error.to_string(),
        }
        std::thread::sleep(PAUSE);
    }
    Err(format!("no correct answer: {}", last.lines().next().unwrap_or_default()))
}

fn ask(port: u16) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn is_correct(answer: &str, text: &str) -> bool {
    let status = answer.lines().next().and_then(|line| line.split(' ').nth(1));
    status == Some("200") && answer.split_once("\r\n\r\n").is_some_and(|(_, body)| body.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_successful_answer_with_the_text_counts() {
        for (answer, correct) in [
            ("HTTP/1.0 200 OK\r\nA: b\r\n\r\nhere", true),
            ("HTTP/1.1 200 OK\r\n\r\nnot h-e-r-e", false),
            ("HTTP/1.1 200 OK\r\nA: here\r\n\r\n", false),
            ("HTTP/1.1 503 later\r\n\r\nhere", false),
            ("", false),
        ] {
            assert_eq!(is_correct(answer, "here"), correct, "{answer}");
        }
    }

    #[test]
    fn an_answer_is_awaited_and_the_wait_can_be_stopped() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).must("a port");
        let port = listener.local_addr().must("an address").port();
        let server = std::thread::spawn(move || {
            for answer in ["HTTP/1.0 503 later\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\nhere"] {
                let (mut stream, _) = listener.accept().must("a connection");
                stream.read_exact(&mut [0; 35]).must("a request");
                stream.write_all(answer.as_bytes()).must("an answer");
            }
        });
        let (begun, limit, stop) = (Instant::now(), Duration::from_secs(20), AtomicBool::new(false));
        first((port, "here"), begun, limit, &stop).must("an answer");
        assert!(server.join().is_ok(), "the server");
        assert!(first((port, "here"), begun, Duration::ZERO, &stop).is_err());
        stop.store(true, Ordering::Relaxed);
        assert!(first((port, "here"), begun, limit, &stop).is_err());
    }
}
