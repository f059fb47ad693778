//! Images: references, registries, pull, unpack, snapshots, retention.
//!
//! Knows no Nomad, no gRPC and no containers.

mod archive;
mod commit;
mod config;
mod credentials;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod lease;
mod manifest;
mod platform;
mod progress;
mod pull;
mod reference;
mod registry;
mod store;

pub use config::{
    CredentialSources, Credentials, LayerFormat, Limits, PullRequest, RegistryConfig, Secret, StoreConfig,
};
use layer::digest;

pub use error::{PullError, SharedIo, StoreError};
pub use layer::{Digest, InvalidDigest, SampleImage};
pub use lease::LeaseOwner;
pub use manifest::ImageConfig;
pub use platform::Platform;
pub use progress::{Progress, PullEvent, Silent};
pub use pull::{Image, LoadRequest};
pub use reference::{InvalidReference, Reference};
pub use store::{
    Access, Finding, FindingKind, FsckOptions, FsckReport, ImageRecord, ImageUsage, LayerRecord, Outcome, Pressure,
    PruneReport, Removed, Retention, RetentionReport, Severity, Store, SweepReport, fsck,
};
