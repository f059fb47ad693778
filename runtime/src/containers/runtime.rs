//! The runtime: its directories, and what it keeps open for all containers.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use super::{category_pairs::CategoryPairs, id_ranges::IdRanges};
use crate::{
    address::NamespaceAddress,
    cgroup::open_counters::OpenCounters,
    command::kernel_version,
    directory_watch::{self, DirectoryWatch},
    error::{Context, ExecError, RuntimeError},
    exec::{self, ExecProcess, ExecRequest},
    launcher::Launcher,
    plan::{CgroupPlacement, ContainerId, ContainerPlan},
    rootfs::{
        EmptyNamespace, MountedImages, VolumeImport, image_problem, make_mount_points, overlay_problem, relabel_most,
        user_namespace_problem,
    },
    state::{self, PLAN, TaskDir},
    volumes::Volumes,
};

/// Containers of one state directory. Cheap to clone, safe to share between threads.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub state_dir: PathBuf,
    pub data_dir: PathBuf,
    pub launcher: Launcher,
    /// An empty mount namespace, once one was needed.
    empty: Mutex<Option<EmptyNamespace>>,
    /// Mounts of layers that are images.
    pub images: MountedImages,
    /// The names of the containers' directories.
    pub containers: DirectoryWatch,
    /// The open counters of containers. Shared with the sources of their usage.
    pub counters: Arc<OpenCounters>,
    /// The ids of the containers with user namespaces of their own.
    pub ids: IdRanges,
    /// The SELinux categories of the containers.
    pub categories: CategoryPairs,
    /// Held while names are shared.
    pub names: Mutex<()>,
    /// Volumes with options.
    pub volumes: Volumes,
    /// The answer of [`Runtime::overlay_problem`], once it is known.
    overlay_problem: Mutex<Option<Option<String>>>,
}

