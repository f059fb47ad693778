//! Sources that lie, break, or vanish.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use lazy::{CHUNK, Description, LazyEvent, PartialLayer, Settings};
use rustix::io::Errno;

use crate::common::{Bench, Memory, Native, mixed, single, sources};

/// Settings with which a failed read fails soon.
fn hasty() -> Settings {
    Settings { read_timeout: Duration::from_secs(2), ..Settings::default() }
}

#[test]
fn a_lie_in_any_chunk_is_never_content_and_another_source_is_asked() {
    let native = single();
    for chunk in 0..native.chunks() as u64 {
        let Some(bench) = Bench::new() else { return };
        let (liar, honest) = (Memory::new("liar", native), Memory::new("honest", native));
        liar.lie_at(Some(native.data.start + chunk * CHUNK + 77 * chunk));
        let lazy = bench.start(Settings::default());
        let mounted = bench.serve(&lazy, native, &sources([&liar, &honest]));
        let (name, expected) = &native.files[0];
        assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected, "chunk {chunk}");
        bench.recorder.wait_complete();
        let wrong = bench.recorder.wait_for("lie", |event| matches!(event, LazyEvent::WrongChunk { .. }));
        let offset = native.data.start + chunk * CHUNK;
        let (digest, source) = (native.description.digest.clone(), "liar".to_owned());
        assert_eq!(wrong, LazyEvent::WrongChunk { digest, offset, source });
        drop(lazy);
        assert!(bench.bytes() == native.image);
    }
}

#[test]
fn a_read_of_a_chunk_about_which_all_lie_fails_at_once_and_all_others_are_right() {
    let native = single();
    for chunk in 0..native.chunks() as u64 {
        let Some(bench) = Bench::new() else { return };
        let liar = Memory::new("liar", native);
        liar.lie_at(Some(native.data.start + chunk * CHUNK + 1));
        let lazy = bench.start(Settings { read_timeout: Duration::from_secs(600), ..Settings::default() });
        let mounted = bench.serve(&lazy, native, &sources([&liar]));
        let (name, expected) = &native.files[0];
        for other in 0..native.chunks() as u64 {
            let range = other * CHUNK..((other + 1) * CHUNK).min(expected.len() as u64);
            // Without read-ahead, which would touch the next chunk.
            let file = mounted.open(name);
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
            let mut read = vec![0; (range.end - range.start) as usize];
            let result = std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, range.start);
            if other == chunk {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()), "chunk {chunk}");
            } else {
                result.unwrap();
                assert!(read == expected[range.start as usize..range.end as usize], "chunk {chunk}, {other}");
            }
        }
        bench.recorder.wait_for("failure", |event| matches!(event, LazyEvent::ReadFailed { .. }));
        // The source has it right again: the same read succeeds, and the layer completes.
        liar.lie_at(None);
        bench.recorder.wait_complete();
        assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected);
    }
}

/// A layer with a hash tree that is fetched in parts, and the number of the largest file with the last of its chunks.
fn with_hashes_missing() -> (&'static Native, usize, u64) {
    let native = mixed();
    assert!(native.parts.lowest_hashes().end > native.parts.front_hashes().end + (64 << 10));
    let file = native.files.len() - 1;
    let bytes = &native.files[file].1;
    let begins = |at: &usize| native.image[*at..].starts_with(&bytes[..4096]);
    let start = (0..native.image.len()).step_by(4096).find(begins).unwrap();
    (native, file, ((start + bytes.len() - 1) as u64 - native.data.start) / CHUNK)
}

