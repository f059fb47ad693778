//! Images for the snapshotters of containerd that fetch a file when it is read.

use super::images::Image;
use crate::{
    containerd::{Containerd, SOCI, STARGZ},
    process::until_done,
    report::note,
    workdir::{WorkDirectory, text},
};

/// How long the conversion notes what a service reads first, in seconds. The service starts from the unpacked image.
const OBSERVED: &str = "10";
/// The effort of compression that most tools have. ctr-remote's default takes several times as long.
const LEVEL: &str = "6";

/// Converts an image at the registry for one of these snapshotters, and pushes the result there. eStargz has the files
/// that the service reads first at the beginning. An index of SOCI is made without a list of such files.
pub fn convert(workdir: &WorkDirectory, image: &Image, host: &str, snapshotter: &str) -> Result<(), String> {
    note(&format!("readiness: converting {} for {snapshotter}", image.gzip(host)));
    let data = workdir.fresh("convert");
    let containerd = Containerd::start(workdir, data.path(), "overlayfs")?;
    let (source, target) = (image.gzip(host), image.of_snapshotter(host, snapshotter));
    until_done(containerd.client().args(["images", "pull", "--plain-http", &source]))?;
    match snapshotter {
        STARGZ => {
            let observe = ["images", "optimize", "--oci", "--net-host", "--period", OBSERVED];
            let level = ["--estargz-compression-level", LEVEL];
            until_done(containerd.remote_client().args(observe).args(level).args([&source, &target]))?;
        }
        SOCI => {
            let root = text(&data.path().join("soci"));
            let convert = ["--root", &root, "--content-store", "containerd", "convert", &source, &target];
            until_done(containerd.client_of("soci").args(convert))?;
        }
        other => return Err(format!("{other} has no images of its own")),
    }
    until_done(containerd.client().args(["images", "push", "--plain-http", &target])).map(drop)
}
