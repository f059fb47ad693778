//! The index of a tar: which member lies where.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read},
    rc::Rc,
};

use layer::{EntryKind, TarReader, UnpackError, buffers};

use crate::{error::PullError, limits::Limits};

/// A link may lead to another link this many times.
const MAX_LINKS: usize = 8;
/// Bytes of the name of one member.
const MAX_NAME: usize = 4096;
/// Bytes of all names and link targets.
const MAX_NAMES: usize = 64 << 20;

/// One member of a tar.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Member {
    File {
        offset: u64,
        size: u64,
    },
    /// A link to the member of this name.
    Link(String),
}

/// Counts the consumed bytes.
struct Counted<R> {
    inner: R,
    position: Rc<Cell<u64>>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.position.set(self.position.get() + length as u64);
        Ok(length)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, length: usize) {
        self.inner.consume(length);
        self.position.set(self.position.get() + length as u64);
    }
}

/// The members of a tar, by name. Every name is relative, without `..`, and occurs once.
pub(super) fn index(name: &str, tar: impl Read, limits: &Limits) -> Result<BTreeMap<String, Member>, PullError> {
    let refused = |error: UnpackError| PullError::malformed(name, describe(error));
    let position = Rc::new(Cell::new(0));
    let inner = BufReader::with_capacity(buffers::SIZE, tar);
    let mut archive = TarReader::new(Counted { inner, position: Rc::clone(&position) });
    let mut members = BTreeMap::new();
    let (mut count, mut names) = (0u64, 0usize);
    while let Some(entry) = archive.next_entry().map_err(refused)? {
        count += 1;
        if count > limits.entries {
            return Err(PullError::TooLarge {
                what: format!("{name}: the number of members"),
                limit: limits.entries.to_string(),
            });
        }
        let problem = |text: &str| {
            let member: String = String::from_utf8_lossy(&entry.name).chars().take(200).collect();
            PullError::malformed(name, format!("member {member:?} {text}"))
        };
        let Some(path) = normalize(&entry.name).map_err(problem)? else { continue };
        let member = match entry.kind {
            EntryKind::Dir => continue,
            EntryKind::File if entry.sparse.is_none() => Member::File { offset: position.get(), size: entry.size },
            EntryKind::HardLink => Member::Link(normalize(&entry.link).map_err(problem)?.unwrap_or_default()),
            EntryKind::Symlink => Member::Link(link_target(&path, &entry.link).map_err(problem)?),
            _ => return Err(problem("is neither a file nor a directory nor a link")),
        };
        names += path.len() + if let Member::Link(target) = &member { target.len() } else { 0 };
        if names > MAX_NAMES {
            return Err(PullError::TooLarge {
                what: format!("{name}: the length of all names"),
                limit: format!("{MAX_NAMES} bytes"),
            });
        }
        if members.insert(path, member).is_some() {
            return Err(problem("is there twice"));
        }
    }
    Ok(members)
}

fn describe(error: UnpackError) -> String {
    match error {
        UnpackError::Refused { entry: Some(entry), problem } => format!("member \"{entry}\": {problem}"),
        UnpackError::Refused { entry: None, problem } => format!("no image archive: {problem}"),
        UnpackError::Disk { source, .. } => source.to_string(),
        UnpackError::Aborted => "reading it was cancelled".to_owned(),
    }
}

/// The offset and the size of a member, through links.
pub(super) fn find(members: &BTreeMap<String, Member>, name: &str) -> Option<(u64, u64)> {
    let mut name = name;
    for _ in 0..=MAX_LINKS {
        match members.get(name)? {
            Member::File { offset, size } => return Some((*offset, *size)),
            Member::Link(target) => name = target,
        }
    }
    None
}

/// The normalized name of a member; `None` is the root of the archive. Pure.
pub(super) fn normalize(name: &[u8]) -> Result<Option<String>, &'static str> {
    if name.len() > MAX_NAME {
        return Err("has a name that is too long");
    }
    let text = std::str::from_utf8(name).map_err(|_| "has a name that is not UTF-8")?;
    if text.starts_with('/') {
        return Err("has an absolute name");
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err("has .. in its name");
    }
    Ok((!parts.is_empty()).then(|| parts.join("/")))
}

/// The target of a symbolic link at `path`. Pure.
fn link_target(path: &str, target: &[u8]) -> Result<String, &'static str> {
    const OUT: &str = "is a link that leads out of the archive";
    if target.len() > MAX_NAME {
        return Err("is a link to a name that is too long");
    }
    let target = std::str::from_utf8(target).map_err(|_| "is a link to a name that is not UTF-8")?;
    if target.starts_with('/') {
        return Err(OUT);
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or(OUT)?),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_one_form() {
        for (name, expected) in [
            ("a/b", Ok(Some("a/b"))),
            ("./a//b/", Ok(Some("a/b"))),
            ("./", Ok(None)),
            ("/a", Err("has an absolute name")),
            ("a/../b", Err("has .. in its name")),
        ] {
            assert_eq!(normalize(name.as_bytes()), expected.map(|name| name.map(str::to_owned)), "{name}");
        }
    }

    #[test]
    fn links_stay_inside() {
        assert_eq!(link_target("id/layer.tar", b"../other/layer.tar").as_deref(), Ok("other/layer.tar"));
        assert_eq!(link_target("a", b"./b").as_deref(), Ok("b"));
        for (path, target) in [("a", "../b"), ("a/b", "../../c"), ("a", "/etc/passwd")] {
            assert!(link_target(path, target.as_bytes()).unwrap_err().contains("leads out"), "{target}");
        }
    }

    #[test]
    fn cycles_of_links_end() {
        let link = |to: &str| Member::Link(to.to_owned());
        let members = BTreeMap::from([
            ("a".to_owned(), link("b")),
            ("b".to_owned(), link("a")),
            ("c".to_owned(), link("d")),
            ("d".to_owned(), Member::File { offset: 1, size: 2 }),
        ]);
        assert_eq!((find(&members, "a"), find(&members, "c"), find(&members, "x")), (None, Some((1, 2)), None));
    }

    proptest! {
        #[test]
        fn no_name_and_no_link_leaves_the_archive(name in "[a./]{0,12}", target in "[a./]{0,12}") {
            for path in normalize(name.as_bytes()).ok().flatten().into_iter().flat_map(|path| {
                let link = link_target(&path, target.as_bytes()).ok();
                [Some(path), link]
            }).flatten() {
                prop_assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."));
            }
        }
    }
}
