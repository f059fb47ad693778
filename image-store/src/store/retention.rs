//! Retention: which unused images are removed, and when to look again.
//!
//! [`decide`] is pure: images, layers, leases, the time and the disk use in, a decision out. The rules:
//!
//! - An image that a lease holds is never removed. A pull holds its lease from before its first byte.
//! - An image that the node's administrator pinned is never removed.
//! - An image is removed when its last use is longer ago than the policy's delay.
//! - On a full disk (of bytes or of inodes) images are removed earlier, least recently used first, until the disk is
//!   back at the low watermark. The same happens when a pull needs disk space, until the pull has the space that it
//!   asked for.
//! - Layers without an image, left by a pull that failed half-way, get the same delay, so that the next attempt finds
//!   them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, SystemTime},
};

use layer::Digest;

use super::disk_space::{Amount, DiskUse};
use crate::reference::Reference;

/// There is no event for a disk that fills up. While there is something to remove, the disk is checked this often.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The policy for images without a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How long an image is kept after its last use.
    pub delay: Duration,
    /// The high watermark: at this percentage of use of the file system, images are removed before the delay is
    /// over …
    pub high: u8,
    /// … until the use is at most this percentage, the low watermark.
    pub low: u8,
}

/// The removed images, and the time of the next look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Removed images.
    pub removed: Vec<Removed>,
    /// Number of removed layers, also those without an image.
    pub layers: usize,
    /// Their unpacked bytes.
    pub bytes: u64,
    /// When to look again; `None`: after the next release.
    pub next: Option<SystemTime>,
}

/// One removed image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its name.
    pub reference: Reference,
    /// The time since its last use.
    pub unused: Duration,
    /// The reason, if it was removed before its delay was over.
    pub pressure: Option<Pressure>,
    /// Unpacked bytes of the layers that no other image and no lease needed.
    pub bytes: u64,
}

/// Why an image was removed before its delay was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// This percentage of the bytes was in use.
    Bytes(u8),
    /// This percentage of the inodes was in use.
    Inodes(u8),
    /// A pull had too little disk space.
    Pull,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pressure::Bytes(percent) => write!(f, "the file system of images is {percent} % full"),
            Pressure::Inodes(percent) => write!(f, "{percent} % of the inodes of the images' file system are in use"),
            Pressure::Pull => f.write_str("the file system of images had no disk space for a pull"),
        }
    }
}

impl Pressure {
    /// The pressure that a policy sees in a disk use.
    pub(crate) fn of(disk: DiskUse, policy: &Retention) -> Option<Self> {
        let (bytes, inodes) = (disk.bytes.percent(), disk.inodes.percent());
        let inodes = (inodes >= policy.high).then_some(Pressure::Inodes(inodes));
        (bytes >= policy.high).then_some(Pressure::Bytes(bytes)).or(inodes)
    }
}

/// The disk space that a removal must free in addition to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimTarget {
    /// None.
    PolicyOnly,
    /// This many bytes. If that cannot be reached, nothing is removed for it.
    Bytes(u64),
    /// Everything that can be removed: a pull does not know how much it needs.
    Everything,
}

/// An image as the decision sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) last_used: SystemTime,
    /// Whether a lease or the administrator holds it.
    pub(crate) held: bool,
    pub(crate) layers: BTreeSet<Digest>,
}

/// A layer as the decision sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerUse {
    pub(crate) size: Amount,
    /// When it was unpacked.
    pub(crate) since: SystemTime,
    /// Whether a lease or a pinned image holds it.
    pub(crate) held: bool,
}

/// The images and layers to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Images to remove, least recently used first: the index in the list, the bytes that only this image needed, and
    /// the reason.
    pub(crate) images: Vec<(usize, u64, Reason)>,
    /// Layers without an image that are kept until their delay is over.
    pub(crate) spared: BTreeSet<Digest>,
    /// When to look again.
    pub(crate) next: Option<SystemTime>,
}

/// Why an image is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its delay is over.
    Unused,
    /// The disk is full, or a pull needs disk space.
    Pressure,
}

