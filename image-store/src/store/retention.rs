//! Which images may go, and when to look again.
//!
//! [`decide`] is pure: what is there, who holds it, the time and the disk in, what goes out. An image goes when nobody has used it
//! for the policy's delay; on a full disk (of bytes or of inodes), or when a pull has no room, sooner, least recently used first, until
//! the disk is back at the low mark or the pull has what it asks for. What a lease
//! holds never goes, and a pull holds its lease from before its first byte. Layers without an image (a pull that failed half-way)
//! get the same delay, so that the next try finds them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, SystemTime},
};

use crate::{digest::Digest, reference::Reference};

/// Nobody tells when a disk fills up: as long as there is something to remove, it is looked at this often.
const LOOK_AT_DISK: Duration = Duration::from_secs(60);

/// How long images are kept without a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// This long after their last use …
    pub delay: Duration,
    /// … or shorter, once so many percent of the file system are in use …
    pub high: u8,
    /// … until no more than so many are.
    pub low: u8,
}

/// What was removed, and when there will be more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Images that are gone.
    pub removed: Vec<Removed>,
    /// Layers that are gone, those of no image included.
    pub layers: usize,
    /// Their unpacked bytes.
    pub bytes: u64,
    /// When to look again; `None`: after the next release.
    pub next: Option<SystemTime>,
}

/// One image that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its name.
    pub reference: Reference,
    /// How long nobody had used it.
    pub unused: Duration,
    /// Why it went before its time, if it did.
    pub pressure: Option<Pressure>,
    /// Unpacked bytes that only it needed.
    pub bytes: u64,
}

/// What a disk was short of when an image went before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// So many percent of the bytes were in use.
    Bytes(u8),
    /// So many percent of the inodes were in use.
    Inodes(u8),
    /// A pull had no room.
    Pull,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pressure::Bytes(percent) => write!(f, "the file system of images is {percent} % full"),
            Pressure::Inodes(percent) => write!(f, "{percent} % of the inodes of the images' file system are in use"),
            Pressure::Pull => f.write_str("the file system of images had no room for a pull"),
        }
    }
}

/// What is asked for beside the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing.
    Policy,
    /// That so many bytes become free. If that cannot be reached, nothing goes for it.
    Bytes(u64),
    /// All that can go: a pull does not know how much it needs.
    All,
}

/// An amount of disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Amount {
    fn add(&mut self, more: Amount) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.inodes = self.inodes.saturating_add(more.inodes);
    }

    fn covers(self, other: Amount) -> bool {
        self.bytes >= other.bytes && self.inodes >= other.inodes
    }
}

/// An image as the decision sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) last_used: SystemTime,
    /// By a lease.
    pub(crate) held: bool,
    pub(crate) layers: BTreeSet<Digest>,
}

/// A layer as the decision sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerFacts {
    pub(crate) size: Amount,
    /// When it was unpacked.
    pub(crate) since: SystemTime,
    /// By a lease.
    pub(crate) held: bool,
}

/// How full a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) bytes: DiskUse,
    pub(crate) inodes: DiskUse,
}

impl Disk {
    /// What it is short of by the policy.
    pub(crate) fn pressure(self, policy: &Retention) -> Option<Pressure> {
        let (bytes, inodes) = (self.bytes.percent(), self.inodes.percent());
        let inodes = (inodes >= policy.high).then_some(Pressure::Inodes(inodes));
        (bytes >= policy.high).then_some(Pressure::Bytes(bytes)).or(inodes)
    }

    fn above(self, percent: u8) -> Amount {
        Amount { bytes: self.bytes.above(percent), inodes: self.inodes.above(percent) }
    }
}

/// How much of one kind of thing is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskUse {
    pub(crate) used: u64,
    /// To those who may not use root's reserve, as df counts.
    pub(crate) available: u64,
}

impl DiskUse {
    fn whole(self) -> u128 {
        u128::from(self.used) + u128::from(self.available)
    }

    /// Percent in use, rounded up as df does.
    pub(crate) fn percent(self) -> u8 {
        let percent = (u128::from(self.used) * 100).div_ceil(self.whole().max(1));
        u8::try_from(percent).unwrap_or(100)
    }

    /// How much to free until no more than `percent` are in use.
    fn above(self, percent: u8) -> u64 {
        let allowed = self.whole() * u128::from(percent) / 100;
        u64::try_from(u128::from(self.used).saturating_sub(allowed)).unwrap_or(u64::MAX)
    }
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Images that go, least recently used first: where each stands in the list, and the bytes that only it needed.
    pub(crate) images: Vec<(usize, u64, Why)>,
    /// Layers without an image that stay for now.
    pub(crate) spared: BTreeSet<Digest>,
    /// When to look again.
    pub(crate) next: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Unused,
    Pressure,
}

