//! The integration kit.
