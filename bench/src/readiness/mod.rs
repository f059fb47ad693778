//! The time from the start of a task to the first correct HTTP answer of its service, with an image that the node does
//! not have. The registry is behind a link of limited speed.

mod answer;
mod blobs;
mod contenders;
mod images;
mod options;
mod reader;
mod remote;
mod sample;
mod services;
mod table;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use fixtures::{random::uuid, registry::DockerRegistry};

pub use self::options::{Options, list};
use self::{
    blobs::Blobs,
    contenders::{Arena, Contender},
    images::{Image, Publisher},
    services::Service,
    table::Cell,
};
use crate::{
    containerd::REMOTE,
    ours::Contenders,
    pull::{
        floor,
        link::{Line, Link},
    },
    quiet::Quiet,
    report::{note, or_say, say},
    workdir::WorkDirectory,
};

/// Measures the tables.
pub async fn measure(
    workdir: &WorkDirectory,
    contenders: &Contenders,
    quiet: &mut Quiet,
    (rounds, options): (usize, &Options),
) {
    let Some(registry) = DockerRegistry::start() else {
        say("- nothing to run: docker-registry is not installed");
        return;
    };
    let roots = options.roots.clone().unwrap_or_else(|| workdir.directory("roots"));
    let (blobs, service) = (Blobs::open(&roots), (answer::free_port(), uuid()));
    let service = (service.0, service.1.as_str());
    let publisher = Publisher { workdir, blobs: &blobs, registry: &registry, service };
    let profiles = profiles(&publisher, options).await;
    let mut cells = Vec::new();
    for mebibytes in &options.sizes {
        for (which, profile) in &profiles {
            let published = publisher.publish(*which, Some(*mebibytes), profile.as_deref());
            let Some((image, disk)) = or_say(published.and_then(|image| with_disk(workdir, image))) else { continue };
            let mut programs = Contender::OURS.to_vec();
            if contenders.peers {
                let host = registry.host();
                let converted = |snapshotter| or_say(remote::convert(workdir, &image, &host, snapshotter)).is_some();
                programs.extend(Contender::PEERS.into_iter().filter(|peer| match peer {
                    Contender::Containerd(snapshotter) if REMOTE.contains(snapshotter) => converted(snapshotter),
                    _ => true,
                }));
            }
            for line in &options.lines {
                let link = Link::open(registry.host(), *line).await;
                let arena = Arena { workdir, link: &link, service };
                let mut cell = Cell::new(&image, *line, disk);
                contest((&arena, &programs), quiet, rounds, &image, &mut cell).await;
                cells.push(cell);
            }
        }
    }
    table::print(&cells);
}

/// Notes for each service what it reads first.
async fn profiles(publisher: &Publisher<'_>, options: &Options) -> BTreeMap<Service, Option<PathBuf>> {
    let link = Link::open(publisher.registry.host(), Line { rate: 1 << 31, ..Line::GIGABIT }).await;
    let arena = Arena { workdir: publisher.workdir, link: &link, service: publisher.service };
    let mut profiles = BTreeMap::new();
    for service in &options.services {
        note(&format!("readiness: what {service} reads first"));
        let profile = match publisher.publish(*service, None, None) {
            Ok(image) => arena.profile(&image.native(&link.host()), image.layers()).await,
            Err(error) => Err(error),
        };
        let profile = or_say(profile.map_err(|error| format!("the profile of {service}: {error}")));
        profiles.insert(*service, profile);
    }
    profiles
}

/// The image, and the time in which the disk takes its native form.
fn with_disk(workdir: &WorkDirectory, image: Image) -> Result<(Image, Duration), String> {
    let disk = floor::write(&workdir.fresh("readiness"), image.native)?;
    let copy = floor::copy(&workdir.fresh("readiness"), image.native)?;
    say(&format!(
        "- {}, {} MiB: {} layers, {} MB as gzip, {} MB native. The disk takes the native image in {} ms. Receiving, \
         hashing and writing it takes {} ms of processor time.",
        image.service,
        image.mebibytes,
        image.layers(),
        image.packed / 1_000_000,
        image.native / 1_000_000,
        disk.as_millis(),
        copy.as_millis(),
    ));
    Ok((image, disk))
}

async fn contest(
    (arena, programs): (&Arena<'_>, &[Contender]),
    quiet: &mut Quiet,
    rounds: usize,
    image: &Image,
    cell: &mut Cell,
) {
    for round in 1..=rounds {
        let (service, mebibytes, line) = (cell.service, cell.mebibytes, cell.line);
        note(&format!("readiness: {service}, {mebibytes} MiB, {line}: round {round} of {rounds}"));
        for contender in programs {
            quiet.wait().await;
            let measured = arena.measure(*contender, image).await;
            let measured = measured.map_err(|error| format!("{}: {error}", contender.name()));
            for (name, sample) in or_say(measured).into_iter().flatten() {
                // A run takes hours. If it is cut off, its starts so far are known.
                note(&format!("readiness: {name}: {sample}"));
                cell.add(&name, sample);
            }
        }
    }
}