/// See the module's head.
pub(crate) fn decide(
    images: &[Candidate],
    layers: &BTreeMap<Digest, LayerFacts>,
    now: SystemTime,
    (disk, wish): (Disk, Wish),
    policy: &Retention,
) -> Decision {
    let mut decision = Decision::default();
    let mut target = if disk.pressure(policy).is_some() { disk.above(policy.low) } else { Amount::default() };
    match wish {
        Wish::Policy => {}
        Wish::Bytes(bytes) if freeable(layers) >= bytes => target.bytes = target.bytes.max(bytes),
        Wish::Bytes(_) => {}
        Wish::All => target = Amount { bytes: u64::MAX, inodes: u64::MAX },
    }
    let pressure = target != Amount::default();
    // A clock that was set back must not keep anything for ever.
    let due = |since: SystemTime| since.min(now) + policy.delay;
    let mut waiting: Vec<SystemTime> = Vec::new();
    let mut wanted: BTreeMap<&Digest, usize> = BTreeMap::new();
    for digest in images.iter().flat_map(|image| &image.layers) {
        *wanted.entry(digest).or_default() += 1;
    }
    let mut freed = Amount::default();
    for (digest, layer) in layers.iter().filter(|(digest, layer)| !layer.held && !wanted.contains_key(digest)) {
        if due(layer.since) <= now || pressure {
            freed.add(layer.size);
        } else {
            decision.spared.insert(digest.clone());
            waiting.push(due(layer.since));
        }
    }
    let mut order: Vec<usize> = (0..images.len()).filter(|at| !images[*at].held).collect();
    order.sort_by_key(|at| images[*at].last_used);
    for at in order {
        let image = &images[at];
        let why = if due(image.last_used) <= now {
            Why::Unused
        } else if !freed.covers(target) {
            Why::Pressure
        } else {
            waiting.push(due(image.last_used));
            continue;
        };
        let mut size = Amount::default();
        for digest in &image.layers {
            let users = wanted.entry(digest).or_default();
            *users = users.saturating_sub(1);
            let gone = layers.get(digest).filter(|layer| *users == 0 && !layer.held);
            size.add(gone.map_or(Amount::default(), |layer| layer.size));
        }
        freed.add(size);
        decision.images.push((at, size.bytes, why));
    }
    decision.next = waiting.into_iter().min().map(|due| due.min(now + LOOK_AT_DISK));
    decision
}

