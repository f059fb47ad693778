//! Images: references, registries, credentials, pulls, archives, and the store on disk.
//!
//! Knows no Nomad, no gRPC and no containers. [`Store`] is the entry point.

mod archive;
mod blocking;
mod credentials;
mod error;
mod facade;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod json;
mod lease;
mod limits;
mod manifest;
mod native;
mod platform;
mod profile;
mod progress;
mod publish;
mod pull;
mod reference;
mod registry;
mod singleflight;
mod store;
mod tracker;

pub use credentials::{CredentialSources, Credentials, Secret};
pub use error::{PullError, SharedIo, StoreError};
pub use facade::{Store, StoreConfig};
pub use layer::{Digest, InvalidDigest, SampleImage};
pub use lease::LeaseOwner;
pub use limits::Limits;
pub use manifest::ImageConfig;
pub use native::NativeLayer;
pub use platform::Platform;
pub use profile::{Profile, ProfiledFile};
pub use progress::{Progress, PullEvent, Silent, Wait};
pub use publish::{Conversion, LayoutImage, NativeForm, NativeManifest, PushRequest, Pushed, convert_layout};
pub use pull::{
    Image, LayerEvent, LayerEventKind, LayerGroup, LoadRequest, PartialConfig, PullRequest, RegistryAnswer,
};
pub use reference::{InvalidReference, Reference};
pub use registry::{HostTraffic, InternalRedirects, RegistryConfig, check_registry};
pub use store::{
    Access, DiskSize, Finding, FindingKind, FsckOptions, FsckReport, ImageRecord, ImageUsage, LayerFormat, LayerRecord,
    LayerUsage, Outcome, Pressure, PruneReport, RemovalCause, Removals, Removed, Retention, RetentionReport, Severity,
    StoreSize, SweepReport, fs_verity_problem, fsck,
};
