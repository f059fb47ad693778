//! The form in which this node stores the layers of images.

use std::io;

use image_store::{LayerFormat, SampleImage, Store, StoreConfig, StoreError};
use runtime::layer_image_problem;

use crate::config::{PluginConfig, RootChoice};

/// Opens the image store. Layers are stored as file system images if the configuration allows it and a mount of a
/// sample works.
pub fn open_store(config: &PluginConfig) -> Result<Store, StoreError> {
    Store::open(StoreConfig { layers: format(config), ..config.store() })
}

/// Why layers are unpacked into directories although the configuration allows images.
pub fn image_problem(config: &PluginConfig) -> Option<String> {
    if wants_images(config) { try_sample(config, SampleImage::new()).unwrap_or_else(Some) } else { None }
}

/// Why compressed native images are not used although others are.
pub fn compressed_image_problem(config: &PluginConfig) -> Option<String> {
    if format(config) != (LayerFormat::Erofs { zstd: false }) {
        return None;
    }
    try_sample(config, SampleImage::compressed()).unwrap_or_else(Some)
}

/// Why the kernel cannot verify the blocks of layers, although the configuration asks for it.
pub fn fs_verity_problem(config: &PluginConfig) -> Option<String> {
    if !config.fs_verity {
        return None;
    }
    match image_store::fs_verity_problem(&config.data_dir, format(config)) {
        Ok(problem) => problem.map(str::to_owned),
        Err(error) => Some(error.to_string()),
    }
}

/// The form in which layers are stored.
fn format(config: &PluginConfig) -> LayerFormat {
    if !wants_images(config) {
        return LayerFormat::Directory;
    }
    // A kernel that mounts a compressed image mounts the others too.
    if matches!(try_sample(config, SampleImage::compressed()), Ok(None)) {
        return LayerFormat::Erofs { zstd: true };
    }
    match try_sample(config, SampleImage::new()) {
        Ok(None) => LayerFormat::Erofs { zstd: false },
        Ok(Some(problem)) => {
            tracing::info!(problem, "layers are unpacked into directories");
            LayerFormat::Directory
        }
        Err(error) => {
            // The next pull will fail for the same reason, with a better error text.
            tracing::warn!(error, "cannot tell whether layers can be images; they are unpacked into directories");
            LayerFormat::Directory
        }
    }
}

fn wants_images(config: &PluginConfig) -> bool {
    config.layer_images && config.policy.rootfs != RootChoice::Copy
}

/// Tries to mount a sample; `None` if it works.
fn try_sample(config: &PluginConfig, sample: io::Result<SampleImage>) -> Result<Option<String>, String> {
    let SampleImage { bytes, attributes } = sample.map_err(|error| error.to_string())?;
    layer_image_problem(&config.data_dir, &bytes, &attributes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(data_dir: &Path) -> PluginConfig {
        PluginConfig { data_dir: data_dir.to_owned(), ..PluginConfig::default() }
    }

    #[test]
    fn layers_are_file_system_images_only_where_mounts_work_and_the_configuration_allows_them() {
        // The kernel cannot mount an EROFS image that is a file on tmpfs.
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(format(&config(memory.path())), LayerFormat::Directory);
        let disk = tempfile::tempdir().unwrap();
        let allowed = config(disk.path());
        let mut copied = allowed.clone();
        copied.policy.rootfs = RootChoice::Copy;
        for refused in [PluginConfig { layer_images: false, ..allowed.clone() }, copied] {
            assert_eq!(format(&refused), LayerFormat::Directory);
            assert_eq!(disk.path().read_dir().unwrap().count(), 0, "no mount was tried");
        }
        let works = format(&allowed) != LayerFormat::Directory;
        assert_eq!(disk.path().join("containers").read_dir().unwrap().count(), 0, "the trial mount leaves nothing");
        open_store(&allowed).unwrap();
        assert!(works || open_store(&config(memory.path())).is_ok());
        let verified = PluginConfig { fs_verity: true, ..config(memory.path()) };
        assert_eq!(fs_verity_problem(&verified).as_deref(), Some("they are files in directories"));
        assert_eq!(fs_verity_problem(&config(memory.path())), None, "it is not asked for");
    }
}
