//! Extended attributes that the kernel checks or changes when they are set.
//!
//! An EROFS image is written as a whole, so the kernel sets no attribute in it. This module does what the kernel would
//! do for ACLs (acl(5); `posix_acl_valid` and `posix_acl_update_mode` of Linux) and capabilities (`cap_convert_nscap`).

/// The tags of an access list's entries.
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// What the kernel does with an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is set.
    Set,
    /// It is set, and the file's permissions become these.
    SetWithMode(u32),
    /// It is not set. It says no more than these permissions, which the file gets, or it is empty.
    OnlyMode(Option<u32>),
    /// The kernel does not know this version of it.
    Unknown,
    /// The kernel refuses it.
    Invalid,
}

/// What the kernel would do with this attribute.
pub(super) fn outcome(key: &[u8], value: &[u8]) -> Outcome {
    match key {
        b"system.posix_acl_access" => access_list(value),
        b"system.posix_acl_default" => match access_list(value) {
            // It applies to new files in the directory, not to the directory.
            Outcome::SetWithMode(_) | Outcome::OnlyMode(Some(_)) => Outcome::Set,
            outcome => outcome,
        },
        b"security.capability" => capability(value),
        _ => Outcome::Set,
    }
}

/// The value of an attribute after the file's permissions were changed: an access list has them too
/// (`__posix_acl_chmod_masq` of Linux).
pub(super) fn after_chmod(key: &[u8], value: &[u8], mode: u32) -> Vec<u8> {
    let mut value = value.to_vec();
    let Some((_, entries)) = value.split_first_chunk_mut::<4>().filter(|_| key == b"system.posix_acl_access") else {
        return value;
    };
    let (entries, _) = entries.as_chunks_mut::<8>();
    let tag = |entry: &[u8; 8]| u16::from_le_bytes([entry[0], entry[1]]);
    let masked = entries.iter().any(|entry| tag(entry) == MASK);
    for entry in entries {
        let bits = match tag(entry) {
            USER_OBJ => mode >> 6,
            GROUP_OBJ if !masked => mode >> 3,
            MASK => mode >> 3,
            OTHER => mode,
            _ => continue,
        };
        entry[2] = (bits & 7) as u8;
    }
    value
}

/// linux/capability.h: revision 2 has 20 bytes, revision 3 the root of a user namespace behind them.
fn capability(value: &[u8]) -> Outcome {
    let revision = value.first_chunk().map(|magic| u32::from_le_bytes(*magic) & 0xff00_0000);
    match (revision, value.len()) {
        (Some(0x0200_0000), 20) | (Some(0x0300_0000), 24) => Outcome::Set,
        _ => Outcome::Invalid,
    }
}

/// linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry, in the order of their tags.
fn access_list(value: &[u8]) -> Outcome {
    const VERSION: u32 = 2;
    // Without a value the kernel removes the list.
    if value.is_empty() {
        return Outcome::OnlyMode(None);
    }
    let Some((version, entries)) = value.split_first_chunk() else { return Outcome::Invalid };
    if u32::from_le_bytes(*version) != VERSION {
        return Outcome::Unknown;
    }
    let (entries, rest) = entries.as_chunks::<8>();
    if !rest.is_empty() {
        return Outcome::Invalid;
    }
    if entries.is_empty() {
        return Outcome::OnlyMode(None);
    }
    permissions(entries).map_or(Outcome::Invalid, |(mode, more)| match more {
        true => Outcome::SetWithMode(mode),
        false => Outcome::OnlyMode(Some(mode)),
    })
}

