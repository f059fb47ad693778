use std::{collections::BTreeMap, ops::Range};

use proptest::prelude::*;

use super::{
    super::{
        compressed::CHUNK,
        format::{BLOCK, INODE, SLOT, SUPER},
        tree::{Content, Id, Node, ROOT, Tree},
    },
    check::{CheckedImage, check_metadata},
    check_front,
    first_reads::{files_read, find, ranges_of},
    image::{NativeImage, Parts, in_order},
    rules, verity,
};
use crate::{error::Problem, limits::Limits};

const UUID: [u8; 16] = [7; 16];

fn node(content: Content) -> Node {
    Node { content, mtime: (1_700_000_000, 5), ..Node::implied_dir() }
}

fn dir() -> Node {
    node(Content::Dir(BTreeMap::new()))
}

fn file(size: u64) -> Node {
    node(Content::file(77, size))
}

/// A file whose chunks take so many blocks, or as many as their data has if that is less. The first one is compressed.
fn compressed(size: u64, stored: &[u8]) -> Node {
    let whole = |chunk: u64| (size - chunk * CHUNK).min(CHUNK).div_ceil(BLOCK) as u8;
    let chunks = (0..size.div_ceil(CHUNK)).zip(stored).map(|(chunk, stored)| match chunk {
        0 => (*stored).min(whole(0) - 1),
        _ => (*stored).min(whole(chunk)),
    });
    node(Content::File { block: 77, size, chunks: chunks.collect() })
}

fn link(target: &str) -> Node {
    Node { mode: 0o777, ..node(Content::Symlink(target.as_bytes().into())) }
}

fn whiteout() -> Node {
    Node { mode: 0, mtime: (0, 0), ..node(Content::CharDevice(0)) }
}

fn with(node: Node, key: &str, value: &[u8]) -> Node {
    Node { xattrs: vec![(key.as_bytes().to_vec(), value.to_vec())], ..node }
}

/// The metadata of an image with these files.
fn metadata(tree: &Tree) -> Vec<u8> {
    let image = NativeImage::new(in_order(tree).unwrap().0, UUID, &[]).unwrap();
    let mut bytes = Vec::new();
    image.write_metadata(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, image.parts().metadata);
    bytes
}

fn check(bytes: &[u8]) -> Result<CheckedImage, Problem> {
    check_metadata(bytes, &Limits::default())
}

/// The metadata of an image with one file.
fn single(node: Node) -> Vec<u8> {
    let mut tree = Tree::new(dir());
    tree.add(ROOT, b"f", node).unwrap();
    metadata(&tree)
}

/// A tree with every kind of file.
fn sample() -> Tree {
    let mut tree = Tree::new(dir());
    let etc = tree.add(ROOT, b"etc", with(dir(), "trusted.overlay.opaque", b"y")).unwrap();
    let passwd = tree.add(etc, b"passwd", with(file(5000), "user.a", b"1")).unwrap();
    tree.name(ROOT, b"also", passwd);
    tree.add(etc, b"empty", file(0)).unwrap();
    tree.add(etc, b"gone", whiteout()).unwrap();
    tree.add(ROOT, b"link", link("etc/passwd")).unwrap();
    tree.add(ROOT, b"long", link(&"x".repeat(4000))).unwrap();
    tree.add(ROOT, b"tty", node(Content::CharDevice(0x501))).unwrap();
    tree.add(ROOT, b"disk", node(Content::BlockDevice(0x801))).unwrap();
    tree.add(ROOT, b"pipe", node(Content::Fifo)).unwrap();
    let implied = Node { mtime: (0, 0), ..with(dir(), "trusted.overlay.implied", b"y") };
    let implied = tree.add(ROOT, b"usr", implied).unwrap();
    let many = tree.add(implied, b"many", dir()).unwrap();
    for number in 0..700 {
        tree.add(many, format!("file-{number}").as_bytes(), file(number)).unwrap();
    }
    tree
}

