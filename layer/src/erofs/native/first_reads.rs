//! What containers read first of a layer: as ranges of a native image, and as parts of files. Pure.
//!
//! Ranges say where the data is in one image. Parts of files say the same of each image of the layer, wherever its data
//! is and whether it is compressed or not.

use std::{collections::HashMap, ops::Range};

use super::{
    super::{
        compressed::CHUNK,
        format::BLOCK,
        tree::{Content, Id, Tree},
    },
    check::check_all,
    image::{Extent, NativeImage},
};
use crate::{error::Problem, limits::Limits, path, ranges::merged};

/// The parts of a file that are read first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReads {
    /// The path of the file in the layer, without a slash at its beginning.
    pub path: Vec<u8>,
    /// Parts of 128 KiB, in the order of the file.
    pub parts: Vec<Range<usize>>,
}

/// The files to which ranges of an image belong, in the order of the ranges. `metadata` is the metadata of the image.
/// Also returns the UUID of its file system, which each image of the layer has.
///
/// # Errors
/// The reason why this crate cannot have written the metadata.
pub fn files_read(
    metadata: &[u8],
    ranges: &[Range<u64>],
    limits: &Limits,
) -> Result<([u8; 16], Vec<FileReads>), Problem> {
    let (image, _) = check_all(metadata, limits)?;
    let (extents, paths) = (image.extents(), paths(image.tree()));
    let mut files: Vec<FileReads> = Vec::new();
    let mut known: HashMap<Id, usize> = HashMap::new();
    for range in ranges {
        let first = extents.partition_point(|extent| extent.offset + extent.stored <= range.start);
        for extent in extents[first..].iter().take_while(|extent| extent.offset < range.end) {
            let file = *known.entry(extent.id).or_insert_with(|| {
                files.push(FileReads { path: paths[extent.id as usize].clone(), parts: Vec::new() });
                files.len() - 1
            });
            let parts = places(&image, extent).enumerate().filter(|(_, place)| overlap(place, range));
            files[file].parts.extend(parts.map(|(part, _)| part..part + 1));
        }
    }
    files.iter_mut().for_each(|file| file.parts = merged(std::mem::take(&mut file.parts), 0));
    Ok((image.uuid(), files))
}

/// The files of a tree that have these names, in their order. Other names are left out.
pub(super) fn find<'a>(tree: &Tree, files: &'a [FileReads]) -> Vec<(Id, &'a FileReads)> {
    files.iter().filter_map(|file| Some((tree.find(&file.path)?, file))).collect()
}

/// Where the parts of files are in an image, in the order of the image. Parts that a file does not have are left out.
pub(super) fn ranges_of(image: &NativeImage, files: &[(Id, &FileReads)]) -> Vec<Range<u64>> {
    let files: HashMap<Id, &FileReads> = files.iter().copied().collect();
    let mut ranges = Vec::new();
    for extent in image.extents() {
        let Some(file) = files.get(&extent.id) else { continue };
        let is_read = |part: &usize| file.parts.iter().any(|parts| parts.contains(part));
        ranges.extend(places(image, &extent).enumerate().filter(|(part, _)| is_read(part)).map(|(_, place)| place));
    }
    merged(ranges, 0)
}

/// Where each part of a file is in an image.
fn places<'a>(image: &'a NativeImage, extent: &Extent) -> impl Iterator<Item = Range<u64>> + use<'a> {
    let chunks: &[u8] = match &image.tree().node(extent.id).content {
        Content::File { chunks, .. } => chunks,
        _ => &[],
    };
    let (offset, stored) = (extent.offset, extent.stored);
    let count = if chunks.is_empty() { stored.div_ceil(CHUNK) } else { chunks.len() as u64 };
    let mut start = offset;
    (0..count).map(move |part| {
        let end = match chunks.get(part as usize) {
            Some(blocks) => start + u64::from(*blocks) * BLOCK,
            None => offset + stored.min((part + 1) * CHUNK),
        };
        std::mem::replace(&mut start, end)..end
    })
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A path for each file, the first one in the order of a walk.
fn paths(tree: &Tree) -> Vec<Vec<u8>> {
    let mut paths = vec![Vec::new(); tree.len()];
    for id in 0..tree.len() as Id {
        let Content::Dir(names) = &tree.node(id).content else { continue };
        for (name, child) in names {
            if paths[*child as usize].is_empty() {
                paths[*child as usize] = path::join(&paths[id as usize], name);
            }
        }
    }
    paths
}