/// Decides which images and layers to remove; see the module's rules.
pub(crate) fn decide(
    images: &[Candidate],
    layers: &BTreeMap<Digest, LayerUse>,
    now: SystemTime,
    (disk, reclaim): (DiskUse, ReclaimTarget),
    policy: &Retention,
) -> Decision {
    let mut decision = Decision::default();
    let target = target(layers, disk, reclaim, policy);
    let pressure = target != Amount::default();
    // A last use in the future means that the clock was set back; nothing must stay for ever.
    let due = |since: SystemTime| since.min(now) + policy.delay;
    let mut waiting: Vec<SystemTime> = Vec::new();
    let mut users: BTreeMap<&Digest, usize> = BTreeMap::new();
    for digest in images.iter().flat_map(|image| &image.layers) {
        *users.entry(digest).or_default() += 1;
    }
    let mut freed = Amount::default();
    for (digest, layer) in layers.iter().filter(|(digest, layer)| !layer.held && !users.contains_key(digest)) {
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
        let reason = if due(image.last_used) <= now {
            Reason::Unused
        } else if !freed.covers(target) {
            Reason::Pressure
        } else {
            waiting.push(due(image.last_used));
            continue;
        };
        let size = remove_user(image, layers, &mut users);
        freed.add(size);
        decision.images.push((at, size.bytes, reason));
    }
    decision.next = waiting.into_iter().min().map(|due| due.min(now + DISK_CHECK_INTERVAL));
    decision
}

/// The amount to free before the delays are over.
fn target(layers: &BTreeMap<Digest, LayerUse>, disk: DiskUse, reclaim: ReclaimTarget, policy: &Retention) -> Amount {
    let full = Pressure::of(disk, policy).is_some();
    let mut target = if full { disk.above(policy.low) } else { Amount::default() };
    match reclaim {
        ReclaimTarget::PolicyOnly => {}
        ReclaimTarget::Bytes(bytes) if freeable(layers) >= bytes => target.bytes = target.bytes.max(bytes),
        ReclaimTarget::Bytes(_) => {}
        ReclaimTarget::Everything => target = Amount { bytes: u64::MAX, inodes: u64::MAX },
    }
    target
}

/// Removes an image from the users of its layers. Returns the size of the layers that have no user left.
fn remove_user<'a>(
    image: &'a Candidate,
    layers: &BTreeMap<Digest, LayerUse>,
    users: &mut BTreeMap<&'a Digest, usize>,
) -> Amount {
    let mut size = Amount::default();
    for digest in &image.layers {
        let count = users.entry(digest).or_default();
        *count = count.saturating_sub(1);
        let unused = layers.get(digest).filter(|layer| *count == 0 && !layer.held);
        size.add(unused.map_or(Amount::default(), |layer| layer.size));
    }
    size
}

