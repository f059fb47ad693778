//! The oci-rs binary.
fn main() {}
