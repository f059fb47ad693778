//! Image archives: `docker save` and OCI layouts.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::archive(bytes));
