//! The blob of a layer, compressed or not: it stays inside its directory or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::unpack_blob(bytes));
