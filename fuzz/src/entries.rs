//! Bytes → a well-formed archive whose entries collide: few names, many kinds, links to everywhere.

/// One entry of the archive.
#[derive(Debug)]
pub(crate) struct GeneratedEntry {
    pub(crate) kind: u8,
    pub(crate) name: String,
    pub(crate) link: String,
    pub(crate) mode: u32,
    pub(crate) size: usize,
    /// A PAX header with an extended attribute precedes it.
    pub(crate) attribute: bool,
}

const NAMES: [&str; 12] = ["a", "b", "c", "a", "b", ".wh.a", ".wh.b", ".wh..wh..opq", "..", ".", "", "long-name"];
const KINDS: &[u8] = b"0055511223604g7";

/// Two bytes → a name of one to three parts.
fn path(byte: u8, next: u8) -> String {
    let (first, second) = (usize::from(byte & 15), usize::from(byte >> 4));
    let mut parts = vec![NAMES[first % 12]];
    if second != 0 {
        parts.push(NAMES[second % 12]);
    }
    if next & 1 == 1 {
        parts.push(NAMES[usize::from(next >> 1) % 12]);
    }
    parts.join("/")
}

/// Six bytes make one entry. Returns the archive and its entries.
pub(crate) fn decode(bytes: &[u8]) -> (Vec<u8>, Vec<GeneratedEntry>) {
    let entries: Vec<GeneratedEntry> = bytes.chunks_exact(6).map(entry).collect();
    let mut archive = Vec::new();
    for entry in &entries {
        if entry.attribute {
            let record = b"25 SCHILY.xattr.user.a=1\n";
            let header = GeneratedEntry {
                kind: b'x',
                name: "pax".into(),
                link: String::new(),
                mode: 0,
                size: 0,
                attribute: false,
            };
            push(&mut archive, &header, record);
        }
        push(&mut archive, entry, &vec![b'x'; entry.size]);
    }
    archive.extend([0; 1024]);
    (archive, entries)
}

fn entry(chunk: &[u8]) -> GeneratedEntry {
    let kind = KINDS[usize::from(chunk[0] & 0x7f) % KINDS.len()];
    let link = match chunk[3] % 8 {
        0 => format!("/{}", path(chunk[4], chunk[5])),
        1 => format!("../../{}", path(chunk[4], chunk[5])),
        2 => "/canary".to_owned(),
        3 => "../canary".to_owned(),
        4 => "/".to_owned(),
        _ => path(chunk[4], chunk[5]),
    };
    GeneratedEntry {
        kind,
        name: path(chunk[1], chunk[2]),
        link,
        mode: (0o4755 ^ u32::from(chunk[5]) << 2) & 0o7777,
        size: if kind == b'0' { usize::from(chunk[4] & 3) } else { 0 },
        attribute: chunk[0] & 0x80 != 0,
    }
}

fn push(archive: &mut Vec<u8>, entry: &GeneratedEntry, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    let old = header.as_old_mut();
    old.linkflag = [entry.kind];
    old.name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
    old.linkname[..entry.link.len()].copy_from_slice(entry.link.as_bytes());
    header.set_mode(entry.mode);
    header.set_uid(u64::from(entry.mode >> 2 & 1));
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(data.len() as u64);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(data);
    archive.resize(archive.len().next_multiple_of(512), 0);
}
