//! Doing the start-up relocation of an executable in its file.
//!
//! A position-independent static executable rewrites every pointer of its tables when it starts. Each rewritten page
//! becomes private memory of the process: half a megabyte in every monitor. If the relocation is done once in the file,
//! for one random base, all processes that are started from the file share these pages. The base is drawn from the
//! range that the kernel uses (from `ELF_ET_DYN_BASE` on, 2^28 pages), so addresses stay hard to guess. It is a
//! multiple of a huge page, as the kernel's is for an executable with segments of that alignment: one of 2^19. But the
//! processes of one plugin have the same base. The kernel still places stack, heap and mappings at random, per process.
//!
//! Only one kind of file is changed: 64-bit little-endian ELF with relocations of the kind RELATIVE only. Every other
//! file stays unchanged and relocates itself when it starts. Names are those of the ELF specification (gABI, chapters 4
//! and 5, and the processor supplements).

use std::ops::Range;

use crate::sys::HUGE_PAGE;

/// The kernel's range for position-independent executables, on machines with 47 bits of user addresses and 28 random
/// bits of pages (`vm.mmap_rnd_bits`).
const BASES: Range<u64> = 0x5555_5555_4000..0x5655_5555_4000;

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_GNU_STACK: u32 = 0x6474_e551;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_REL: u64 = 17;
const DT_JMPREL: u64 = 23;
const DT_RELR: u64 = 36;
const EHDR_SIZE: usize = 64;
const PHDR_SIZE: usize = 56;
const RELA_SIZE: usize = 24;

/// The relocation "base plus addend" of a machine, by `e_machine`.
fn relative(machine: u16) -> Option<u64> {
    match machine {
        62 => Some(8),     // EM_X86_64, R_X86_64_RELATIVE
        183 => Some(1027), // EM_AARCH64, R_AARCH64_RELATIVE
        _ => None,
    }
}

/// Bytes that replace the same number of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Offset in the file.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// ReadAt of an executable.
pub(crate) trait ReadAt {
    /// `length` bytes from `offset` on; `None` if the file has fewer.
    fn part(&self, offset: u64, length: usize) -> Option<Vec<u8>>;
}

/// The base of an executable for a random number: a multiple of a huge page, so that the kernel can map huge pages of
/// the executable.
pub(crate) fn base(random: u64) -> u64 {
    let first = BASES.start.next_multiple_of(HUGE_PAGE);
    first + random % ((BASES.end - first) / HUGE_PAGE) * HUGE_PAGE
}

/// The changes after which an executable is loaded at `base` and does not relocate itself; `None` if it is of another
/// kind.
pub(crate) fn prelink(file: &impl ReadAt, base: u64) -> Option<Vec<Patch>> {
    let mut header = file.part(0, EHDR_SIZE)?;
    // ELFCLASS64, ELFDATA2LSB, EV_CURRENT.
    if !header.starts_with(b"\x7fELF\x02\x01\x01") || u16_at(&header, 16)? != ET_DYN {
        return None;
    }
    let relative = relative(u16_at(&header, 18)?)?;
    let (offset, size, count) = (u64_at(&header, 32)?, u16_at(&header, 54)?, u16_at(&header, 56)?);
    if usize::from(size) != PHDR_SIZE {
        return None;
    }
    let mut programs = file.part(offset, PHDR_SIZE * usize::from(count))?;
    let segments = segments(&programs)?;
    if segments.iter().any(|one| one.kind == PT_INTERP || one.kind == PT_LOAD && !base.is_multiple_of(one.align.max(1)))
    {
        return None;
    }
    let table = relocations(file, &segments)?;
    let mut patches = relocate(file, &segments, &table, relative, base)?;
    // The table of relocations is now empty.
    patches.push(Patch { offset: table.size_at, bytes: 0u64.to_le_bytes().to_vec() });

    header[16..18].copy_from_slice(&ET_EXEC.to_le_bytes());
    add(&mut header, 24, base)?;
    patches.push(Patch { offset: 0, bytes: header });
    for program in programs.chunks_exact_mut(PHDR_SIZE).filter(|program| u32_at(program, 0) != Some(PT_GNU_STACK)) {
        add(program, 16, base)?;
        add(program, 24, base)?;
    }
    patches.push(Patch { offset, bytes: programs });
    Some(patches)
}

struct Segment {
    kind: u32,
    file: Range<u64>,
    address: u64,
    align: u64,
}

