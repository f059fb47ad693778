//! End-to-end kit.
