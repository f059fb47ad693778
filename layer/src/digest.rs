//! Content digests: `sha256:<64 hex>` or `sha512:<128 hex>`, lower case, and nothing else.
//!
//! A [`Digest`] is valid by construction, so it is safe as a file name and inside a URL. Each digest of a registry or
//! an image is parsed here before it names a file.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// A validated content digest.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// A string that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid digest {0:?}: sha256:<64 lower-case hex digits> or sha512:<128 lower-case hex digits> is expected")]
pub struct InvalidDigest(pub String);

/// The hash functions a digest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Digest {
    /// The digest as `algorithm:hex`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hex digits alone. Unique across the two algorithms because their lengths differ.
    pub fn hex(&self) -> &str {
        // Both algorithm names are six bytes long, and the constructor saw the colon.
        &self.0[7..]
    }

    /// The digest with these hex digits, see [`Digest::hex`].
    pub fn from_hex(hex: &str) -> Option<Digest> {
        let algorithm = if hex.len() == 64 { "sha256" } else { "sha512" };
        format!("{algorithm}:{hex}").parse().ok()
    }

    /// The hash function.
    pub fn algorithm(&self) -> Algorithm {
        if self.0.starts_with("sha512") { Algorithm::Sha512 } else { Algorithm::Sha256 }
    }

    /// The SHA-256 digest of `bytes`.
    pub fn sha256(bytes: &[u8]) -> Digest {
        Digest(format!("sha256:{}", hex::encode(sha2::Sha256::digest(bytes))))
    }

    /// Whether `bytes` hash to this digest.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let mut hasher = Hasher::new(self.algorithm());
        hasher.update(bytes);
        hasher.finish() == *self
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = match text.split_once(':') {
            Some(("sha256", hex)) => (hex, 64),
            Some(("sha512", hex)) => (hex, 128),
            _ => return Err(InvalidDigest(clip(text))),
        };
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if expected.0.len() == expected.1 && expected.0.bytes().all(lower_hex) {
            Ok(Digest(text.to_owned()))
        } else {
            Err(InvalidDigest(clip(text)))
        }
    }
}

/// The first part of a text, for an error: the text may be hostile and long.
fn clip(text: &str) -> String {
    text.chars().take(160).collect()
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A running hash of either kind.
#[derive(Clone)]
pub enum Hasher {
    /// SHA-256.
    Sha256(sha2::Sha256),
    /// SHA-512.
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// An empty hash.
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Hasher::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(sha2::Sha512::new()),
        }
    }

    /// Hashes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// The digest of all bytes so far.
    pub fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(hasher) => Digest(format!("sha256:{}", hex::encode(hasher.finalize()))),
            Hasher::Sha512(hasher) => Digest(format!("sha512:{}", hex::encode(hasher.finalize()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn hashes_with_both_algorithms() {
        assert_eq!(Digest::sha256(b"").as_str(), EMPTY);
        let long = Hasher::new(Algorithm::Sha512).finish();
        assert_eq!(long.hex().len(), 128);
        assert!(long.matches(b""));
        assert!(!long.matches(b"x"));
        for digest in [Digest::sha256(b""), long] {
            assert_eq!(Digest::from_hex(digest.hex()), Some(digest));
        }
        assert_eq!(Digest::from_hex("../x"), None);
    }

    #[test]
    fn refuses_what_could_become_a_path_or_another_digest() {
        for bad in [
            "",
            "sha256:",
            "sha256",
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            "sha256:../../etc/passwd",
            &EMPTY.to_uppercase(),
            &EMPTY.replace('e', "E"),
            &format!("{EMPTY}0"),
            &format!("{EMPTY}\n"),
            &EMPTY.replace("sha256", "sha512"),
            &EMPTY.replace("sha256", "SHA256"),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?}");
        }
    }
}
