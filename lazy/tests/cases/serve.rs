//! Reads of a layer while it streams.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use layer::Limits;
use lazy::{LazyEvent, PartialLayer, Settings};

use crate::common::{Bench, Memory, Mounted, Native, mixed, noise, single, sources};

/// Reads all files in an order of its own, each in parts of random lengths in random order, and compares.
fn read_everything(mounted: &Mounted, native: &Native, seed: u64) {
    let random = noise(seed, 8 * native.files.len());
    let mut order: Vec<(u64, usize)> =
        (0..native.files.len()).map(|at| (u64::from_le_bytes(random[at * 8..][..8].try_into().unwrap()), at)).collect();
    order.sort_unstable();
    for (random, at) in order {
        let (name, expected) = &native.files[at];
        let part = 1 + random as usize % 300_000;
        let mut starts: Vec<usize> = (0..expected.len()).step_by(part).collect();
        let turn = random as usize % starts.len().max(1);
        starts.rotate_left(turn);
        for start in starts {
            let end = (start + part).min(expected.len());
            let read = mounted.read(name, start as u64..end as u64).unwrap();
            assert!(read == expected[start..end], "{name}, {start}..{end}");
        }
    }
}

#[test]
fn sixteen_readers_in_random_order_see_only_right_bytes_while_the_layer_streams() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("slow", mixed()));
    let lazy = bench.start(Settings::default());
    let began = Instant::now();
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    *source.faults.pause.lock().unwrap() = Duration::from_millis(2);
    let mounted = &mounted;
    thread::scope(|scope| {
        for seed in 1..=16 {
            scope.spawn(move || read_everything(mounted, native, seed));
        }
    });
    bench.recorder.wait_complete();
    let all = bench.recorder.all();
    let (digest, image) = (native.description.digest.clone(), bench.layer().join("fs.erofs"));
    assert_eq!(all, [LazyEvent::Complete { digest, image, reads: None }]);
    // Reads are not announced any more.
    drop(lazy);
    assert!(bench.bytes() == native.image, "the file is the layer");
    read_everything(mounted, native, 99);
    read_everything(&Mounted::of(&bench.layer().join("fs.erofs")), native, 100);
    assert!(began.elapsed() < Duration::from_secs(120));
}

#[test]
fn a_read_does_not_wait_for_the_rest() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("slow", mixed()));
    let lazy = bench.start(Settings { streams: 1, ..Settings::default() });
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    // The whole takes more than ten seconds from here on.
    *source.faults.pause.lock().unwrap() = Duration::from_millis(15);
    let (name, expected) = native.files.last().unwrap();
    let began = Instant::now();
    let at = expected.len() - 5000;
    assert!(mounted.read(name, at as u64..expected.len() as u64).unwrap() == expected[at..]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(bench.recorder.all().is_empty());
}

#[test]
fn the_background_waits_as_long_as_a_start_waits_for_its_layers() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("memory", mixed()));
    let lazy = bench.start(Settings::default());
    let waits = lazy.start_waits();
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    let asked = || source.faults.asked.load(std::sync::atomic::Ordering::SeqCst);
    let before = asked();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(asked(), before);
    let (name, expected) = native.files.last().unwrap();
    let at = expected.len() - 5000;
    assert!(mounted.read(name, at as u64..expected.len() as u64).unwrap() == expected[at..]);
    assert!(asked() > before && bench.recorder.all().is_empty());
    drop(waits);
    bench.recorder.wait_complete();
}