/// The bytes of all that no lease holds.
fn freeable(layers: &BTreeMap<Digest, LayerFacts>) -> u64 {
    layers.values().filter(|layer| !layer.held).fold(0, |sum, layer| sum.saturating_add(layer.size.bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Retention = Retention { delay: Duration::from_secs(100), high: 90, low: 50 };
    const INODES: DiskUse = DiskUse { used: 0, available: 0 };
    const EMPTY: (Disk, Wish) = (Disk { bytes: DiskUse { used: 10, available: 990 }, inodes: INODES }, Wish::Policy);

    fn full(used: u64) -> (Disk, Wish) {
        let bytes = DiskUse { used, available: 1000 - used };
        (Disk { bytes, inodes: INODES }, Wish::Policy)
    }

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + second)
    }

    fn digest(name: u8) -> Digest {
        Digest::sha256(&[name])
    }

    fn image(last_used: u64, held: bool, layers: &[u8]) -> Candidate {
        Candidate { last_used: at(last_used), held, layers: layers.iter().map(|name| digest(*name)).collect() }
    }

    fn layers(names: &[(u8, u64, bool)]) -> BTreeMap<Digest, LayerFacts> {
        let facts = |(name, bytes, held): &(u8, u64, bool)| {
            (digest(*name), LayerFacts { size: Amount { bytes: *bytes, inodes: *bytes }, since: at(0), held: *held })
        };
        names.iter().map(facts).collect()
    }

    fn gone(decision: &Decision) -> Vec<usize> {
        decision.images.iter().map(|(at, ..)| *at).collect()
    }

    #[test]
    fn unused_images_go_after_the_delay_and_not_before() {
        let images = [image(0, false, &[1]), image(50, false, &[1, 2]), image(0, true, &[3])];
        let layers = layers(&[(1, 10, false), (2, 20, false), (3, 30, true)]);
        let look = |now| decide(&images, &layers, at(now), EMPTY, &POLICY);
        assert_eq!((gone(&look(99)).len(), look(99).next), (0, Some(at(100))));
        // The shared layer stays with the other image.
        assert_eq!(look(100).images, [(0, 0, Why::Unused)]);
        assert_eq!(look(100).next, Some(at(150)));
        assert_eq!(look(150).images, [(0, 0, Why::Unused), (1, 30, Why::Unused)]);
        assert_eq!(look(150).next, None);
    }

    #[test]
    fn a_full_disk_takes_the_least_recently_used_until_the_low_mark() {
        let images = [image(3, false, &[1]), image(1, false, &[2]), image(2, false, &[3]), image(0, true, &[4])];
        let layers = layers(&[(1, 100, false), (2, 300, false), (3, 150, false), (4, 400, true)]);
        let decision = decide(&images, &layers, at(10), full(900), &POLICY);
        assert_eq!(decision.images, [(1, 300, Why::Pressure), (2, 150, Why::Pressure)]);
        // What is left is looked at again soon: the disk may fill up before its time.
        assert_eq!(decision.next, Some(at(70)));
        assert!(gone(&decide(&images, &layers, at(10), full(890), &POLICY)).is_empty());
        // Inodes count as bytes do.
        let (Disk { bytes: inodes, .. }, _) = full(900);
        let disk = Disk { bytes: EMPTY.0.bytes, inodes };
        assert_eq!(disk.pressure(&POLICY), Some(Pressure::Inodes(90)));
        assert_eq!(decide(&images, &layers, at(10), (disk, Wish::Policy), &POLICY).images, decision.images);
    }

    #[test]
    fn a_pull_gets_what_it_asks_for_or_all_or_nothing() {
        let images = [image(0, false, &[1]), image(1, false, &[2]), image(2, false, &[3]), image(0, true, &[4])];
        let layers = layers(&[(1, 100, false), (2, 300, false), (3, 150, false), (4, 400, true)]);
        let wish = |wish| gone(&decide(&images, &layers, at(10), (EMPTY.0, wish), &POLICY));
        assert_eq!(wish(Wish::Bytes(100)), [0]);
        assert_eq!(wish(Wish::Bytes(101)), [0, 1]);
        assert_eq!(wish(Wish::Bytes(550)), [0, 1, 2]);
        assert!(wish(Wish::Bytes(551)).is_empty());
        assert_eq!(wish(Wish::All), [0, 1, 2]);
        // Pressure is not forgotten for a small wish.
        assert_eq!(gone(&decide(&images, &layers, at(10), (full(900).0, Wish::Bytes(1)), &POLICY)), [0, 1]);
    }

    #[test]
    fn layers_without_an_image_wait_too() {
        let layers = layers(&[(1, 10, false), (2, 10, true)]);
        let early = decide(&[], &layers, at(99), EMPTY, &POLICY);
        assert_eq!((early.spared.len(), early.next), (1, Some(at(100))));
        assert_eq!(decide(&[], &layers, at(100), EMPTY, &POLICY), Decision::default());
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_nothing_for_ever() {
        let decision = decide(&[image(5000, false, &[])], &BTreeMap::new(), at(50), EMPTY, &POLICY);
        assert_eq!(decision.next, Some(at(110)));
    }

    #[test]
    fn percent_is_what_df_says() {
        assert_eq!(DiskUse { used: 0, available: 0 }.percent(), 0);
        assert_eq!(DiskUse { used: 1, available: 999 }.percent(), 1);
        assert_eq!(DiskUse { used: u64::MAX, available: 0 }.percent(), 100);
        assert_eq!(DiskUse { used: 900, available: 100 }.above(85), 50);
    }

    proptest! {
        #[test]
        fn nothing_held_goes_and_the_next_look_is_never_in_the_past(
            images in proptest::collection::vec((0u64..300, any::<bool>(), proptest::collection::vec(0u8..6, 0..4)), 0..8),
            held in proptest::collection::vec(any::<bool>(), 6),
            now in 0u64..400,
            used in 0u64..=1000,
        ) {
            let candidates: Vec<_> = images.iter().map(|(used, held, layers)| image(*used, *held, layers)).collect();
            let facts: Vec<_> = (0u8..6).map(|name| (name, 50, held[usize::from(name)])).collect();
            let decision = decide(&candidates, &layers(&facts), at(now), full(used), &POLICY);
            for (index, _, why) in &decision.images {
                let image = &candidates[*index];
                prop_assert!(!image.held);
                let due = image.last_used.min(at(now)) + POLICY.delay <= at(now);
                prop_assert_eq!(*why == Why::Unused, due);
                prop_assert!(due || full(used).0.pressure(&POLICY).is_some());
            }
            prop_assert!(decision.next.is_none_or(|next| next > at(now)));
            // Whoever stays was used at least as recently as whoever goes.
            let stays = |index: &usize| !candidates[*index].held && !gone(&decision).contains(index);
            let oldest = (0..candidates.len()).filter(stays).map(|index| candidates[index].last_used).min();
            let newest = gone(&decision).into_iter().map(|index| candidates[index].last_used).max();
            prop_assert!(oldest.zip(newest).is_none_or(|(stays, goes)| stays >= goes));
            // Once done there is nothing more to do, unless the disk is full still.
            let left: Vec<_> = candidates.iter().enumerate()
                .filter(|(index, _)| !gone(&decision).contains(index)).map(|(_, image)| image.clone()).collect();
            let again = decide(&left, &BTreeMap::new(), at(now), EMPTY, &POLICY);
            prop_assert!(gone(&again).is_empty());
        }
    }
}
