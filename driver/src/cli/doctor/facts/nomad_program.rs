//! What an executable file of Nomad tells about itself. The file is read and never executed.
//!
//! Two places of the file have the version:
//! - The variables that `nomad version` prints. The symbol table tells where they are; a stripped file has none.
//! - The version of the main module in Go's build information. A build of a checkout has none, or a pseudo-version,
//!   which is not Nomad's version.
//!
//! The format of the build information is that of Go 1.18 and newer. All supported versions of Nomad are built so.

use std::{
    io::{Read, Seek},
    str,
};

use elf::{
    ElfStream, abi,
    endian::{AnyEndian, EndianParse},
    file::Class,
    section::SectionHeader,
};

/// The main module of Nomad.
const MODULE: &str = "github.com/hashicorp/nomad";
/// The variables of the package `version`, and what stands before each in the text of the version.
const VARIABLES: [(&str, &str); 3] = [("Version", ""), ("VersionPrerelease", "-"), ("VersionMetadata", "+")];
/// A longer version is not one.
const LONGEST_VERSION: u64 = 64;

/// The section with Go's build information, and how its contents begin.
const SECTION: &str = ".go.buildinfo";
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// The byte with the flags, and the flag: the texts follow the header.
const FLAGS: usize = 15;
const INLINE: u8 = 2;
const HEADER: usize = 32;
/// The text of the modules has a mark of this length before and after it.
const MARK: usize = 16;

/// What is known of an executable file of Nomad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NomadProgram {
    /// The version, as in `1.11.3`; `None` if the file does not contain it.
    pub version: Option<String>,
}

/// Reads an executable file; `None` if it is not Nomad's.
pub fn read(file: impl Read + Seek) -> Option<NomadProgram> {
    let mut elf = ElfStream::<AnyEndian, _>::open_stream(file).ok()?;
    let section = *elf.section_header_by_name(SECTION).ok()??;
    let (contents, _) = elf.section_data(&section).ok()?;
    let (module, version) = main_module(contents)?;
    let of_module = release(&version);
    (module == MODULE).then(|| NomadProgram { version: variables(&mut elf).or(of_module) })
}

/// The path and the version of the main module, from the contents of the section.
fn main_module(section: &[u8]) -> Option<(String, String)> {
    if !section.starts_with(MAGIC) || section.get(FLAGS)? & INLINE == 0 {
        return None;
    }
    let (_toolchain, rest) = text(section.get(HEADER..)?)?;
    let (modules, _) = text(rest)?;
    let modules = str::from_utf8(modules.get(MARK..modules.len().checked_sub(MARK)?)?).ok()?;
    let mut fields = modules.lines().find_map(|line| line.strip_prefix("mod\t"))?.split('\t');
    Some((fields.next()?.to_owned(), fields.next().unwrap_or_default().to_owned()))
}

/// A text with its length before it, and what follows it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = number(bytes)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}

/// A number of seven bits in each byte, the lowest first (Go's `binary.Uvarint`), and what follows it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

/// The version in a module's version; `None` for `(devel)` and for pseudo-versions, which contain a time of 14 digits.
fn release(version: &str) -> Option<String> {
    let version = version.strip_prefix('v')?;
    let is_time = |part: &str| part.len() == 14 && part.bytes().all(|byte| byte.is_ascii_digit());
    (is_version(version) && !version.split(['.', '-', '+']).any(is_time)).then(|| version.to_owned())
}

