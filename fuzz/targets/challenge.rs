//! `WWW-Authenticate` headers, and where they send credentials.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| image_store::fuzzing::challenges(text));
