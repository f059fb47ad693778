//! Image references: an accepted one is the same after it was printed and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fuzz::reference(text));
