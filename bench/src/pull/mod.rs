//! The pull of a new image from a registry on loopback into a new file system: time, processor time, memory.

mod cost;
pub mod floor;
pub mod link;
mod table;

use std::{path::Path, process::Command};

use crate::{
    containerd::Containerd,
    docker::Docker,
    images::{self, Large},
    ours::Contenders,
    podman::Podman,
    process::{exists, until_done},
    quiet::Quiet,
    report::{milliseconds, note, say},
    workdir::{Fresh, WorkDirectory, text},
};
use cost::Cost;
use link::{Line, Link};
use table::Costs;

/// Measures an ordinary image without a limited link.
pub async fn ordinary(
    workdir: &WorkDirectory,
    contenders: &Contenders,
    quiet: &mut Quiet,
    rounds: usize,
    layers: Option<&Path>,
) {
    let Some(image) = images::large(workdir, &layer_directory(workdir, layers)) else { return };
    contest("pull, cold, loopback", workdir, contenders, quiet, rounds, &image).await;
}

/// The same image through a Gigabit link.
pub async fn through_link(
    workdir: &WorkDirectory,
    contenders: &Contenders,
    quiet: &mut Quiet,
    rounds: usize,
    layers: Option<&Path>,
) {
    let Some(mut image) = images::large(workdir, &layer_directory(workdir, layers)) else { return };
    let link = Link::open(image.registry.host(), Line::GIGABIT).await;
    image.reference = image.reference.replace(&image.registry.host(), &link.host());
    let floor = milliseconds(&Line::GIGABIT.time_of(image.packed));
    say(&format!("The link's own time for the layers: {floor:.0} ms."));
    contest("pull, cold, through 1 Gbit/s", workdir, contenders, quiet, rounds, &image).await;
}

/// One layer of a gibibyte.
pub async fn one_layer(
    workdir: &WorkDirectory,
    contenders: &Contenders,
    quiet: &mut Quiet,
    rounds: usize,
    layers: Option<&Path>,
) {
    let Some(image) = images::one_layer(workdir, &layer_directory(workdir, layers)) else { return };
    contest("pull, cold, one layer of 1 GiB", workdir, contenders, quiet, rounds, &image).await;
}

fn layer_directory(workdir: &WorkDirectory, given: Option<&Path>) -> std::path::PathBuf {
    note("pull: making the image");
    given.map_or_else(|| workdir.directory("layers"), Path::to_owned)
}

async fn contest(
    title: &str,
    workdir: &WorkDirectory,
    contenders: &Contenders,
    quiet: &mut Quiet,
    rounds: usize,
    image: &Large,
) {
    let mut costs = Costs::default();
    for number in 0..rounds {
        note(&format!("{title}: round {} of {rounds}", number + 1));
        for which in 0..1 + usize::from(contenders.against.is_some()) {
            quiet.wait().await;
            let (name, cost) = ours(contenders, which, &workdir.fresh("pull"), &image.reference).await;
            costs.add(&format!("{name}, StartTask (pull and start)"), Ok(cost));
        }
        quiet.wait().await;
        costs.add(floor::NAME, floor::measure(&workdir.fresh("pull"), &image.layers));
        for (name, contender) in CONTENDERS.into_iter().filter(|_| contenders.peers) {
            quiet.wait().await;
            let data = workdir.fresh("pull");
            costs.add(name, contender(workdir, &data, &image.reference));
        }
    }
    costs.table(title);
}

/// A whole StartTask. There is no call for a pull alone, so the time includes the start of the container.
async fn ours(contenders: &Contenders, which: usize, data: &Fresh, image: &str) -> (&'static str, Cost) {
    let mut all = contenders.launch(data).await;
    let ours = &mut all[which];
    let name = ours.name;
    let task = ours.task(image, &["/bin/true"]).await;
    let plugin = ours.plugin.process.pid();
    let cost = cost::watch_async(&[plugin], async {
        ours.plugin.started(&task).await;
    })
    .await;
    ours.plugin.wait(task.id()).await;
    ours.remove(&task).await;
    for ours in all {
        ours.finish().await;
    }
    (name, cost)
}

type Contender = fn(&WorkDirectory, &Fresh, &str) -> Result<Cost, String>;

const CONTENDERS: [(&str, Contender); 4] = [
    ("docker pull", |workdir, data, image| {
        let docker = Docker::start(workdir, data.path())?;
        cost::watch(&docker.daemons(), || docker.pull(image))
    }),
    ("podman pull", |workdir, data, image| {
        let podman = Podman::find(workdir, data, "runc")?;
        cost::watch(&[], || podman.pull(image))
    }),
    ("containerd, ctr images pull", |workdir, data, image| {
        let containerd = Containerd::start(workdir, data.path(), "overlayfs")?;
        let pull = || until_done(containerd.client().args(["images", "pull", "--plain-http", image]));
        cost::watch(&containerd.pids(), pull)
    }),
    ("skopeo copy + umoci unpack", skopeo_and_umoci),
];

fn skopeo_and_umoci(_: &WorkDirectory, data: &Fresh, image: &str) -> Result<Cost, String> {
    if !exists("skopeo") || !exists("umoci") {
        return Err("skopeo or umoci is not installed".to_owned());
    }
    let (layout, bundle) = (format!("{}/layout:1", text(data.path())), data.path().join("bundle"));
    let (from, to) = (format!("docker://{image}"), format!("oci:{layout}"));
    cost::watch(&[], || {
        let copy = ["copy", "--quiet", "--src-tls-verify=false", &from, &to];
        let copied = until_done(Command::new("skopeo").args(copy))?;
        Ok(copied + until_done(Command::new("umoci").args(["unpack", "--image", &layout]).arg(&bundle))?)
    })
}