#[test]
fn one_background_request_is_sent_before_the_last_chunks_of_a_long_profile_are_here() {
    let Some(bench) = Bench::new() else { return };
    let native = Native::new([48 << 20]);
    let (source, mut description) = (Memory::new("slow", &native), native.description.clone());
    // One request for 64 chunks with the metadata, then five more.
    description.first = vec![0..200, 200..340];
    let lazy = bench.start(Settings::default());
    let waits = lazy.start_waits();
    let all = sources([&source]);
    let (layer, _) = PartialLayer::create(&bench.layer(), description, &all, &Limits::default()).unwrap();
    let image = layer.image();
    let asked = || source.faults.asked.load(std::sync::atomic::Ordering::SeqCst);
    let before = asked();
    // The last sixteen chunks take a tenth of a second.
    *source.faults.pause.lock().unwrap() = Duration::from_millis(4);
    lazy.serve(layer, all).unwrap();
    assert!(lazy.await_first(&image, Duration::from_secs(60)));
    assert_eq!(asked(), before + 5 + 1);
    *source.faults.pause.lock().unwrap() = Duration::ZERO;
    thread::sleep(Duration::from_millis(200));
    assert_eq!(asked(), before + 5 + 1, "the background began before the start was ready");
    drop(waits);
    bench.recorder.wait_complete();
    assert!(bench.bytes() == native.image);
}

/// Two processes wait for one chunk of a compressed file, of which the kernel decompresses all pages at once.
#[test]
fn beside_a_killed_reader_of_the_same_chunk_a_read_is_right_or_fails_and_the_next_one_is_right() {
    let Some(bench) = Bench::new() else { return };
    let letters: Vec<u8> = noise(5, 4 << 20).iter().map(|byte| b'a' + byte % 16).collect();
    let native = Native::of([letters]);
    assert!(native.image.len() < 3 << 20, "it is compressed");
    let source = Memory::new("hangs", &native);
    let lazy = bench.start(Settings::default());
    let _only_reads = lazy.start_waits();
    let mounted = bench.serve(&lazy, &native, &sources([&source]));
    let (name, expected) = &native.files[0];
    // Pages of 128 KiB of the file, far from what an earlier read has fetched.
    for (start, first, second) in [(0, 1, 30), (320, 30, 1), (640, 7, 8)] {
        *source.faults.hangs.lock().unwrap() = true;
        let read = |page: usize| {
            let mut dd = Command::new("dd");
            dd.arg(format!("if={}", mounted.path(name).display())).args(["bs=4096", "count=1", "iflag=fullblock"]);
            let child = dd.arg(format!("skip={page}")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let waits = || {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
                stat.contains("(dd) D ")
            };
            let began = Instant::now();
            while !waits() {
                assert!(began.elapsed() < Duration::from_secs(20), "a read waits");
                thread::sleep(Duration::from_millis(2));
            }
            child
        };
        let (mut killed, other) = (read(start + first), read(start + second));
        killed.kill().unwrap();
        killed.wait().unwrap();
        *source.faults.hangs.lock().unwrap() = false;
        source.faults.released.notify_all();
        let read = other.wait_with_output().unwrap();
        let at = (start + second) * 4096;
        let page = &expected[at..at + 4096];
        // The kernel may have added the page to the killed reader's decompression, which failed.
        let expected_output: &[u8] = if read.status.success() { page } else { b"" };
        assert!(read.stdout == expected_output, "page {second} of {start}: {}", read.status);
        let mut again = [0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&mounted.open(name), &mut again, at as u64).unwrap();
        assert!(again == page, "page {second} of {start}, read again");
    }
}

#[test]
fn a_program_of_an_absent_layer_runs_and_a_mapped_file_is_right() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (single(), Memory::new("memory", single()));
    let lazy = bench.start(Settings::default());
    *source.faults.pause.lock().unwrap() = Duration::from_millis(1);
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    let (name, expected) = &native.files[0];
    // splice(2) to another file reads the pages without a copy through this process.
    let (mut from, mut to) = (mounted.open(name), tempfile::tempfile().unwrap());
    assert_eq!(std::io::copy(&mut from, &mut to).unwrap(), expected.len() as u64);
    let mut copied = vec![0; expected.len()];
    std::os::unix::fs::FileExt::read_exact_at(&to, &mut copied, 0).unwrap();
    assert!(copied == *expected);
    bench.recorder.wait_complete();
}

