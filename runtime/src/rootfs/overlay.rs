//! Mounting an overlay: the new mount API where it takes layers one by one, mount(2) with names short enough where it does not.
//!
//! What decides what a layer's own extended attributes can do is given explicitly: a layer's content is not to be trusted, and
//! the defaults are a choice of whoever built or loaded the kernel's module. `xino` has all files on one device with numbers of their own, also
//! where layers are file systems of their own: programs that stay on one file system would leave them out.

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

/// What keeps an overlay from following instructions that a layer brings along, and from surprises between kernels. All of them
/// are known since Linux 4.19 (Documentation/filesystems/overlayfs.rst).
const OPTIONS: [(&str, &str); 5] =
    [("metacopy", "off"), ("redirect_dir", "nofollow"), ("index", "off"), ("nfs_export", "off"), ("xino", "on")];

/// An overlay's directories, open.
pub(super) struct Stack {
    lower: Vec<OwnedFd>,
    /// Where changes go, and the kernel's own directory beside that; without them nothing can be changed.
    changes: Option<(OwnedFd, OwnedFd)>,
}

fn open_dir(path: &Path) -> Result<OwnedFd, RuntimeError> {
    open_layer(path).context(|| format!("image layer {}", path.display()))
}

impl Stack {
    /// Opens the directories; `layers` top-most first, of which each may be an image.
    pub fn open(layers: &[impl AsRef<Path>], upper: &Path, work: &Path) -> Result<Self, RuntimeError> {
        Ok(Self { changes: Some((open_dir(upper)?, open_dir(work)?)), ..Self::read_only(layers)? })
    }

    /// Opens at least two directories or images, top-most first, that are shown as they are.
    pub fn read_only(layers: &[impl AsRef<Path>]) -> Result<Self, RuntimeError> {
        let lower = layers.iter().map(|layer| open_dir(layer.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { lower, changes: None })
    }

    /// Mounts it on `target`. What the container writes goes with it, so nothing of it is ever written out for its own sake.
    /// Changes the working directory of the calling thread for a moment on kernels before 6.7.
    pub fn mount(&self, target: &Path) -> Result<(), RuntimeError> {
        let mounted = match self.detached("lowerdir+", true) {
            Ok(overlay) => move_mount(&overlay, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH),
            // Layers one by one are known since 6.7, the API as such since 5.2.
            Err(Errno::INVAL | Errno::NOSYS) => match self.by_mount(target, true) {
                // Before 5.10.
                Err(Errno::INVAL) => self.by_mount(target, false),
                mounted => mounted,
            },
            Err(error) => Err(error),
        };
        mounted.context(|| format!("mounting the container's root file system of {} layers", self.lower.len()))
    }

    /// A mount that is attached nowhere, and gone when it is closed. `lowerdir+` takes any number of layers, `lowerdir` one. Without
    /// `volatile` (since Linux 5.10) the end of the mount writes out everything that waits on the file system of the upper directory.
    pub fn detached(&self, lower: &str, volatile: bool) -> Result<OwnedFd, Errno> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", "overlay")?;
        for layer in &self.lower {
            fsconfig_set_string(&context, lower, by_descriptor(layer).as_str())?;
        }
        if let Some((upper, work)) = &self.changes {
            fsconfig_set_string(&context, "upperdir", by_descriptor(upper).as_str())?;
            fsconfig_set_string(&context, "workdir", by_descriptor(work).as_str())?;
        }
        for (key, value) in OPTIONS {
            fsconfig_set_string(&context, key, value)?;
        }
        if volatile && self.changes.is_some() {
            fsconfig_set_flag(&context, "volatile")?;
        }
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    }

