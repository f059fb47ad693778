//! Well-formed archives whose entries collide become what the model says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::unpack_entries(bytes));
