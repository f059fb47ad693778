//! The blob of a layer, compressed or not: it comes out inside its directory or is refused.
#![no_main]

use std::{cell::OnceCell, path::Path};

use image_store::fuzzing::Sandbox;
use libfuzzer_sys::fuzz_target;

thread_local! { static SANDBOX: OnceCell<Sandbox> = const { OnceCell::new() } }

fuzz_target!(|bytes: &[u8]| {
    SANDBOX.with(|sandbox| sandbox.get_or_init(|| Sandbox::new(Path::new("/dev/shm"))).blob(bytes));
});
