//! A store on a file system that refuses the marks of overlayfs: another overlay, as the root of a container.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use fixtures::image::{self, Entry, Layer};
use image_store::{Image, LayerFormat, Silent, Store, StoreConfig};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{Bench, config, request, xattrs};

/// An overlay in a temporary directory.
struct Nested {
    _directory: tempfile::TempDir,
    merged: PathBuf,
}

impl Nested {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(at(name)).unwrap();
        }
        let data = format!(
            "lowerdir={},upperdir={},workdir={}",
            at("lower").display(),
            at("upper").display(),
            at("work").display()
        );
        let data = std::ffi::CString::new(data).unwrap();
        mount("overlay", at("merged"), "overlay", MountFlags::empty(), data.as_c_str()).unwrap();
        Self { merged: at("merged"), _directory: directory }
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        // If the unmount fails, the removal of the directory fails as well and reports it.
        unmount(&self.merged, UnmountFlags::DETACH).ok();
    }
}

async fn pull_into(root: &Path, bench: &Bench, layers: Vec<Layer>) -> Image {
    // The kernel mounts no EROFS image from an overlay.
    let store = Store::open(StoreConfig { layers: LayerFormat::Directory, ..config(root) }).unwrap();
    let built = layers.into_iter().fold(image::Image::new(), image::Image::layer).build();
    store.acquire(request(&bench.push("nested:1", &built)), "task", Arc::new(Silent)).await.unwrap()
}

fn layers() -> Vec<Layer> {
    vec![
        Layer::of([
            Entry::dir("gone"),
            Entry::file("gone/inside", "x"),
            Entry::dir("opaque").mode(0o1777),
            Entry::file("opaque/old", "x"),
            Entry::dir("kept").mode(0o1777),
        ]),
        Layer::of([
            Entry::file(".wh.gone", ""),
            Entry::dir("opaque"),
            Entry::file("opaque/.wh..wh..opq", ""),
            Entry::file("kept/new", "x"),
        ]),
        Layer::of([Entry::file("opaque/deep/new", "x"), Entry::file("gone/again", "x")]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_on_an_overlay_says_that_its_layers_must_be_copied() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    let (bench, nested) = (Bench::new(), Nested::new());
    let image = pull_into(&nested.merged.join("images"), &bench, layers()).await;
    assert!(image.copy_only, "the kernel took a whiteout on an overlay");
    // With the layer of implied directories for `kept`, which the second layer does not describe. `gone` inherits
    // nothing, because the lower directory is hidden.
    let [implied, top, second, _] = &image.layers[..] else { panic!("{:?}", image.layers) };
    assert!(fs::symlink_metadata(second.join("gone")).unwrap().file_type().is_socket());
    assert!(implied.join("kept").is_dir() && top.join("gone/again").is_file());
    let opaque = second.join("opaque");
    let marked = xattrs(&opaque).contains("trusted.overlay.opaque=79");
    assert!(marked || fs::symlink_metadata(opaque.join(".wh..wh..opq")).unwrap().file_type().is_socket());
    // The same image without whiteouts can be mounted everywhere.
    let plain = pull_into(&nested.merged.join("plain"), &bench, vec![Layer::of([Entry::file("a", "x")])]).await;
    assert!(!plain.copy_only);
    // A file system that accepts the marks gets the marks.
    let usual = pull_into(&bench.directory.path().join("usual"), &bench, layers()).await;
    assert!(!usual.copy_only && usual.layers.len() == image.layers.len());
    assert!(fs::symlink_metadata(usual.layers[2].join("gone")).unwrap().file_type().is_char_device());
}