fn is_version(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The version in the variables of the package `version`.
fn variables<S: Read + Seek>(elf: &mut ElfStream<AnyEndian, S>) -> Option<String> {
    if elf.ehdr.class != Class::ELF64 {
        return None;
    }
    let mut addresses = [None; VARIABLES.len()];
    let (symbols, names) = elf.symbol_table().ok()??;
    for symbol in symbols.iter().filter(|symbol| symbol.st_size == 16) {
        let name = names.get(symbol.st_name as usize).unwrap_or_default();
        let Some(name) = name.strip_prefix(MODULE).and_then(|name| name.strip_prefix("/version.")) else { continue };
        for (address, _) in addresses.iter_mut().zip(VARIABLES).filter(|(_, (variable, _))| *variable == name) {
            *address = Some(symbol.st_value);
        }
    }
    let mut version = String::new();
    for (address, (_, before)) in addresses.into_iter().zip(VARIABLES) {
        let value = string(elf, address?)?;
        if !value.is_empty() {
            version.push_str(before);
            version.push_str(&value);
        }
    }
    is_version(&version).then_some(version)
}

/// The value of a variable of the type `string`: the address and the length of its bytes.
fn string<S: Read + Seek>(elf: &mut ElfStream<AnyEndian, S>, variable: u64) -> Option<String> {
    let endianness = elf.ehdr.endianness;
    // The file has no bytes of a variable that is zero, as an empty text is.
    let Some(value) = memory(elf, variable, 16)? else { return Some(String::new()) };
    let offset = &mut 0;
    let address = endianness.parse_u64_at(offset, &value).ok()?;
    let length = endianness.parse_u64_at(offset, &value).ok()?;
    match length {
        0 => Some(String::new()),
        1..=LONGEST_VERSION => String::from_utf8(memory(elf, address, length)??).ok(),
        _ => None,
    }
}

/// The bytes at an address when the program starts; `None` inside if they are zeros that the file does not contain.
fn memory<S: Read + Seek>(elf: &mut ElfStream<AnyEndian, S>, address: u64, length: u64) -> Option<Option<Vec<u8>>> {
    let end = address.checked_add(length)?;
    let holds = |section: &&SectionHeader| {
        section.sh_flags & u64::from(abi::SHF_ALLOC) != 0
            && section.sh_addr <= address
            && section.sh_addr.checked_add(section.sh_size).is_some_and(|last| end <= last)
    };
    let section = *elf.section_headers().iter().find(holds)?;
    if section.sh_type == abi::SHT_NOBITS {
        return Some(None);
    }
    // Only these bytes are read: a section can have many megabytes.
    let sh_offset = section.sh_offset.checked_add(address - section.sh_addr)?;
    let part = SectionHeader { sh_offset, sh_size: length, ..section };
    Some(Some(elf.section_data(&part).ok()?.0.to_vec()))
}

#[cfg(test)]
pub mod tests {
    use std::{fs::File, io::Cursor};

    use proptest::prelude::*;

    use super::{NomadProgram, main_module, read, release};

    /// The section of a program with this main module.
    fn build_info(module: &str, version: &str) -> Vec<u8> {
        let mut section = b"\xff Go buildinf:\x08\x02".to_vec();
        section.resize(32, 0);
        let modules = format!("path\tx\nmod\t{module}\t{version}\th1:sum=\ndep\tgithub.com/x\tv1.0.0\th1:y=\n");
        let modules = [&[b'<'; 16], modules.as_bytes(), &[b'>'; 16]].concat();
        for text in [b"go1.26.1".as_slice(), &modules] {
            let mut length = text.len();
            while length >= 0x80 {
                section.push(length as u8 | 0x80);
                length >>= 7;
            }
            section.push(length as u8);
            section.extend(text);
        }
        section
    }

    /// Name, type, flags (2 is in memory), address, contents, the linked section, the size of an entry.
    type Section = (u32, u32, u64, u64, Vec<u8>, u32, u64);

    /// An executable file with this main module and these variables of the package `version`. An empty variable is in
    /// the section without contents.
    pub fn program(module: &str, version: &str, variables: &[(&str, &str)]) -> Vec<u8> {
        const DATA: u64 = 0x10_000;
        const TEXTS: u64 = 0x20_000;
        const ZEROS: u64 = 0x30_000;
        let (mut data, mut texts, mut symbols, mut names) = (Vec::new(), Vec::new(), vec![0; 24], vec![0]);
        for (index, (name, value)) in variables.iter().enumerate() {
            let address = if value.is_empty() { ZEROS + 16 * index as u64 } else { DATA + data.len() as u64 };
            symbols.extend((names.len() as u32).to_le_bytes());
            symbols.extend([1, 0, 1, 0]);
            symbols.extend([address.to_le_bytes(), 16_u64.to_le_bytes()].concat());
            names.extend(format!("github.com/hashicorp/nomad/version.{name}\0").bytes());
            if !value.is_empty() {
                data.extend([TEXTS + texts.len() as u64, value.len() as u64].map(u64::to_le_bytes).concat());
                texts.extend(value.bytes());
            }
        }
        let section_names = b"\0.go.buildinfo\0.data\0.rodata\0.bss\0.symtab\0.strtab\0.shstrtab\0".to_vec();
        let sections: [Section; 8] = [
            (0, 0, 0, 0, Vec::new(), 0, 0),
            (1, 1, 2, 0x1000, build_info(module, version), 0, 0),
            (15, 1, 2, DATA, data, 0, 0),
            (21, 1, 2, TEXTS, texts, 0, 0),
            (29, 8, 2, ZEROS, vec![0; 64], 0, 0),
            (34, 2, 0, 0, symbols, 6, 24),
            (42, 3, 0, 0, names, 0, 0),
            (50, 3, 0, 0, section_names, 0, 0),
        ];
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        let mut headers = Vec::new();
        for (name, kind, flags, address, contents, link, entry) in &sections {
            headers.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
            headers.extend([*flags, *address, file.len() as u64, contents.len() as u64].map(u64::to_le_bytes).concat());
            headers.extend([link.to_le_bytes(), [0; 4]].concat());
            headers.extend([1_u64.to_le_bytes(), entry.to_le_bytes()].concat());
            if *kind != 8 {
                file.extend(contents);
            }
        }
        // The kind of the file and its machine, and where the headers of its sections are.
        file[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        let at = (file.len() as u64).to_le_bytes();
        file[40..48].copy_from_slice(&at);
        file[52..64].copy_from_slice(&[64, 0, 56, 0, 0, 0, 64, 0, 8, 0, 7, 0]);
        file.extend(headers);
        file
    }

    const NOMAD: &str = "github.com/hashicorp/nomad";

    fn version_of(file: Vec<u8>) -> Option<Option<String>> {
        read(Cursor::new(file)).map(|NomadProgram { version }| version)
    }

    #[test]
    fn the_version_is_that_of_the_variables_or_of_the_module() {
        let all = |version, prerelease, metadata| {
            vec![("Version", version), ("VersionPrerelease", prerelease), ("VersionMetadata", metadata)]
        };
        for (module, variables, expected) in [
            ("v1.11.3", vec![], Some("1.11.3")),
            ("v1.11.3+dirty", vec![], Some("1.11.3+dirty")),
            ("v1.11.0-beta.1", vec![], Some("1.11.0-beta.1")),
            ("(devel)", vec![], None),
            ("v0.0.0-20260211190147-f876384fe3ab", vec![], None),
            ("v1.11.4-0.20260211190147-f876384fe3ab", vec![], None),
            ("v1.11.4-0.20260211190147-f876384fe3ab+dirty", vec![], None),
            ("", vec![], None),
            ("(devel)", all("1.8.3", "", ""), Some("1.8.3")),
            ("(devel)", all("1.8.3", "dev", "ent"), Some("1.8.3-dev+ent")),
            ("v1.8.2", all("1.8.3", "", "ent"), Some("1.8.3+ent")),
            // One of them is missing, and none of them is a version.
            ("v1.8.2", vec![("Version", "1.8.3")], Some("1.8.2")),
            ("(devel)", all("what", "", ""), None),
            ("(devel)", all("", "", ""), None),
            ("(devel)", all(&"1".repeat(65), "", ""), None),
            ("(devel)", all("1.8.3\u{1b}[2J", "", ""), None),
        ] {
            let found = version_of(program(NOMAD, module, &variables));
            assert_eq!(found, Some(expected.map(str::to_owned)), "{module} {variables:?}");
        }
        assert_eq!(release("1.2.3"), None);
    }

    #[test]
    fn other_files_are_not_nomads() {
        for file in [
            Vec::new(),
            b"#!/bin/sh\nexec sleep 1\n".to_vec(),
            program("github.com/hashicorp/nomad/x", "v1.11.3", &[]),
            program("example.com/nomad", "v1.11.3", &[("Version", "1.11.3")]),
        ] {
            assert_eq!(version_of(file), None);
        }
        assert_eq!(read(File::open("/proc/self/exe").unwrap()), None);
    }

    proptest! {
        #[test]
        fn damaged_files_are_read_without_a_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            length in any::<prop::sample::Index>(),
            is_cut: bool,
        ) {
            let variables = [("Version", "1.8.3"), ("VersionPrerelease", ""), ("VersionMetadata", "ent")];
            let mut file = program(NOMAD, "(devel)", &variables);
            for (place, byte) in changes {
                let place = place.index(file.len());
                file[place] = byte;
            }
            if is_cut {
                file.truncate(length.index(file.len()));
            }
            if let Some(Some(version)) = version_of(file) {
                prop_assert!(version.len() <= 200 && version.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }

        #[test]
        fn damaged_build_information_is_read_without_a_panic(
            mut section in prop::collection::vec(any::<u8>(), 0..200),
            is_go: bool,
        ) {
            if is_go {
                section.splice(..0, b"\xff Go buildinf:\x08\x02................".iter().copied());
            }
            main_module(&section);
        }
    }
}
