//! Files with holes: GNU's old header map and PAX formats 0.0, 0.1 and 1.0 → one checked map.
//!
//! A map ascends, does not overlap, and ends within the file's size, so it can be applied without further checks. Holes
//! are never written.

use std::io::{self, BufRead};

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::header::{BLOCK, unsigned};
use crate::error::{Problem, UnpackError};

const MAX_SEGMENTS: usize = 1 << 20;

/// Where the stored data of a file goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sparse {
    /// The file's size with its holes.
    pub size: u64,
    /// Offset and length, ascending.
    pub segments: Vec<(u64, u64)>,
}

impl Sparse {
    /// Checks a map given as offsets and lengths in turn.
    pub(crate) fn new(size: Option<u64>, numbers: &[u64]) -> Result<Sparse, Problem> {
        let size = size.ok_or("a sparse file without its size")?;
        if !numbers.len().is_multiple_of(2) || numbers.len() / 2 > MAX_SEGMENTS {
            return Err("a broken or too long sparse map".into());
        }
        let mut end = 0u64;
        let mut segments = Vec::with_capacity(numbers.len() / 2);
        for pair in numbers.chunks_exact(2) {
            let (offset, length) = (pair[0], pair[1]);
            let next = offset.checked_add(length).filter(|next| offset >= end && *next <= size);
            end = next.ok_or("a sparse map that overlaps or exceeds the file")?;
            if length > 0 {
                segments.push((offset, length));
            }
        }
        Ok(Sparse { size, segments })
    }

    /// Bytes that the archive holds.
    pub(crate) fn stored(&self) -> u64 {
        self.segments.iter().map(|(_, length)| length).sum()
    }
}

/// GNU's old format: four segments in the header, more in blocks that follow it.
pub(crate) fn gnu(
    raw: &[u8; BLOCK],
    name: &[u8],
    mut next_block: impl FnMut() -> io::Result<[u8; BLOCK]>,
) -> Result<Sparse, UnpackError> {
    let refuse = |problem: &str| UnpackError::refused(name, problem);
    let header = Header::from_byte_slice(raw).as_gnu().ok_or_else(|| refuse("a sparse entry without a GNU header"))?;
    let mut numbers = Vec::new();
    let number = |field: &[u8]| unsigned("sparse map", field).map_err(|problem| refuse(&problem));
    let mut add = |places: &[GnuSparseHeader]| -> Result<(), UnpackError> {
        for place in places.iter().take_while(|place| place.offset[0] != 0 && place.numbytes[0] != 0) {
            numbers.push(number(&place.offset)?);
            numbers.push(number(&place.numbytes)?);
        }
        if numbers.len() / 2 > MAX_SEGMENTS { Err(refuse("a too long sparse map")) } else { Ok(()) }
    };
    add(&header.sparse)?;
    let mut more = header.isextended[0] != 0;
    while more {
        let mut extension = GnuExtSparseHeader::new();
        *extension.as_mut_bytes() = next_block()?;
        add(&extension.sparse)?;
        more = extension.isextended[0] != 0;
    }
    let size = unsigned("real size", &header.realsize).map_err(|problem| refuse(&problem))?;
    Sparse::new(Some(size), &numbers).map_err(|problem| refuse(&problem))
}

/// PAX 1.0: the map precedes the data as decimal lines, padded to a block. Returns the numbers and how many bytes were
/// read.
pub(crate) fn numbers_in_data(reader: &mut impl BufRead, available: u64) -> Result<(Vec<u64>, u64), UnpackError> {
    let refuse = || UnpackError::refused(b"", "a broken sparse map");
    let mut read = 0u64;
    let mut line = Vec::new();
    let mut numbers = Vec::new();
    let mut expected: Option<usize> = None;
    while expected != Some(numbers.len()) {
        if read + BLOCK as u64 > available {
            return Err(refuse());
        }
        let mut block = [0; BLOCK];
        reader.read_exact(&mut block)?;
        read += BLOCK as u64;
        for byte in block {
            if byte != b'\n' {
                line.push(byte);
                if line.len() > 20 && expected != Some(numbers.len()) {
                    return Err(refuse());
                }
                continue;
            }
            let number = super::pax::decimal("sparse map", &line).map_err(|_| refuse())?;
            line.clear();
            match expected {
                None if number > MAX_SEGMENTS as u64 => return Err(refuse()),
                None => expected = Some(number as usize * 2),
                Some(_) => numbers.push(number),
            }
            if expected == Some(numbers.len()) {
                break;
            }
        }
    }
    Ok((numbers, read))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_that_overlaps_exceeds_the_file_or_is_incomplete_is_refused() {
        let map = Sparse::new(Some(100), &[10, 5, 20, 0, 90, 10]).unwrap();
        assert_eq!((map.segments.as_slice(), map.stored()), (&[(10, 5), (90, 10)][..], 15));
        for bad in [&[0, 5, 3, 1][..], &[0, 101], &[u64::MAX, 1], &[0]] {
            assert!(Sparse::new(Some(100), bad).is_err(), "{bad:?}");
        }
        assert!(Sparse::new(None, &[]).is_err());
    }

    #[test]
    fn maps_in_the_data_take_whole_blocks() {
        let mut data = b"2\n0\n3\n600\n4\n".to_vec();
        data.resize(BLOCK, 0);
        data.extend_from_slice(b"abcdefg");
        let mut reader = &data[..];
        let (numbers, read) = numbers_in_data(&mut reader, 519).unwrap();
        assert_eq!((numbers.as_slice(), read, reader), (&[0, 3, 600, 4][..], 512, &b"abcdefg"[..]));
        assert!(numbers_in_data(&mut &data[..], 100).is_err());
        assert!(numbers_in_data(&mut &[b'9'; 2048][..], 2048).is_err());
    }

    proptest! {
        #[test]
        fn accepted_maps_ascend_and_fit(
            size in 0u64..1000, numbers in proptest::collection::vec(0u64..1200, 0..12)
        ) {
            if let Ok(map) = Sparse::new(Some(size), &numbers) {
                let mut end = 0;
                for (offset, length) in map.segments {
                    prop_assert!(offset >= end);
                    end = offset + length;
                }
                prop_assert!(end <= size);
            }
        }
    }
}
