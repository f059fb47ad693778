//! Mounting an overlay. It uses the new mount API (fsopen(2)) where that accepts layers one by one, and mount(2)
//! elsewhere.
//!
//! The options that decide about the effect of a layer's extended attributes are always given, because the content of a
//! layer is not trusted and the defaults depend on the build of the kernel. With `xino` all files have the same device,
//! also if the layers are different file systems. Without it, programs that stay on one file system would skip files.

use std::{
    fmt::Write,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags, open},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
        fsconfig_set_string, fsmount, fsopen, mount, move_mount,
    },
    process::{chdir, fchdir},
};

use super::layers::open_layer;
use crate::error::{Context, RuntimeError};

/// Options that make the kernel ignore instructions in a layer and behave the same on all builds. All are available
/// since Linux 4.19 (Documentation/filesystems/overlayfs.rst).
const OPTIONS: [(&str, &str); 5] =
    [("metacopy", "off"), ("redirect_dir", "nofollow"), ("index", "off"), ("nfs_export", "off"), ("xino", "on")];

/// The open directories of an overlay.
pub(super) struct Overlay {
    lower: Vec<OwnedFd>,
    /// The upper directory and the work directory. Without them the overlay is read-only.
    upper_and_work: Option<(OwnedFd, OwnedFd)>,
    /// The SELinux label of all files.
    label: Option<String>,
}

fn open_directory(path: &Path) -> Result<OwnedFd, RuntimeError> {
    open_layer(path).context(|| format!("image layer {}", path.display()))
}

impl Overlay {
    /// Opens the directories. `layers` are top-most first, and each may be a directory or an image.
    pub fn open(layers: &[impl AsRef<Path>], upper: &Path, work: &Path) -> Result<Self, RuntimeError> {
        Self::over(layers, open_directory(upper)?, open_directory(work)?)
    }

    /// Like [`Self::open`], with open directories for the changes.
    pub fn over(layers: &[impl AsRef<Path>], upper: OwnedFd, work: OwnedFd) -> Result<Self, RuntimeError> {
        Ok(Self { upper_and_work: Some((upper, work)), ..Self::read_only(layers)? })
    }

    /// Opens at least two directories or images, top-most first, for a read-only overlay.
    pub fn read_only(layers: &[impl AsRef<Path>]) -> Result<Self, RuntimeError> {
        let lower = layers.iter().map(|layer| open_directory(layer.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { lower, upper_and_work: None, label: None })
    }

    /// All files get this SELinux label, and not those of the directories.
    #[must_use]
    pub fn labelled(mut self, label: Option<&str>) -> Self {
        self.label = label.map(str::to_owned);
        self
    }

    /// Mounts the overlay on `target`. It is volatile: the container's changes need not survive a power cut, so the
    /// kernel does not sync them. On kernels before 6.7 this changes the working directory of the calling thread for a
    /// moment.
    pub fn mount(&self, target: &Path) -> Result<(), RuntimeError> {
        let mounted = match self.detached("lowerdir+", true) {
            Ok(overlay) => move_mount(&overlay, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH),
            // `lowerdir+` exists since Linux 6.7, the API itself since 5.2.
            Err(Errno::INVAL | Errno::NOSYS) => match self.mount_legacy(target, true) {
                // Linux before 5.10 does not have `volatile`.
                Err(Errno::INVAL) => self.mount_legacy(target, false),
                mounted => mounted,
            },
            Err(error) => Err(error),
        };
        mounted.context(|| format!("mounting an overlay of {} layers", self.lower.len()))
    }

    /// Creates a detached mount, which disappears when its descriptor is closed. `lower_option` is `lowerdir+` for any
    /// number of layers, or `lowerdir` for one. Without `volatile` (since Linux 5.10) unmounting syncs the whole file
    /// system of the upper directory.
    pub fn detached(&self, lower_option: &str, volatile: bool) -> Result<OwnedFd, Errno> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", "overlay")?;
        for layer in &self.lower {
            fsconfig_set_string(&context, lower_option, by_descriptor(layer).as_str())?;
        }
        if let Some((upper, work)) = &self.upper_and_work {
            fsconfig_set_string(&context, "upperdir", by_descriptor(upper).as_str())?;
            fsconfig_set_string(&context, "workdir", by_descriptor(work).as_str())?;
        }
        for (key, value) in OPTIONS {
            fsconfig_set_string(&context, key, value)?;
        }
        if volatile && self.upper_and_work.is_some() {
            fsconfig_set_flag(&context, "volatile")?;
        }
        if let Some(label) = &self.label {
            fsconfig_set_string(&context, "context", label.as_str())?;
        }
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    }

