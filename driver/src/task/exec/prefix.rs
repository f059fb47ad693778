//! What Nomad's command line cannot say, said before the command: `oci-rs:// user=app cwd=/srv -- id`.
//!
//! No command that runs without us can be mistaken for this. A path that ends in a slash names a directory, whatever the image
//! holds (path_resolution(7)), so `oci-rs://` can never be executed; and what belongs to us ends at a mark, so the command behind
//! it may look like anything.

use runtime::{ExecOptions, OtherUser};

use crate::config::{ExecPolicy, any_matches};

/// The word that no program can have.
const WORD: &str = "oci-rs://";
/// What stands before the command.
const END: &str = "--";

/// Why a prefix is not obeyed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Only people may use it.
    #[error("{WORD} works with `nomad alloc exec` only: checks and templates run as the task does")]
    NotHere,
    /// Nothing tells where the command begins.
    #[error("{WORD} needs {END} before the command, as in: {WORD} user=app {END} id")]
    NoEnd,
    /// Nothing is to be run.
    #[error("{WORD}: there is no command after {END}")]
    NoCommand,
    /// Not one of ours.
    #[error("{WORD}: {0:?} is not known; there are user=NAME, cwd=PATH and image=REFERENCE")]
    Unknown(String),
    /// Said twice.
    #[error("{WORD}: {0} stands twice")]
    Twice(&'static str),
    /// Something that cannot be.
    #[error("{WORD}: {0}= needs {1}")]
    Unfit(&'static str, &'static str),
    /// Programs come only from images that the operator trusts.
    #[error(
        "{WORD}: image {0:?} is not among those that this node's operator allows by the driver's option exec.debug_images"
    )]
    Image(String),
    /// The operator has not allowed it.
    #[error("{WORD}: {0}= is switched off on this node; its operator can allow it by the driver's option exec.{0}")]
    SwitchedOff(&'static str),
}

/// What a prefix asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// What is to be different.
    pub options: ExecOptions,
    /// The image whose programs are to be there.
    pub image: Option<String>,
}

/// A command for a script check: the prefix is not for these.
pub fn refuse(command: &[String]) -> Result<(), PrefixError> {
    if command.first().is_some_and(|word| word == WORD) { Err(PrefixError::NotHere) } else { Ok(()) }
}

/// The command without its prefix, and what that asks for.
pub fn split(mut command: Vec<String>, policy: &ExecPolicy) -> Result<(Vec<String>, Prefix), PrefixError> {
    if command.first().is_none_or(|word| word != WORD) {
        return Ok((command, Prefix::default()));
    }
    let Prefix { mut options, mut image } = Prefix::default();
    let end = command.iter().position(|word| word == END).ok_or(PrefixError::NoEnd)?;
    let args = command.split_off(end + 1);
    if args.is_empty() {
        return Err(PrefixError::NoCommand);
    }
    let mut user = None;
    for word in &command[1..end] {
        match word.split_once('=') {
            Some(("user", name)) => put(&mut user, "user", name)?,
            Some(("cwd", path)) => put(&mut options.cwd, "cwd", path)?,
            Some(("image", reference)) => put(&mut image, "image", reference)?,
            _ => return Err(PrefixError::Unknown(word.clone())),
        }
    }
    if user.is_some() && !policy.user {
        return Err(PrefixError::SwitchedOff("user"));
    }
    if options.cwd.is_some() && !policy.cwd {
        return Err(PrefixError::SwitchedOff("cwd"));
    }
    if options.cwd.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(PrefixError::Unfit("cwd", "an absolute path"));
    }
    if let Some(image) = image.iter().find(|image| !any_matches(&policy.debug_images, image)) {
        return Err(PrefixError::Image(image.clone()));
    }
    options.user = user.map(|name| OtherUser { name, beyond_the_container: policy.any_user });
    Ok((args, Prefix { options, image }))
}

