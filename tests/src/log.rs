//! The reader of a task's log FIFO, in the place of Nomad's logmon.

use std::{
    fs,
    io::{ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use fixtures::wait::patient;
use tokio::sync::watch;

/// The output of a task on one of its streams.
#[derive(Debug, Clone)]
pub struct Log {
    state: watch::Receiver<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    bytes: Vec<u8>,
    ended: bool,
}

impl Log {
    /// Reads as logmon does: waits for the first writer, then reads until the last writer has closed the FIFO.
    pub(crate) fn read(fifo: PathBuf) -> Self {
        let (sender, state) = watch::channel(LogState::default());
        std::thread::spawn(move || {
            if let Ok(mut file) = fs::File::open(&fifo) {
                let mut buffer = [0; 65536];
                loop {
                    match file.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(count) => sender.send_modify(|state| state.bytes.extend_from_slice(&buffer[..count])),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
            }
            sender.send_modify(|state| state.ended = true);
        });
        Self { state }
    }

    /// The output so far.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.state.borrow().bytes).into_owned()
    }

    /// Waits until the output contains the text, and returns the output.
    pub async fn contains(&self, text: &str, limit: Duration) -> String {
        let mut state = self.state.clone();
        let reached = |state: &LogState| state.ended || String::from_utf8_lossy(&state.bytes).contains(text);
        let waited = tokio::time::timeout(patient(limit), state.wait_for(reached)).await.is_ok();
        let all = self.so_far();
        assert!(
            all.contains(text),
            "no {text:?} in the log ({}): {all:?}",
            if waited { "ended" } else { "still open" }
        );
        all
    }

    /// Waits until the last writer has closed the FIFO, and returns the output.
    pub async fn all(&self, limit: Duration) -> String {
        String::from_utf8_lossy(&self.all_bytes(limit).await).into_owned()
    }

    /// The same for binary output.
    pub async fn all_bytes(&self, limit: Duration) -> Vec<u8> {
        let mut state = self.state.clone();
        let ended = tokio::time::timeout(patient(limit), state.wait_for(|state| state.ended)).await.is_ok();
        assert!(ended, "the log FIFO is still held open by a writer after {limit:?}; so far {:?}", self.so_far());
        self.state.borrow().bytes.clone()
    }
}

/// Ends a reader that still waits for its first writer.
pub(crate) fn wake_reader(fifo: &Path) {
    const NONBLOCK: i32 = 0o4000;
    drop(fs::OpenOptions::new().write(true).custom_flags(NONBLOCK).open(fifo));
}