impl Segment {
    /// The offset in the file of the bytes at an address.
    fn offset_of(&self, address: u64, length: u64) -> Option<u64> {
        let offset = self.file.start.checked_add(address.checked_sub(self.address)?)?;
        (self.kind == PT_LOAD && offset.checked_add(length)? <= self.file.end).then_some(offset)
    }
}

fn segments(programs: &[u8]) -> Option<Vec<Segment>> {
    let segment = |program: &[u8]| {
        let offset = u64_at(program, 8)?;
        Some(Segment {
            kind: u32_at(program, 0)?,
            file: offset..offset.checked_add(u64_at(program, 32)?)?,
            address: u64_at(program, 16)?,
            align: u64_at(program, 48)?,
        })
    };
    programs.chunks_exact(PHDR_SIZE).map(segment).collect()
}

fn offset_of(segments: &[Segment], address: u64, length: u64) -> Option<u64> {
    segments.iter().find_map(|segment| segment.offset_of(address, length))
}

/// The table of relocations.
struct Table {
    address: u64,
    size: u64,
    /// Offset of the size in the file.
    size_at: u64,
}

fn relocations(file: &impl ReadAt, segments: &[Segment]) -> Option<Table> {
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let length = usize::try_from(dynamic.file.end - dynamic.file.start).ok()?;
    let entries = file.part(dynamic.file.start, length)?;
    let (mut address, mut size) = (None, None);
    for (index, entry) in entries.chunks_exact(16).enumerate() {
        let value = u64_at(entry, 8)?;
        match u64_at(entry, 0)? {
            DT_NULL => break,
            DT_RELA => address = Some(value),
            DT_RELASZ => size = Some((value, dynamic.file.start + 16 * index as u64 + 8)),
            DT_RELAENT if value == RELA_SIZE as u64 => {}
            // Other forms of relocation, or libraries.
            DT_RELAENT | DT_NEEDED | DT_REL | DT_JMPREL | DT_RELR => return None,
            _ => {}
        }
    }
    let (size, size_at) = size?;
    Some(Table { address: address?, size, size_at })
}

