//! Properties of the judgement, over generated stores.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use layer::Digest;
use proptest::{collection::vec, prelude::*};

use super::{
    super::{
        image_record::{Access, ImageRecord, LayerRecord},
        layers::LayerMeta,
        layout::Version,
        lease_record::Lease,
    },
    facts::{Directory, Facts, Files, LayerFacts, Read, RecordFile},
    judge::{Repair, Verdict, judge},
    report::{FindingKind, FsckOptions, Severity},
};
use crate::lease::LeaseOwner;

const BOOT: &str = "this boot";

fn digest(name: u8) -> Digest {
    Digest::sha256(&[name])
}

fn path(directory: &str, name: u8) -> PathBuf {
    PathBuf::from(directory).join(digest(name).hex())
}

fn meta(name: u8, damage: u8) -> Read<LayerMeta> {
    let meta = LayerMeta {
        diff_id: digest(if damage == 3 { name + 100 } else { name }),
        blobs: Vec::new(),
        bytes: 0,
        entries: 0,
        implicit_dirs: Vec::new(),
        opaque_root: false,
        copy_only: false,
        boot_id: (if damage == 4 { "another" } else { BOOT }).to_owned(),
        synced: damage != 4,
        suspect: false,
        tree: None,
    };
    match damage {
        1 => Read::Absent,
        2 => Read::Unreadable("torn".into()),
        _ => Read::Is(meta),
    }
}

fn layer(name: u8, damage: u8) -> LayerFacts {
    let files = match damage {
        5 => Files::Absent,
        6 => Files::Changed("differs".into()),
        _ => Files::AsUnpacked,
    };
    LayerFacts { path: path("layers", name), diff_id: digest(name), record: meta(name, damage), files }
}

fn found<T>(path: PathBuf, record: T, damage: u8, age: u64) -> RecordFile<T> {
    let record = if damage == 1 { Read::Unreadable("torn".into()) } else { Read::Is(record) };
    RecordFile { path, record, in_place: damage != 2, age: Duration::from_secs(age) }
}

fn digests(names: &[u8]) -> Vec<Digest> {
    names.iter().map(|name| digest(*name)).collect()
}

fn image(at: u8, layers: &[u8], loaded: bool, damage: u8) -> RecordFile<ImageRecord> {
    let layer = |diff_id: Digest| LayerRecord { blob: diff_id.clone(), size: 1, diff_id, native: None };
    let record = ImageRecord {
        reference: format!("r.example/image{at}:1").parse().unwrap(),
        resolved: digest(at),
        manifest: digest(20 + at),
        config: digest(30 + at),
        layers: digests(layers).into_iter().map(layer).collect(),
        pulled_at: 0,
        loaded,
        pinned: false,
        access: Access::Anyone,
    };
    found(path("images", at), record, damage, 0)
}

fn lease(at: u8, layers: &[u8], implied: &[u8], ready: bool, damage: u8, age: u64) -> RecordFile<Lease> {
    let lease = Lease {
        owner: format!("lease{at}").into(),
        reference: "r.example/image:1".parse().unwrap(),
        manifest: digest(20),
        layers: digests(layers),
        implied: digests(implied),
        ready,
        staging: None,
    };
    found(path("leases", at), lease, damage, age)
}

prop_compose! {
    fn stores()(
        version in any::<bool>(),
        directories in vec(0u8..5, 3),
        layers in vec(0u8..9, 5),
        implied in vec(0u8..3, 3),
        documents in vec((0u8..3, 0u8..3), 3),
        images in vec((vec(0u8..6, 0..4), any::<bool>(), 0u8..5), 0..3),
        leases in vec((vec(0u8..6, 0..3), vec(10u8..14, 0..2), any::<bool>(), 0u8..5, 0u64..1200), 0..3),
        leftovers in vec(any::<bool>(), 4),
    ) -> Facts {
        let names = 0u8..;
        let directory = |state: u8| match state {
            0 => Directory::Missing,
            1 => Directory::Present { mode: 0o755, owner: 0 },
            2 => Directory::Present { mode: 0o700, owner: 7 },
            _ => Directory::Present { mode: 0o700, owner: 0 },
        };
        let left = |at: usize, name: &str| leftovers[at].then(|| PathBuf::from(name)).into_iter().collect::<Vec<_>>();
        let mut papers = Vec::new();
        for (at, (manifest, config)) in names.clone().zip(&documents) {
            for (directory, name, state) in [("manifests", 20 + at, *manifest), ("configs", 30 + at, *config)] {
                if state > 0 {
                    papers.push((path(directory, name), digest(name), state == 1));
                }
            }
        }
        Facts {
            version: if version { Version::Current } else { Version::Missing },
            boot_id: BOOT.into(),
            owner: 0,
            directories: directories
                .iter()
                .zip(["", "layers", "trash"])
                .map(|(state, name)| (name.into(), directory(*state)))
                .collect(),
            // Damage 7 is a missing layer.
            layers: names
                .clone()
                .zip(&layers)
                .filter(|(_, damage)| **damage != 7)
                .map(|(name, damage)| layer(name, *damage))
                .collect(),
            incomplete: BTreeSet::new(),
            implied: (10u8..)
                .zip(&implied)
                .filter(|(_, state)| **state > 0)
                .map(|(name, state)| (path("fixups", name), digest(name), *state == 1))
                .collect(),
            documents: papers,
            images: names
                .clone()
                .zip(&images)
                .map(|(at, (layers, loaded, damage))| image(at, layers, *loaded, *damage))
                .collect(),
            leases: names
                .zip(&leases)
                .map(|(at, (layers, implied, ready, damage, age))| lease(at, layers, implied, *ready, *damage, *age))
                .collect(),
            abandoned_leases: BTreeSet::new(),
            abandoned_staging: left(0, "staging/x"),
            trash: left(1, "trash/x"),
            temporaries: left(2, ".tmp-x"),
            foreign: left(3, "notes"),
        }
    }
}

