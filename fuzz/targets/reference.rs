//! Image references: what is accepted reads the same once more.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| image_store::fuzzing::reference(text));