    /// Mounts with mount(2). Its options must fit in one page. The working directory is `/proc/self/fd`, where the
    /// name of an open directory is its number.
    fn mount_legacy(&self, target: &Path, volatile: bool) -> Result<(), Errno> {
        let number = |directory: &OwnedFd| directory.as_raw_fd().to_string();
        let lower: Vec<String> = self.lower.iter().map(number).collect();
        let mut data = format!("lowerdir={}", lower.join(":"));
        if let Some((upper, work)) = &self.upper_and_work {
            write!(data, ",upperdir={},workdir={}", number(upper), number(work)).map_err(|_| Errno::INVAL)?;
        }
        for (key, value) in OPTIONS {
            write!(data, ",{key}={value}").map_err(|_| Errno::INVAL)?;
        }
        if volatile && self.upper_and_work.is_some() {
            data.push_str(",volatile");
        }
        if let Some(label) = &self.label {
            write!(data, ",context=\"{label}\"").map_err(|_| Errno::INVAL)?;
        }
        let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
        let previous = open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        chdir("/proc/self/fd")?;
        let mounted = mount("overlay", target, "overlay", MountFlags::empty(), data.as_c_str());
        fchdir(&previous)?;
        mounted
    }
}

/// A name of an open directory. It is short, needs no escapes, and another process cannot replace the directory.
fn by_descriptor(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use rustix::mount::{MountPropagationFlags, mount_change};

    use super::*;
    use crate::plan::MAX_OVERLAY_LAYERS;

    /// Mounts this number of layers in both ways, in a separate mount namespace, and checks the content.
    fn mount_both_ways(count: usize) -> [Result<(), RuntimeError>; 2] {
        // In memory, because creating hundreds of directories is fast there.
        let memory = Some(Path::new("/dev/shm")).filter(|memory| memory.is_dir());
        let directory = tempfile::tempdir_in(memory.unwrap_or(&std::env::temp_dir())).expect("a directory");
        // About 30 layers with such paths would fill a page of options, and the paths would need escapes.
        let base = directory.path().join(format!("{}:,=\\", "long".repeat(25)));
        let layers: Vec<PathBuf> = (0..count).map(|number| base.join(number.to_string())).collect();
        for (number, layer) in layers.iter().enumerate() {
            fs::create_dir_all(layer).expect("a layer");
            fs::write(layer.join("who"), number.to_string()).expect("written");
            fs::write(layer.join(format!("only-{number}")), "").expect("written");
        }
        std::thread::spawn(move || {
            crate::sys::unshare_mounts().expect("a mount namespace");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
            [false, true].map(|legacy| {
                let at = |name: &str| base.join(format!("{name}-{legacy}"));
                for name in ["upper", "work", "target"] {
                    fs::create_dir(at(name)).expect("a directory");
                }
                let overlay = Overlay::open(&layers, &at("upper"), &at("work"))?;
                match legacy {
                    false => overlay.mount(&at("target"))?,
                    true => overlay.mount_legacy(&at("target"), true).context(|| "mount(2)".to_owned())?,
                }
                assert_eq!(fs::read_to_string(at("target").join("who")).expect("read"), "0", "the top-most layer wins");
                assert_eq!(fs::read_dir(at("target")).expect("listed").count(), count + 1, "every layer shows");
                fs::write(at("target").join("new"), "").expect("written");
                assert!(at("upper").join("new").exists());
                // The kernel's mark of a volatile mount (Documentation/filesystems/overlayfs.rst, "Volatile mount").
                assert!(at("work").join("work/incompat/volatile").exists(), "its end would write out the whole disk");
                Ok(())
            })
        })
        .join()
        .expect("a thread")
    }

    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn can_mount() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("skipped: mounting needs root");
        }
        root
    }

    #[test]
    fn any_number_of_layers_up_to_the_limit_of_the_kernel_is_mounted_with_both_apis() {
        if can_mount() {
            for count in [1, 2, 36, 128, 300, MAX_OVERLAY_LAYERS] {
                for (way, result) in mount_both_ways(count).into_iter().enumerate() {
                    result.unwrap_or_else(|error| panic!("{count} layers, way {way}: {error}"));
                }
            }
        }
    }

    #[test]
    fn more_layers_than_the_limit_are_refused_by_the_kernel() {
        if can_mount() {
            for result in mount_both_ways(MAX_OVERLAY_LAYERS + 1) {
                assert!(result.is_err(), "the kernel stacks more layers than that");
            }
        }
    }

    /// Many kernels are built with `redirect_always_follow`, so their default would follow the redirect.
    #[test]
    fn a_redirect_in_a_layer_is_not_followed() {
        if !can_mount() {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["top/evil", "bottom/target", "upper", "work", "root"] {
            fs::create_dir_all(at(name)).expect("a directory");
        }
        fs::write(at("bottom/target/secret"), "").expect("written");
        let redirect = c"trusted.overlay.redirect";
        rustix::fs::setxattr(at("top/evil"), redirect, b"/target", rustix::fs::XattrFlags::empty()).expect("set");
        // The directory outlives the mount, which ends with the thread: a mount point cannot be removed.
        let path = directory.path().to_owned();
        std::thread::spawn(move || {
            crate::sys::unshare_mounts().expect("a mount namespace");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
            let at = |name: &str| path.join(name);
            let overlay = Overlay::open(&[at("top"), at("bottom")], &at("upper"), &at("work")).expect("a stack");
            overlay.mount(&at("root")).expect("mounted");
            assert!(at("root/target/secret").exists());
            assert!(!at("root/evil/secret").exists(), "the layer's redirect was followed");
        })
        .join()
        .expect("a thread");
    }
}
