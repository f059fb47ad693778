//! The container's root file system: the image's layers with a writable one over them.
//!
//! It is mounted in the monitor's mount namespace only, so it never shows on the host and goes with the last process that
//! uses it, whatever happens to us. The options that decide what a layer's own extended attributes can do are given
//! explicitly: a layer's content is not to be trusted, and kernels differ in their defaults.

mod inside;
mod propagation;

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, open},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string,
        fsmount, fsopen, mount, move_mount,
    },
};

pub(crate) use inside::Root;
pub(crate) use propagation::HostMounts;

use crate::error::{Context, RuntimeError};

/// Names the state folder that a writable layer belongs to: others may use the same data folder.
const OWNER: &str = "owner";

/// The writable layer of one container.
#[derive(Debug)]
pub(crate) struct Writable {
    folder: PathBuf,
}

impl Writable {
    /// Where a container's writable layer lies in the data folder.
    pub fn of(data_dir: &Path, id: &str) -> Self {
        Self { folder: data_dir.join("containers").join(id) }
    }

    /// The containers that have a writable layer, as far as they belong to this state folder.
    pub fn list(data_dir: &Path, state_dir: &Path) -> Result<Vec<String>, RuntimeError> {
        let folder = data_dir.join("containers");
        let read = || -> io::Result<Vec<String>> {
            let mut found = Vec::new();
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let owner = fs::read(entry.path().join(OWNER)).unwrap_or_default();
                if owner == state_dir.as_os_str().as_bytes() {
                    found.extend(entry.file_name().into_string());
                }
            }
            Ok(found)
        };
        read().context(|| format!("listing {}", folder.display()))
    }

    /// An empty layer, whose root has mode and owner of the image's; what an earlier container left is removed.
    pub fn create(&self, image_root: &Path, state_dir: &Path) -> Result<(), RuntimeError> {
        self.remove()?;
        let model = fs::metadata(image_root).context(|| format!("image layer {}", image_root.display()))?;
        let make = || -> io::Result<()> {
            fs::create_dir_all(self.upper())?;
            fs::write(self.folder.join(OWNER), state_dir.as_os_str().as_bytes())?;
            fs::create_dir(self.work())?;
            fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o700))?;
            std::os::unix::fs::chown(self.upper(), Some(model.uid()), Some(model.gid()))?;
            fs::set_permissions(self.upper(), fs::Permissions::from_mode(model.mode() & 0o7777))
        };
        make().context(|| format!("making the writable layer {}", self.folder.display()))
    }

    /// Removes the layer; none is fine.
    pub fn remove(&self) -> Result<(), RuntimeError> {
        remove_tree(&self.folder)
    }

    fn upper(&self) -> PathBuf {
        self.folder.join("upper")
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }
}

/// Removes a folder and all in it; none is fine.
pub(crate) fn remove_tree(folder: &Path) -> Result<(), RuntimeError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RuntimeError::Io { action: format!("removing {}", folder.display()), source: error })
        }
        _ => Ok(()),
    }
}

/// What keeps an overlay from following instructions that a layer brings along, and from surprises between kernels.
const OPTIONS: [(&str, &str); 3] = [("metacopy", "off"), ("redirect_dir", "nofollow"), ("index", "off")];

/// Mounts `layers`, top-most first, under `writable` on the folder `target`.
pub(crate) fn mount_overlay(layers: &[PathBuf], writable: &Writable, target: &Path) -> Result<(), RuntimeError> {
    let open_dir = |path: &Path| -> Result<OwnedFd, RuntimeError> {
        open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .context(|| format!("image layer {}", path.display()))
    };
    let lower: Vec<OwnedFd> = layers.iter().map(|layer| open_dir(layer)).collect::<Result<_, _>>()?;
    let (upper, work) = (open_dir(&writable.upper())?, open_dir(&writable.work())?);
    let overlay = match by_file_system_context(&lower, &upper, &work) {
        // Kernels before 6.5 do not know `lowerdir+`.
        Err(Errno::INVAL) => by_mount(&lower, &upper, &work, target),
        Err(error) => Err(error),
        Ok(overlay) => move_mount(&overlay, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH),
    };
    overlay.context(|| format!("mounting the container's root file system of {} layers", layers.len()))
}

/// A folder by a name that is short, needs no escapes and cannot be exchanged for another folder meanwhile.
fn short_name(folder: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", folder.as_raw_fd())
}

fn by_file_system_context(lower: &[OwnedFd], upper: &OwnedFd, work: &OwnedFd) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "overlay")?;
    for layer in lower {
        fsconfig_set_string(&context, "lowerdir+", short_name(layer).as_str())?;
    }
    fsconfig_set_string(&context, "upperdir", short_name(upper).as_str())?;
    fsconfig_set_string(&context, "workdir", short_name(work).as_str())?;
    for (key, value) in OPTIONS {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn by_mount(lower: &[OwnedFd], upper: &OwnedFd, work: &OwnedFd, target: &Path) -> Result<(), Errno> {
    let lower: Vec<String> = lower.iter().map(short_name).collect();
    let mut data = format!("lowerdir={},upperdir={},workdir={}", lower.join(":"), short_name(upper), short_name(work));
    for (key, value) in OPTIONS {
        data.push_str(&format!(",{key}={value}"));
    }
    let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
    mount("overlay", target, "overlay", MountFlags::empty(), data.as_c_str())
}
