//! What a store takes for an image that is here: `cargo bench -p oci-rs-image-store`.

use std::{sync::Arc, time::Instant};

use fixtures::{
    image::{Entry, Image, Layer},
    must::Must,
    registry::Registry,
};
use image_store::{PullRequest, Reference, Silent, Store, StoreConfig};

const LAYERS: usize = 12;
const ROUNDS: usize = 200;

#[tokio::main]
async fn main() {
    let registry = Registry::start();
    let layer = |number| Layer::of([Entry::file(format!("file-{number}"), format!("layer {number}"))]);
    let image = (0..LAYERS).map(layer).fold(Image::new(), Image::layer).build();
    let name = registry.push("warm:1", &image);
    let directory = tempfile::tempdir().must("a directory");
    let config = StoreConfig { root: directory.path().join("images"), ..StoreConfig::default() };
    let store = Store::open(config).must("a store");
    let reference: Reference = name.parse().must("a reference");
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        let begun = Instant::now();
        let request = PullRequest::new(reference.clone());
        store.acquire(request, format!("task-{round}"), Arc::new(Silent)).await.must("the image");
        times.push(begun.elapsed());
    }
    let cold = times.remove(0);
    times.sort();
    let (middle, worst) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    // The figures are what this program is for.
    #[allow(clippy::print_stdout)]
    {
        println!(
            "{LAYERS} layers: cold {cold:.1?}; here already: median {middle:.1?}, slowest {worst:.1?} of {ROUNDS}"
        );
    }
}
