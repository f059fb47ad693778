//! The root file system of a container: the image's layers below a writable layer, or a copy of the layers.
//!
//! It is mounted only in the mount namespace of the process that creates the container. So the host never sees it, and
//! it disappears with the last process that uses it, even if the driver was killed.
//!
//! The modules use only modules that stand above them in this list:
//!
//! - `relabel`: SELinux labels of files.
//! - `mount_tree`: detached mounts; `root`: paths inside a root; `layers`: layers as directories or mounted images.
//! - `mount_points`: a lowest layer with the places of mounts.
//! - `overlay`: mounting an overlay; `copy`: copying the layers where overlayfs does not work.
//! - `copies`: copies of images and directories for callers that make no container.
//! - `writable`: the writable layer of a container; `sized_layer`: one with a limit.
//! - `volume`, `volume_import`: named volumes; `anonymous_volume`: volumes without a name.
//! - `image_mounts`: images that a container mounts beside its own.
//! - `probe`: whether overlayfs works in a data directory; `id_map_probe`: whether user namespaces work on the node.
//! - `empty_namespace`, `build_mounts`: the mount namespace in which a container is created.
//! - `second_mounts`, `bind_sources`, `binds`: bind mounts; `cgroup_mounts`: the container's view of its cgroups.
//! - `root_exchange`: the change from the root of the building to the container's.
//! - `device_nodes`: devices of a container with a user namespace of its own.
//! - `network_namespace`: the network namespace that a container joins.
//! - `debug_root`: the root of a command that runs with a debug image.

mod anonymous_volume;
mod bind_sources;
mod binds;
mod build_mounts;
mod cgroup_mounts;
mod copies;
mod copy;
mod debug_root;
mod device_nodes;
mod empty_namespace;
mod id_map_probe;
mod image_mounts;
mod layers;
mod mount_points;
mod mount_tree;
mod network_namespace;
mod overlay;
mod probe;
mod relabel;
mod root;
mod root_exchange;
mod second_mounts;
mod sized_layer;
mod volume;
mod volume_import;
mod writable;

pub(crate) use anonymous_volume::create_anonymous_volume;
pub(crate) use bind_sources::{BindSources, PreparedBinds};
pub(crate) use binds::make_binds;
pub(crate) use build_mounts::BuildMounts;
pub(crate) use cgroup_mounts::cgroup_tree;
pub use copies::{copy_directory, copy_image};
pub use copy::Blocks;
pub(crate) use debug_root::DebugRoot;
pub(crate) use device_nodes::device_nodes;
pub(crate) use empty_namespace::EmptyNamespace;
pub(crate) use id_map_probe::user_namespace_problem;
pub(crate) use image_mounts::ImageMounts;
pub(crate) use layers::{Layers, MountedImages};
pub(crate) use mount_points::{make_mount_points, with_mount_points};
pub(crate) use mount_tree::clone_open;
pub(crate) use network_namespace::HeldNetwork;
pub(crate) use probe::{image_problem, overlay_problem};
pub(crate) use relabel::{relabel, relabel_file, relabel_most, relabel_open};
pub(crate) use root::Root;
pub(crate) use root_exchange::{BuildRoot, RootExchange};
pub(crate) use sized_layer::SizedLayer;
pub(crate) use volume::{create_volume, fill_if_empty};
pub use volume_import::VolumeImport;
pub use writable::LayerLimit;
pub(crate) use writable::{WritableLayer, writable_layer};
