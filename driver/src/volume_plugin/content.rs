//! The content of a new volume: nothing, or a copy of an image or of another volume.
//!
//! An image is leased before the volume is made, and copied from its layers. So the copy is what a container of the
//! image sees, and neither a pull nor a removal of images disturbs it.
//!
//! Pull and copy have a deadline before Nomad kills the plugin, so that there is time to remove what is half done. The
//! kernel's write of the copy to the disk cannot be interrupted. If Nomad kills the plugin during that or during the
//! removal, the volume has no record yet, and the next call removes the rest.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use runtime::{Blocks, RuntimeError};

use super::{
    error::PluginError,
    parameters::Source,
    quota,
    record::{Method, Origin},
    request::{Capacity, Request},
    snapshot::Snapshot,
    storage::Storage,
};
use crate::cli::image::lease::LeasedImage;

/// The operator's configuration beside the plugin, for nodes where the driver's plugin leaves none for commands.
const CONFIG: &str = "oci-rs-volume.hcl";

/// How long a volume may take to be filled. Nomad kills the plugin after 60 seconds.
const LIMIT: Duration = Duration::from_secs(45);

/// With this environment variable, a development build has another limit, in milliseconds. Tests set it.
const LIMIT_VARIABLE: &str = "OCI_RS_VOLUME_LIMIT_MS";

/// When the filling of a volume has to end.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    end: Instant,
    limit: Duration,
}

impl Deadline {
    /// That of a call that begins now.
    pub fn of_this_call() -> Self {
        let limit = limit();
        Self { end: Instant::now() + limit, limit }
    }

    fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// Whether half of the time has passed. What can wait for the next call then ends.
    pub fn is_half_over(self) -> bool {
        self.left() < self.limit / 2
    }
}

fn limit() -> Duration {
    let given = if cfg!(debug_assertions) { std::env::var(LIMIT_VARIABLE).ok() } else { None };
    given.and_then(|text| text.parse().ok()).map_or(LIMIT, Duration::from_millis)
}

/// What a volume is filled with. It stays available until the value is dropped.
pub enum Content {
    /// Nothing.
    Nothing,
    /// A directory of an image, or all of it.
    Image(Box<LeasedImage>, Option<PathBuf>),
    /// Another volume.
    Volume(Box<Snapshot>),
}

impl Content {
    /// Makes the content of a request available, and decides of what the volume consists.
    pub fn open(request: &Request, deadline: Deadline) -> Result<(Self, Storage), PluginError> {
        let has_quotas = request.capacity.is_limit() && quota::is_available(&request.place);
        match &request.parameters.source {
            None => Ok((Self::Nothing, Storage::of(request, None, has_quotas)?)),
            Some(Source::Volume(id)) => {
                let snapshot = Snapshot::open(request, id)?;
                let is_safe = !snapshot.is_restricted() || is_private(request)?;
                let storage = Storage::of(request, Some(snapshot.storage()), has_quotas && is_safe)?;
                check_private(request, storage, is_safe, "from")?;
                Ok((Self::Volume(Box::new(snapshot)), storage))
            }
            Some(Source::Image { reference, part }) => {
                let is_safe = is_private(request)?;
                let storage = Storage::of(request, None, has_quotas && is_safe)?;
                check_private(request, storage, is_safe, "image")?;
                failpoint::at("volume-before-image");
                let config = request.plugins.as_ref().map(|plugins| plugins.join(CONFIG)).filter(|path| path.exists());
                let image = LeasedImage::acquire(config, reference, deadline.left()).map_err(|failure| {
                    let problem = format!("parameter image: pulling {reference}: {}", failure.reason());
                    let remedy =
                        "complete layers stay on the node: run `oci-rs image pull` there, then make the volume";
                    PluginError::new(if deadline.is_over() { format!("{problem}; {remedy}") } else { problem })
                })?;
                Ok((Self::Image(Box::new(image), part.clone()), storage))
            }
        }
    }

