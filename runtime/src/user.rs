//! The user and the groups of the command. Names are looked up in the image's `/etc/passwd` and `/etc/group`.
//!
//! The rules are docker's:
//!
//! - A number is always an id, also if a user or a group has that name.
//! - A group after the colon replaces the groups of which the user is a member.
//! - An unknown id is accepted; an unknown name is an error.

use serde::{Deserialize, Serialize};

use crate::error::{StartError, StartErrorKind};

/// The largest `/etc/passwd` or `/etc/group` of an image that is read, in bytes.
pub(crate) const MAX_USER_FILE: u64 = 4 << 20;

/// The ids of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResolvedUser {
    pub uid: u32,
    pub gid: u32,
    /// The ids of the supplementary groups, with the primary group first.
    pub groups: Vec<u32>,
    pub home: String,
}

/// A user or a group that cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    /// The option `user` or the image names a user that the image does not have.
    #[error("user {0:?}: the image's /etc/passwd has no such user; use a numeric id, or a user of the image")]
    UnknownUser(String),
    /// The option `user` or the image names a group that the image does not have.
    #[error("group {0:?}: the image's /etc/group has no such group; use a numeric id, or a group of the image")]
    UnknownGroup(String),
    /// The number of a user or group is too large.
    #[error("user or group id {0:?} is out of range: ids go from 0 to 2147483647")]
    OutOfRange(String),
}

impl From<UserError> for StartError {
    fn from(error: UserError) -> Self {
        Self::new(StartErrorKind::UnknownUser, error.to_string())
    }
}

/// A line of `/etc/passwd`.
struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// A line of `/etc/group`.
struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

/// Resolves `user` or `user:group`, names or ids, and further groups. `passwd` and `group` are the texts of the image's
/// files.
pub(crate) fn resolve(
    user: &str,
    extra_groups: &[String],
    passwd: &str,
    group: &str,
) -> Result<ResolvedUser, UserError> {
    let (user, given_group) = user.split_once(':').unwrap_or((user, ""));
    let entry = find_user(user, passwd)?;
    let uid = match (&entry, id(user)?) {
        (Some(entry), _) => entry.uid,
        (None, Some(uid)) => uid,
        (None, None) if user.is_empty() => 0,
        (None, None) => return Err(UserError::UnknownUser(user.to_owned())),
    };
    let gid = match given_group {
        "" => entry.as_ref().map_or(0, |entry| entry.gid),
        given => group_id(given, group)?,
    };
    let mut groups = vec![gid];
    if let (Some(entry), "") = (&entry, given_group) {
        groups.extend(all_groups(group).filter(|group| is_member(group, entry.name)).map(|group| group.gid));
    }
    for extra in extra_groups {
        groups.push(group_id(extra, group)?);
    }
    // To setresuid(2) and setresgid(2) this number means "unchanged", which is root.
    if uid == u32::MAX || groups.contains(&u32::MAX) {
        return Err(UserError::OutOfRange(u32::MAX.to_string()));
    }
    let mut seen = std::collections::BTreeSet::new();
    groups.retain(|gid| seen.insert(*gid));
    let home = entry.map(|entry| entry.home).filter(|home| home.starts_with('/')).unwrap_or("/").to_owned();
    Ok(ResolvedUser { uid, gid, groups, home })
}

fn find_user<'a>(user: &str, passwd: &'a str) -> Result<Option<PasswdEntry<'a>>, UserError> {
    let uid = if user.is_empty() { Some(0) } else { id(user)? };
    Ok(all_users(passwd).find(|entry| uid.map_or_else(|| entry.name == user, |uid| entry.uid == uid)))
}

fn group_id(wanted: &str, group: &str) -> Result<u32, UserError> {
    if let Some(gid) = id(wanted)? {
        return Ok(gid);
    }
    all_groups(group)
        .find(|entry| entry.name == wanted)
        .map(|entry| entry.gid)
        .ok_or_else(|| UserError::UnknownGroup(wanted.to_owned()))
}

/// Parses an id. `None` if the text is not a number.
fn id(text: &str) -> Result<Option<u32>, UserError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(id) if i32::try_from(id).is_ok() => Ok(Some(id)),
        _ => Err(UserError::OutOfRange(text.to_owned())),
    }
}

fn is_member(group: &GroupEntry<'_>, user: &str) -> bool {
    group.members.split(',').any(|member| member.trim() == user)
}

fn all_users(passwd: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.trim_end_matches('\r').split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or("");
        Some(PasswdEntry { name, uid, gid, home })
    })
}

