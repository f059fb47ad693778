//! `oci-rs df`: the disk usage of images, layers, tasks and volumes.

use std::{collections::BTreeSet, io, path::PathBuf};

use host::tree_size::{self, TreeSize};
use image_store::{ImageUsage, LayerUsage};
use serde_json::{Value, json};

use super::{
    arguments::DfArguments,
    failure::Failure,
    format, image,
    output::{Output, note},
    tasks::Task,
    volume::{Volume, host_volumes_with_users, volumes},
};
use crate::volume_plugin::HostVolume;

/// One kind of content.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kind {
    name: &'static str,
    /// The number of things.
    total: usize,
    /// Those that tasks use.
    active: usize,
    bytes: u64,
    /// The part that several images share.
    shared: u64,
    /// What a removal of everything unused would free.
    reclaimable: u64,
}

/// Everything that was measured.
struct Report {
    kinds: Vec<Kind>,
    images: Vec<ImageUsage>,
    tasks: Vec<(String, u64)>,
    volumes: Vec<(Volume, u64)>,
    host_volumes: Vec<(HostVolume, u64)>,
}

/// Runs the command.
pub fn run(arguments: &DfArguments) -> Result<(), Failure> {
    let report = measure(arguments)?;
    let output = Output { json: arguments.node.json };
    if output.json { Ok(output.value(&report.json())?) } else { report.write(arguments.verbose, &output) }
}

fn measure(arguments: &DfArguments) -> Result<Report, Failure> {
    let (mut images, mut layers, mut freed) = (Vec::new(), Vec::new(), 0);
    for store in image::stores(&arguments.node)? {
        images.extend(store.usage().map_err(Failure::of)?);
        layers.extend(store.layer_usage().map_err(Failure::of)?);
        freed += store.prunable().map_err(Failure::of)?.bytes;
    }
    let all = Task::all(&arguments.node)?;
    let size = |directory: &PathBuf| {
        let measured = tree_size::measure(directory, u64::MAX).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                note(format_args!("{}: {error}", directory.display()));
            }
            TreeSize::default()
        });
        if measured.is_partial {
            note(format_args!("{} is larger: a part of it cannot be read", directory.display()));
        }
        measured.bytes
    };
    let tasks: Vec<(String, u64)> =
        all.iter().map(|task| (task.name(), size(&task.place.observer.writable_layer(&task.view.id)))).collect();
    let volumes: Vec<(Volume, u64)> = volumes(&arguments.node)?
        .into_iter()
        // The file system of a volume with options is not this node's, and its server may not answer.
        .map(|volume| (volume.record.options.is_none(), volume))
        .map(|(local, volume)| (if local { size(&volume.record.directory) } else { 0 }, volume))
        .map(|(bytes, volume)| (volume, bytes))
        .collect();
    let (mut host_volumes, mut used_host_volumes) = (Vec::new(), 0);
    for (volume, users) in host_volumes_with_users(&all) {
        used_host_volumes += usize::from(!users.is_empty());
        // A volume is a file of its own or a directory.
        let bytes = volume.disk.unwrap_or_else(|| size(&volume.content));
        host_volumes.push((volume, bytes));
    }
    let kinds = vec![
        of_images(&images, &layers),
        of_layers(&layers, freed),
        Kind {
            name: "writable layers",
            total: tasks.len(),
            active: all.iter().filter(|task| task.is_running()).count(),
            bytes: tasks.iter().map(|(_, bytes)| bytes).sum(),
            ..Kind::default()
        },
        of_volumes(&volumes),
        // Nomad removes them, so nothing of them is reclaimable here.
        Kind {
            name: "host volumes",
            total: host_volumes.len(),
            active: used_host_volumes,
            bytes: host_volumes.iter().map(|(_, bytes)| bytes).sum(),
            ..Kind::default()
        },
    ];
    Ok(Report { kinds, images, tasks, volumes, host_volumes })
}

/// The images. Their layers count once. What an image that no task uses shares with a used one is not freed with it.
fn of_images(images: &[ImageUsage], layers: &[LayerUsage]) -> Kind {
    let names: BTreeSet<_> = images.iter().flat_map(|image| &image.record.layers).map(|layer| &layer.diff_id).collect();
    let own = layers.iter().filter(|layer| names.contains(&layer.diff_id));
    let sum = |kept: fn(&LayerUsage) -> bool| own.clone().filter(|layer| kept(layer)).map(|layer| layer.bytes).sum();
    Kind {
        name: "images",
        total: images.len(),
        active: images.iter().filter(|image| !image.held_by.is_empty()).count(),
        bytes: sum(|_| true),
        shared: sum(|layer| layer.images > 1),
        reclaimable: sum(|layer| !layer.held),
    }
}

