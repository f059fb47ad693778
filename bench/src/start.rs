//! A start with a local image, timed from the request to the command's first output.

use std::time::Duration;

use crate::{
    docker::Docker,
    images,
    ours::{Contenders, Ours},
    podman::Podman,
    quiet::Quiet,
    report::{Series, note, or_say},
    runtimes::Bare,
    workdir::{Fresh, WorkDirectory},
};

/// Pause before each start of the second table.
const PAUSE: Duration = Duration::from_millis(200);

/// The compared programs, with the image pulled.
pub struct Field {
    /// oci-rs, and the other build.
    pub ours: Vec<Ours>,
    /// dockerd, if it runs here.
    pub docker: Option<Docker>,
    /// Podman, if it runs here.
    pub podman: Option<Podman>,
    /// runc, crun, youki.
    pub bare: Vec<Bare>,
}

impl Field {
    /// Starts all programs and pulls the image with each.
    pub async fn assemble(workdir: &WorkDirectory, contenders: &Contenders, data: &Fresh, image: &str) -> Self {
        let ours = contenders.launch(data).await;
        if !contenders.peers {
            return Self { ours, docker: None, podman: None, bare: Vec::new() };
        }
        let bare = Bare::all(workdir, data.path());
        // Podman's default runtime, if it runs here.
        let runtime = if bare.iter().any(|bare| bare.program == "crun") { "crun" } else { "runc" };
        let docker = or_say(Docker::start(workdir, data.path()).and_then(|docker| docker.pull(image).map(|_| docker)));
        let podman = or_say(Podman::find(workdir, data, runtime).and_then(|podman| podman.pull(image).map(|_| podman)));
        Self { ours, docker, podman, bare }
    }

    /// Ends oci-rs and checks that nothing is left. The other programs end with their values.
    pub async fn finish(&mut self) {
        for ours in self.ours.drain(..) {
            ours.finish().await;
        }
    }
}

/// Measures both tables.
pub async fn measure(workdir: &WorkDirectory, contenders: &Contenders, quiet: &mut Quiet, rounds: usize) {
    let data = workdir.fresh("start");
    let Some((_registry, image)) = images::small() else { return };
    let mut field = Field::assemble(workdir, contenders, &data, &image).await;
    for (title, pause) in [("start, one after the other", None), ("start, after 200 ms of nothing", Some(PAUSE))] {
        note(title);
        let mut series = Series::default();
        // The first round only fills caches.
        for number in 0..=rounds {
            if number % 5 == 0 {
                quiet.wait().await;
            }
            round(&mut field, &image, pause, (number > 0).then_some(&mut series)).await;
        }
        series.table(title);
    }
    field.finish().await;
}

async fn round(field: &mut Field, image: &str, pause: Option<Duration>, series: Option<&mut Series>) {
    let mut times = Vec::new();
    let rest = async || {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    };
    for ours in &mut field.ours {
        rest().await;
        times.push((format!("{}, StartTask", ours.name), Ok(ours.start(image).await)));
    }
    if let Some(docker) = &field.docker {
        rest().await;
        times.push(("dockerd, API create + start".into(), docker.start_by_api(image)));
        rest().await;
        times.push(("docker run".into(), docker.run(image)));
    }
    if let Some(podman) = &field.podman {
        rest().await;
        times.push(("podman run".into(), podman.run(image)));
    }
    for bare in &field.bare {
        rest().await;
        times.push((format!("{} run, bundle ready", bare.program), bare.run()));
    }
    record(times, series);
}

/// Adds the times of a round to the series, and reports failures.
pub fn record(times: Vec<(String, Result<Duration, String>)>, series: Option<&mut Series>) {
    let Some(series) = series else {
        return;
    };
    for (name, time) in times {
        match time {
            Ok(time) => series.add(&name, time),
            Err(error) => note(&format!("{name}: {error}")),
        }
    }
}
