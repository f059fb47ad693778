//! The plugin block's options for the node's security modules.

use runtime::plan::Relabel;

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "selinux_enabled",
        OptionType::Bool,
        Words("true, or false with docker's rules, as in docker's daemon"),
        "on a node with SELinux, each task has a label with categories of its own, and the files of the task get it. \
         The node needs the policy of the package `container-selinux`",
    ),
    OptionSpec::honoured(
        "apparmor_profile",
        OptionType::String,
        Words("`oci-rs-default` where it can be loaded"),
        "AppArmor profile of tasks that name none: `oci-rs-default`, which the driver loads, the name of another \
     profile that is loaded on the node, or `unconfined`. If a profile is set here that cannot be used, the driver is \
     unhealthy. It has no effect on kernels without AppArmor",
    ),
];

/// The AppArmor profile of tasks that name none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DefaultProfile {
    /// The driver's own, or none if it cannot be loaded.
    #[default]
    Automatic,
    /// None.
    Unconfined,
    /// This one.
    Required(String),
}

/// Whether a text can be the name of an AppArmor profile. The kernel reads the name up to the end of the written text,
/// so white space and control characters are not allowed.
pub fn is_profile_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic())
}

/// The label that docker's options `z` and `Z` name.
pub fn volume_label(volumes: &ConfigBlock) -> Option<Relabel> {
    match volumes.string("selinuxlabel").as_deref() {
        None => None,
        Some("z") => Some(Relabel::Shared),
        Some("Z") => Some(Relabel::Private),
        Some(other) => {
            volumes.error("selinuxlabel", format!("{other:?} is no label of volumes"), "write z or Z");
            None
        }
    }
}

/// Reads `apparmor_profile`.
pub fn default_profile(block: &ConfigBlock) -> DefaultProfile {
    match block.string("apparmor_profile") {
        None => DefaultProfile::Automatic,
        Some(name) if name == "unconfined" => DefaultProfile::Unconfined,
        Some(name) => {
            if !is_profile_name(&name) {
                let remedy = "write a name without white space, or `unconfined`";
                block.error("apparmor_profile", format!("{name:?} is no name of a profile"), remedy);
            }
            DefaultProfile::Required(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::DefaultProfile::{self, Automatic, Required, Unconfined};
    use crate::{
        config::{decode_plugin, from_json},
        name::DriverName,
    };

    fn decode(block: &serde_json::Value) -> Result<DefaultProfile, String> {
        let config = decode_plugin(&from_json(block), DriverName::OciRs);
        config.map(|config| config.policy.apparmor).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_operator_chooses_the_default_profile() {
        assert_eq!(decode(&json!({})), Ok(Automatic));
        for (value, expected) in [("unconfined", Unconfined), ("web", Required("web".to_owned()))] {
            assert_eq!(decode(&json!({ "apparmor_profile": value })), Ok(expected));
        }
        let error = decode(&json!({ "apparmor_profile": "two words" })).expect_err("refused");
        assert!(error.contains("apparmor_profile: \"two words\" is no name of a profile"), "{error}");
    }
}