fn of_layers(layers: &[LayerUsage], freed: u64) -> Kind {
    let sum = |kept: fn(&LayerUsage) -> bool| layers.iter().filter(|layer| kept(layer)).map(|layer| layer.bytes).sum();
    Kind {
        name: "layers",
        total: layers.len(),
        active: layers.iter().filter(|layer| layer.held).count(),
        bytes: sum(|_| true),
        shared: sum(|layer| layer.images > 1),
        reclaimable: freed,
    }
}

fn of_volumes(volumes: &[(Volume, u64)]) -> Kind {
    let unused = volumes.iter().filter(|(volume, _)| volume.users.is_empty());
    Kind {
        name: "volumes",
        total: volumes.len(),
        active: volumes.len() - unused.clone().count(),
        bytes: volumes.iter().map(|(_, bytes)| bytes).sum(),
        shared: 0,
        reclaimable: unused.map(|(_, bytes)| bytes).sum(),
    }
}

fn host_volume_json((volume, bytes): &(HostVolume, u64)) -> Value {
    json!({ "volume": volume.record.name, "id": volume.id, "bytes": bytes })
}

impl Report {
    fn json(&self) -> Value {
        let kind = |kind: &Kind| {
            let Kind { name, total, active, bytes, shared, reclaimable } = kind;
            json!({
                "type": name, "total": total, "active": active, "bytes": bytes, "shared_bytes": shared,
                "reclaimable_bytes": reclaimable,
            })
        };
        let task = |(name, bytes): &(String, u64)| json!({ "task": name, "bytes": bytes });
        let volume = |(volume, bytes): &(Volume, u64)| json!({ "volume": volume.record.name, "bytes": bytes });
        json!({
            "summary": self.kinds.iter().map(kind).collect::<Vec<_>>(),
            "images": self.images.iter().map(image::image_json).collect::<Vec<_>>(),
            "writable_layers": self.tasks.iter().map(task).collect::<Vec<_>>(),
            "volumes": self.volumes.iter().map(volume).collect::<Vec<_>>(),
            "host_volumes": self.host_volumes.iter().map(host_volume_json).collect::<Vec<_>>(),
        })
    }

    fn write(&self, verbose: bool, output: &Output) -> Result<(), Failure> {
        let titles = ["TYPE", "TOTAL", "ACTIVE", "SIZE", "SHARED", "RECLAIMABLE"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(self.kinds.iter().map(|kind| {
            let Kind { name, total, active, bytes, shared, reclaimable } = kind;
            let [bytes, shared, reclaimable] = [*bytes, *shared, *reclaimable].map(format::size);
            vec![(*name).to_owned(), total.to_string(), active.to_string(), bytes, shared, reclaimable]
        }));
        output.table(&rows)?;
        if verbose {
            let image = |image: &ImageUsage| (image.record.reference.to_string(), image.bytes);
            self.list("IMAGE", self.images.iter().map(image), output)?;
            self.list("TASK", self.tasks.iter().cloned(), output)?;
            self.list(
                "VOLUME",
                self.volumes.iter().map(|(volume, bytes)| (volume.record.name.clone(), *bytes)),
                output,
            )?;
            self.list(
                "HOST VOLUME",
                self.host_volumes.iter().map(|(volume, bytes)| (volume.record.name.clone(), *bytes)),
                output,
            )?;
        }
        Ok(())
    }

    /// A table of names and sizes, the largest one first.
    fn list(&self, title: &str, items: impl Iterator<Item = (String, u64)>, output: &Output) -> Result<(), Failure> {
        let mut items: Vec<(String, u64)> = items.collect();
        if items.is_empty() {
            return Ok(());
        }
        items.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        output.line("")?;
        let mut rows = vec![vec![title.to_owned(), "SIZE".to_owned()]];
        rows.extend(items.into_iter().map(|(name, bytes)| vec![name, format::size(bytes)]));
        Ok(output.fitted(&rows, &[0])?)
    }
}

#[cfg(test)]
mod tests {
    use image_store::{Digest, LayerUsage};

    use super::{Kind, of_layers};

    #[test]
    fn layers_count_once() {
        let layer = |name: &str, bytes, images, held| LayerUsage {
            diff_id: Digest::sha256(name.as_bytes()),
            bytes,
            images,
            held,
        };
        let layers = [layer("a", 100, 2, true), layer("b", 10, 1, false), layer("c", 1, 0, false)];
        let expected = Kind { name: "layers", total: 3, active: 1, bytes: 111, shared: 100, reclaimable: 11 };
        assert_eq!(of_layers(&layers, 11), expected);
    }
}