/// The permissions that a valid list stands for, and whether it says more than they do.
fn permissions(entries: &[[u8; 8]]) -> Option<(u32, bool)> {
    let (mut last, mut mode, mut named, mut masked) = (0, 0, false, false);
    for entry in entries {
        let [tag, permission] = [[entry[0], entry[1]], [entry[2], entry[3]]].map(u16::from_le_bytes);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let permission = u32::from(permission);
        if permission > 7 {
            return None;
        }
        let follows = match tag {
            USER_OBJ => last == 0,
            USER => last == USER_OBJ || last == USER,
            GROUP_OBJ => last == USER_OBJ || last == USER,
            GROUP => last == GROUP_OBJ || last == GROUP,
            MASK => last == GROUP_OBJ || last == GROUP,
            // Named users and groups need a mask.
            OTHER => last == MASK || !named && last == GROUP_OBJ,
            _ => false,
        };
        if !follows {
            return None;
        }
        match tag {
            USER_OBJ => mode |= permission << 6,
            GROUP_OBJ => mode |= permission << 3,
            OTHER => mode |= permission,
            MASK => {
                mode = mode & !0o070 | permission << 3;
                masked = true;
            }
            _ if id == u32::MAX => return None,
            _ => named = true,
        }
        last = tag;
    }
    (last == OTHER).then_some((mode, named || masked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, permission, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &permission.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [&2u32.to_le_bytes()[..], &entries.iter().flat_map(entry).collect::<Vec<_>>()].concat()
    }

    #[test]
    fn lists_as_the_kernel_takes_them() {
        const NONE: u32 = u32::MAX;
        let minimal = [(1, 6, NONE), (4, 4, NONE), (0x20, 0, NONE)];
        let named = [(1, 7, NONE), (2, 5, 33), (4, 7, NONE), (8, 1, 5), (0x10, 4, NONE), (0x20, 1, NONE)];
        let masked = [(1, 6, NONE), (4, 4, NONE), (0x10, 6, NONE), (0x20, 0, NONE)];
        for (entries, expected) in [
            (&minimal[..], Outcome::OnlyMode(Some(0o640))),
            (&named, Outcome::SetWithMode(0o741)),
            (&masked, Outcome::SetWithMode(0o660)),
            (&[], Outcome::OnlyMode(None)),
            (&minimal[..2], Outcome::Invalid),
            (&minimal[1..], Outcome::Invalid),
            (&[minimal[0], minimal[0], minimal[1], minimal[2]], Outcome::Invalid),
            (&[named[0], named[1], named[2], named[5]], Outcome::Invalid),
            (&[named[0], (2, 5, NONE), named[2], named[4], named[5]], Outcome::Invalid),
            (&[(1, 8, NONE), minimal[1], minimal[2]], Outcome::Invalid),
            (&[(3, 0, NONE)], Outcome::Invalid),
            (&[minimal[0], minimal[1], minimal[2], minimal[2]], Outcome::Invalid),
        ] {
            assert_eq!(outcome(b"system.posix_acl_access", &list(entries)), expected, "{entries:?}");
        }
        let default = |value: &[u8]| outcome(b"system.posix_acl_default", value);
        assert_eq!(default(&list(&named)), Outcome::Set);
        assert_eq!(default(&list(&minimal)), Outcome::Set);
        assert_eq!(default(&list(&[])), Outcome::OnlyMode(None));
        assert_eq!(default(&[]), Outcome::OnlyMode(None));
        assert_eq!(default(&[1, 0, 0, 0]), Outcome::Unknown);
        assert_eq!(default(&[2, 0, 0]), Outcome::Invalid);
        assert_eq!(default(&[2, 0, 0, 0, 1]), Outcome::Invalid);
    }

    #[test]
    fn a_changed_mode_changes_the_list() {
        const NONE: u32 = u32::MAX;
        let key = b"system.posix_acl_access";
        let before = list(&[(1, 7, NONE), (2, 5, 33), (4, 7, NONE), (0x10, 4, NONE), (0x20, 1, NONE)]);
        let after = list(&[(1, 6, NONE), (2, 5, 33), (4, 7, NONE), (0x10, 2, NONE), (0x20, 0, NONE)]);
        assert_eq!(after_chmod(key, &before, 0o4620), after);
        assert_eq!(after_chmod(b"system.posix_acl_default", &before, 0o620), before);
        assert_eq!(after_chmod(key, b"x", 0o620), b"x");
    }

    #[test]
    fn capabilities_have_a_version_that_is_known() {
        let value = |magic: u32, length: usize| [&magic.to_le_bytes()[..], &vec![0; length - 4]].concat();
        for (value, expected) in [
            (value(0x0200_0001, 20), Outcome::Set),
            (value(0x0300_0001, 24), Outcome::Set),
            (value(0x0100_0000, 12), Outcome::Invalid),
            (value(0x0200_0000, 24), Outcome::Invalid),
            (vec![], Outcome::Invalid),
        ] {
            assert_eq!(outcome(b"security.capability", &value), expected, "{value:?}");
        }
        assert_eq!(outcome(b"user.anything", b""), Outcome::Set);
    }
}
