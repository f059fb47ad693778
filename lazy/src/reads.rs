//! The order in which the chunks of a layer are read for the first time. Pure.

use std::{collections::BTreeSet, ops::Range};

/// Chunks that are noted of one layer. Those of a large layer that come later are not the first ones any more.
const MOST: usize = 65_536;

/// The chunks that were read.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    order: Vec<usize>,
    known: BTreeSet<usize>,
}

impl Reads {
    /// Notes a read.
    pub(crate) fn note(&mut self, chunks: Range<usize>) {
        for chunk in chunks {
            if self.order.len() < MOST && self.known.insert(chunk) {
                self.order.push(chunk);
            }
        }
    }

    /// The chunks in the order of their first reads. Neighbours that follow each other are one range.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for chunk in &self.order {
            match ranges.last_mut() {
                Some(last) if last.end == *chunk => last.end += 1,
                _ => ranges.push(*chunk..chunk + 1),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_noted_once_in_the_order_of_the_reads() {
        let mut reads = Reads::default();
        for chunks in [4..6, 0..1, 5..8, 1..2, 8..9, 4..5] {
            reads.note(chunks);
        }
        assert_eq!(reads.ranges(), [4..6, 0..1, 6..8, 1..2, 8..9]);
        reads.note(0..10 * MOST);
        assert_eq!(reads.order.len(), MOST);
    }
}