fn all_groups(group: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    group.lines().filter_map(|line| {
        let mut fields = line.trim_end_matches('\r').split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let gid = fields.nth(1)?.parse().ok()?;
        let members = fields.next().unwrap_or("");
        Some(GroupEntry { name, gid, members })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# comment\nbroken\nweb:x:1000:1001:Web,,,:/srv/web:/bin/sh\n\
                          7:x:70:71::/home/seven:/bin/sh\nnohome:x:5:5\n";
    const GROUP: &str = "root:x:0:\nwheel:x:10:root,web\nweb:x:1001:\nvideo:x:44:web , other\n";

    fn ok(user: &str, extra: &[&str]) -> ResolvedUser {
        let extra: Vec<String> = extra.iter().map(|group| (*group).to_owned()).collect();
        resolve(user, &extra, PASSWD, GROUP).expect(user)
    }

    fn ids(user: &str, extra: &[&str]) -> (u32, u32, Vec<u32>) {
        let user = ok(user, extra);
        (user.uid, user.gid, user.groups)
    }

    #[test]
    fn an_id_that_means_unchanged_is_refused() {
        let passwd = "uid:x:4294967295:7::/:\ngid:x:7:4294967295::/:\nlast:x:4294967294:7::/:\nmore:x:9:9::/:\n";
        let group = "none:x:4294967295:more\n";
        let refused = Err(UserError::OutOfRange("4294967295".to_owned()));
        for user in ["uid", "gid", "more", "last:none", "4294967295", "7:4294967295"] {
            assert_eq!(resolve(user, &[], passwd, group), refused, "{user}");
        }
        assert_eq!(resolve("last", &["none".to_owned()], passwd, group), refused);
        assert_eq!(resolve("last", &[], passwd, group).expect("an id").uid, u32::MAX - 1);
    }

    #[test]
    fn users_and_groups_are_resolved_as_docker_does() {
        assert_eq!(ids("", &[]), (0, 0, vec![0, 10]));
        assert_eq!(ids("root", &[]), (0, 0, vec![0, 10]));
        assert_eq!(ids("web", &[]), (1000, 1001, vec![1001, 10, 44]));
        assert_eq!(ids("1000", &[]), (1000, 1001, vec![1001, 10, 44]));
        assert_eq!(ids("web:wheel", &[]), (1000, 10, vec![10]));
        assert_eq!(ids("web:4711", &[]), (1000, 4711, vec![4711]));
        assert_eq!(ids("4711", &[]), (4711, 0, vec![0]));
        assert_eq!(ids("4711:4712", &["video", "9"]), (4711, 4712, vec![4712, 44, 9]));
        assert_eq!(ids("7", &[]), (7, 0, vec![0]), "a number is not a name");
        assert_eq!(ids("web", &["10", "wheel"]), (1000, 1001, vec![1001, 10, 44]), "no duplicate groups");
    }

    #[test]
    fn the_home_directory_is_that_of_the_user_or_the_root() {
        assert_eq!(ok("web", &[]).home, "/srv/web");
        assert_eq!(ok("nohome", &[]).home, "/");
        assert_eq!(ok("4711", &[]).home, "/");
    }

    #[test]
    fn unknown_names_are_errors_that_name_them() {
        let error = |user: &str, extra: &[String]| resolve(user, extra, PASSWD, GROUP).expect_err(user);
        assert_eq!(error("nobody", &[]), UserError::UnknownUser("nobody".to_owned()));
        assert_eq!(error("web:staff", &[]), UserError::UnknownGroup("staff".to_owned()));
        assert_eq!(error("web", &["staff".to_owned()]), UserError::UnknownGroup("staff".to_owned()));
        assert_eq!(error("4294967295", &[]), UserError::OutOfRange("4294967295".to_owned()));
    }

    /// CVE-2024-40635, CVE-2026-46680: a number that is too large must not become another id, in particular not 0.
    #[test]
    fn ids_never_wrap() {
        for id in ["2147483648", "4294967296", "18446744073709551616", "99999999999999999999"] {
            for user in [id.to_owned(), format!("0:{id}"), format!("{id}:{id}")] {
                assert!(matches!(resolve(&user, &[], PASSWD, GROUP), Err(UserError::OutOfRange(_))), "{user}");
            }
            let passwd = format!("evil:x:{id}:{id}::/:/bin/sh\n");
            // The result is exactly this id, or an error.
            match resolve("evil", &[], &passwd, GROUP) {
                Ok(user) => assert_eq!((user.uid.to_string(), user.gid.to_string()), (id.to_owned(), id.to_owned())),
                Err(error) => assert_eq!(error, UserError::UnknownUser("evil".to_owned())),
            }
            // A number is an id, also if the image has a user of that name.
            let passwd = format!("{id}:x:0:0::/:/bin/sh\n1000:x:0:0::/:/bin/sh\n");
            assert!(resolve(id, &[], &passwd, GROUP).is_err());
            assert_eq!(resolve("1000", &[], &passwd, GROUP).expect("a number").uid, 1000);
        }
        assert!(resolve("-1", &[], PASSWD, GROUP).is_err());
    }

    proptest! {
        #[test]
        fn no_file_content_makes_it_panic_and_ids_need_no_files(passwd in ".*", group in ".*", uid in 0..=i32::MAX) {
            let by_name = resolve("root:wheel", &["video".to_owned()], &passwd, &group);
            prop_assert!(by_name.map_or(true, |user| user.groups[0] == user.gid));
            let user = resolve(&format!("{uid}:{uid}"), &[], &passwd, &group);
            prop_assert_eq!(user.map(|user| (user.uid, user.gid)), Ok((uid as u32, uid as u32)));
        }
    }
}
