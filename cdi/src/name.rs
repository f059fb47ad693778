//! The names of devices: `vendor.com/class=name`.

use std::{fmt, str::FromStr};

/// A text that is not a name of the Container Device Interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A part is missing.
    #[error("{0:?} is not of the form vendor.com/class=name")]
    Form(String),
    /// A kind without vendor or class.
    #[error("{0:?} is not of the form vendor.com/class")]
    Kind(String),
    /// The vendor is not valid.
    #[error("vendor {0:?}: begin with a letter, end with a letter or digit, use A-Z a-z 0-9 . - _, at most 253")]
    Vendor(String),
    /// The class is not valid.
    #[error("class {0:?}: begin with a letter, end with a letter or digit, use A-Z a-z 0-9 . - _, at most 63")]
    Class(String),
    /// The device's own name is not valid.
    #[error("device {0:?}: begin and end with a letter or digit, use A-Z a-z 0-9 . - _ :")]
    Device(String),
}

/// A kind of device: the vendor and the vendor's class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    vendor: String,
    class: String,
}

/// The full name of one device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    kind: Kind,
    device: String,
}

/// Whether `name` has only allowed characters: alphanumeric ones at both ends, also those of `inner` between.
fn well_formed(name: &str, inner: &[u8], letter_first: bool) -> bool {
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    let begins = if letter_first { first.is_ascii_alphabetic() } else { first.is_ascii_alphanumeric() };
    begins && last.is_ascii_alphanumeric() && bytes.iter().all(|c| c.is_ascii_alphanumeric() || inner.contains(c))
}

impl Kind {
    /// The vendor, as in `nvidia.com`.
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// The class, as in `gpu`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// The full name of a device of this kind.
    pub fn device(&self, device: &str) -> Result<QualifiedName, NameError> {
        check_device(device)?;
        Ok(QualifiedName { kind: self.clone(), device: device.to_owned() })
    }
}

pub(crate) fn check_device(device: &str) -> Result<(), NameError> {
    if well_formed(device, b".-_:", false) { Ok(()) } else { Err(NameError::Device(device.to_owned())) }
}

impl FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (vendor, class) = text.split_once('/').ok_or_else(|| NameError::Kind(text.to_owned()))?;
        if vendor.len() > 253 || !well_formed(vendor, b".-_", true) {
            return Err(NameError::Vendor(vendor.to_owned()));
        }
        if class.len() > 63 || !well_formed(class, b".-_", true) {
            return Err(NameError::Class(class.to_owned()));
        }
        Ok(Self { vendor: vendor.to_owned(), class: class.to_owned() })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

impl QualifiedName {
    /// The kind.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The name within the kind.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl FromStr for QualifiedName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let form = || NameError::Form(text.to_owned());
        let (kind, device) = text.split_once('=').ok_or_else(form)?;
        if !kind.contains('/') || device.is_empty() {
            return Err(form());
        }
        kind.parse::<Kind>()?.device(device)
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.device)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_accepted_or_refused_with_the_wrong_part() {
        for good in
            ["nvidia.com/gpu=0", "vendor.com/net=eth0", "v/c=d", "vendor1.com/device=GPU-1:2.3_4", "V-1.c/a.b-c_d=x"]
        {
            assert_eq!(good.parse::<QualifiedName>().map(|name| name.to_string()).as_deref(), Ok(good));
        }
        let long = |length: usize| "a".repeat(length);
        for (bad, part) in [
            ("", "form"),
            ("/dev/fuse", "form"),
            ("vendor.com/class", "form"),
            ("vendor.com/class=", "form"),
            ("vendor=device", "form"),
            ("/class=device", "vendor"),
            ("1vendor/class=d", "vendor"),
            ("ven dor/class=d", "vendor"),
            ("vendor./class=d", "vendor"),
            (&format!("{}/c=d", long(254)), "vendor"),
            ("vendor/=d", "class"),
            ("vendor/9=d", "class"),
            ("vendor/a/b=d", "class"),
            (&format!("v/{}=d", long(64)), "class"),
            ("vendor/class=-d", "device"),
            ("vendor/class=d=e", "device"),
            ("vendor/class=d/e", "device"),
            ("vendor/class=d:", "device"),
            ("vendor/class=ü", "device"),
        ] {
            let error = bad.parse::<QualifiedName>().unwrap_err();
            let found = match &error {
                NameError::Form(_) => "form",
                NameError::Kind(_) => "kind",
                NameError::Vendor(_) => "vendor",
                NameError::Class(_) => "class",
                NameError::Device(_) => "device",
            };
            assert_eq!(found, part, "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_name_that_is_accepted_is_written_as_it_was(text in "[a-zA-Z0-9._/=:-]{0,24}") {
            if let Ok(name) = text.parse::<QualifiedName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