/// The bytes of all layers that no lease holds.
fn freeable(layers: &BTreeMap<Digest, LayerUse>) -> u64 {
    layers.values().filter(|layer| !layer.held).fold(0, |sum, layer| sum.saturating_add(layer.size.bytes))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::{super::disk_space::Use, *};

    const POLICY: Retention = Retention { delay: Duration::from_secs(100), high: 90, low: 50 };
    const INODES: Use = Use { used: 0, available: 0 };
    const EMPTY: (DiskUse, ReclaimTarget) =
        (DiskUse { bytes: Use { used: 10, available: 990 }, inodes: INODES }, ReclaimTarget::PolicyOnly);

    fn full(used: u64) -> (DiskUse, ReclaimTarget) {
        let bytes = Use { used, available: 1000 - used };
        (DiskUse { bytes, inodes: INODES }, ReclaimTarget::PolicyOnly)
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

    fn layers(names: &[(u8, u64, bool)]) -> BTreeMap<Digest, LayerUse> {
        let facts = |(name, bytes, held): &(u8, u64, bool)| {
            (digest(*name), LayerUse { size: Amount { bytes: *bytes, inodes: *bytes }, since: at(0), held: *held })
        };
        names.iter().map(facts).collect()
    }

    fn gone(decision: &Decision) -> Vec<usize> {
        decision.images.iter().map(|(at, ..)| *at).collect()
    }

    #[test]
    fn unused_images_are_removed_after_the_delay_and_not_before() {
        let images = [image(0, false, &[1]), image(50, false, &[1, 2]), image(0, true, &[3])];
        let layers = layers(&[(1, 10, false), (2, 20, false), (3, 30, true)]);
        let look = |now| decide(&images, &layers, at(now), EMPTY, &POLICY);
        assert_eq!((gone(&look(99)).len(), look(99).next), (0, Some(at(100))));
        // The shared layer stays with the other image.
        assert_eq!(look(100).images, [(0, 0, Reason::Unused)]);
        assert_eq!(look(100).next, Some(at(150)));
        assert_eq!(look(150).images, [(0, 0, Reason::Unused), (1, 30, Reason::Unused)]);
        assert_eq!(look(150).next, None);
    }

    #[test]
    fn a_full_disk_removes_the_least_recently_used_until_the_low_watermark() {
        let images = [image(3, false, &[1]), image(1, false, &[2]), image(2, false, &[3]), image(0, true, &[4])];
        let layers = layers(&[(1, 100, false), (2, 300, false), (3, 150, false), (4, 400, true)]);
        let decision = decide(&images, &layers, at(10), full(900), &POLICY);
        assert_eq!(decision.images, [(1, 300, Reason::Pressure), (2, 150, Reason::Pressure)]);
        // The next look is soon: the disk may fill up before the delay of the rest is over.
        assert_eq!(decision.next, Some(at(70)));
        assert!(gone(&decide(&images, &layers, at(10), full(890), &POLICY)).is_empty());
        // Inodes count as bytes do.
        let (DiskUse { bytes: inodes, .. }, _) = full(900);
        let disk = DiskUse { bytes: EMPTY.0.bytes, inodes };
        assert_eq!(Pressure::of(disk, &POLICY), Some(Pressure::Inodes(90)));
        assert_eq!(
            decide(&images, &layers, at(10), (disk, ReclaimTarget::PolicyOnly), &POLICY).images,
            decision.images
        );
    }

    #[test]
    fn a_pull_gets_what_it_asks_for_or_all_or_nothing() {
        let images = [image(0, false, &[1]), image(1, false, &[2]), image(2, false, &[3]), image(0, true, &[4])];
        let layers = layers(&[(1, 100, false), (2, 300, false), (3, 150, false), (4, 400, true)]);
        let reclaim = |target| gone(&decide(&images, &layers, at(10), (EMPTY.0, target), &POLICY));
        assert_eq!(reclaim(ReclaimTarget::Bytes(100)), [0]);
        assert_eq!(reclaim(ReclaimTarget::Bytes(101)), [0, 1]);
        assert_eq!(reclaim(ReclaimTarget::Bytes(550)), [0, 1, 2]);
        assert!(reclaim(ReclaimTarget::Bytes(551)).is_empty());
        assert_eq!(reclaim(ReclaimTarget::Everything), [0, 1, 2]);
        // A small request does not replace the pressure of the full disk.
        assert_eq!(gone(&decide(&images, &layers, at(10), (full(900).0, ReclaimTarget::Bytes(1)), &POLICY)), [0, 1]);
    }

    #[test]
    fn layers_without_an_image_wait_too() {
        let layers = layers(&[(1, 10, false), (2, 10, true)]);
        let early = decide(&[], &layers, at(99), EMPTY, &POLICY);
        assert_eq!((early.spared.len(), early.next), (1, Some(at(100))));
        assert_eq!(decide(&[], &layers, at(100), EMPTY, &POLICY), Decision::default());
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_no_image_for_ever() {
        let decision = decide(&[image(5000, false, &[])], &BTreeMap::new(), at(50), EMPTY, &POLICY);
        assert_eq!(decision.next, Some(at(110)));
    }

    proptest! {
        #[test]
        fn no_held_image_is_removed_and_the_next_look_is_in_the_future(
            images in vec((0u64..300, any::<bool>(), vec(0u8..6, 0..4)), 0..8),
            held in vec(any::<bool>(), 6),
            now in 0u64..400,
            used in 0u64..=1000,
        ) {
            let candidates: Vec<_> = images.iter().map(|(used, held, layers)| image(*used, *held, layers)).collect();
            let facts: Vec<_> = (0u8..6).map(|name| (name, 50, held[usize::from(name)])).collect();
            let decision = decide(&candidates, &layers(&facts), at(now), full(used), &POLICY);
            for (index, _, reason) in &decision.images {
                let image = &candidates[*index];
                prop_assert!(!image.held);
                let due = image.last_used.min(at(now)) + POLICY.delay <= at(now);
                prop_assert_eq!(*reason == Reason::Unused, due);
                prop_assert!(due || Pressure::of(full(used).0, &POLICY).is_some());
            }
            prop_assert!(decision.next.is_none_or(|next| next > at(now)));
            // Every kept image was used at least as recently as every removed one.
            let is_kept = |index: &usize| !candidates[*index].held && !gone(&decision).contains(index);
            let oldest = (0..candidates.len()).filter(is_kept).map(|index| candidates[index].last_used).min();
            let newest = gone(&decision).into_iter().map(|index| candidates[index].last_used).max();
            prop_assert!(oldest.zip(newest).is_none_or(|(kept, removed)| kept >= removed));
            // A second decision on a disk that is not full removes nothing.
            let left: Vec<_> = candidates.iter().enumerate()
                .filter(|(index, _)| !gone(&decision).contains(index)).map(|(_, image)| image.clone()).collect();
            let again = decide(&left, &BTreeMap::new(), at(now), EMPTY, &POLICY);
            prop_assert!(gone(&again).is_empty());
        }
    }
}
