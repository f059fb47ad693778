use std::io::{self, Read, Write};

use bytes::Bytes;

use super::*;
use crate::{
    digest::{Algorithm, Digest},
    limits::Limits,
};

fn blob_reader(blob: &[u8], chunk: usize) -> BlobReader {
    let (sender, receiver) = tokio::sync::mpsc::channel(100_000);
    for part in blob.chunks(chunk) {
        sender.try_send(Piece::Data(Bytes::copy_from_slice(part))).unwrap();
    }
    sender.try_send(Piece::End).unwrap();
    BlobReader::new(receiver, Algorithm::Sha256)
}

fn decode(blob: &[u8], chunk: usize) -> io::Result<Vec<u8>> {
    let mut decoder = Decoder::new(blob_reader(blob, chunk), &Limits::default())?;
    let mut out = Vec::new();
    decoder.read_to_end(&mut out)?;
    let (digest, size) = decoder.into_blob().finish()?;
    assert_eq!((digest, size), (Digest::sha256(blob), blob.len() as u64));
    Ok(out)
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new()
        .filename("name")
        .comment("comment")
        .extra(vec![1, 2, 3])
        .write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn sample() -> Vec<u8> {
    (0..200_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
}

#[test]
fn each_compression_is_read_in_any_chunking() {
    let data = sample();
    let two_members = [gzip(&data[..1000]), gzip(&data[1000..])].concat();
    let zstd = zstd::encode_all(&data[..], 3).unwrap();
    let two_frames = [zstd::encode_all(&data[..9], 3).unwrap(), zstd::encode_all(&data[9..], 3).unwrap()].concat();
    for blob in [data.clone(), gzip(&data), two_members, zstd, two_frames] {
        for chunk in [13, 4096, 1 << 20] {
            assert!(decode(&blob, chunk).unwrap() == data, "chunk {chunk}");
        }
    }
    assert_eq!(decode(b"", 1).unwrap(), b"");
}

#[test]
fn truncation_and_junk_are_errors() {
    let blob = gzip(&sample());
    assert!(decode(&blob[..blob.len() / 2], 4096).is_err());
    assert!(decode(&blob[..blob.len() - 4], 4096).is_err());
    for junk in [&b"junk"[..], &[0; 512]] {
        assert!(decode(&[&blob[..], junk].concat(), 4096).is_err());
        let zstd = zstd::encode_all(&b"data"[..], 3).unwrap();
        assert!(decode(&[&zstd[..], junk].concat(), 4096).is_err());
    }
}

#[test]
fn a_closed_channel_is_an_aborted_pull_not_an_end() {
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    sender.try_send(Piece::Data(Bytes::from_static(b"abcdef"))).unwrap();
    drop(sender);
    let mut reader = BlobReader::new(receiver, Algorithm::Sha256);
    let error = io::copy(&mut reader, &mut io::sink()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
}

#[test]
fn bombs_are_stopped() {
    let limits = Limits { ratio_grace: 1000, ratio: 10, ..Default::default() };
    let blob = gzip(&vec![0; 10 << 20]);
    let reader = blob_reader(&blob, 1 << 20);
    let received = reader.received();
    let decoder = Decoder::new(reader, &limits).unwrap();
    let mut hashed = HashingReader::new(io::BufReader::new(decoder), Algorithm::Sha256, received, limits);
    let error = io::copy(&mut hashed, &mut io::sink()).unwrap_err().to_string();
    assert!(error.contains("10 times"), "{error}");
}
