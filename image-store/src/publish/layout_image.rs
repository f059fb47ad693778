//! An image in an OCI layout, as commands name it.

use std::os::fd::OwnedFd;

/// An image in an OCI layout.
#[derive(Debug)]
pub struct LayoutImage {
    /// The layout: a directory, or an archive, open for reading.
    pub file: OwnedFd,
    /// The name of the layout in error texts.
    pub name: String,
    /// The name of the image. Without it, the layout must have one image.
    pub image: Option<String>,
}