fn put(slot: &mut Option<String>, name: &'static str, value: &str) -> Result<(), PrefixError> {
    if value.is_empty() {
        return Err(PrefixError::Unfit(name, "a value"));
    }
    match slot.replace(value.to_owned()) {
        Some(_) => Err(PrefixError::Twice(name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all() -> ExecPolicy {
        let debug_images = vec!["tools.example/net:1".to_owned(), "tools.example/free/*".to_owned()];
        ExecPolicy { user: true, any_user: false, cwd: true, debug_images }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_prefix_is_taken_off() {
        let (args, Prefix { options, image }) =
            split(words("oci-rs:// user=app:staff cwd=/srv -- sh -c -- x"), &all()).unwrap();
        assert_eq!(image, None);
        assert_eq!(args, words("sh -c -- x"));
        let user = OtherUser { name: "app:staff".to_owned(), beyond_the_container: false };
        assert_eq!((options.user, options.cwd.as_deref()), (Some(user), Some("/srv")));
        let (args, prefix) = split(words("oci-rs:// -- oci-rs:// user=app -- id"), &all()).unwrap();
        assert_eq!((args, prefix), (words("oci-rs:// user=app -- id"), Prefix::default()));
        let any = ExecPolicy { any_user: true, ..all() };
        let (_, prefix) = split(words("oci-rs:// user=root -- id"), &any).unwrap();
        assert!(prefix.options.user.unwrap().beyond_the_container);
        for image in ["tools.example/net:1", "tools.example/free/any@sha256:0"] {
            let (_, prefix) = split(words(&format!("oci-rs:// image={image} -- id")), &all()).unwrap();
            assert_eq!(prefix.image.as_deref(), Some(image));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases = [
            ("oci-rs://", PrefixError::NoEnd),
            ("oci-rs:// user=app id", PrefixError::NoEnd),
            ("oci-rs:// user=app --", PrefixError::NoCommand),
            ("oci-rs:// User=app -- id", PrefixError::Unknown("User=app".to_owned())),
            ("oci-rs:// id -- id", PrefixError::Unknown("id".to_owned())),
            ("oci-rs:// user= -- id", PrefixError::Unfit("user", "a value")),
            ("oci-rs:// user=a user=b -- id", PrefixError::Twice("user")),
            ("oci-rs:// cwd=srv -- id", PrefixError::Unfit("cwd", "an absolute path")),
            ("oci-rs:// image=tools.example/net:2 -- id", PrefixError::Image("tools.example/net:2".to_owned())),
        ];
        for (command, error) in cases {
            assert_eq!(split(words(command), &all()), Err(error), "{command}");
        }
        assert_eq!(refuse(&words("oci-rs:// -- id")), Err(PrefixError::NotHere));
        assert_eq!(refuse(&words("id oci-rs://")), Ok(()));
    }

    #[test]
    fn nothing_is_allowed_that_the_operator_has_not_allowed() {
        let none = ExecPolicy::default();
        for (command, option) in [("oci-rs:// user=app -- id", "user"), ("oci-rs:// cwd=/ -- id", "cwd")] {
            assert_eq!(split(words(command), &none), Err(PrefixError::SwitchedOff(option)));
        }
        let image = split(words("oci-rs:// image=tools.example/net:1 -- id"), &none);
        assert_eq!(image, Err(PrefixError::Image("tools.example/net:1".to_owned())));
        assert!(split(words("oci-rs:// -- id"), &none).is_ok(), "asks for nothing");
    }

    proptest! {
        #[test]
        fn other_commands_stay_as_they_are(command in proptest::collection::vec("(oci-rs:?/?/?)?[ -~]{0,6}", 0..5)) {
            let other = command.first().is_none_or(|word| word != WORD);
            let split = split(command.clone(), &all());
            if other {
                prop_assert_eq!(split, Ok((command, Prefix::default())));
            } else if let Ok((args, _)) = split {
                // Nothing of the command gets lost, and nothing is put before it.
                prop_assert!(!args.is_empty() && command.ends_with(&args));
                prop_assert_eq!(&command[command.len() - args.len() - 1], END);
            }
        }
    }
}