/// The offset of the inode of the only file in the root of [`single`].
fn inode_of_the_file() -> usize {
    let root = BLOCK as usize + 2 * SLOT as usize;
    // The names `.`, `..` and `f` follow the root's inode.
    (root + INODE as usize + 3 * 12 + 4).next_multiple_of(SLOT as usize)
}

#[test]
fn every_kind_of_file_is_read_again() {
    let checked = check(&metadata(&sample())).unwrap();
    assert_eq!(checked.files, 712);
    assert_eq!(checked.implied_directories, [b"usr".to_vec()]);
    assert!(!checked.opaque_root);
    let data: u64 = 2 + (1..700u64).map(|size| size.div_ceil(BLOCK)).sum::<u64>();
    assert_eq!(checked.parts.data, data * BLOCK);
    let opaque = Tree::new(with(dir(), "trusted.overlay.opaque", b"y"));
    assert!(check(&metadata(&opaque)).unwrap().opaque_root);
}

#[test]
fn a_compressed_image_is_accepted_where_the_kernel_reads_it() {
    let files = [
        compressed(4097, &[1]),
        compressed(CHUNK, &[31]),
        compressed(CHUNK + 1, &[1, 1]),
        compressed(2 * CHUNK, &[3, 32]),
        compressed(5 * CHUNK - 1, &[1, 32, 2, 31, 32]),
    ];
    for file in files {
        let Content::File { size, chunks, .. } = &file.content else { unreachable!() };
        let (stored, size) = (chunks.iter().map(|blocks| u64::from(*blocks)).sum::<u64>(), *size);
        let bytes = single(with(file, "user.a", b"1"));
        assert_eq!(check(&bytes).unwrap().parts.data, stored * BLOCK, "{size}");
        let limits = Limits { zstd_images: false, ..Limits::default() };
        let problem = check_metadata(&bytes, &limits).unwrap_err();
        assert!(problem.contains("CONFIG_EROFS_FS_ZIP_ZSTD"), "{problem}");
        let limits = Limits { layer_bytes: size - 1, ..Limits::default() };
        assert!(check_metadata(&bytes, &limits).is_err());
    }
}

#[test]
fn an_index_of_another_form_is_refused() {
    let bytes = single(compressed(2 * CHUNK, &[3, 32]));
    let index = inode_of_the_file() + INODE as usize;
    assert_eq!(&bytes[index + 16..index + 20], &[1, 0, 0, 0], "the entry of the first chunk");
    for (at, value, what) in [
        (4, 0, "chunks of one block only"),
        (6, 0, "another algorithm"),
        (7, 1, "larger blocks"),
        (8, 1, "an unused byte"),
        (16, 0, "a chunk that is not compressed, with the blocks of another one"),
        (16, 3, "another algorithm for a chunk"),
        (18, 1, "data that begins inside a block"),
        (20, 0, "blocks of the metadata"),
        (24, 0, "a second beginning of a chunk"),
        (28, 0, "no blocks"),
        (28, 32, "as many blocks as the data has"),
        (28, 33, "more blocks than the data has"),
        (29, 0, "an uncounted chunk"),
        (30, 1, "another distance to the next chunk"),
    ] {
        let mut changed = bytes.clone();
        assert_ne!(changed[index + at], value, "{what}");
        changed[index + at] = value;
        assert!(check(&changed).is_err(), "{what}");
    }
}

#[test]
fn the_bytes_depend_on_the_files_only() {
    let mut other = Tree::new(dir());
    let mut names: Vec<&str> = vec!["b", "a", "c", "gone"];
    let mut one = Tree::new(dir());
    for name in &names {
        one.add(ROOT, name.as_bytes(), file(1)).unwrap();
    }
    assert!(!one.remove(ROOT, b"gone"));
    names.reverse();
    for name in names.iter().filter(|name| **name != "gone") {
        other.add(ROOT, name.as_bytes(), file(1)).unwrap();
    }
    assert_eq!(metadata(&one), metadata(&other));
}

