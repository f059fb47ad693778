//! The images that the compared programs run and pull. The real `docker-registry` serves them, because all programs
//! support it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fixtures::{
    image::{Built, Compression, Entry, Image, Layer},
    must::Must,
    random::Random,
    registry::DockerRegistry,
};
use serde_json::json;

use crate::{
    report::say,
    workdir::{WorkDirectory, text, tool},
};

/// The script that makes the tar files of the large image.
const GENERATOR: &str = include_str!("../image.sh");
const LAYERS: usize = 6;
/// The number of the layer that is one large program.
const PROGRAM: usize = 5;

/// An image with only busybox, for measurements of containers.
pub fn small() -> Option<(DockerRegistry, String)> {
    serve(&image_of(vec![Layer::of(busybox())]))
}

/// The same with a second layer: a file of one gibibyte, which no compression makes smaller.
pub fn heavy() -> Option<(DockerRegistry, String)> {
    let data = Random::new(1).bytes(1 << 30);
    let weights = Layer::of([Entry::dir("data"), Entry::file("data/weights", data)]).compression(Compression::Plain);
    serve(&image_of(vec![Layer::of(busybox()), weights]))
}

fn image_of(layers: Vec<Layer>) -> Built {
    let image = layers.into_iter().fold(Image::new(), Image::layer);
    image.run(json!({"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]})).build()
}

fn busybox() -> Vec<Entry> {
    let mut entries: Vec<Entry> = ["bin", "etc", "proc", "dev", "sys"].map(Entry::dir).into();
    entries.push(Entry::dir("tmp").mode(0o1777));
    entries.push(Entry::file("bin/busybox", fixtures::busybox::program()).mode(0o755));
    entries.extend(["sh", "sleep", "true"].map(|name| Entry::symlink(format!("bin/{name}"), "busybox")));
    entries.push(Entry::file("etc/passwd", "root:x:0:0:root:/:/bin/sh\n"));
    entries.push(Entry::file("etc/group", "root:x:0:\n"));
    entries
}

/// A large image, and its layers as files.
pub struct Large {
    /// The registry. It runs as long as the value exists.
    pub registry: DockerRegistry,
    /// The reference for a pull.
    pub reference: String,
    /// The compressed size of all layers in bytes.
    pub packed: u64,
    /// The layers, the lowest first.
    pub layers: Vec<LayerFiles>,
}

/// The files of a layer.
pub struct LayerFiles {
    /// The gzip file.
    pub blob: PathBuf,
    /// The archive in it.
    pub tar: PathBuf,
}

/// An image of hundreds of megabytes, like that of an ordinary service. Missing tar files are made in the directory.
pub fn large(workdir: &WorkDirectory, directory: &Path) -> Option<Large> {
    make_layers(workdir, directory);
    packed(workdir, (1..=LAYERS).map(|number| directory.join(format!("{number}.tar"))).collect())
}

/// An image with one layer: a single file of one gibibyte, made of programs.
pub fn one_layer(workdir: &WorkDirectory, directory: &Path) -> Option<Large> {
    make_layers(workdir, directory);
    let program = fs::read(directory.join(format!("{PROGRAM}.tar"))).must("the layer of one program");
    let mut data = Vec::with_capacity(1 << 30);
    while data.len() < 1 << 30 {
        data.extend(&program[..program.len().min((1 << 30) - data.len())]);
    }
    let tar = workdir.directory("one-layer").join("1.tar");
    let command = Entry::file("bin/true", fixtures::busybox::program()).mode(0o755);
    let layer = Layer::of([Entry::dir("bin"), command, Entry::dir("data"), Entry::file("data/blob", data)]);
    fs::write(&tar, layer.tar()).must("the layer's file");
    packed(workdir, vec![tar])
}

fn make_layers(workdir: &WorkDirectory, directory: &Path) {
    let script = workdir.directory("generator").join("image.sh");
    fs::write(&script, GENERATOR).must("the generator");
    tool("bash", &[&text(&script), &text(directory)]);
}

/// Compresses the layers and serves them. The compression takes longer than any pull.
fn packed(workdir: &WorkDirectory, tars: Vec<PathBuf>) -> Option<Large> {
    let read = |tar: &PathBuf| Layer::raw(fs::read(tar).must("a layer")).compression(Compression::GzipAsUsual);
    let unpacked: u64 = tars.iter().filter_map(|tar| Some(fs::metadata(tar).ok()?.len())).sum();
    let image = tars.iter().map(read).fold(Image::new(), Image::layer).run(json!({"Cmd": ["/bin/true"]}));
    let built = image.build();
    let directory = workdir.directory("blobs");
    // The last blob is the config.
    let blobs = built.blobs.iter().take(tars.len()).enumerate().map(|(number, (_, bytes))| {
        let blob = directory.join(format!("{number}.gz"));
        fs::write(&blob, bytes).must("a blob's file");
        blob
    });
    let layers: Vec<_> = blobs.zip(tars).map(|(blob, tar)| LayerFiles { blob, tar }).collect();
    let packed = layers.iter().filter_map(|layer| Some(fs::metadata(&layer.blob).ok()?.len())).sum();
    say(&format!(
        "\nThe image to pull: {} layers, {} MB of tar, {} MB as gzip.",
        layers.len(),
        unpacked / 1_000_000,
        packed / 1_000_000
    ));
    let (registry, reference) = serve(&built)?;
    Some(Large { registry, reference, packed, layers })
}

fn serve(image: &Built) -> Option<(DockerRegistry, String)> {
    let Some(registry) = DockerRegistry::start() else {
        say("- nothing to run: docker-registry is not installed");
        return None;
    };
    let reference = registry.push("bench:1", image);
    Some((registry, reference))
}