    /// All options fit into one page (mount(2)): from `/proc/self/fd`, an open directory's name is its number.
    fn by_mount(&self, target: &Path, volatile: bool) -> Result<(), Errno> {
        let number = |directory: &OwnedFd| directory.as_raw_fd().to_string();
        let lower: Vec<String> = self.lower.iter().map(number).collect();
        let mut data = format!("lowerdir={}", lower.join(":"));
        if let Some((upper, work)) = &self.changes {
            write!(data, ",upperdir={},workdir={}", number(upper), number(work)).map_err(|_| Errno::INVAL)?;
        }
        for (key, value) in OPTIONS {
            write!(data, ",{key}={value}").map_err(|_| Errno::INVAL)?;
        }
        if volatile && self.changes.is_some() {
            data.push_str(",volatile");
        }
        let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
        let here = open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        chdir("/proc/self/fd")?;
        let mounted = mount("overlay", target, "overlay", MountFlags::empty(), data.as_c_str());
        fchdir(&here)?;
        mounted
    }
}

/// A directory by a name that is short, needs no escapes and cannot be exchanged for another directory meanwhile.
fn by_descriptor(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use rustix::mount::{MountPropagationFlags, mount_change};

    use super::*;
    use crate::plan::MAX_OVERLAY_LAYERS;

    /// Mounts as many layers in both ways, in a mount namespace of a thread of its own, and looks at what is there.
    fn both_ways(count: usize) -> [Result<(), RuntimeError>; 2] {
        // In memory, where making hundreds of directories takes no time.
        let memory = Some(Path::new("/dev/shm")).filter(|memory| memory.is_dir());
        let directory = tempfile::tempdir_in(memory.unwrap_or(&std::env::temp_dir())).expect("a directory");
        // A path that would fill a page of options by itself after some 30 layers, and would need escapes.
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
            [false, true].map(|old| {
                let at = |name: &str| base.join(format!("{name}-{old}"));
                for name in ["upper", "work", "target"] {
                    fs::create_dir(at(name)).expect("a directory");
                }
                let stack = Stack::open(&layers, &at("upper"), &at("work"))?;
                match old {
                    false => stack.mount(&at("target"))?,
                    true => stack.by_mount(&at("target"), true).context(|| "mount(2)".to_owned())?,
                }
                assert_eq!(fs::read_to_string(at("target").join("who")).expect("read"), "0", "the top-most layer wins");
                assert_eq!(fs::read_dir(at("target")).expect("listed").count(), count + 1, "every layer shows");
                fs::write(at("target").join("new"), "").expect("written");
                assert!(at("upper").join("new").exists());
                // The kernel's own mark (Documentation/filesystems/overlayfs.rst, "Volatile mount").
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
    fn any_number_of_layers_up_to_the_kernel_s_limit_is_mounted_in_the_new_way_and_in_the_old_one() {
        if can_mount() {
            for count in [1, 2, 36, 128, 300, MAX_OVERLAY_LAYERS] {
                for (way, result) in both_ways(count).into_iter().enumerate() {
                    result.unwrap_or_else(|error| panic!("{count} layers, way {way}: {error}"));
                }
            }
        }
    }

    #[test]
    fn the_kernel_s_limit_is_what_we_take_it_for() {
        if can_mount() {
            for result in both_ways(MAX_OVERLAY_LAYERS + 1) {
                assert!(result.is_err(), "the kernel stacks more layers than that");
            }
        }
    }

    /// With `redirect_always_follow`, as many kernels are built, the module's own default would follow it.
    #[test]
    fn a_layer_cannot_show_one_directory_as_another() {
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
        std::thread::spawn(move || {
            crate::sys::unshare_mounts().expect("a mount namespace");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
            let at = |name: &str| directory.path().join(name);
            let stack = Stack::open(&[at("top"), at("bottom")], &at("upper"), &at("work")).expect("a stack");
            stack.mount(&at("root")).expect("mounted");
            assert!(at("root/target/secret").exists());
            assert!(!at("root/evil/secret").exists(), "the layer's redirect was followed");
        })
        .join()
        .expect("a thread");
    }
}
