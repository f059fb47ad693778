//! NVIDIA's devices as NVIDIA's container tools name them: by the variable `NVIDIA_VISIBLE_DEVICES`.
//!
//! Nomad's NVIDIA device plugin sets the variable for the devices of a reservation. With `runtime = "nvidia"`, job or
//! image set it. The devices are those of the spec that `nvidia-ctk` makes.

use std::str::FromStr;

use cdi::{Kind, NameError, QualifiedName};

/// The variable.
pub const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The kind of the devices.
const KIND: &str = "nvidia.com/gpu";

/// How an operator makes the spec.
pub const MAKE_SPEC: &str = "make the spec with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`";

/// The devices of a value of the variable: indices, UUIDs, MIG devices or `all`.
pub fn devices(value: &str) -> Result<Vec<QualifiedName>, NameError> {
    let kind = Kind::from_str(KIND)?;
    let named = value.split(',').map(str::trim).filter(|name| !matches!(*name, "" | "none" | "void"));
    named.map(|name| kind.device(name)).collect()
}

/// Whether a device is of the kind.
pub fn is_gpu(name: &QualifiedName) -> bool {
    name.kind().to_string() == KIND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_nvidias_tools_are_names_of_devices() {
        let names = |value: &str| {
            devices(value).map(|names| names.iter().map(QualifiedName::to_string).collect::<Vec<_>>()).ok()
        };
        for (value, expected) in [
            ("", &[][..]),
            ("none", &[]),
            ("void", &[]),
            ("all", &["nvidia.com/gpu=all"]),
            ("0, 1:2", &["nvidia.com/gpu=0", "nvidia.com/gpu=1:2"]),
            ("GPU-8a1b2c3d-0000", &["nvidia.com/gpu=GPU-8a1b2c3d-0000"]),
            (
                "MIG-8a1b2c3d-0001,MIG-8a1b2c3d-0002",
                &["nvidia.com/gpu=MIG-8a1b2c3d-0001", "nvidia.com/gpu=MIG-8a1b2c3d-0002"],
            ),
        ] {
            assert_eq!(
                names(value).as_deref(),
                Some(expected).map(|list| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).as_deref(),
                "{value:?}"
            );
        }
        assert!(devices("MIG-GPU-8a1b/1/0").is_err(), "a name of drivers before 470");
        assert!(devices("all").is_ok_and(|names| names.iter().all(is_gpu)));
    }
}
