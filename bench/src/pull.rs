//! An image that nobody has yet, from a registry on loopback into a fresh file system.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    arena::{Arena, Fresh, text},
    docker::Docker,
    images,
    ours::Ours,
    podman::Podman,
    process::{exists, until_done},
    quiet::Quiet,
    report::{Series, note},
    start::record,
};

/// Measures the table.
pub async fn measure(arena: &Arena, quiet: &mut Quiet, rounds: usize, layers: Option<&Path>) {
    note("pull: making the image");
    let folder = layers.map_or_else(|| arena.folder("layers"), Path::to_owned);
    let Some((_registry, image)) = images::large(arena, &folder) else { return };
    let mut series = Series::default();
    for number in 0..rounds {
        note(&format!("pull: round {} of {rounds}", number + 1));
        let mut times = Vec::new();
        quiet.wait().await;
        times.push(("oci-rs, StartTask (pull and start)", Ok(ours(&arena.fresh("pull"), &image).await)));
        for (name, contender) in CONTENDERS {
            quiet.wait().await;
            let data = arena.fresh("pull");
            times.push((name, contender(arena, &data, &image)));
        }
        record(times, Some(&mut series));
    }
    series.table("pull, cold, loopback");
}

/// A whole StartTask: a pull cannot be asked for alone, so the container's start is ours on top.
async fn ours(data: &Fresh, image: &str) -> Duration {
    let mut ours = Ours::launch(data.path()).await;
    let task = ours.task(image, &["/bin/true"]).await;
    let begun = Instant::now();
    ours.plugin.started(&task).await;
    let took = begun.elapsed();
    ours.plugin.wait(task.id()).await;
    ours.remove(&task).await;
    ours.finish().await;
    took
}

type Contender = fn(&Arena, &Fresh, &str) -> Result<Duration, String>;

const CONTENDERS: [(&str, Contender); 4] = [
    ("docker pull", |arena, data, image| Docker::start(arena, data.path())?.pull(image)),
    ("podman pull", |arena, data, image| Podman::find(arena, data, "runc")?.pull(image)),
    ("containerd, ctr images pull", containerd),
    ("skopeo copy + umoci unpack", skopeo_and_umoci),
];

/// The containerd that belongs to dockerd, whose root is on the same file system.
fn containerd(arena: &Arena, data: &Fresh, image: &str) -> Result<Duration, String> {
    let docker = Docker::start(arena, data.path())?;
    let address = text(&docker.containerd());
    until_done(Command::new("ctr").args(["--address", &address, "images", "pull", "--plain-http", image]))
}

fn skopeo_and_umoci(_: &Arena, data: &Fresh, image: &str) -> Result<Duration, String> {
    if !exists("skopeo") || !exists("umoci") {
        return Err("skopeo or umoci is not installed".to_owned());
    }
    let (layout, bundle) = (format!("{}/layout:1", text(data.path())), data.path().join("bundle"));
    let (from, to) = (format!("docker://{image}"), format!("oci:{layout}"));
    let copied = until_done(Command::new("skopeo").args(["copy", "--quiet", "--src-tls-verify=false", &from, &to]))?;
    let unpacked = until_done(Command::new("umoci").args(["unpack", "--image", &layout]).arg(bundle))?;
    Ok(copied + unpacked)
}
