//! Whether a container's root is mounted or copied.

use runtime::plan::{MAX_OVERLAY_LAYERS, RootStorage};

use super::TaskContext;
use crate::config::{Mistakes, RootChoice};

/// How the image's layers become a root; with the reason when that is the slow way.
pub fn storage(context: &TaskContext, mistakes: &Mistakes) -> (RootStorage, Option<String>) {
    let TaskContext { image, node, policy, .. } = *context;
    let marks = image.copy_only.then(|| {
        "its layers were unpacked on a file system that cannot hold what overlayfs needs to see in them".to_owned()
    });
    let problem = node.overlay_problem.clone().or(marks);
    match (policy.rootfs, problem) {
        (RootChoice::Copy, _) => return (RootStorage::Copy, Some("the plugin option rootfs asks for it".to_owned())),
        (RootChoice::Auto, Some(problem)) => return (RootStorage::Copy, Some(problem)),
        (RootChoice::Overlay, Some(problem)) => mistakes.add(
            "image",
            format!("cannot be mounted: {problem}"),
            "have the operator put data_dir on a local file system such as ext4 or XFS, or allow copying with rootfs = \"auto\" \
             in the plugin block",
        ),
        (RootChoice::Auto | RootChoice::Overlay, None) => {}
    }
    let count = image.layers.len();
    if count > MAX_OVERLAY_LAYERS {
        mistakes.add(
            "image",
            format!("has {count} layers, and the kernel mounts at most {MAX_OVERLAY_LAYERS} over one another"),
            "build it with fewer layers, or have the operator set rootfs = \"copy\" in the plugin block",
        );
    }
    (RootStorage::Overlay, None)
}
