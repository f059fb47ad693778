//! The files of a partial layer: what is refused, and what a kill or a reboot leaves.

use std::{fs, os::unix::fs::FileExt, sync::atomic::Ordering};

use layer::{Digest, Limits};
use lazy::{CHUNK, Description, LazyError, LazyEvent, PartialLayer, Settings};

use crate::common::{Bench, Memory, Mounted, mixed, single, sources};

fn create(description: Description, source: &std::sync::Arc<Memory>) -> Result<PartialLayer, LazyError> {
    let directory = tempfile::tempdir().unwrap();
    let created = PartialLayer::create(directory.path(), description, &sources([source]), &Limits::default());
    created.map(|(layer, _)| layer)
}

#[test]
fn a_front_that_is_not_the_manifests_is_refused() {
    let native = single();
    let honest = Memory::new("honest", native);
    let description = &native.description;
    assert!(create(description.clone(), &honest).is_ok());
    for wrong in [
        Description { hash_root: Digest::sha256(b"x"), ..description.clone() },
        Description { size: description.size + 4096, ..description.clone() },
        Description { size: description.size - 4096, ..description.clone() },
        Description { size: u64::MAX, ..description.clone() },
        Description { metadata: description.metadata + 4096, ..description.clone() },
        Description { metadata: 0, ..description.clone() },
        Description { metadata: 1 << 40, ..description.clone() },
    ] {
        assert!(create(wrong.clone(), &honest).is_err(), "{wrong:?}");
    }
    for byte in [1030, native.data.start - 1, native.data.end, native.data.end + 4096, description.size - 5000] {
        let liar = Memory::new("liar", native);
        liar.lie_at(Some(byte));
        let error = create(description.clone(), &liar).expect_err("a lie in the front");
        assert!(matches!(error, LazyError::Refused { .. }), "byte {byte}: {error}");
        // Another source has it right.
        let directory = tempfile::tempdir().unwrap();
        let both = sources([&liar, &honest]);
        PartialLayer::create(directory.path(), description.clone(), &both, &Limits::default()).unwrap();
    }
    let gone = Memory::new("gone", native);
    gone.faults.gone.store(true, Ordering::SeqCst);
    let error = create(description.clone(), &gone).unwrap_err();
    assert!(matches!(error, LazyError::Source { .. }), "{error}");
}

#[test]
fn after_a_reboot_only_chunks_that_are_right_count() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (single(), Memory::new("memory", single()));
    {
        let lazy = bench.start(Settings::default());
        let _mounted = bench.serve(&lazy, native, &sources([&source]));
        bench.recorder.wait_complete();
    }
    let record = bench.layer().join("partial.json");
    let of_another_boot = |text: &str| {
        let mut record: serde_json::Value = serde_json::from_str(text).unwrap();
        record["boot_id"] = "another".into();
        record.to_string()
    };
    let before = fs::read_to_string(&record).unwrap();
    fs::write(&record, of_another_boot(&before)).unwrap();
    // A power cut: one chunk never reached the disk.
    let image = fs::File::options().write(true).open(bench.layer().join("fs.erofs")).unwrap();
    image.write_all_at(&vec![0; CHUNK as usize], native.data.start + 3 * CHUNK).unwrap();
    let layer = PartialLayer::open(&bench.layer(), &Limits::default()).unwrap().unwrap();
    assert_eq!(fs::read(bench.layer().join("present")).unwrap(), [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(fs::read_to_string(&record).unwrap(), before);
    let bench = Bench { recorder: std::sync::Arc::default(), ..bench };
    let lazy = bench.start(Settings::default());
    lazy.serve(layer, sources([&source])).unwrap();
    let mounted = Mounted::of(&bench.layer().join("fs.erofs"));
    let (name, expected) = &native.files[0];
    assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected);
    bench.recorder.wait_complete();
    assert!(!bench.recorder.all().iter().any(|event| matches!(event, LazyEvent::Refused { .. })));
    drop(lazy);
    // Metadata that did not reach the disk makes the layer useless.
    fs::write(&record, of_another_boot(&before)).unwrap();
    image.write_all_at(&[0; 4096], 4096).unwrap();
    assert!(PartialLayer::open(&bench.layer(), &Limits::default()).unwrap().is_none());
    // As do a missing or torn record and map.
    fs::write(&record, &before).unwrap();
    for (name, torn) in [("present", &b"\x01\x01"[..]), ("partial.json", b"{\"vers"), ("partial.json", b"")] {
        let path = bench.layer().join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, torn).unwrap();
        assert!(PartialLayer::open(&bench.layer(), &Limits::default()).unwrap().is_none(), "{name}");
        fs::remove_file(&path).unwrap();
        assert!(PartialLayer::open(&bench.layer(), &Limits::default()).unwrap().is_none(), "no {name}");
        fs::write(&path, whole).unwrap();
    }
    assert!(PartialLayer::open(&bench.layer(), &Limits::default()).unwrap().is_some());
}

