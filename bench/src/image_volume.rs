//! An image of 1 GiB as a volume of a task, beside the same image as the root of a task. Both are pulled before.

use fixtures::must::Must;
use kit::{plugin::binary, task::Task};
use serde_json::{Value as Json, json};

use crate::{
    images,
    ours::Ours,
    process::SAY_READY,
    quiet::Quiet,
    report::{Series, note},
    workdir::WorkDirectory,
};

/// Measures the table.
pub async fn measure(workdir: &WorkDirectory, quiet: &mut Quiet, rounds: usize) {
    note("image-volume");
    let data = workdir.fresh("image-volume");
    let (Some((_small_registry, small)), Some((_registry, heavy))) = (images::small(), images::heavy()) else { return };
    let mut ours = Ours::launch(&binary(), "oci-rs", &data, json!({"default_mode": "host"})).await;
    let volume = |sub_path: Option<&str>| {
        let mut mount = json!({"type": "image", "source": heavy, "target": "/models"});
        if let Some(path) = sub_path {
            mount["sub_path"] = json!(path);
        }
        json!([mount])
    };
    let cases = [
        ("the image of 1 GiB as the root", heavy.as_str(), None),
        ("a small image as the root, the image of 1 GiB as a volume", small.as_str(), Some(volume(None))),
        ("the same with a directory of the image (`sub_path`)", small.as_str(), Some(volume(Some("data")))),
        ("a small image as the root, no volume", small.as_str(), None),
    ];
    let mut series = Series::default();
    // The first round pulls the images, and is not counted.
    for number in 0..=rounds {
        if number % 5 == 0 {
            quiet.wait().await;
        }
        for (name, root, mounts) in &cases {
            let task = task(&mut ours, root, mounts.as_ref()).await;
            let took = ours.time(task).await;
            if number > 0 {
                series.add(name, took);
            }
        }
    }
    series.table("start, with an image of 1 GiB as root or as volume");
    ours.finish().await;
}

async fn task(ours: &mut Ours, image: &str, mounts: Option<&Json>) -> Task {
    let (program, args) = SAY_READY.split_first().must("a command");
    let task = ours.node.task(image).command(program, args);
    let task = mounts.into_iter().fold(task, |task, mounts| task.option("mount", mounts.clone()));
    task.build(&mut ours.plugin).await
}
