//! Where an image for registries is: in an OCI layout, or at a registry.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use image_store::{CredentialSources, LayoutImage, Reference, StoreConfig};

use crate::cli::{failure::Failure, output, settings::Settings};

/// The prefix of a name at a registry, as other tools write it.
const REGISTRY: &str = "docker://";

/// The place of an image.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory or an archive.
    Layout(PathBuf),
    /// A name at a registry.
    Registry(Reference),
}

impl Place {
    /// Reads an argument.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        match text.strip_prefix(REGISTRY) {
            Some(name) => name.parse().map(Self::Registry).map_err(Failure::of),
            None => Ok(Self::Layout(text.into())),
        }
    }
}

/// Opens a layout.
pub fn open(path: &Path, image: Option<String>) -> Result<LayoutImage, Failure> {
    let file = File::open(path).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    Ok(LayoutImage { file: file.into(), name: format!("layout {:?}", path.display().to_string()), image })
}

/// How registries are reached: as the node's plugins do it. A machine without a plugin uses docker's file of its user.
pub fn registries(settings: &Settings) -> StoreConfig {
    let mut config = settings.config.store();
    if !settings.is_plugins && config.credentials == CredentialSources::default() {
        config.credentials.config_file = docker_config().filter(|path| path.exists());
    }
    config
}

fn docker_config() -> Option<PathBuf> {
    let directory = env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let directory = directory.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".docker")));
    Some(directory?.join("config.json"))
}

/// A directory for layouts that only this command needs. It is removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory below `TMPDIR`.
    pub fn new() -> Result<Self, Failure> {
        let path = env::temp_dir().join(format!("oci-rs-image-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(Failure::Failed(format!("creating {}: {error}", path.display()))),
        }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                output::note(format_args!("{} is left: {error}", self.0.display()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_tells_registries_from_paths() {
        assert_eq!(Place::parse("a/b:1").ok(), Some(Place::Layout("a/b:1".into())));
        let reference = "r.example/a:1".parse().unwrap();
        assert_eq!(Place::parse("docker://r.example/a:1").ok(), Some(Place::Registry(reference)));
        assert!(Place::parse("docker://A").is_err());
    }
}
