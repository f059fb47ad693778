//! Types and services generated from the protocols that Nomad speaks to a task driver and to a device plugin.
//!
//! Package names, field numbers and service names are Nomad's: they are the contract. The files under `proto/` hold the
//! union of Nomad 1.8 to 2.0, so a field or call that an older agent does not know is simply never used by it.

#![allow(missing_docs)]
#![allow(clippy::all)]

/// go-plugin's own services: shutdown, stdio and broker (package `plugin`).
pub mod go_plugin {
    tonic::include_proto!("plugin");
}

/// Nomad's packages, nested as their names are, because generated code refers to them relatively.
pub mod hashicorp {
    pub mod nomad {
        pub mod plugins {
            pub mod base {
                pub mod proto {
                    tonic::include_proto!("hashicorp.nomad.plugins.base.proto");
                }
            }
            pub mod device {
                tonic::include_proto!("hashicorp.nomad.plugins.device");
            }
            pub mod drivers {
                pub mod proto {
                    tonic::include_proto!("hashicorp.nomad.plugins.drivers.proto");
                }
            }
            pub mod shared {
                pub mod hclspec {
                    tonic::include_proto!("hashicorp.nomad.plugins.shared.hclspec");
                }
                pub mod structs {
                    tonic::include_proto!("hashicorp.nomad.plugins.shared.structs");
                }
            }
        }
    }
}

pub use hashicorp::nomad::plugins::base::proto as base;
pub use hashicorp::nomad::plugins::drivers::proto as driver;
pub use hashicorp::nomad::plugins::{
    device,
    shared::{hclspec, structs},
};
