//! Images: references, registries, pull, unpack, snapshots, retention.
//!
//! Knows no Nomad, no gRPC and no containers.
