//! Layers as gzip files in a directory that may outlive the run: Debian roots, and data that fills an image up.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fixtures::{
    image::{Compression, Entry, Layer, digest},
    must::Must,
    random::Random,
};
use serde::{Deserialize, Serialize};

use super::services::Service;
use crate::{
    process::until_done,
    report::note,
    workdir::{WorkDirectory, text},
};

/// The script that makes a root.
const DEBIAN: &str = include_str!("../../debian.sh");
/// The sizes of layers that fill an image up, in MiB of gzip.
const SIZES: [u64; 6] = [256, 128, 64, 32, 16, 8];
/// Bytes of a file in such a layer.
const FILE: usize = 8 << 20;
/// A byte of such a file carries six bits, so no compression makes the file smaller than 75 %.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The size of random data from this alphabet as gzip of level 6, divided by its own size. The fastest level stores
/// such data.
const RATIO: f64 = 0.76;

/// A layer as a gzip file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// The file.
    pub path: PathBuf,
    /// The digest of the file.
    pub digest: String,
    /// The digest of the archive in it.
    pub diff_id: String,
    /// Bytes of the file.
    pub size: u64,
}

/// The directory of the layers.
#[derive(Debug)]
pub struct Blobs(PathBuf);

impl Blobs {
    /// Uses a directory. Layers that are there are not made again.
    pub fn open(directory: &Path) -> Self {
        fs::create_dir_all(directory).must("a directory for layers");
        Self(directory.to_owned())
    }

    /// A Debian with the packages of a service.
    pub fn root(&self, workdir: &WorkDirectory, service: Service) -> Result<Blob, String> {
        self.cached(&format!("root-{}", service.name()), || {
            note(&format!("readiness: making a Debian for {service}"));
            let script = workdir.directory("generator").join("debian.sh");
            fs::write(&script, DEBIAN).must("the generator");
            let tar = workdir.directory("generator").join("root.tar");
            let mut command = std::process::Command::new("bash");
            until_done(command.arg(&script).arg(&tar).args(service.packages()))?;
            let layer = Layer::raw(fs::read(&tar).must("a root")).compression(Compression::GzipAsUsual);
            fs::remove_file(&tar).must("remove a root");
            Ok(layer)
        })
    }

    /// Layers of this size in bytes of gzip together, or a little less.
    pub fn filling(&self, bytes: u64) -> Result<Vec<Blob>, String> {
        sizes(bytes >> 20).into_iter().map(|(size, number)| self.fill(size, number)).collect()
    }

    fn fill(&self, size: u64, number: u64) -> Result<Blob, String> {
        self.cached(&format!("fill-{size}-{number}"), || {
            note(&format!("readiness: making {size} MiB of data"));
            let unpacked = ((size << 20) as f64 / RATIO) as usize;
            let name = format!("srv/data-{size}-{number}");
            let mut entries = vec![Entry::dir("srv"), Entry::dir(name.as_str())];
            let mut random = Random::new((size << 32) | number);
            for file in 0..unpacked.div_ceil(FILE) {
                let length = FILE.min(unpacked - file * FILE);
                entries.push(Entry::file(format!("{name}/{file}"), letters(&mut random, length)));
            }
            Ok(Layer::of(entries).compression(Compression::GzipAsUsual))
        })
    }

    /// A small layer that is made for this run.
    pub fn small(&self, workdir: &WorkDirectory, name: &str, entries: Vec<Entry>) -> Blob {
        store(&workdir.directory("small-layers").join(format!("{name}.tar.gz")), &Layer::of(entries))
    }

    fn cached(&self, name: &str, make: impl FnOnce() -> Result<Layer, String>) -> Result<Blob, String> {
        let (path, record) = (self.0.join(format!("{name}.tar.gz")), self.0.join(format!("{name}.json")));
        if let Some(blob) = fs::read(&record).ok().and_then(|bytes| serde_json::from_slice::<Blob>(&bytes).ok())
            && fs::metadata(&path).is_ok_and(|found| found.len() == blob.size)
        {
            // The directory may have been moved.
            return Ok(Blob { path, ..blob });
        }
        let blob = store(&path, &make()?);
        fs::write(&record, serde_json::to_vec(&blob).must("a record")).must("a record");
        Ok(blob)
    }
}

fn store(path: &Path, layer: &Layer) -> Blob {
    let bytes = layer.blob();
    fs::write(path, &bytes).must(&text(path));
    let (digest, diff_id) = (digest(&bytes), digest(layer.tar()));
    Blob { path: path.to_owned(), digest, diff_id, size: bytes.len() as u64 }
}

/// Layers that have this many MiB together, or a little less: their sizes, and a number among those of the same size.
/// Images of all sizes share them.
fn sizes(mebibytes: u64) -> Vec<(u64, u64)> {
    let (mut left, mut layers) = (mebibytes, Vec::new());
    for size in SIZES {
        layers.extend((0..left / size).map(|number| (size, number)));
        left %= size;
    }
    layers
}

/// Random data from the alphabet.
fn letters(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 10);
    while bytes.len() < length {
        let number = random.next();
        bytes.extend((0..10).map(|place| ALPHABET[((number >> (6 * place)) & 63) as usize]));
    }
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_add_up_and_are_shared() {
        assert_eq!(sizes(0), []);
        assert_eq!(sizes(105), [(64, 0), (32, 0), (8, 0)]);
        assert_eq!(sizes(1000), [(256, 0), (256, 1), (256, 2), (128, 0), (64, 0), (32, 0), (8, 0)]);
    }

    #[test]
    fn random_data_is_the_same_each_time_and_compresses_as_expected() {
        let data = letters(&mut Random::new(1), 1 << 20);
        assert_eq!((data.len(), &data), (1 << 20, &letters(&mut Random::new(1), 1 << 20)));
        let packed = Layer::of([Entry::file("data", data)]).compression(Compression::GzipAsUsual).blob().len();
        let ratio = packed as f64 / f64::from(1 << 20);
        assert!((ratio - RATIO).abs() < 0.02, "{ratio}");
    }

    #[test]
    fn a_layer_is_made_once() {
        let directory = tempfile::tempdir().must("a directory");
        let blobs = Blobs::open(directory.path());
        let layer = || Ok(Layer::of([Entry::dir("a")]));
        let first = blobs.cached("one", layer).must("a layer");
        assert_eq!(blobs.cached("one", || Err("made again".to_owned())), Ok(first.clone()));
        fs::write(&first.path, "cut").must("a broken file");
        assert_eq!(blobs.cached("one", layer), Ok(first));
    }
}
