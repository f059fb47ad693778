//! Image archives: `docker save`, OCI layouts.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| image_store::fuzzing::archive(bytes));