#[test]
fn a_lie_in_the_hash_tree_is_never_content_and_another_source_is_asked() {
    let (native, file, chunk) = with_hashes_missing();
    let (name, expected) = &native.files[file];
    for chunk in [chunk - 20, chunk, native.chunks() as u64 - 1] {
        let Some(bench) = Bench::new() else { return };
        let (liar, honest) = (Memory::new("liar", native), Memory::new("honest", native));
        liar.lie_at(Some(native.hash_block_of(chunk) + 4));
        let lazy = bench.start(Settings::default());
        let mounted = bench.serve(&lazy, native, &sources([&liar, &honest]));
        assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected, "chunk {chunk}");
        bench.recorder.wait_complete();
        let wrong = bench.recorder.wait_for("lie", |event| matches!(event, LazyEvent::WrongChunk { .. }));
        assert!(matches!(&wrong, LazyEvent::WrongChunk { source, .. } if source == "liar"), "{wrong:?}");
        drop(lazy);
        assert!(bench.bytes() == native.image);
    }
}

#[test]
fn reads_fail_while_all_lie_about_their_hashes_and_all_others_are_right() {
    let (native, file, chunk) = with_hashes_missing();
    let Some(bench) = Bench::new() else { return };
    let liar = Memory::new("liar", native);
    liar.lie_at(Some(native.hash_block_of(chunk)));
    let lazy = bench.start(Settings { read_timeout: Duration::from_secs(600), ..Settings::default() });
    let mounted = bench.serve(&lazy, native, &sources([&liar]));
    let (name, expected) = &native.files[file];
    let end = expected.len() as u64;
    let failed = mounted.read(name, end - 4096..end).map(drop);
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    // The wrong block has the hashes of half a mebibyte, so also those of files that follow in the same directory.
    for (name, expected) in native.files.iter().filter(|(name, _)| name[..2] > *"d2") {
        assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected, "{name}");
    }
    liar.lie_at(None);
    bench.recorder.wait_complete();
    assert!(mounted.read(name, 0..end).unwrap() == *expected);
}

#[test]
fn a_source_that_breaks_after_each_chunk_or_in_it_delivers_the_layer() {
    for cut in [CHUNK as usize, CHUNK as usize + (16 << 10), 3 * CHUNK as usize] {
        let Some(bench) = Bench::new() else { return };
        let (native, source) = (single(), Memory::new("breaking", single()));
        let lazy = bench.start(Settings::default());
        let mounted = bench.serve(&lazy, native, &sources([&source]));
        source.faults.cut.store(cut, Ordering::SeqCst);
        let (name, expected) = &native.files[0];
        assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected, "cut after {cut}");
        bench.recorder.wait_complete();
    }
}

#[test]
fn reads_wait_for_a_source_that_is_gone_then_fail_and_succeed_when_it_is_back() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (single(), Memory::new("gone", single()));
    let lazy = bench.start(hasty());
    let limits = layer::Limits::default();
    let all = sources([&source]);
    let (layer, _) = lazy::PartialLayer::create(&bench.layer(), native.description.clone(), &all, &limits).unwrap();
    source.faults.gone.store(true, Ordering::SeqCst);
    lazy.serve(layer, all).unwrap();
    let mounted = crate::common::Mounted::of(&bench.layer().join("fs.erofs"));
    let (name, expected) = &native.files[0];
    let began = Instant::now();
    let error = mounted.read(name, 0..4096).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    let failed = bench.recorder.wait_for("failure", |event| matches!(event, LazyEvent::ReadFailed { .. }));
    let LazyEvent::ReadFailed { problem, .. } = failed else { unreachable!() };
    assert!(problem.contains("gone: the connection broke"), "{problem}");
    let stalled = bench.recorder.wait_for("stall", |event| matches!(event, LazyEvent::Stalled { .. }));
    assert!(matches!(stalled, LazyEvent::Stalled { missing: 12, .. }), "{stalled:?}");
    source.faults.gone.store(false, Ordering::SeqCst);
    let read = mounted.read(name, 0..expected.len() as u64);
    assert!(read.is_ok_and(|read| read == *expected), "{:?}", bench.recorder.all());
    bench.recorder.wait_complete();
}

