//! Specs of the Container Device Interface.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::cdi(bytes));
