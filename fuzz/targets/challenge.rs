//! `WWW-Authenticate` headers, and the token servers that they name.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fuzz::challenges(text));
