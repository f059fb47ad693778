//! The order in which the blocks of a layer's data are read for the first time. Pure.

use std::{collections::BTreeSet, ops::Range};

use layer::BLOCK;

/// Blocks that are noted of one layer: a gibibyte. Those that come later are not the first ones any more.
const MOST: usize = 1 << 18;

/// The blocks that were read.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    order: Vec<u64>,
    known: BTreeSet<u64>,
}

impl Reads {
    /// Notes a read of some bytes.
    pub(crate) fn note(&mut self, range: Range<u64>) {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            if self.order.len() == MOST {
                break;
            }
            if self.known.insert(block) {
                self.order.push(block);
            }
        }
    }

    /// The bytes of the blocks in the order of their first reads. Neighbours that follow each other are one range.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for start in self.order.iter().map(|block| block * BLOCK) {
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += BLOCK,
                _ => ranges.push(start..start + BLOCK),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_noted_once_in_the_order_of_the_reads() {
        let mut reads = Reads::default();
        for range in [16384..24576, 0..1, 20480..32768, 5000..5001, 32767..32769, 17000..17000, 16384..20480] {
            reads.note(range);
        }
        assert_eq!(reads.ranges(), [16384..24576, 0..4096, 24576..32768, 4096..8192, 32768..36864]);
        reads.note(0..10 * MOST as u64 * BLOCK);
        assert_eq!(reads.order.len(), MOST);
    }
}
