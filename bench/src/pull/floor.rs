//! What a pull cannot do without: both hashes, the inflating, the files. One step after the other, from the page cache, no network.

use std::{
    io::Read,
    process::Command,
    time::{Duration, Instant},
};

use fixtures::must::Must;
use flate2::bufread::GzDecoder;
use sha2::{Digest, Sha256};

use super::cost::{self, Cost};
use crate::{
    images::LayerFiles,
    process::until_done,
    workdir::{Fresh, text},
};

/// Its row in the table.
pub const NAME: &str = "floor: sha256, inflate, sha256, GNU tar";

/// Measures it. Only the processors' time says something: nothing of it runs side by side.
pub fn measure(data: &Fresh, layers: &[LayerFiles]) -> Result<Cost, String> {
    cost::watch(&[], || {
        let mut took = Duration::ZERO;
        for (number, layer) in layers.iter().enumerate() {
            let begun = Instant::now();
            hash_twice(layer);
            took += begun.elapsed();
            let directory = data.path().join(number.to_string());
            std::fs::create_dir(&directory).map_err(|error| error.to_string())?;
            let extract = ["--extract", "--numeric-owner", "--preserve-permissions", "--directory", &text(&directory)];
            took += until_done(Command::new("tar").args(extract).arg("--file").arg(&layer.tar))?;
        }
        Ok(took)
    })
}

fn hash_twice(layer: &LayerFiles) {
    let blob = std::fs::read(&layer.blob).must("a layer's blob");
    let (mut packed, mut unpacked) = (Sha256::new(), Sha256::new());
    packed.update(&blob);
    let mut decoder = GzDecoder::new(&blob[..]);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = decoder.read(&mut buffer).must("inflated");
        if length == 0 {
            break;
        }
        unpacked.update(&buffer[..length]);
    }
    // The results are what the work was for, and nobody may leave it out.
    std::hint::black_box((packed.finalize(), unpacked.finalize()));
}