#[test]
fn a_start_fetches_the_hashes_that_it_needs_and_the_background_the_others() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("memory", mixed()));
    let asked = || -> Vec<_> {
        let ranges = std::mem::take(&mut *source.faults.ranges.lock().unwrap());
        let of_hashes = |range: &std::ops::Range<u64>| range.start >= native.data.end;
        let mut ranges: Vec<_> = ranges.into_iter().filter(of_hashes).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    };
    let last = native.chunks() - 1;
    let (front, end) = (native.parts.front_hashes(), native.description.size);
    let whole = native.data.end..end;
    // The first chunks are proven by the block that proves the metadata.
    for (first, expected) in [
        (vec![0..1, 1..2], vec![front.clone()]),
        (vec![last - 30..last - 25, 0..1], Vec::from([whole])),
        (vec![last..last + 9, last + 20..last + 30], vec![front.clone(), end - 4096..end]),
    ] {
        let description = Description { first, ..native.description.clone() };
        create(description, &source).unwrap();
        assert_eq!(asked(), expected);
    }
    let lazy = bench.start(Settings::default());
    let mounted = bench.serve(&lazy, native, &sources([&source]));
    bench.recorder.wait_complete();
    let parts = asked();
    assert_eq!(parts[0], front);
    assert!(parts[1..].contains(&(front.end..end)), "{parts:?}");
    assert_eq!(parts.len(), 2, "{parts:?}");
    let (name, expected) = native.files.last().unwrap();
    assert!(mounted.read(name, 0..expected.len() as u64).unwrap() == *expected);
    drop(lazy);
    assert!(bench.bytes() == native.image);
}

#[test]
fn the_first_chunks_of_a_profile_come_with_the_metadata_as_far_as_they_are_right() {
    let native = single();
    let description = Description { first: vec![2..4, 7..12], ..native.description.clone() };
    let all = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    for (lie, cut, expected) in [
        (None, 0, all),
        (Some(native.data.start + 3 * CHUNK), 0, [0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
        (None, 2 * CHUNK as usize + 5000, [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let (source, directory) = (Memory::new("memory", native), tempfile::tempdir().unwrap());
        source.lie_at(lie);
        source.faults.cut.store(cut, Ordering::SeqCst);
        let limits = Limits::default();
        PartialLayer::create(directory.path(), description.clone(), &sources([&source]), &limits).unwrap();
        assert_eq!(fs::read(directory.path().join("present")).unwrap(), expected, "{lie:?} {cut}");
        let image = fs::read(directory.path().join("fs.erofs")).unwrap();
        for (chunk, present) in expected.into_iter().enumerate() {
            let start = native.data.start as usize + chunk * CHUNK as usize;
            let range = start..(start + CHUNK as usize).min(native.data.end as usize);
            let right = if present == 1 { &native.image[range.clone()] } else { &vec![0; range.len()][..] };
            assert!(image[range] == *right, "{lie:?} {cut}: chunk {chunk}");
        }
    }
}

#[test]
fn chunks_whose_hashes_a_power_cut_took_are_fetched_again() {
    let Some(bench) = Bench::new() else { return };
    let (native, source) = (mixed(), Memory::new("memory", mixed()));
    {
        let lazy = bench.start(Settings::default());
        let _mounted = bench.serve(&lazy, native, &sources([&source]));
        bench.recorder.wait_complete();
    }
    let record = bench.layer().join("partial.json");
    let mut other: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    other["boot_id"] = "another".into();
    // Releases that fetched the whole hash tree first wrote this version.
    other["version"] = 1.into();
    fs::write(&record, other.to_string()).unwrap();
    let image = fs::File::options().write(true).open(bench.layer().join("fs.erofs")).unwrap();
    let last = native.chunks() - 1;
    let lost = native.hash_block_of(last as u64);
    image.write_all_at(&[0; 4096], lost).unwrap();
    let layer = PartialLayer::open(&bench.layer(), &Limits::default()).unwrap().unwrap();
    let present = fs::read(bench.layer().join("present")).unwrap();
    assert_eq!((present[0], present[last / 2], present[last]), (1, 1, 0));
    source.faults.ranges.lock().unwrap().clear();
    let bench = Bench { recorder: std::sync::Arc::default(), ..bench };
    let lazy = bench.start(Settings::default());
    lazy.serve(layer, sources([&source])).unwrap();
    bench.recorder.wait_complete();
    let asked = source.faults.ranges.lock().unwrap().clone();
    assert!(asked.iter().any(|range| range.start >= native.data.end && range.contains(&lost)), "{asked:?}");
    drop(lazy);
    assert!(bench.bytes() == native.image);
}