    /// What is recorded of it. `blocks`: how it was copied.
    pub fn origin(&self, blocks: Blocks) -> Option<Origin> {
        match self {
            Self::Nothing => None,
            Self::Image(leased, part) => Some(Origin::Image {
                reference: leased.image.reference.to_string(),
                digest: leased.image.digest.clone(),
                path: part.clone(),
            }),
            Self::Volume(snapshot) => {
                Some(Origin::Volume { id: snapshot.id().to_owned(), method: Method::from(blocks) })
            }
        }
    }

    /// Whether there is anything to copy.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// The capacity of a file system for it.
    pub fn capacity(&self, wanted: Capacity) -> Result<Capacity, PluginError> {
        match self {
            Self::Volume(snapshot) => snapshot.capacity(wanted),
            Self::Nothing | Self::Image(..) => Ok(wanted),
        }
    }

    /// The volume whose file system can be cloned.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        match self {
            Self::Volume(snapshot) => Some(snapshot),
            Self::Nothing | Self::Image(..) => None,
        }
    }

    /// Copies the content to the empty directory `target` of a volume, which may have a limit.
    pub fn copy(&self, target: &Path, is_limited: bool, deadline: Deadline) -> Result<Blocks, PluginError> {
        let cancelled = || deadline.is_over();
        failpoint::at("volume-before-copy");
        let (parameter, copied) = match self {
            Self::Nothing => return Ok(Blocks::Copied),
            Self::Image(leased, part) => {
                let copied = runtime::copy_image(&leased.image.layers, part.as_deref(), target, &cancelled);
                (if part.is_some() { "image, path" } else { "image" }, copied.map(|()| Blocks::Copied))
            }
            Self::Volume(snapshot) => {
                let mount = snapshot.mount()?;
                ("from", snapshot.copy(&mount, target, &cancelled))
            }
        };
        copied.map_err(|error| {
            let kind = match &error {
                RuntimeError::Io(error) => error.source.kind(),
                _ => io::ErrorKind::Other,
            };
            let remedy = match () {
                _ if deadline.is_over() => format!(
                    "; the volume was not filled within {} seconds: {}",
                    deadline.limit.as_secs(),
                    self.remedy_for_its_size()
                ),
                _ if is_limited && [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&kind) => {
                    "; give a larger capacity_max".to_owned()
                }
                _ if self.snapshot().is_some() && kind == io::ErrorKind::NotFound => {
                    "; tasks have removed files meanwhile: end them, or repeat the call".to_owned()
                }
                _ => String::new(),
            };
            PluginError::new(format!("parameter {parameter}: {error}{remedy}"))
        })
    }

    fn remedy_for_its_size(&self) -> &'static str {
        match self {
            Self::Volume(_) => "put host_volumes_dir on a file system with reflinks, such as xfs or btrfs",
            Self::Nothing | Self::Image(..) => {
                "mount the image without a copy, with `mount { type = \"image\" }` in the task"
            }
        }
    }
}

/// Whether no user of the node can use set-user-id programs and device nodes in a directory volume. What is mounted at
/// its path is mounted without both.
fn is_private(request: &Request) -> Result<bool, PluginError> {
    Ok(request.parameters.read_only || request.place.is_private()?)
}

/// A directory of the node's file system cannot switch off the set-user-id programs and device nodes that an image may
/// have, or that another volume has without effect. So no user of the node may reach it. `parameter` is the one that
/// brings such files.
fn check_private(request: &Request, storage: Storage, is_safe: bool, parameter: &str) -> Result<(), PluginError> {
    if is_safe || storage.format().is_some() {
        return Ok(());
    }
    let volumes = request.place.volumes().display();
    Err(PluginError::new(format!(
        "parameter {parameter}: users of the node can reach {volumes}, and the files may be set-user-id programs and \
         devices: run chmod 0700 {volumes}, or give capacity_max or read_only, because such a volume is mounted \
         without both"
    )))
}
