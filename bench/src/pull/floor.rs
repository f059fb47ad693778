//! The lower bound of a pull: both hashes, decompression, writing the files. The steps run one after the other, from
//! the page cache, without a network. For a pull that only copies: writing to the disk.

use std::{
    io::{BufWriter, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use fixtures::must::Must;
use flate2::bufread::GzDecoder;
use sha2::{Digest, Sha256};

use super::cost::{self, Cost};
use crate::{
    images::LayerFiles,
    process::{thread_time, until_done},
    workdir::{Fresh, text},
};

/// Bytes that are received, hashed and written at once.
const PIECE: usize = 1 << 20;

/// The name of the row in the table.
pub const NAME: &str = "floor: sha256, inflate, sha256, GNU tar";

/// Measures the lower bound. Only the processor time is comparable, because nothing runs in parallel.
pub fn measure(data: &Fresh, layers: &[LayerFiles]) -> Result<Cost, String> {
    cost::watch(&[], || {
        let mut took = Duration::ZERO;
        for (number, layer) in layers.iter().enumerate() {
            let begun = Instant::now();
            hash_twice(layer);
            took += begun.elapsed();
            let directory = data.path().join(number.to_string());
            std::fs::create_dir(&directory).map_err(|error| error.to_string())?;
            let extract = ["--extract", "--numeric-owner", "--preserve-permissions", "--directory", &text(&directory)];
            took += until_done(Command::new("tar").args(extract).arg("--file").arg(&layer.tar))?;
        }
        Ok(took)
    })
}

/// The time in which the disk takes a number of bytes: a file is written and synced.
pub fn write(data: &Fresh, bytes: u64) -> Result<Duration, String> {
    let failed = |error: std::io::Error| format!("writing to {}: {error}", data.path().display());
    let path = data.path().join("written");
    let piece = vec![0x5a; PIECE];
    let begun = Instant::now();
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    let mut left = bytes;
    while left > 0 {
        let length = left.min(piece.len() as u64);
        file.write_all(&piece[..length as usize]).map_err(failed)?;
        left -= length;
    }
    file.sync_data().map_err(failed)?;
    let took = begun.elapsed();
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(took)
}

/// The processor time of a thread that receives a number of bytes over loopback, hashes them once and writes them to a
/// file. No pull that only copies takes less.
pub fn copy(data: &Fresh, bytes: u64) -> Result<Duration, String> {
    let failed = |error: std::io::Error| format!("a copy to {}: {error}", data.path().display());
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let path = data.path().join("copied");
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let mut stream = listener.accept()?.0;
            std::io::copy(&mut std::io::repeat(0x5a).take(bytes), &mut BufWriter::with_capacity(PIECE, &mut stream))
        });
        let received = scope.spawn(|| {
            let (mut stream, mut file) = (TcpStream::connect(address)?, std::fs::File::create(&path)?);
            let (mut hash, mut piece, before) = (Sha256::new(), vec![0; PIECE], thread_time());
            loop {
                let length = stream.read(&mut piece)?;
                if length == 0 {
                    std::hint::black_box(hash.finalize());
                    return Ok(thread_time().saturating_sub(before));
                }
                hash.update(&piece[..length]);
                file.write_all(&piece[..length])?;
            }
        });
        let received = received.join().unwrap_or_else(|_| Err(std::io::Error::other("the receiver panicked")));
        let sent = sent.join().unwrap_or_else(|_| Err(std::io::Error::other("the sender panicked")));
        sent.and(received).and_then(|took| std::fs::remove_file(&path).map(|()| took)).map_err(failed)
    })
}

fn hash_twice(layer: &LayerFiles) {
    let blob = std::fs::read(&layer.blob).must("a layer's blob");
    let (mut packed, mut unpacked) = (Sha256::new(), Sha256::new());
    packed.update(&blob);
    let mut decoder = GzDecoder::new(&blob[..]);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = decoder.read(&mut buffer).must("inflated");
        if length == 0 {
            break;
        }
        unpacked.update(&buffer[..length]);
    }
    // The compiler must not remove the work.
    std::hint::black_box((packed.finalize(), unpacked.finalize()));
}
