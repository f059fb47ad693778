//! Whether a container's root is mounted or copied.

use image_store::Image;
use runtime::plan::{MAX_OVERLAY_LAYERS, RootStorage};

use super::context::TaskContext;
use crate::{
    config::{ErrorCollector, RootChoice},
    events::Content,
};

/// How the image's layers become a root.
#[derive(Debug)]
pub struct RootDecision {
    /// Mounted or copied.
    pub storage: RootStorage,
    /// Why the image is copied, if it is.
    pub copy_reason: Option<String>,
}

/// The most bytes that the container can write to its root. A copied root has no limit: a job that asks for one is
/// refused, and the second part of the result tells that the operator's has no effect.
pub fn size(context: &TaskContext, root: &RootDecision, errors: &ErrorCollector) -> (Option<u64>, Option<Content>) {
    let limit = context.spec.layer_size.or(context.policy.layers.of_tasks_without());
    let (Some(_), Some(reason)) = (limit, &root.copy_reason) else { return (limit, None) };
    if context.spec.layer_size.is_some() {
        errors.add(
            "storage_opt",
            format!("the writable layer of a copied root has no limit: {reason}"),
            "remove `size`, or run the task on a node that mounts its images",
        );
    }
    (None, Some(Content::LayerUnlimited { reason: reason.clone() }))
}

/// Decides how the image's layers become a root.
pub fn decide(context: &TaskContext, errors: &ErrorCollector) -> RootDecision {
    of_image(context, "image", context.image, errors)
}

/// Decides how the layers of an image become one directory. `option` names the image in errors.
pub fn of_image(context: &TaskContext, option: &str, image: &Image, errors: &ErrorCollector) -> RootDecision {
    let TaskContext { node, policy, .. } = *context;
    let copied = |reason: String| RootDecision { storage: RootStorage::Copy, copy_reason: Some(reason) };
    let copy_only = image.copy_only.then(|| {
        "its layers were unpacked on a file system that cannot store the attributes that overlayfs needs".to_owned()
    });
    let problem = node.overlay_problem.clone().or(copy_only);
    match (policy.rootfs, problem) {
        (RootChoice::Copy, _) => return copied("the plugin option rootfs asks for it".to_owned()),
        (RootChoice::Auto, Some(problem)) => return copied(problem),
        (RootChoice::Overlay, Some(problem)) => errors.add(
            option,
            format!("cannot be mounted: {problem}"),
            "have the operator put data_dir on a local file system such as ext4 or XFS, or allow copying with \
             rootfs = \"auto\" in the plugin block",
        ),
        (RootChoice::Auto | RootChoice::Overlay, None) => {}
    }
    let count = image.layers.len();
    if count > MAX_OVERLAY_LAYERS {
        errors.add(
            option,
            format!("has {count} layers, and the kernel mounts at most {MAX_OVERLAY_LAYERS} over one another"),
            "build it with fewer layers, or have the operator set rootfs = \"copy\" in the plugin block",
        );
    }
    RootDecision { storage: RootStorage::Overlay, copy_reason: None }
}
