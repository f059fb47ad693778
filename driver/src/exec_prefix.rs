//! Extra options for `nomad alloc exec`, written before the command: `oci-rs:// user=app cwd=/srv -- id`.
//!
//! The first word cannot be a program: a path that ends in a slash names a directory (path_resolution(7)). The
//! options end at `--`, so the command behind them may contain any word.

use runtime::{ExecOptions, OtherUser};

use crate::config::{ExecPolicy, any_matches};

/// The first word of a command with a prefix.
const WORD: &str = "oci-rs://";
/// The separator between the options and the command.
const SEPARATOR: &str = "--";

/// An invalid or forbidden prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The command is a script check or a template.
    #[error("{WORD} works with `nomad alloc exec` only: checks and templates run as the task does")]
    NotInteractive,
    /// The separator is missing.
    #[error("{WORD} needs {SEPARATOR} before the command, as in: {WORD} user=app {SEPARATOR} id")]
    NoSeparator,
    /// No command follows the separator.
    #[error("{WORD}: there is no command after {SEPARATOR}")]
    NoCommand,
    /// An unknown option.
    #[error("{WORD}: {0:?} is not known; there are user=NAME, cwd=PATH and image=REFERENCE")]
    Unknown(String),
    /// An option occurs twice.
    #[error("{WORD}: {0} is given twice")]
    Twice(&'static str),
    /// An option has an invalid value.
    #[error("{WORD}: {0}= needs {1}")]
    InvalidValue(&'static str, &'static str),
    /// The operator does not allow this debug image.
    #[error(
        "{WORD}: image {0:?} is not among those that this node's operator allows by the driver's option \
         exec.debug_images"
    )]
    Image(String),
    /// The operator has not allowed the option.
    #[error("{WORD}: {0}= is switched off on this node; its operator can allow it by the driver's option exec.{0}")]
    SwitchedOff(&'static str),
}

/// The options of a prefix.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// User and working directory that replace those of the task.
    pub options: ExecOptions,
    /// The debug image: the command can use its programs.
    pub image: Option<String>,
}

/// Refuses a prefix in a script check's command.
pub fn refuse(command: &[String]) -> Result<(), PrefixError> {
    if command.first().is_some_and(|word| word == WORD) { Err(PrefixError::NotInteractive) } else { Ok(()) }
}

/// Splits a command into the command without its prefix, and the prefix.
pub fn split(mut command: Vec<String>, policy: &ExecPolicy) -> Result<(Vec<String>, Prefix), PrefixError> {
    if command.first().is_none_or(|word| word != WORD) {
        return Ok((command, Prefix::default()));
    }
    let Prefix { mut options, mut image } = Prefix::default();
    let end = command.iter().position(|word| word == SEPARATOR).ok_or(PrefixError::NoSeparator)?;
    let args = command.split_off(end + 1);
    if args.is_empty() {
        return Err(PrefixError::NoCommand);
    }
    let mut user = None;
    for word in &command[1..end] {
        match word.split_once('=') {
            Some(("user", name)) => set_once(&mut user, "user", name)?,
            Some(("cwd", path)) => set_once(&mut options.cwd, "cwd", path)?,
            Some(("image", reference)) => set_once(&mut image, "image", reference)?,
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
        return Err(PrefixError::InvalidValue("cwd", "an absolute path"));
    }
    if let Some(image) = image.iter().find(|image| !any_matches(&policy.debug_images, image)) {
        return Err(PrefixError::Image(image.clone()));
    }
    options.user = user.map(|name| OtherUser { name, allow_any: policy.any_user });
    Ok((args, Prefix { options, image }))
}

fn set_once(slot: &mut Option<String>, name: &'static str, value: &str) -> Result<(), PrefixError> {
    if value.is_empty() {
        return Err(PrefixError::InvalidValue(name, "a value"));
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
        ExecPolicy { user: true, cwd: true, debug_images, ..ExecPolicy::default() }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_prefix_is_split_from_the_command() {
        let (args, Prefix { options, image }) =
            split(words("oci-rs:// user=app:staff cwd=/srv -- sh -c -- x"), &all()).unwrap();
        assert_eq!(image, None);
        assert_eq!(args, words("sh -c -- x"));
        let user = OtherUser { name: "app:staff".to_owned(), allow_any: false };
        assert_eq!((options.user, options.cwd.as_deref()), (Some(user), Some("/srv")));
        let (args, prefix) = split(words("oci-rs:// -- oci-rs:// user=app -- id"), &all()).unwrap();
        assert_eq!((args, prefix), (words("oci-rs:// user=app -- id"), Prefix::default()));
        let any = ExecPolicy { any_user: true, ..all() };
        let (_, prefix) = split(words("oci-rs:// user=root -- id"), &any).unwrap();
        assert!(prefix.options.user.unwrap().allow_any);
        for image in ["tools.example/net:1", "tools.example/free/any@sha256:0"] {
            let (_, prefix) = split(words(&format!("oci-rs:// image={image} -- id")), &all()).unwrap();
            assert_eq!(prefix.image.as_deref(), Some(image));
        }
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        let cases = [
            ("oci-rs://", PrefixError::NoSeparator),
            ("oci-rs:// user=app id", PrefixError::NoSeparator),
            ("oci-rs:// user=app --", PrefixError::NoCommand),
            ("oci-rs:// User=app -- id", PrefixError::Unknown("User=app".to_owned())),
            ("oci-rs:// id -- id", PrefixError::Unknown("id".to_owned())),
            ("oci-rs:// user= -- id", PrefixError::InvalidValue("user", "a value")),
            ("oci-rs:// user=a user=b -- id", PrefixError::Twice("user")),
            ("oci-rs:// cwd=srv -- id", PrefixError::InvalidValue("cwd", "an absolute path")),
            ("oci-rs:// image=tools.example/net:2 -- id", PrefixError::Image("tools.example/net:2".to_owned())),
        ];
        for (command, error) in cases {
            assert_eq!(split(words(command), &all()), Err(error), "{command}");
        }
        assert_eq!(refuse(&words("oci-rs:// -- id")), Err(PrefixError::NotInteractive));
        assert_eq!(refuse(&words("id oci-rs://")), Ok(()));
    }

    #[test]
    fn each_option_needs_the_operators_permission() {
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
        fn commands_without_a_prefix_are_unchanged(
            command in proptest::collection::vec("(oci-rs:?/?/?)?[ -~]{0,6}", 0..5),
        ) {
            let other = command.first().is_none_or(|word| word != WORD);
            let split = split(command.clone(), &all());
            if other {
                prop_assert_eq!(split, Ok((command, Prefix::default())));
            } else if let Ok((args, _)) = split {
                // The command is complete, and no word precedes it.
                prop_assert!(!args.is_empty() && command.ends_with(&args));
                prop_assert_eq!(&command[command.len() - args.len() - 1], SEPARATOR);
            }
        }
    }
}
