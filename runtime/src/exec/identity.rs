//! The users that a command may have, other than the container's own user.
//!
//! Unless the operator allows any user, a command may have only a user that the container's own command could become by
//! itself. Another user would give it files that the container cannot access, and root would give it capabilities that
//! the container's user does not have.

use std::io;

use super::request::OtherUser;
use crate::{
    capability::CapabilityMask,
    process::ProcessRef,
    rootfs::Root,
    user::{self, MAX_USER_FILE, ResolvedUser, UserError},
};

/// The capabilities with which a process can become any user (capabilities(7)).
const SWITCH: [&str; 2] = ["CAP_SETUID", "CAP_SETGID"];

/// Why a command does not run as another user.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdentityError {
    /// The option `user` of a command is empty, or begins with a colon.
    #[error("user {0:?}: name a user, as in \"app\", \"1000\" or \"1000:1000\"")]
    NoUser(String),
    /// The container does not have the user or the group.
    #[error(transparent)]
    Unknown(#[from] UserError),
    /// The files of the container that name its users cannot be read.
    #[error("the container's {0}: {1}")]
    File(&'static str, io::Error),
    /// A command may only have a user that the task itself could become.
    #[error(
        "user {0:?}: the task runs as uid {1} and could not become that user itself: \
         it would have to be root with the capabilities SETUID and SETGID"
    )]
    Beyond(String, u32),
}

/// The user of that name in the running container, if the command may have it. `init` is the container's first process.
/// Without it the container's files cannot be read, and only ids name a user.
pub(super) fn become_other(
    init: Option<&ProcessRef>,
    own: &ResolvedUser,
    bounding: CapabilityMask,
    other: &OtherUser,
) -> Result<ResolvedUser, IdentityError> {
    if other.name.is_empty() || other.name.starts_with(':') {
        return Err(IdentityError::NoUser(other.name.clone()));
    }
    let root = init.map(Root::of_process).transpose();
    let root = root.map_err(|error| IdentityError::File("root directory", error))?;
    let read = |path: &'static str| {
        let content = root.as_ref().map_or(Ok(None), |root| root.read(path, MAX_USER_FILE));
        content.map(Option::unwrap_or_default).map_err(|error| IdentityError::File(path, error))
    };
    let wanted = user::resolve(&other.name, &[], &read("/etc/passwd")?, &read("/etc/group")?)?;
    if other.allow_any || could_become(own, bounding, &wanted) {
        return Ok(wanted);
    }
    Err(IdentityError::Beyond(other.name.clone(), own.uid))
}

/// Whether the container's own command could become this user by its own system calls.
fn could_become(own: &ResolvedUser, bounding: CapabilityMask, wanted: &ResolvedUser) -> bool {
    let switches = CapabilityMask::from_names(&SWITCH).is_ok_and(|needed| bounding.and(needed) == needed);
    let has = |gid: &u32| own.gid == *gid || own.groups.contains(gid);
    (own.uid == 0 && switches) || (own.uid == wanted.uid && has(&wanted.gid) && wanted.groups.iter().all(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, groups: &[u32]) -> ResolvedUser {
        ResolvedUser { uid, gid: groups[0], groups: groups.to_vec(), home: "/".to_owned() }
    }

    #[test]
    fn a_command_gets_only_a_user_that_its_container_could_become() {
        let mask = |names: &[&str]| CapabilityMask::from_names(names).expect("names");
        let (both, one) = (mask(&["CAP_SETUID", "CAP_SETGID", "CAP_CHOWN"]), mask(&["CAP_SETUID"]));
        let (root, app) = (user(0, &[0]), user(1000, &[1000, 29]));
        let cases = [
            // Root with the capabilities to switch can become any user.
            (&root, both, user(1000, &[1000]), true),
            (&root, both, user(0, &[5]), true),
            // Root without them.
            (&root, one, user(1000, &[1000]), false),
            (&root, CapabilityMask::default(), user(1000, &[0]), false),
            (&root, CapabilityMask::default(), user(0, &[0]), true),
            // Another user has no capability of the bounding set.
            (&app, both, user(0, &[0]), false),
            (&app, both, user(1001, &[1000]), false),
            // The same user, with groups that it has.
            (&app, one, user(1000, &[1000]), true),
            (&app, one, user(1000, &[29]), true),
            (&app, one, user(1000, &[0]), false),
            (&app, both, user(1000, &[1000, 0]), false),
        ];
        for (own, bounding, wanted, may) in cases {
            assert_eq!(could_become(own, bounding, &wanted), may, "{own:?} {bounding:?} -> {wanted:?}");
        }
    }
}
