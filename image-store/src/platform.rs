//! Platforms, and how well an image for one platform runs on another. Pure.
//!
//! Within an architecture the machine's own variant is preferred, then older ones in descending order; never a newer
//! one. Attestations (`unknown/unknown`) are not images.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::json::null_default;

/// An operating system, an architecture and its variant, in the spelling of the OCI image specification.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Platform {
    /// `linux` for every image that can run here.
    #[serde(default, deserialize_with = "null_default")]
    pub os: String,
    /// `amd64`, `arm64`, `arm`, …
    #[serde(default, deserialize_with = "null_default")]
    pub architecture: String,
    /// `v7`, `v8`, …; often empty.
    #[serde(default, deserialize_with = "null_default")]
    pub variant: String,
    /// What an image needs of its machine, or what a machine has, see `EROFS`. Other features are ignored.
    #[serde(default, rename = "os.features", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub os_features: Vec<String>,
}

/// The feature of images whose layers are EROFS images, and of machines that mount such layers.
pub(crate) const EROFS: &str = "erofs";
/// The feature of machines that also mount such layers if their data is compressed with zstd.
const EROFS_ZSTD: &str = "erofs-zstd";

impl Platform {
    /// The platform this binary was built for.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "aarch64" => ("arm64", "v8"),
            "x86" => ("386", ""),
            "arm" => ("arm", "v7"),
            "powerpc64" => ("ppc64le", ""),
            "loongarch64" => ("loong64", ""),
            other => (other, ""),
        };
        let os_features = Vec::new();
        Self { os: "linux".into(), architecture: architecture.into(), variant: variant.into(), os_features }
    }

    /// Replaces spellings of equal meaning by one of them.
    fn normalised(&self) -> Platform {
        let lower = |text: &str| text.trim().to_ascii_lowercase();
        let os = match lower(&self.os) {
            os if os.is_empty() => "linux".into(),
            os => os,
        };
        let variant = lower(&self.variant);
        let (architecture, variant) = match (lower(&self.architecture).as_str(), variant.as_str()) {
            ("x86_64" | "x86-64" | "amd64", "" | "v1") => ("amd64".to_owned(), String::new()),
            ("x86_64" | "x86-64" | "amd64", v) => ("amd64".to_owned(), v.to_owned()),
            ("aarch64" | "arm64", "" | "8" | "v8") => ("arm64".to_owned(), String::new()),
            ("aarch64" | "arm64", v) => ("arm64".to_owned(), v.to_owned()),
            ("armhf", _) | ("arm", "" | "7" | "v7") => ("arm".to_owned(), "v7".to_owned()),
            ("armel", _) | ("arm", "6" | "v6") => ("arm".to_owned(), "v6".to_owned()),
            ("arm", "5" | "v5") => ("arm".to_owned(), "v5".to_owned()),
            ("i386", _) => ("386".to_owned(), String::new()),
            (architecture, v) => (architecture.to_owned(), v.to_owned()),
        };
        Platform { os, architecture, variant, os_features: Vec::new() }
    }

    /// The same machine, which also mounts layers that are EROFS images, compressed ones too if it has `zstd`.
    pub(crate) fn with_erofs(self, zstd: bool) -> Self {
        let features = [Some(EROFS), zstd.then_some(EROFS_ZSTD)];
        Self { os_features: features.into_iter().flatten().map(str::to_owned).collect(), ..self }
    }

    /// The same machine, which mounts no such layers.
    pub(crate) fn without_erofs(&self) -> Self {
        Self { os_features: Vec::new(), ..self.clone() }
    }

    /// Whether the layers of images for it are EROFS images.
    pub(crate) fn is_erofs(&self) -> bool {
        self.os_features.iter().any(|feature| feature == EROFS)
    }

    /// Whether a machine mounts compressed EROFS images.
    pub(crate) fn has_erofs_zstd(&self) -> bool {
        self.os_features.iter().any(|feature| feature == EROFS_ZSTD)
    }

    /// Whether this is the platform of an attestation manifest.
    pub(crate) fn is_unknown(&self) -> bool {
        self.os == "unknown" || self.architecture == "unknown"
    }

    /// How well an image for `self` runs on `machine`: `None` means not at all, otherwise a lower number is better.
    pub(crate) fn distance(&self, machine: &Platform) -> Option<u32> {
        if self.is_erofs() && !machine.is_erofs() {
            return None;
        }
        let (image, machine) = (self.normalised(), machine.normalised());
        if image.os != machine.os || image.architecture != machine.architecture {
            return None;
        }
        if image.variant == machine.variant {
            return Some(0);
        }
        let default = if machine.architecture == "arm64" { 8 } else { 1 };
        let level = |variant: &str| -> Option<u32> {
            if variant.is_empty() { Some(default) } else { variant.strip_prefix('v')?.split('.').next()?.parse().ok() }
        };
        let (offered, have) = (level(&image.variant)?, level(&machine.variant)?);
        (offered <= have).then(|| have - offered + 1)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text comes from an image: it is escaped and shortened for logs.
        let show = |word: &str| word.chars().take(64).flat_map(char::escape_debug).collect::<String>();
        write!(f, "{}/{}", show(&self.os), show(&self.architecture))?;
        if !self.variant.is_empty() {
            write!(f, "/{}", show(&self.variant))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        Platform {
            os: parts.next().unwrap_or_default(),
            architecture: parts.next().unwrap_or_default(),
            variant: parts.next().unwrap_or_default(),
            os_features: Vec::new(),
        }
    }

    #[test]
    fn prefers_own_variant_then_older_ones() {
        for (image, machine, expected) in [
            ("linux/amd64", "linux/amd64", Some(0)),
            ("linux/x86_64", "linux/amd64", Some(0)),
            ("linux/amd64/v1", "linux/amd64", Some(0)),
            ("linux/amd64", "linux/amd64/v3", Some(3)),
            ("linux/amd64/v3", "linux/amd64", None),
            ("linux/arm64/v8", "linux/arm64", Some(0)),
            ("linux/arm64", "linux/arm64/v8", Some(0)),
            ("linux/arm", "linux/arm/v7", Some(0)),
            ("linux/arm/v6", "linux/arm/v7", Some(2)),
            ("linux/arm/v5", "linux/arm/v7", Some(3)),
            ("linux/arm/v7", "linux/arm/v6", None),
            ("windows/amd64", "linux/amd64", None),
            ("linux/386", "linux/amd64", None),
            ("unknown/unknown", "linux/amd64", None),
            ("/amd64", "linux/amd64", Some(0)),
        ] {
            assert_eq!(platform(image).distance(&platform(machine)), expected, "{image} on {machine}");
        }
    }

    #[test]
    fn images_in_erofs_need_a_machine_that_mounts_them() {
        let (tar, erofs) = (platform("linux/amd64"), platform("linux/amd64").with_erofs(true));
        assert_eq!(erofs.distance(&tar), None);
        assert_eq!(erofs.distance(&erofs), Some(0));
        assert_eq!(tar.distance(&erofs), Some(0));
    }

    #[test]
    fn the_host_runs_its_own_images() {
        assert_eq!(Platform::host().distance(&Platform::host()), Some(0));
    }
}
