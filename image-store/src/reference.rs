//! Image references with docker's meaning: `nginx`, `team/app:1`, `host:5000/app@sha256:…`.
//!
//! A [`Reference`] is normalised by construction: it always has a registry, and a tag or a digest (a missing tag is
//! `latest`). If it has both, the digest decides and the tag is only kept for display. Parsing is pure.
//!
//! The parser of `oci-spec` is not used: it accepts digests in upper case, resolves `docker.io` to another host than
//! docker does, and refuses IPv6 hosts.

use std::{fmt, str::FromStr};

use layer::Digest;
use serde::{Deserialize, Serialize};

const DEFAULT_DOMAIN: &str = "docker.io";
const MAX_NAME: usize = 255;

/// A normalised reference to an image in a registry.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    domain: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A string is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image reference {reference:?}: {problem}")]
pub struct InvalidReference {
    /// The given string.
    pub reference: String,
    /// What is wrong, and what is expected.
    pub problem: &'static str,
}

impl Reference {
    /// The registry as written; `docker.io` if there was none.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository inside the registry. Short names of docker.io start with `library/`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag. `None` only when the reference is by digest alone.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if the reference pins one.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Whether the reference is expected to change its meaning: the tag `latest` without a digest.
    pub fn is_floating(&self) -> bool {
        self.digest.is_none() && self.tag.as_deref() == Some("latest")
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        parse(given).map_err(|problem| InvalidReference { reference: given.chars().take(300).collect(), problem })
    }
}

fn parse(given: &str) -> Result<Reference, &'static str> {
    let text = given.strip_prefix("https://").unwrap_or(given);
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.contains("://") {
        return Err("it is a URL; write host/name:tag without a scheme");
    }
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Err("64 hex digits are an image id, which no registry can resolve; write name@sha256:<digest>");
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            let digest = digest.parse().map_err(
                |_| "the part after @ must be sha256:<64 lower-case hex digits> or sha512:<128 lower-case hex digits>",
            )?;
            (rest, Some(digest))
        }
        None => (text, None),
    };
    let (domain, path) = split_domain(rest);
    let (path, tag) = match path.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (path, None),
    };
    check_domain(domain)?;
    check_path(path)?;
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    let domain = if domain == "index.docker.io" { DEFAULT_DOMAIN } else { domain };
    let repository =
        if domain == DEFAULT_DOMAIN && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
    if domain.len() + 1 + repository.len() > MAX_NAME {
        return Err("the name is longer than 255 characters");
    }
    let tag = match (tag, &digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, Some(_)) => None,
        (None, None) => Some("latest".to_owned()),
    };
    Ok(Reference { domain: domain.to_owned(), repository, tag, digest })
}

/// Docker's rule: the part before the first slash is a registry if it looks like a host.
fn split_domain(text: &str) -> (&str, &str) {
    match text.split_once('/') {
        Some((first, rest))
            if first.starts_with('[')
                || first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => (DEFAULT_DOMAIN, text),
    }
}

fn check_domain(domain: &str) -> Result<(), &'static str> {
    const PROBLEM: &str = "the registry must be a host name or address with an optional :port";
    let (host, port) = if let Some(rest) = domain.strip_prefix('[') {
        let (address, after) = rest.split_once(']').ok_or(PROBLEM)?;
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("the registry's address in brackets is no IPv6 address");
        }
        match after {
            "" => return Ok(()),
            _ => ("", Some(after.strip_prefix(':').ok_or(PROBLEM)?)),
        }
    } else {
        match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        }
    };
    let label_ok = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !domain.starts_with('[') && !host.split('.').all(label_ok) {
        return Err(PROBLEM);
    }
    match port {
        Some(port) if !port.bytes().all(|b| b.is_ascii_digit()) || port.parse::<u16>().is_err() => {
            Err("the registry's port is no number from 0 to 65535")
        }
        _ => Ok(()),
    }
}

/// Components of lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn check_path(path: &str) -> Result<(), &'static str> {
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("the repository name must be lower case");
    }
    if path.split('/').all(component_ok) {
        Ok(())
    } else {
        Err("the repository name may hold a-z and 0-9, separated by single . _ / or by __ or dashes")
    }
}

fn component_ok(component: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    if !word(*first) || !word(*last) {
        return false;
    }
    // There is exactly one separator between two words.
    bytes
        .split(|b| word(*b))
        .filter(|gap| !gap.is_empty())
        .all(|gap| matches!(gap, b"." | b"_" | b"__") || gap.iter().all(|b| *b == b'-'))
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let mut bytes = tag.bytes();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let ok = tag.len() <= 128 && bytes.next().is_some_and(word) && bytes.all(|b| word(b) || b == b'.' || b == b'-');
    if ok { Ok(()) } else { Err("the tag must be 1 to 128 characters of A-Z a-z 0-9 _ . - and not begin with . or -") }
}

impl TryFrom<String> for Reference {
    type Error = InvalidReference;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> String {
        reference.to_string()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const D: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn normalises_like_docker() {
        for (given, canonical) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("team/app", "docker.io/team/app:latest"),
            ("docker.io/nginx", "docker.io/library/nginx:latest"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
            ("https://docker.io/library/nginx:1", "docker.io/library/nginx:1"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:v1", "localhost:5000/app:v1"),
            ("quay.io/a/b/c:x", "quay.io/a/b/c:x"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("Host/app", "Host/app:latest"),
            ("a/b__c---d.e_f", "docker.io/a/b__c---d.e_f:latest"),
        ] {
            assert_eq!(given.parse::<Reference>().unwrap().to_string(), canonical, "{given}");
        }
    }

    #[test]
    fn digest_alone_has_no_tag_and_both_are_kept() {
        let by_digest: Reference = format!("nginx@{D}").parse().unwrap();
        assert_eq!((by_digest.tag(), by_digest.digest().unwrap().as_str()), (None, D));
        let both: Reference = format!("nginx:1@{D}").parse().unwrap();
        assert_eq!(both.tag(), Some("1"));
        assert!(!both.is_floating());
        assert!("nginx".parse::<Reference>().unwrap().is_floating());
    }

    #[test]
    fn refuses_with_a_reason() {
        for (given, reason) in [
            ("", "empty"),
            ("http://host/app", "scheme"),
            ("Nginx", "lower case"),
            ("host.io/App", "lower case"),
            ("a//b", "repository"),
            ("a/../b", "repository"),
            ("a/b.", "repository"),
            ("a/b._c", "repository"),
            ("a/b:", "tag"),
            ("a/b:-x", "tag"),
            ("a b", "repository"),
            ("host:99999/a", "port"),
            ("-host.io/a", "registry"),
            ("[zz]/a", "IPv6"),
            ("a@sha256:abc", "after @"),
            ("a@", "after @"),
            (&D[7..], "image id"),
        ] {
            let error = given.parse::<Reference>().expect_err(given).to_string();
            assert!(error.contains(reason), "{given}: {error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_is_idempotent(text in "[a-zA-Z0-9./:@_\\[\\]-]{0,80}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference);
            }
        }

        #[test]
        fn accepted_names_cannot_leave_a_url_path(text in "\\PC{0,60}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let escapes = |part: &str| part.is_empty() || part == "." || part == "..";
                prop_assert!(!reference.repository().split('/').any(escapes));
                prop_assert!(reference.to_string().bytes().all(|b| b.is_ascii_graphic() && !b"?#%\\".contains(&b)));
            }
        }
    }
}
