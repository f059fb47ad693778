//! The options of a volume, and the part of them that is written to disk.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a volume consists of, in the terms of docker's volume driver `local`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOptions {
    /// The type of the file system, as in /proc/filesystems. Binds have none; docker's users write `none`.
    pub kind: String,
    /// The device, the directory or the server's directory.
    pub device: String,
    /// The mount options, separated by commas.
    pub mount_options: String,
    /// The names of mount options with a password that is not known any more, because it is not stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<String>,
}

/// The mount options whose value is a password.
const SECRETS: [&str; 4] = ["pass", "password", "password2", "secret"];

impl VolumeOptions {
    /// The options without the values of passwords. They are what is stored and compared.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        // Also a part after two commas: a job's author may have meant an option of its own.
        let secret = |option: &str| {
            let names = option.split(',').map(|part| part.split('=').next().unwrap_or_default().to_ascii_lowercase());
            names.into_iter().find(|name| SECRETS.contains(&name.as_str()))
        };
        let mut forgotten = self.forgotten.clone();
        let mut kept: Vec<&str> = Vec::new();
        for option in self.split(&self.mount_options) {
            match secret(option) {
                Some(name) => forgotten.push(name),
                None => kept.push(option),
            }
        }
        forgotten.sort();
        forgotten.dedup();
        Self { mount_options: kept.join(","), forgotten, ..self.clone() }
    }

    /// Whether the volume is a directory of the node.
    pub fn is_bind(&self) -> bool {
        self.mount_options.split(',').any(|option| option == "bind" || option == "rbind")
    }

    /// The name under which the operator allows such volumes: `bind`, or the type of the file system.
    pub fn permission(&self) -> &str {
        if self.is_bind() { "bind" } else { &self.kind }
    }

    /// The value of a mount option `name=value`.
    pub(super) fn value_of(&self, name: &str) -> Option<&str> {
        self.split(&self.mount_options).into_iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Splits mount options of this volume's file system. Two commas are a comma within a value for the file system of
    /// Windows' shares only, where passwords have them.
    pub(super) fn split<'a>(&self, options: &'a str) -> Vec<&'a str> {
        let doubled = self.kind == "cifs" || self.kind == "smb3";
        let mut parts = Vec::new();
        let (mut start, mut at) = (0, 0);
        while let Some(comma) = options[at..].find(',') {
            let comma = at + comma;
            if doubled && options[comma + 1..].starts_with(',') {
                at = comma + 2;
                continue;
            }
            parts.push(&options[start..comma]);
            (start, at) = (comma + 1, comma + 1);
        }
        parts.push(&options[start..]);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

impl fmt::Debug for VolumeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, device, mount_options, forgotten } = self.without_secrets();
        f.debug_struct("VolumeOptions")
            .field("kind", &kind)
            .field("device", &device)
            .field("mount_options", &mount_options)
            .field("secrets", &forgotten)
            .finish()
    }
}

impl fmt::Display for VolumeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.permission(), self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mount_options: &str) -> VolumeOptions {
        let (kind, device) = ("cifs".to_owned(), "//nas/data".to_owned());
        VolumeOptions { kind, device, mount_options: mount_options.to_owned(), forgotten: Vec::new() }
    }

    #[test]
    fn passwords_are_in_no_text_and_no_record() {
        for (given, kept, forgotten) in [
            ("username=app,password=hunter2,vers=3.0", "username=app,vers=3.0", &["password"][..]),
            ("pass=hunter2", "", &["pass"]),
            ("Password=hunter2,ro", "ro", &["password"]),
            ("password=hun,,ter2,ro", "ro", &["password"]),
            ("password=hun,,,,ter2", "", &["password"]),
            ("password2=hunter2,password=hunter2", "", &["password", "password2"]),
            ("ro,,", "ro,,", &[]),
            ("ro,,password=hunter2,uid=33", "uid=33", &["password"]),
            ("uid=33,passwordless", "uid=33,passwordless", &[]),
            ("", "", &[]),
        ] {
            let options = options(given);
            let stored = options.without_secrets();
            assert_eq!(stored.mount_options, kept, "{given}");
            assert_eq!(stored.forgotten, forgotten, "{given}");
            assert_eq!(stored.without_secrets(), stored, "a stored value stays the same");
            let texts = format!("{options:?} {options} {}", serde_json::to_string(&stored).expect("JSON"));
            assert!(!texts.contains("hun"), "{texts}");
        }
    }

    #[test]
    fn two_commas_are_one_within_a_value_of_windows_shares_only() {
        for (kind, given, parts, kept) in [
            ("cifs", "password=hun,,ter2,ro", &["password=hun,,ter2", "ro"][..], "ro"),
            ("smb3", "password=hun,,ter2,ro", &["password=hun,,ter2", "ro"], "ro"),
            ("ceph", "name=a,,secret=hunter2,,ro", &["name=a", "secret=hunter2", "ro"], "name=a,ro"),
            ("nfs", "addr=nas,,soft", &["addr=nas", "soft"], "addr=nas,soft"),
        ] {
            let options = VolumeOptions { kind: kind.to_owned(), ..options(given) };
            assert_eq!(options.split(given), parts, "{kind}");
            assert_eq!(options.without_secrets().mount_options, kept, "{kind}");
        }
        assert_eq!(options("password=a,,addr=b,addr=nas").value_of("addr"), Some("nas"));
    }

    #[test]
    fn a_bind_is_told_by_its_options() {
        for (given, bind) in [("bind", true), ("ro,rbind", true), ("rebind", false), ("", false)] {
            assert_eq!(options(given).is_bind(), bind, "{given}");
        }
        assert_eq!(options("bind").permission(), "bind");
        assert_eq!(options("ro").permission(), "cifs");
    }
}