/// The segments with every relocation done: one patch for each segment that has one.
fn relocate(file: &impl ReadAt, segments: &[Segment], table: &Table, relative: u64, base: u64) -> Option<Vec<Patch>> {
    let entries = file.part(offset_of(segments, table.address, table.size)?, usize::try_from(table.size).ok()?)?;
    let mut patches: Vec<Option<Patch>> = segments.iter().map(|_| None).collect();
    for entry in entries.chunks_exact(RELA_SIZE) {
        let (target, addend) = (u64_at(entry, 0)?, u64_at(entry, 16)?);
        if u64_at(entry, 8)? != relative {
            return None;
        }
        let index = segments.iter().position(|segment| segment.offset_of(target, 8).is_some())?;
        let segment = segments.get(index)?;
        let patch = match patches.get_mut(index)? {
            Some(patch) => patch,
            empty => {
                let length = usize::try_from(segment.file.end - segment.file.start).ok()?;
                empty.insert(Patch { offset: segment.file.start, bytes: file.part(segment.file.start, length)? })
            }
        };
        let place = usize::try_from(segment.offset_of(target, 8)? - patch.offset).ok()?;
        patch.bytes.get_mut(place..place + 8)?.copy_from_slice(&addend.wrapping_add(base).to_le_bytes());
    }
    Some(patches.into_iter().flatten().collect())
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

fn add(bytes: &mut [u8], offset: usize, number: u64) -> Option<()> {
    let sum = u64_at(bytes, offset)?.wrapping_add(number);
    bytes.get_mut(offset..offset + 8)?.copy_from_slice(&sum.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ReadAt for Vec<u8> {
        fn part(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
            let offset = usize::try_from(offset).ok()?;
            Some(self.get(offset..offset.checked_add(length)?)?.to_vec())
        }
    }

    const TABLE: u64 = 64 + 3 * PHDR_SIZE as u64;
    const DYNAMIC: u64 = TABLE + RELA_SIZE as u64;
    const POINTER: u64 = DYNAMIC + 4 * 16;
    const END: u64 = POINTER + 8;
    /// Addresses are this much above offsets.
    const SHIFT: u64 = 0x1000;

    fn executable(relocation: u64) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([ET_DYN.to_le_bytes(), 62u16.to_le_bytes()].concat());
        file.extend(1u32.to_le_bytes());
        file.extend([0x1234, 64, 0].map(u64::to_le_bytes).concat());
        file.extend(0u32.to_le_bytes());
        file.extend([64, PHDR_SIZE as u16, 3, 0, 0, 0].map(u16::to_le_bytes).concat());
        for (kind, offset, size) in [(PT_LOAD, 0, END), (PT_DYNAMIC, DYNAMIC, 64), (PT_GNU_STACK, 0, 0)] {
            file.extend(kind.to_le_bytes());
            file.extend(6u32.to_le_bytes());
            let address = if kind == PT_GNU_STACK { 0 } else { offset + SHIFT };
            file.extend([offset, address, address, size, size, 0x1000].map(u64::to_le_bytes).concat());
        }
        file.extend([POINTER + SHIFT, relocation, 0x77].map(u64::to_le_bytes).concat());
        let dynamic = [DT_RELA, TABLE + SHIFT, DT_RELASZ, 24, DT_RELAENT, 24, DT_NULL, 0];
        file.extend(dynamic.map(u64::to_le_bytes).concat());
        file.extend(u64::MAX.to_le_bytes());
        assert_eq!(file.len() as u64, END);
        file
    }

    fn patched(mut file: Vec<u8>, patches: &[Patch]) -> Vec<u8> {
        for Patch { offset, bytes } in patches {
            let start = *offset as usize;
            file[start..start + bytes.len()].copy_from_slice(bytes);
        }
        file
    }

    #[test]
    fn addresses_move_to_the_base_and_no_relocation_is_left() {
        let file = executable(8);
        let base = base(7);
        let patches = prelink(&file, base).expect("patches");
        // Patches of whole segments come first, so that they do not undo the others.
        let done = patched(file.clone(), &patches);
        assert_eq!(u16_at(&done, 16), Some(ET_EXEC));
        assert_eq!(u64_at(&done, 24), Some(base + 0x1234), "entry");
        assert_eq!(u64_at(&done, POINTER as usize), Some(base + 0x77));
        assert_eq!(u64_at(&done, DYNAMIC as usize + 24), Some(0), "size of the table");
        let program = |index: usize, field: usize| u64_at(&done, 64 + index * PHDR_SIZE + field);
        assert_eq!((program(0, 16), program(0, 24)), (Some(base + SHIFT), Some(base + SHIFT)));
        assert_eq!(program(1, 16), Some(base + DYNAMIC + SHIFT));
        assert_eq!(program(2, 16), Some(0), "the stack has no address");
        assert_eq!(done.len(), file.len());
    }

    #[test]
    fn a_file_of_another_kind_is_not_changed() {
        let with = |offset: usize, bytes: &[u8]| {
            let mut file = executable(8);
            file[offset..offset + bytes.len()].copy_from_slice(bytes);
            file
        };
        let dynamic = DYNAMIC as usize;
        for (what, file) in [
            ("not ELF", with(0, b"#!/b")),
            ("32 bits", with(4, b"\x01")),
            ("not position-independent", with(16, &ET_EXEC.to_le_bytes())),
            ("another machine", with(18, &3u16.to_le_bytes())),
            ("another relocation", executable(6)),
            ("needs a library", with(dynamic + 32, &DT_NEEDED.to_le_bytes())),
            ("packed relocations", with(dynamic + 32, &DT_RELR.to_le_bytes())),
            ("an interpreter", with(64 + 2 * PHDR_SIZE, &PT_INTERP.to_le_bytes())),
            ("a table outside", with(dynamic + 8, &u64::MAX.to_le_bytes())),
            ("a target outside", with(TABLE as usize, &u64::MAX.to_le_bytes())),
            ("a huge table", with(dynamic + 24, &u64::MAX.to_le_bytes())),
            ("an alignment that the base does not have", with(64 + 48, &(1u64 << 40).to_le_bytes())),
        ] {
            assert_eq!(prelink(&file, base(1)), None, "{what}");
        }
        for length in 0..END as usize {
            assert_eq!(prelink(&executable(8)[..length].to_vec(), base(1)), None, "cut at {length}");
        }
    }

    #[test]
    fn bases_are_in_the_range_of_the_kernel() {
        for random in [0, 1, 7, 1 << 19, u64::MAX] {
            let base = base(random);
            assert!(BASES.contains(&base) && base.is_multiple_of(HUGE_PAGE), "{random}: {base:#x}");
        }
        assert_ne!(base(0), base(1));
    }
}
