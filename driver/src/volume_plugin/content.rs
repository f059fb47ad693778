//! The content of a new volume: nothing, or a copy of an image.
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

use runtime::RuntimeError;

use super::{
    error::PluginError,
    parameters::Source,
    record::{Origin, Storage},
    request::Request,
};
use crate::cli::image::lease::LeasedImage;

/// The operator's configuration beside the plugin, for nodes where the driver's plugin leaves none for commands.
const CONFIG: &str = "oci-rs-volume.hcl";

/// How long a volume may take to be filled. Nomad kills the plugin after 60 seconds.
const LIMIT: Duration = Duration::from_secs(45);

/// When the filling of a volume has to end.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// That of a call that begins now.
    pub fn of_this_call() -> Self {
        Self(Instant::now() + LIMIT)
    }

    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// Whether half of the time has passed. What can wait for the next call then ends.
    pub fn is_half_over(self) -> bool {
        self.left() < LIMIT / 2
    }
}

/// What a volume is filled with. It stays available until the value is dropped.
pub enum Content {
    /// Nothing.
    Nothing,
    /// A directory of an image, or all of it.
    Image(Box<LeasedImage>, Option<PathBuf>),
}

impl Content {
    /// Makes the content of a request available.
    pub fn open(request: &Request, deadline: Deadline) -> Result<Self, PluginError> {
        match &request.parameters.source {
            None => Ok(Self::Nothing),
            Some(Source::Image { reference, part }) => {
                failpoint::at("volume-before-image");
                let config = request.plugins.as_ref().map(|plugins| plugins.join(CONFIG)).filter(|path| path.exists());
                let image = LeasedImage::acquire(config, reference, deadline.left()).map_err(|failure| {
                    let problem = format!("parameter image: pulling {reference}: {}", failure.reason());
                    let remedy =
                        "complete layers stay on the node: run `oci-rs image pull` there, then make the volume";
                    PluginError::new(if deadline.is_over() { format!("{problem}; {remedy}") } else { problem })
                })?;
                Ok(Self::Image(Box::new(image), part.clone()))
            }
        }
    }

    /// What is recorded of it.
    pub fn origin(&self) -> Option<Origin> {
        match self {
            Self::Nothing => None,
            Self::Image(leased, part) => Some(Origin::Image {
                reference: leased.image.reference.to_string(),
                digest: leased.image.digest.clone(),
                path: part.clone(),
            }),
        }
    }

    /// Whether there is anything to copy.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Copies the content to the empty directory `target` of a volume.
    pub fn copy(&self, target: &Path, storage: Storage, deadline: Deadline) -> Result<(), PluginError> {
        let cancelled = || deadline.is_over();
        failpoint::at("volume-before-copy");
        let (parameter, copied) = match self {
            Self::Nothing => return Ok(()),
            Self::Image(leased, part) => {
                let copied = runtime::copy_image(&leased.image.layers, part.as_deref(), target, &cancelled);
                (if part.is_some() { "image, path" } else { "image" }, copied)
            }
        };
        copied.map_err(|error| {
            let remedy = match storage {
                _ if deadline.is_over() => format!(
                    "; the volume was not filled within {} seconds: mount the image without a copy, with `mount {{ \
                     type = \"image\" }}` in the task",
                    LIMIT.as_secs()
                ),
                Storage::File { .. } if is_full(&error) => "; give a larger capacity_max".to_owned(),
                _ => String::new(),
            };
            PluginError::new(format!("parameter {parameter}: {error}{remedy}"))
        })
    }
}

/// Whether a file system has no room.
fn is_full(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Io(error) if error.source.kind() == io::ErrorKind::StorageFull)
}
