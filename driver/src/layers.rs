//! How this node keeps the layers of images.

use image_store::{LayerFormat, SampleImage, Store, StoreConfig, StoreError};
use runtime::layer_image_problem;

use crate::config::{PluginConfig, RootChoice};

/// Opens the image store. Layers are images of file systems where they may be and can be mounted, which is tried out.
pub fn open_store(config: &PluginConfig) -> Result<Store, StoreError> {
    let layers = if can_mount_images(config) { LayerFormat::Erofs } else { LayerFormat::Directory };
    Store::open(StoreConfig { layers, ..config.store() })
}

fn can_mount_images(config: &PluginConfig) -> bool {
    if !config.layer_images || config.policy.rootfs == RootChoice::Copy {
        return false;
    }
    let sample = SampleImage::new().map_err(|error| error.to_string());
    let tried = sample.and_then(|SampleImage { bytes, attributes }| {
        layer_image_problem(&config.data_dir, &bytes, &attributes).map_err(|error| error.to_string())
    });
    match tried {
        Ok(None) => true,
        Ok(Some(problem)) => {
            tracing::info!(problem, "layers are unpacked into directories");
            false
        }
        Err(error) => {
            // What kept us from finding out will be a pull's trouble as well, with a better text.
            tracing::warn!(error, "cannot tell whether layers can be images; they are unpacked into directories");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(data_dir: &Path) -> PluginConfig {
        PluginConfig { data_dir: data_dir.to_owned(), ..PluginConfig::default() }
    }

    #[test]
    fn images_are_wanted_where_they_work_and_nobody_minds() {
        // No kernel mounts a file system from a file in memory.
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(!can_mount_images(&config(memory.path())));
        let disk = tempfile::tempdir().unwrap();
        let wanted = config(disk.path());
        let mut copied = wanted.clone();
        copied.policy.rootfs = RootChoice::Copy;
        for unwanted in [PluginConfig { layer_images: false, ..wanted.clone() }, copied] {
            assert!(!can_mount_images(&unwanted));
            assert_eq!(disk.path().read_dir().unwrap().count(), 0, "nothing was tried");
        }
        let works = can_mount_images(&wanted);
        assert_eq!(disk.path().join("containers").read_dir().unwrap().count(), 0, "nothing is left of trying");
        open_store(&wanted).unwrap();
        assert!(works || open_store(&config(memory.path())).is_ok());
    }
}
