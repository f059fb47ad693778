//! A command in a running container, from the call to its exit code.

use crate::{
    images,
    ours::Contenders,
    quiet::Quiet,
    report::{Series, note, or_say},
    start::{Field, record},
    workdir::WorkDirectory,
};

const IDLE: [&str; 2] = ["sleep", "100000"];
const TRUE: [&str; 1] = ["true"];

/// Measures the table.
pub async fn measure(workdir: &WorkDirectory, contenders: &Contenders, quiet: &mut Quiet, rounds: usize) {
    note("exec");
    let data = workdir.fresh("exec");
    let Some((_registry, image)) = images::small() else { return };
    let mut field = Field::assemble(workdir, contenders, &data, &image).await;
    let mut tasks = Vec::new();
    for ours in &mut field.ours {
        let task = ours.task(&image, &IDLE).await;
        ours.plugin.started(&task).await;
        tasks.push(task);
    }
    let docker = field.docker.as_ref().and_then(|docker| Some((docker, or_say(docker.keep(&image, &IDLE))?)));
    let podman = field.podman.as_ref().filter(|podman| or_say(podman.keep("idle", &image, &IDLE)).is_some());
    let bare: Vec<_> = field.bare.iter().filter(|bare| or_say(bare.keep()).is_some()).collect();
    let mut series = Series::default();
    for number in 0..=rounds {
        if number % 5 == 0 {
            quiet.wait().await;
        }
        let mut times = Vec::new();
        for (ours, task) in field.ours.iter().zip(&tasks) {
            times.push((format!("{}, ExecTask", ours.name), Ok(ours.exec(task, &TRUE).await)));
        }
        if let Some((docker, id)) = &docker {
            times.push(("dockerd, API create + start + inspect".into(), docker.exec_by_api(id, &TRUE)));
            times.push(("docker exec".into(), docker.exec(id, &TRUE)));
        }
        if let Some(podman) = podman {
            times.push(("podman exec".into(), podman.exec("idle", &TRUE)));
        }
        for bare in &bare {
            times.push((format!("{} exec", bare.program), bare.exec(&TRUE)));
        }
        record(times, (number > 0).then_some(&mut series));
    }
    series.table("exec of true");
    for bare in &bare {
        or_say(bare.remove());
    }
    if let Some((docker, id)) = &docker {
        or_say(docker.remove(id));
    }
    for (ours, task) in field.ours.iter().zip(&tasks) {
        ours.remove(task).await;
    }
    field.finish().await;
}
