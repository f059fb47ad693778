//! Items that only the fuzz targets need: re-exports, no code.

pub use crate::{
    archive::{Source, choose as choose_image},
    credentials::docker::Config as DockerConfig,
    manifest::{Document, choose as choose_manifest, parse_config, parse_document},
    registry::{
        address::is_internal,
        auth::{Plan, plan},
        challenge::parse as parse_challenges,
    },
    store::mount_image,
};
