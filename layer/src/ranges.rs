//! Ranges that are close together become one. Pure.

use std::ops::{Add, Range};

/// The ranges in their order, none of them empty. Those with at most this gap become one.
pub fn merged<T: Copy + Ord + Add<Output = T>>(mut ranges: Vec<Range<T>>, gap: T) -> Vec<Range<T>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<T>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_with_a_small_gap_become_one() {
        assert_eq!(merged(vec![9..12, 1..3, 5..6, 2..2, 1..2], 2), [1..6, 9..12]);
        assert_eq!(merged(vec![4..5, 0..9, 20..21], 0), [0..9, 20..21]);
        assert_eq!(merged(Vec::<Range<u64>>::new(), 2), []);
    }
}