#[test]
fn more_readers_than_slots_wait_and_all_go_on() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("hanging", mixed()));
    let lazy = bench.start(Settings::default());
    let all = sources([&source]);
    let limits = layer::Limits::default();
    let (layer, _) = lazy::PartialLayer::create(&bench.layer(), native.description.clone(), &all, &limits).unwrap();
    *source.faults.hangs.lock().unwrap() = true;
    lazy.serve(layer, all).unwrap();
    let mounted = Arc::new(crate::common::Mounted::of(&bench.layer().join("fs.erofs")));
    // Each reads another file, so each read is an event of its own.
    let files = native.files.iter().filter(|(_, bytes)| !bytes.is_empty());
    let readers: Vec<_> = files
        .map(|(name, expected)| {
            let mounted = Arc::clone(&mounted);
            thread::spawn(move || assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected, "{name}"))
        })
        .collect();
    assert!(readers.len() > 280, "{}", readers.len());
    *source.faults.hangs.lock().unwrap() = false;
    source.faults.released.notify_all();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    bench.recorder.wait_complete();
}

#[test]
fn a_layer_with_another_digest_than_the_manifest_promised_is_never_complete() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (single(), Memory::new("memory", single()));
    let lazy = bench.start(Settings::default());
    let mut description = native.description.clone();
    description.digest = layer::Digest::sha256(b"another layer");
    let all = sources([&source]);
    let (layer, _) = lazy::PartialLayer::create(&bench.layer(), description, &all, &layer::Limits::default()).unwrap();
    lazy.serve(layer, all).unwrap();
    let refused = bench.recorder.wait_for("refusal", |event| matches!(event, LazyEvent::Refused { .. }));
    let LazyEvent::Refused { problem, .. } = refused else { unreachable!() };
    assert!(problem.contains("the manifest is wrong"), "{problem}");
    assert!(!bench.recorder.all().iter().any(|event| matches!(event, LazyEvent::Complete { .. })));
}

/// A layer in which the last byte behind the end of its only file is not zero, with the right hash tree and digest.
fn with_bytes_behind_the_end() -> Native {
    const BLOCK: usize = 4096;
    let (mut image, end) = (single().image.clone(), single().data.end as usize);
    image[end - 1] = 7;
    // The hash tree has two levels here. Its own head and the block of the upper level come first.
    let (leaf, upper, lower) = (end / BLOCK - 1, end + BLOCK, end + 2 * BLOCK);
    let hash =
        |image: &[u8], start: usize| hex::decode(layer::Digest::sha256(&image[start..start + BLOCK]).hex()).unwrap();
    let of_data = hash(&image, leaf * BLOCK);
    image[lower + leaf * 32..][..32].copy_from_slice(&of_data);
    let hashes = leaf / 128;
    let of_hashes = hash(&image, lower + hashes * BLOCK);
    image[upper + hashes * 32..][..32].copy_from_slice(&of_hashes);
    let root = layer::Digest::sha256(&image[upper..lower]);
    let description =
        Description { digest: layer::Digest::sha256(&image), hash_root: root, ..single().description.clone() };
    Native { image, description, files: single().files.clone(), data: single().data.clone(), parts: single().parts }
}

#[test]
fn a_layer_with_bytes_behind_the_end_of_a_file_is_never_complete() {
    let native = with_bytes_behind_the_end();
    for taken_over in [false, true] {
        let Some(bench) = Bench::new() else { return };
        let (all, limits) = (sources([&Memory::new("memory", &native)]), layer::Limits::default());
        let (mut layer, _) = PartialLayer::create(&bench.layer(), native.description.clone(), &all, &limits).unwrap();
        if taken_over {
            layer = PartialLayer::open(&bench.layer(), &limits).unwrap().unwrap();
        }
        let lazy = bench.start(Settings::default());
        lazy.serve(layer, all).unwrap();
        let refused = bench.recorder.wait_for("refusal", |event| matches!(event, LazyEvent::Refused { .. }));
        let LazyEvent::Refused { problem, .. } = refused else { unreachable!() };
        assert!(problem.contains("behind the end of a file"), "{problem}");
        assert!(!bench.recorder.all().iter().any(|event| matches!(event, LazyEvent::Complete { .. })));
    }
}