#[test]
fn data_of_files_is_in_one_piece_in_any_order() {
    let mut tree = Tree::new(dir());
    let ids = ["a", "b", "c", "d"].map(|name| tree.add(ROOT, name.as_bytes(), file(BLOCK + 1)).unwrap());
    tree.add(ROOT, b"e", compressed(CHUNK, &[3])).unwrap();
    let written = |first: &[Id]| {
        let image = NativeImage::new(in_order(&tree).unwrap().0, UUID, first).unwrap();
        let mut bytes = Vec::new();
        image.write_metadata(&mut bytes).unwrap();
        (bytes, image)
    };
    let (usual, image) = written(&[]);
    for first in [&[ids[2], ROOT, ids[0], ids[2]][..], &[5, 4, 3, 2, 1], &[1, 2, 3, 4, 5]] {
        let (bytes, other) = written(first);
        assert_eq!(bytes == usual, first == [1, 2, 3, 4, 5]);
        assert_eq!(check(&bytes).unwrap().parts, image.parts());
        let order: Vec<Id> = other.extents().iter().map(|extent| extent.id).collect();
        let expected: Vec<Id> = first.iter().copied().filter(|id| *id != ROOT).collect();
        assert!(order.starts_with(&expected[..2]), "{order:?}");
    }
    // The second file lies where the first one is, overlaps with it, or leaves a gap before the third one.
    let places = |moved: i32| {
        let mut tree = Tree::new(dir());
        for (name, block) in [("a", 2), ("b", (4 + moved) as u32), ("c", 6)] {
            tree.add(ROOT, name.as_bytes(), node(Content::file(block, BLOCK + 1))).unwrap();
        }
        NativeImage::with_places(tree, UUID).map(|image| image.parts().data)
    };
    // The metadata takes two blocks.
    assert_eq!(places(0), Ok(6 * BLOCK));
    for moved in [-4, -3, -2, -1, 1, 2, 100] {
        assert_eq!(places(moved), Err("the data of its files is not in one piece".to_owned()), "{moved}");
    }
}