/// The containers that have a directory in a state directory. Makes nothing.
pub fn containers(state_dir: &Path) -> Result<Vec<ContainerId>, RuntimeError> {
    let directory = state::tasks(state_dir);
    let names = directory_watch::list(&directory).context(|| format!("listing {}", directory.display()))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Why layers cannot be images in the data directory; `None` if they can. Tries it out with `image`, whose root has
/// these extended attributes.
pub fn layer_image_problem(
    data_dir: &Path,
    image: &[u8],
    attributes: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<String>, RuntimeError> {
    image_problem(data_dir, image, attributes)
}

/// The part of a plan that tells the container's cgroup.
#[derive(serde::Deserialize)]
struct PlacedPlan {
    cgroup: CgroupPlacement,
}

impl Runtime {
    /// Opens the directories, and creates missing ones.
    pub fn open(state_dir: &Path, data_dir: &Path) -> Result<Self, RuntimeError> {
        for directory in [state_dir, data_dir, &state::tasks(state_dir), &data_dir.join("containers")] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .context(|| format!("making the directory {}", directory.display()))?;
        }
        let absolute = |path: &Path| fs::canonicalize(path).context(|| format!("finding {}", path.display()));
        let launcher = Launcher::default();
        let (state_dir, data_dir) = (absolute(state_dir)?, absolute(data_dir)?);
        if let Err(error) = make_mount_points(&data_dir) {
            // Running containers do not need it, and a start makes the places itself.
            tracing::warn!(%error, "each start writes its mount points to the disk");
        }
        let containers = DirectoryWatch::new(state::tasks(&state_dir));
        let (ids, categories) = (IdRanges::new(&state_dir), CategoryPairs::new(&state_dir));
        Ok(Self {
            inner: Arc::new(Inner {
                containers,
                counters: Arc::default(),
                ids,
                categories,
                volumes: Volumes::new(&state_dir, &data_dir),
                state_dir,
                data_dir,
                launcher,
                empty: Mutex::default(),
                images: MountedImages::default(),
                names: Mutex::default(),
                overlay_problem: Mutex::default(),
            }),
        })
    }

    /// Gives these directories, with the files that they have, and all images the SELinux label of files that
    /// containers can use. New files in a directory get its label from the kernel. A directory that has the label is
    /// left as it is. A file that keeps its label is logged: only its own tasks cannot use it.
    pub fn label_directories(&self, directories: &[PathBuf], label: &str) -> Result<(), RuntimeError> {
        self.inner.images.label(label);
        directories.iter().try_for_each(|directory| {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .context(|| format!("making the directory {}", directory.display()))?;
            if let Some(reason) = relabel_most(directory, label)? {
                tracing::warn!(
                    directory = %directory.display(), %reason, label,
                    "a file keeps its SELinux label: tasks cannot use it until it gets the label (chcon -R)"
                );
            }
            Ok(())
        })
    }

    /// Does the work that the first start would do otherwise: seals a copy of our binary in memory, and makes an empty
    /// mount namespace.
    pub fn prepare(&self) -> Result<(), RuntimeError> {
        self.inner.launcher.prepare().context(|| "sealing a copy of the plugin's binary".to_owned())?;
        self.empty_mounts().map(drop)
    }

    /// Unmounts images of layers that were removed. Until then they take disk space.
    pub fn forget_removed_images(&self) {
        self.inner.images.forget_removed();
    }

    /// The address of the empty mount namespace, which is made if there is none.
    pub(super) fn empty_mounts(&self) -> Result<NamespaceAddress, RuntimeError> {
        let mut known = self.inner.empty.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match &*known {
            Some(empty) => empty.address(),
            None => EmptyNamespace::create(&self.inner.state_dir).and_then(|empty| known.insert(empty).address()),
        };
        address.context(|| "making an empty mount namespace".to_owned())
    }

    /// Why roots cannot be mounted as overlays with the data directory as storage; `None` if they can. Tried out once.
    pub fn overlay_problem(&self) -> Result<Option<String>, RuntimeError> {
        let mut known = self.inner.overlay_problem.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = &*known {
            return Ok(problem.clone());
        }
        Ok(known.insert(overlay_problem(&self.inner.data_dir)?).clone())
    }

    /// Why no container can have a user namespace of its own on this node; `None` if they can. Tried out each time.
    pub fn user_namespace_problem(&self) -> Result<Option<String>, RuntimeError> {
        user_namespace_problem(&self.inner.state_dir, &self.inner.data_dir, kernel_version())
    }

    /// The directory of a container.
    pub(super) fn task(&self, id: &ContainerId) -> TaskDir {
        TaskDir::new(&self.inner.state_dir, id)
    }

    /// All containers of the state directory, in any state.
    pub fn list(&self) -> Result<Vec<ContainerId>, RuntimeError> {
        containers(&self.inner.state_dir)
    }

    /// Copies a directory for a named volume. The volume appears when the copy is committed; `None` if it exists.
    /// The copy ends with an error soon after `cancelled` turns true.
    pub fn import_volume(
        &self,
        volume: &Path,
        source: &Path,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<VolumeImport>, RuntimeError> {
        VolumeImport::stage(volume, source, cancelled)
    }

    /// Other containers that were placed in the same cgroup, among those with an id that begins with `prefix`. A plan
    /// that cannot be read is an error if the next part of the id (up to a dot) is that of `plan`, too: only then may
    /// the container be in the same cgroup.
    pub fn sharing_group(&self, plan: &ContainerPlan, prefix: &str) -> Result<Vec<ContainerId>, RuntimeError> {
        let listing = || format!("listing {}", state::tasks(&self.inner.state_dir).display());
        let named = self.inner.containers.names_with_prefix(prefix).context(listing)?;
        let others = named.iter().filter_map(|name| name.parse().ok()).filter(|id| *id != plan.id);
        let mut sharing = Vec::new();
        let part = |id: &ContainerId| id.as_str().get(prefix.len()..)?.split('.').next().map(str::to_owned);
        for id in others {
            let placed = match self.task(&id).read::<PlacedPlan>(PLAN) {
                Err(error) if part(&id) != part(&plan.id) => {
                    tracing::warn!(container = %id, %error, "the cgroup of this container is unknown");
                    None
                }
                placed => placed?,
            };
            if placed.is_some_and(|other| other.cgroup.path == plan.cgroup.path) {
                sharing.push(id);
            }
        }
        Ok(sharing)
    }

    /// Runs a command in the running container. Waits until it is about to be executed.
    pub fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecProcess, ExecError> {
        self.begin_exec(id, request)?.begun()
    }

    /// Begins a command in the running container. The container decides how long it takes until the command is about to
    /// be executed ([`ExecProcess::begun`]): it can stop the command's process before.
    pub fn begin_exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecProcess, ExecError> {
        exec::start(&self.inner.launcher, &self.task(id), id, request)
    }
}
