//! Well-formed archives whose entries get into each other's way come out as a model says.
#![no_main]

use std::{cell::OnceCell, path::Path};

use image_store::fuzzing::Sandbox;
use libfuzzer_sys::fuzz_target;

thread_local! { static SANDBOX: OnceCell<Sandbox> = const { OnceCell::new() } }

fuzz_target!(|bytes: &[u8]| {
    SANDBOX.with(|sandbox| sandbox.get_or_init(|| Sandbox::new(Path::new("/dev/shm"))).entries(bytes));
});