#[test]
fn files_that_no_archive_makes_are_refused() {
    let user = |key: &str| with(file(1), key, b"v");
    let capability = [&0x0200_0000u32.to_le_bytes()[..], &[0; 16]].concat();
    assert!(check(&single(with(file(1), "security.capability", &capability))).is_ok());
    assert!(check(&single(user("user.a"))).is_ok());
    for (node, problem) in [
        (user("trusted.overlay.redirect"), "extended attribute"),
        (user("trusted.overlay.metacopy"), "extended attribute"),
        (user("trusted.overlay.opaque"), "extended attribute"),
        (user("trusted.x"), "extended attribute"),
        (user("security.selinux"), "extended attribute"),
        (user("security.capability"), "extended attribute"),
        (user("user.overlay.opaque"), "extended attribute"),
        (user("system.posix_acl_access"), "extended attribute"),
        (with(dir(), "trusted.overlay.opaque", b"x"), "extended attribute"),
        (with(link("x"), "user.a", b"1"), "extended attribute"),
        (with(dir(), "trusted.overlay.implied", b"y"), "describes"),
        (Node { uid: u32::MAX, ..file(1) }, "owner"),
        (Node { gid: u32::MAX, ..file(1) }, "owner"),
        (Node { mtime: (0, 1_000_000_000), ..file(1) }, "time"),
        (Node { mode: 0o644, ..whiteout() }, "whiteout"),
        (Node { mtime: (1, 0), ..whiteout() }, "whiteout"),
        (with(whiteout(), "security.capability", &capability), "whiteout"),
        (link(""), "symbolic link"),
        (link("a\0b"), "symbolic link"),
        (link(&"x".repeat(4096)), "symbolic link"),
        (Node { mode: 0o755, ..link("x") }, "symbolic link"),
        (file(u64::MAX / 2), "files of more than"),
    ] {
        let text = format!("{node:?}");
        let mut tree = Tree::new(dir());
        tree.add(ROOT, b"f", node).unwrap();
        // A file that is too large has no image.
        let (tree, _) = in_order(&tree).unwrap();
        let Ok(image) = NativeImage::new(tree, UUID, &[]) else { continue };
        let mut bytes = Vec::new();
        image.write_metadata(&mut bytes).unwrap();
        let error = check(&bytes).expect_err(&text);
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn names_that_no_archive_makes_are_refused() {
    for name in [&b".wh.a"[..], b".wh..wh..opq", b"a/b", &[b'n'; 256]] {
        let mut tree = Tree::new(dir());
        tree.add(ROOT, name, file(1)).unwrap();
        assert!(check(&metadata(&tree)).is_err(), "{name:?}");
    }
    let mut tree = Tree::new(dir());
    let whiteout = tree.add(ROOT, b"a", whiteout()).unwrap();
    tree.name(ROOT, b"b", whiteout);
    assert!(check(&metadata(&tree)).unwrap_err().contains("whiteout"));
}

#[test]
fn depth_and_number_of_files_are_bounded() {
    let chain = |depth: usize| {
        let mut tree = Tree::new(dir());
        let mut last = ROOT;
        for _ in 0..depth {
            last = tree.add(last, b"d", dir()).unwrap();
        }
        tree.add(last, b"f", file(1)).unwrap();
        metadata(&tree)
    };
    assert!(check(&chain(512)).is_ok());
    assert!(check(&chain(513)).unwrap_err().contains("deep"));
    let few = Limits { entries: 711, ..Limits::default() };
    let bytes = metadata(&sample());
    // One file has two names.
    assert!(check_metadata(&bytes, &few).unwrap_err().contains("entries"));
    assert!(check_metadata(&bytes, &Limits { entries: 712, ..Limits::default() }).is_ok());
}

#[test]
fn structures_of_another_form_are_refused() {
    let bytes = single(file(1));
    check(&bytes).unwrap();
    let inode = inode_of_the_file();
    assert_eq!(bytes[inode..inode + 2], [1, 0], "an inode in blocks");
    let root = BLOCK as usize + 2 * SLOT as usize;
    let dirents = root + INODE as usize;
    for (what, at, value) in [
        ("another magic number", SUPER, &[0][..]),
        ("a checksum", SUPER + 4, &[1]),
        ("other features", SUPER + 8, &[3]),
        ("another block size", SUPER + 12, &[9]),
        ("another root", SUPER + 14, &[4]),
        ("another number of inodes", SUPER + 16, &[9]),
        ("more blocks", SUPER + 36, &[200]),
        ("metadata elsewhere", SUPER + 40, &[2]),
        ("shared attributes", SUPER + 44, &[1]),
        ("a volume name", SUPER + 64, b"x"),
        ("incompatible features", SUPER + 80, &[1]),
        ("bytes before the superblock", 0, &[1]),
        ("bytes behind the superblock", SUPER + 128, &[1]),
        ("a compressed file", inode, &[3]),
        ("a file in chunks", inode, &[9]),
        ("a short inode", inode, &[0]),
        ("data in the inode", inode, &[5]),
        ("attributes that are not there", inode + 2, &[1]),
        ("a socket", inode + 4, &[0, 0xc0]),
        ("data in the metadata", inode + 16, &[1]),
        ("data elsewhere", inode + 16, &[200]),
        ("another number", inode + 20, &[9]),
        ("more links", inode + 44, &[2]),
        ("reserved bytes of an inode", inode + 50, &[1]),
        ("a directory that contains the root", dirents + 24, &[2]),
        ("a file outside the metadata", dirents + 24, &[0xff, 0xff, 0xff, 0xff]),
        ("another type", dirents + 24 + 10, &[2]),
        ("a name at another place", dirents + 24 + 8, &[200]),
        ("names that begin elsewhere", dirents + 8, &[35]),
        ("no names", dirents + 8, &[0]),
        ("a parent elsewhere", dirents + 12, &[9]),
        ("a larger directory", root + 8, &[200]),
        ("bytes between inodes", inode - 1, &[1]),
    ] {
        let mut bytes = bytes.clone();
        assert_ne!(&bytes[at..at + value.len()], value, "{what}");
        bytes[at..at + value.len()].copy_from_slice(value);
        assert!(check(&bytes).is_err(), "{what}");
    }
    for length in [0, 100, SUPER + 100, 4096, bytes.len() - 1, bytes.len() - 4096] {
        assert!(check(&bytes[..length]).is_err(), "{length}");
    }
    assert!(check(&[&bytes[..], &[0; 4096]].concat()).is_err());
}

/// Directories that are each other's parents, and two names for one directory.
#[test]
fn circles_end() {
    let mut tree = Tree::new(dir());
    let one = tree.add(ROOT, b"one", dir()).unwrap();
    tree.add(one, b"two", dir()).unwrap();
    tree.add(ROOT, b"zzz", dir()).unwrap();
    let bytes = metadata(&tree);
    let numbers: Vec<usize> = (0..bytes.len() - 4).filter(|at| *at > 4096 && at % 2 == 0).collect();
    // Each pair of bytes is made to lead to each inode in turn.
    for at in numbers.into_iter().take(600) {
        for number in 0..16u16 {
            let mut bytes = bytes.clone();
            bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
            drop(check(&bytes));
        }
    }
}

#[test]
fn hash_trees_of_several_levels_have_the_stated_size() {
    for blocks in [2u64, 127, 128, 129, 128 * 128, 128 * 128 + 1] {
        let mut builder = verity::HashTreeBuilder::default();
        for block in 0..blocks {
            let mut bytes = [0; BLOCK as usize];
            bytes[..8].copy_from_slice(&block.to_le_bytes());
            let (one, two) = bytes.split_at(block as usize % 4096);
            builder.update(one);
            builder.update(two);
        }
        let header = verity::header(blocks, UUID).len() as u64;
        assert_eq!(header + builder.finish().levels.len() as u64, verity::size(blocks), "{blocks}");
    }
}

/// The metadata and the hash tree of the sample, whose data is zeros, and the root.
fn front() -> (Vec<u8>, Vec<u8>, [u8; 32]) {
    let metadata = metadata(&sample());
    let parts = check(&metadata).unwrap().parts;
    let mut builder = verity::HashTreeBuilder::default();
    builder.update(&metadata);
    builder.update(&vec![0; parts.data as usize]);
    let tree = builder.finish();
    let header = verity::header(parts.file_system() / BLOCK, UUID);
    (metadata, [header, tree.levels].concat(), tree.root)
}

#[test]
fn a_front_is_accepted_only_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let directory = std::fs::File::open(directory.path()).unwrap().into();
    let accepts = |metadata: &[u8], tree: &[u8], root: &[u8; 32]| {
        check_front(metadata, tree, root, &Limits::default(), &directory).map(|checked| checked.parts).ok()
    };
    let (metadata, tree, root) = front();
    let parts = accepts(&metadata, &tree, &root).unwrap();
    assert_eq!(Parts::of(parts.metadata, parts.total()), Some(parts));
    for at in [0, 8, 300, BLOCK as usize, 2 * BLOCK as usize, tree.len() - 1] {
        let mut changed = tree.clone();
        changed[at] ^= 1;
        assert_eq!(accepts(&metadata, &changed, &root), None, "byte {at} of the tree");
    }
    // Another time of the root is another image, with a form that is accepted.
    let mut changed = metadata.clone();
    changed[(BLOCK + 2 * SLOT + 32) as usize] ^= 1;
    assert!(check(&changed).is_ok());
    assert_eq!(accepts(&changed, &tree, &root), None);
    assert_eq!(accepts(&metadata, &tree, &[1; 32]), None);
    assert_eq!(accepts(&metadata, &tree[..tree.len() - 1], &root), None);
    assert_eq!(accepts(&metadata[..4096], &tree, &root), None);
    // The hashes of data may be missing at the end, those of metadata may not.
    let enough = (parts.front_hashes().end - parts.file_system()) as usize;
    for length in (0..=tree.len()).step_by(BLOCK as usize) {
        let accepted = accepts(&metadata, &tree[..length], &root);
        assert_eq!(accepted, Some(parts).filter(|_| length >= enough), "{length} bytes of the tree");
    }
    assert_eq!(accepts(&metadata, &tree[..enough - 1], &root), None);
}

#[test]
fn each_block_of_the_lowest_level_has_its_hash_above_it() {
    for blocks in [2u64, 128, 129, 128 * 128, 128 * 128 + 1] {
        let parts = Parts { metadata: BLOCK, data: (blocks - 1) * BLOCK, hash_tree: verity::size(blocks) };
        let mut builder = verity::HashTreeBuilder::default();
        (0..blocks).for_each(|block| {
            let mut bytes = [0; BLOCK as usize];
            bytes[..8].copy_from_slice(&block.to_le_bytes());
            builder.update(&bytes);
        });
        let tree = [verity::header(blocks, UUID), builder.finish().levels].concat();
        let bytes = |range: &Range<u64>| {
            &tree[(range.start - parts.file_system()) as usize..(range.end - parts.file_system()) as usize]
        };
        let lowest = parts.lowest_hashes();
        assert_eq!(parts.hash_blocks_of(0..parts.file_system()), lowest);
        assert_eq!(parts.hashes_of_hash_blocks(&lowest).is_none(), blocks <= 128, "{blocks}");
        for start in lowest.step_by(BLOCK as usize) {
            let block = start..start + BLOCK;
            if let Some(hashes) = parts.hashes_of_hash_blocks(&block) {
                assert!(super::blocks_match(bytes(&hashes), bytes(&block)), "{blocks}, {start}");
            }
        }
        assert_eq!(parts.front_hashes().end, parts.lowest_hashes().start + BLOCK);
    }
}

#[test]
fn the_lengths_of_metadata_and_image_say_where_everything_is() {
    for blocks in [2, 3, 128, 129, 16_384, 16_385, 2_097_153] {
        let parts = Parts { metadata: BLOCK, data: (blocks - 1) * BLOCK, hash_tree: verity::size(blocks) };
        assert_eq!(Parts::of(BLOCK, parts.total()), Some(parts), "{blocks}");
        let hashes = parts.hashes_of(0..parts.file_system());
        assert_eq!(hashes.end - hashes.start, blocks * 32);
        assert_eq!(hashes.start, parts.total() - blocks.div_ceil(128) * BLOCK);
        for (metadata, total) in [
            (BLOCK, parts.total() + 1),
            (0, parts.total()),
            (BLOCK - 1, parts.total()),
            (parts.file_system() + BLOCK, parts.total()),
            (u64::MAX, parts.total()),
        ] {
            assert_eq!(Parts::of(metadata, total), None, "{metadata} {total}");
        }
    }
    assert_eq!(Parts::of(BLOCK, 0), None);
    // One more block of data would need another block of the tree.
    assert_eq!(Parts::of(BLOCK, 128 * BLOCK + verity::size(128) + BLOCK), None);
}

#[test]
fn a_block_matches_its_own_hash() {
    let (metadata, tree, _) = front();
    let parts = check(&metadata).unwrap().parts;
    let hashes = parts.hashes_of(0..parts.metadata);
    let hashes = &tree[(hashes.start - parts.file_system()) as usize..(hashes.end - parts.file_system()) as usize];
    assert!(super::blocks_match(hashes, &metadata));
    assert!(!super::blocks_match(&hashes[..hashes.len() - 32], &metadata));
    assert!(!super::blocks_match(&hashes[32..], &metadata[..metadata.len() - BLOCK as usize]));
    assert!(!super::blocks_match(hashes, &metadata[..100]));
}

/// A file that a layer may have, with a name and the number of its parent among the directories before it.
fn any_file() -> impl Strategy<Value = (u8, u8, Node)> {
    let content = prop_oneof![
        3 => Just(dir()),
        3 => (0u64..10_000).prop_map(file),
        2 => (4097u64..600_000, proptest::collection::vec(1u8..=31, 5))
            .prop_map(|(size, stored)| compressed(size, &stored)),
        1 => "[a-z/]{1,300}".prop_map(|target| link(&target)),
        1 => (1u32..).prop_map(|number| node(Content::CharDevice(number))),
        1 => Just(whiteout()),
        1 => Just(node(Content::Fifo)),
    ];
    (any::<u8>(), any::<u8>(), content, 0u32..0o10000, 0u32..100, any::<bool>()).prop_map(
        |(parent, name, mut node, mode, uid, xattr)| {
            let holds_data = node.is_dir() || matches!(node.content, Content::File { .. });
            if node.content != Content::CharDevice(0) {
                node.uid = uid;
                if !matches!(node.content, Content::Symlink(_)) {
                    node.mode = mode;
                }
                if xattr && holds_data {
                    node.xattrs = vec![(b"user.x".to_vec(), vec![b'v'; uid as usize])];
                }
            }
            (parent, name, node)
        },
    )
}

fn any_tree() -> impl Strategy<Value = Tree> {
    proptest::collection::vec(any_file(), 0..40).prop_map(|files| {
        let mut tree = Tree::new(dir());
        let mut dirs = vec![ROOT];
        for (parent, name, node) in files {
            let parent = dirs[parent as usize % dirs.len()];
            let name = vec![b'a' + name % 26; name as usize % 40 + 1];
            if tree.child(parent, &name).is_none() {
                let is_dir = node.is_dir();
                let id = tree.add(parent, &name, node).unwrap();
                if is_dir {
                    dirs.push(id);
                }
            }
        }
        tree
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_accepted(tree in any_tree()) {
        let checked = check(&metadata(&tree)).unwrap();
        prop_assert_eq!(checked.files, tree.len() as u64);
    }

    /// Reads of one image say which parts of files precede the others in another image of the layer. Reads of that one
    /// say the same.
    #[test]
    fn what_is_read_first_is_the_same_in_each_order(
        tree in any_tree(),
        reads in proptest::collection::vec((any::<prop::sample::Index>(), 1u64..40), 0..8),
    ) {
        let image = NativeImage::new(in_order(&tree).unwrap().0, UUID, &[]).unwrap();
        let metadata = metadata(&tree);
        let parts = image.parts();
        let data = (parts.data / BLOCK) as usize;
        let ranges: Vec<_> = reads.iter().filter(|_| data > 0).map(|(at, blocks)| {
            let start = parts.metadata + at.index(data) as u64 * BLOCK;
            start..(start + blocks * BLOCK).min(parts.file_system())
        }).collect();
        let (uuid, files) = files_read(&metadata, &ranges, &Limits::default()).unwrap();
        prop_assert_eq!(uuid, UUID);
        let ordered = in_order(&tree).unwrap().0;
        let found = find(&ordered, &files);
        prop_assert_eq!(found.len(), files.len());
        let first: Vec<Id> = found.iter().map(|(id, _)| *id).collect();
        let other = NativeImage::new(ordered, UUID, &first).unwrap();
        let order: Vec<Id> = other.extents().iter().map(|extent| extent.id).collect();
        prop_assert!(order.starts_with(&first));
        // Each read byte belongs to a part that is found again.
        let known = ranges_of(&image, &found);
        for range in &ranges {
            prop_assert!(known.iter().any(|known| known.start <= range.start && range.end <= known.end));
        }
        let mut bytes = Vec::new();
        other.write_metadata(&mut bytes).unwrap();
        let (_, again) = files_read(&bytes, &ranges_of(&other, &found), &Limits::default()).unwrap();
        prop_assert_eq!(again, files);
    }

    /// A changed image is refused, or it is what the files that it describes would be written as.
    #[test]
    fn changed_bytes_are_refused_or_another_image(
        tree in any_tree(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let before = metadata(&tree);
        let mut bytes = before.clone();
        // Most of the first block is zeros, so changes go behind its superblock mostly.
        for (at, value) in &changes {
            bytes[SUPER + at.index(before.len() - SUPER)] = *value;
        }
        let limits = Limits::default();
        if let Ok((image, _)) = super::check::check_all(&bytes, &limits) {
            let mut again = Vec::new();
            image.write_metadata(&mut again).unwrap();
            prop_assert!(again == bytes);
            prop_assert!(image.extents().iter().all(|extent| extent.offset >= bytes.len() as u64));
            prop_assert!(image.nodes().all(|node| rules::check_node(node, &limits).is_ok()));
        }
    }
}