/// The store after these repairs.
fn repaired(mut facts: Facts, verdicts: &[Verdict]) -> Facts {
    let mut gone = BTreeSet::new();
    for verdict in verdicts {
        let path = verdict.path.clone();
        match verdict.repair {
            Repair::WriteVersion => facts.version = Version::Current,
            Repair::MakeDirectory | Repair::CloseDirectory => {
                let good = Directory::Present { mode: 0o700, owner: facts.owner };
                facts.directories.iter_mut().filter(|(name, _)| *name == path).for_each(|(_, state)| *state = good);
            }
            Repair::Discard | Repair::Remove => drop(gone.insert(path)),
            Repair::Manual(_) => {}
        }
        gone.extend(verdict.forget.iter().cloned());
    }
    facts.layers.retain(|layer| !gone.contains(&layer.path));
    facts.implied.retain(|(path, ..)| !gone.contains(path));
    facts.documents.retain(|(path, ..)| !gone.contains(path));
    facts.images.retain(|image| !gone.contains(&image.path));
    facts.leases.retain(|lease| !gone.contains(&lease.path));
    for paths in [&mut facts.abandoned_staging, &mut facts.trash, &mut facts.temporaries, &mut facts.foreign] {
        paths.retain(|path| !gone.contains(path));
    }
    facts
}

/// The leases that a repair must respect.
fn live<'a>(facts: &'a Facts, owners: Option<&'a BTreeSet<LeaseOwner>>) -> impl Iterator<Item = &'a Lease> {
    facts.leases.iter().filter_map(move |found| match &found.record {
        Read::Is(lease) => {
            let gone = owners.is_some_and(|owners| !owners.contains(&lease.owner.principal()))
                && lease.ready
                && found.age.as_secs() >= FsckOptions::GRACE_SECONDS;
            (!gone).then_some(lease)
        }
        _ => None,
    })
}

proptest! {
    #[test]
    fn one_repair_is_enough_and_takes_nothing_from_a_lease(facts in stores(), known in any::<bool>()) {
        let owners = known.then(|| BTreeSet::from(["lease0".into()]));
        let verdicts = judge(&facts, owners.as_ref());
        let after = repaired(facts.clone(), &verdicts);
        for lease in live(&facts, owners.as_ref()) {
            for digest in lease.layers.iter().chain(&lease.implied) {
                let there = |facts: &Facts| {
                    facts.layers.iter().any(|layer| layer.diff_id == *digest)
                        || facts.implied.iter().any(|(_, key, _)| key == digest)
                };
                prop_assert_eq!(there(&facts), there(&after), "held by {}", lease.owner);
            }
        }
        prop_assert_eq!(&facts.foreign, &after.foreign);
        // No path has two verdicts of the same kind.
        let named: BTreeSet<_> = verdicts.iter().map(|verdict| (&verdict.path, verdict.kind)).collect();
        prop_assert_eq!(named.len(), verdicts.len());
        for verdict in judge(&after, owners.as_ref()) {
            prop_assert!(matches!(verdict.repair, Repair::Manual(_)), "still there: {verdict:?}");
        }
    }

    #[test]
    fn a_sound_image_is_complete(facts in stores()) {
        let verdicts = judge(&facts, None);
        let damaged = |path: &PathBuf| verdicts.iter().any(|verdict| {
            verdict.kind.severity() == Severity::Damage && (verdict.path == *path || verdict.forget.contains(path))
        });
        let after = repaired(facts, &verdicts);
        for found in after.images.iter().filter(|found| !damaged(&found.path)) {
            let Read::Is(image) = &found.record else { panic!("{found:?}") };
            for layer in &image.layers {
                let layer = after.layers.iter().find(|other| other.diff_id == layer.diff_id);
                // A damaged layer that is in use has a verdict.
                let is_sound = |layer: &&LayerFacts| {
                    matches!(&layer.record, Read::Is(meta) if meta.diff_id == layer.diff_id)
                };
                let sound = layer.filter(is_sound).is_some();
                prop_assert!(sound || layer.is_some_and(|layer| damaged(&layer.path)), "{image:?}");
            }
        }
    }
}

#[test]
fn an_unknown_format_is_the_only_finding() {
    let mut facts = Facts {
        version: Version::Other("9".into()),
        boot_id: BOOT.into(),
        owner: 0,
        directories: vec![(PathBuf::new(), Directory::Replaced)],
        layers: vec![layer(1, 1)],
        incomplete: BTreeSet::new(),
        implied: Vec::new(),
        documents: Vec::new(),
        images: Vec::new(),
        leases: Vec::new(),
        abandoned_leases: BTreeSet::new(),
        abandoned_staging: Vec::new(),
        trash: Vec::new(),
        temporaries: Vec::new(),
        foreign: Vec::new(),
    };
    let kinds = |facts: &Facts| judge(facts, None).into_iter().map(|verdict| verdict.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&facts), [FindingKind::VersionOther]);
    facts.version = Version::Current;
    assert_eq!(kinds(&facts), [FindingKind::DirectoryReplaced, FindingKind::LayerUnrecorded]);
}