#[test]
fn a_layer_that_is_complete_when_it_is_served_is_finished_at_once() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (single(), Memory::new("memory", single()));
    {
        let lazy = bench.start(Settings::default());
        let _mounted = bench.serve(&lazy, native, &sources([&source]));
        bench.recorder.wait_complete();
    }
    let bench = Bench { recorder: Arc::default(), ..bench };
    let layer = PartialLayer::open(&bench.layer(), &layer::Limits::default()).unwrap().unwrap();
    let asked = source.faults.asked.load(std::sync::atomic::Ordering::SeqCst);
    let lazy = bench.start(Settings::default());
    lazy.serve(layer, sources([&source])).unwrap();
    bench.recorder.wait_complete();
    assert_eq!(source.faults.asked.load(std::sync::atomic::Ordering::SeqCst), asked);
}

#[test]
fn one_process_serves_a_directory() {
    let Some(bench) = Bench::new() else { return };
    let first = bench.start(Settings::default());
    let error = lazy::ServiceLock::acquire(&bench.events()).unwrap_err();
    assert!(error.to_string().contains("another process serves"), "{error}");
    drop(first);
}

#[test]
fn a_layer_that_a_caller_waits_for_streams_without_the_limit_of_the_bandwidth() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("memory", mixed()));
    // The whole takes two minutes, and is observed even longer.
    let settings =
        Settings { bandwidth: Some(100_000), profile: Some(Duration::from_secs(600)), ..Settings::default() };
    let lazy = bench.start(settings);
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    thread::sleep(Duration::from_millis(300));
    let image = bench.layer().join("fs.erofs");
    let began = Instant::now();
    let hurry = lazy.hurry(&image).unwrap();
    assert!(hurry.bytes_here().is_some());
    bench.recorder.wait_complete();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(hurry.bytes_here(), None);
    assert!(lazy.hurry(&image).is_none());
    let (name, expected) = &native.files[0];
    assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected);
}

#[test]
fn the_limit_of_the_bandwidth_holds_again_when_no_caller_waits() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("memory", mixed()));
    let lazy = bench.start(Settings { bandwidth: Some(1_000_000), ..Settings::default() });
    let _mounted = bench.serve(&lazy, native, &sources([&source]));
    *source.faults.pause.lock().unwrap() = Duration::from_millis(5);
    let image = bench.layer().join("fs.erofs");
    let hurry = lazy.hurry(&image).unwrap();
    thread::sleep(Duration::from_millis(500));
    drop(hurry);
    // Of 12 MiB, half a second at this pace of the source brings less than two.
    thread::sleep(Duration::from_secs(2));
    let hurry = lazy.hurry(&image).unwrap();
    let here = hurry.bytes_here().unwrap();
    assert!(here < native.image.len() as u64 / 2, "{here} of {}", native.image.len());
    bench.recorder.wait_complete();
}

#[test]
fn the_files_that_are_read_while_reads_are_noted_are_known_and_not_their_neighbours() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("memory", mixed()));
    let lazy = bench.start(Settings { profile: Some(Duration::from_secs(1)), ..Settings::default() });
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    // One in the middle of the small ones, another one before it, and the last byte of the largest one.
    let large = native.files.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let wanted = [&native.files[150], &native.files[40], large];
    for (name, bytes) in wanted {
        let end = bytes.len() as u64;
        assert!(mounted.read(name, end - 1..end).unwrap() == bytes[bytes.len() - 1..], "{name}");
    }
    bench.recorder.wait_complete();
    let all = bench.recorder.all();
    let [LazyEvent::Complete { reads: Some(reads), .. }] = &all[..] else { panic!("{all:?}") };
    let metadata = &native.image[..native.parts.metadata as usize];
    let (_, files) = layer::files_read(metadata, reads, &Limits::default()).unwrap();
    let names: Vec<_> = files.iter().map(|file| String::from_utf8(file.path.clone()).unwrap()).collect();
    assert_eq!(names, wanted.map(|(name, _)| name.clone()));
    let last = files[2].parts.last().unwrap().end as u64;
    assert_eq!(last, (large.1.len() as u64).div_ceil(lazy::CHUNK));
    assert!(files[2].parts[0].start > 0, "only the end of the large file: {files:?}");
}
