//! What contenders run and pull, served by the real `docker-registry`, with which all of them get along.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kit::{
    image::{Built, Compression, Entry, Image, Layer},
    must::Must,
    registry::DockerRegistry,
};
use serde_json::json;

use crate::{
    arena::{Arena, text, tool},
    report::say,
};

/// Makes the tar files of the large image.
const GENERATOR: &str = include_str!("../image.sh");
const LAYERS: usize = 6;

/// busybox alone, for whatever is about containers rather than images.
pub fn small() -> Option<(DockerRegistry, String)> {
    let mut entries: Vec<Entry> = ["bin", "etc", "proc", "dev", "sys"].map(Entry::dir).into();
    entries.push(Entry::dir("tmp").mode(0o1777));
    entries.push(Entry::file("bin/busybox", kit::tools::busybox()).mode(0o755));
    entries.extend(["sh", "sleep", "true"].map(|name| Entry::symlink(format!("bin/{name}"), "busybox")));
    entries.push(Entry::file("etc/passwd", "root:x:0:0:root:/:/bin/sh\n"));
    entries.push(Entry::file("etc/group", "root:x:0:\n"));
    serve(&Image::new().layer(Layer::of(entries)).run(json!({"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]})).build())
}

/// Hundreds of megabytes as an ordinary service has them; its tar files lie in the folder, or are made there.
pub fn large(arena: &Arena, folder: &Path) -> Option<(DockerRegistry, String)> {
    let script = arena.folder("generator").join("image.sh");
    fs::write(&script, GENERATOR).must("the generator");
    tool("bash", &[&text(&script), &text(folder)]);
    let tars: Vec<PathBuf> = (1..=LAYERS).map(|number| folder.join(format!("{number}.tar"))).collect();
    let unpacked: u64 = tars.iter().filter_map(|tar| Some(fs::metadata(tar).ok()?.len())).sum();
    let read = |tar: &PathBuf| Layer::raw(fs::read(tar).must("a layer")).compression(Compression::Gzip);
    let image = tars.iter().map(read).fold(Image::new(), Image::layer).run(json!({"Cmd": ["/bin/true"]}));
    let built = image.build();
    let packed: usize = built.blobs.iter().map(|(_, blob)| blob.len()).sum();
    let (unpacked, packed) = (unpacked / 1_000_000, packed / 1_000_000);
    say(&format!("\nThe image to pull: {LAYERS} layers, {unpacked} MB of tar, {packed} MB as gzip."));
    serve(&built)
}

fn serve(image: &Built) -> Option<(DockerRegistry, String)> {
    let Some(registry) = DockerRegistry::start() else {
        say("- nothing to run: docker-registry is not installed");
        return None;
    };
    let reference = registry.push("bench:1", image);
    Some((registry, reference))
}
