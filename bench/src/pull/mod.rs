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
    ours::Lineup,
    podman::Podman,
    process::{exists, until_done},
    quiet::Quiet,
    report::{Series, note},
    start::record,
};

/// Measures the table.
pub async fn measure(arena: &Arena, lineup: &Lineup, quiet: &mut Quiet, rounds: usize, layers: Option<&Path>) {
    note("pull: making the image");
    let folder = layers.map_or_else(|| arena.folder("layers"), Path::to_owned);
    let Some((_registry, image)) = images::large(arena, &folder) else { return };
    let mut series = Series::default();
    for number in 0..rounds {
        note(&format!("pull: round {} of {rounds}", number + 1));
        let mut times = Vec::new();
        let contestants = 1 + usize::from(lineup.against.is_some());
        for which in 0..contestants {
            quiet.wait().await;
            let (name, took) = ours(lineup, which, &arena.fresh("pull"), &image).await;
            times.push((format!("{name}, StartTask (pull and start)"), Ok(took)));
        }
        for (name, contender) in CONTENDERS.into_iter().filter(|_| lineup.peers) {
            quiet.wait().await;
            let data = arena.fresh("pull");
            times.push((name.to_owned(), contender(arena, &data, &image)));
        }
        record(times, Some(&mut series));
    }
    series.table("pull, cold, loopback");
}

/// A whole StartTask: a pull cannot be asked for alone, so the container's start is ours on top.
async fn ours(lineup: &Lineup, which: usize, data: &Fresh, image: &str) -> (&'static str, Duration) {
    let mut all = lineup.launch(data.path()).await;
    let ours = &mut all[which];
    let name = ours.name;
    let task = ours.task(image, &["/bin/true"]).await;
    let begun = Instant::now();
    ours.plugin.started(&task).await;
    let took = begun.elapsed();
    ours.plugin.wait(task.id()).await;
    ours.remove(&task).await;
    for ours in all {
        ours.finish().await;
    }
    (name, took)
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
