//! The plugin block's options for OCI runtimes, and the meaning of a runtime's name.

use std::{collections::BTreeMap, path::PathBuf};

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[OptionSpec::honoured(
    "runtime",
    OptionType::Labelled("name", RUNTIME),
    Words("`runsc` and `kata` where they are installed"),
    "an OCI runtime of the node, which tasks name as `runtime` if `allow_runtimes` has the name. See \
     [runtimes](runtimes.md)",
)];

const RUNTIME: &[OptionSpec] = &[
    OptionSpec::honoured(
        "path",
        OptionType::String,
        Words("the executable of that name in the usual directories"),
        "its executable, an absolute path",
    ),
    OptionSpec::honoured(
        "args",
        OptionType::Strings,
        Words("none"),
        "arguments before every command, as in `[\"--platform=systrap\"]`",
    ),
];

/// The name with which a task also gets the NVIDIA devices that its environment names, by their specs.
pub const NVIDIA_RUNTIME: &str = "nvidia";

/// The names that mean the built-in runtime, unless a block says otherwise.
pub const BUILT_IN: [&str; 5] = ["runc", "crun", "youki", "io.containerd.runc.v2", NVIDIA_RUNTIME];

/// The names that mean an executable without a block.
const KNOWN: [(&str, &str); 2] = [("runsc", "runsc"), ("kata", "kata-runtime")];

/// What the operator says of one runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Settings {
    path: Option<PathBuf>,
    args: Vec<String>,
}

/// The operator's runtimes by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runtimes(BTreeMap<String, Settings>);

/// The runtime that a name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// The built-in one.
    BuiltIn,
    /// One that must be installed.
    Installed(RuntimeRequest),
}

/// A runtime of the node that a task asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeRequest {
    /// Its name.
    pub name: String,
    /// Its executable: an absolute path, or a name.
    pub program: PathBuf,
    /// Arguments before every command.
    pub args: Vec<String>,
}

impl Runtimes {
    /// The names that mean a runtime.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let known = KNOWN.iter().map(|(name, _)| *name).chain(BUILT_IN);
        known.chain(self.0.keys().map(String::as_str))
    }

    /// The runtime that a name means; `None` if the name is unknown.
    pub fn choose(&self, name: &str) -> Option<RuntimeChoice> {
        let known = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, program)| PathBuf::from(program));
        let settings = match self.0.get(name) {
            Some(settings) => settings.clone(),
            None if BUILT_IN.contains(&name) => return Some(RuntimeChoice::BuiltIn),
            None => Settings { path: Some(known.clone()?), args: Vec::new() },
        };
        let program = settings.path.or(known).unwrap_or_else(|| PathBuf::from(name));
        Some(RuntimeChoice::Installed(RuntimeRequest { name: name.to_owned(), program, args: settings.args }))
    }
}

/// Reads the blocks.
pub fn read(block: &ConfigBlock) -> Runtimes {
    let mut runtimes = BTreeMap::new();
    for (name, runtime) in block.labelled("runtime") {
        if name.is_empty() || name.contains(['/', ',', ' ']) {
            let remedy = "write a name as in `runtime \"runsc\"`, and the executable as `path`";
            block.error("runtime", format!("{name:?} is not the name of a runtime"), remedy);
        }
        let settings = Settings { path: runtime.absolute_path("path"), args: runtime.strings("args") };
        runtimes.insert(name, settings);
    }
    Runtimes(runtimes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::{
        config::{decode_plugin, from_json},
        name::DriverName,
    };

    fn runtimes(blocks: Json) -> Result<Runtimes, String> {
        let config = decode_plugin(&from_json(&json!({ "runtime": blocks })), DriverName::OciRs);
        config.map(|config| config.policy.runtimes).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_name_means_the_built_in_runtime_or_an_executable() {
        let plain = Runtimes::default();
        for name in BUILT_IN {
            assert_eq!(plain.choose(name), Some(RuntimeChoice::BuiltIn), "{name}");
        }
        let installed = |name: &str, program: &str, args: &[&str]| {
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            Some(RuntimeChoice::Installed(RuntimeRequest { name: name.into(), program: program.into(), args }))
        };
        assert_eq!(plain.choose("runsc"), installed("runsc", "runsc", &[]));
        assert_eq!(plain.choose("kata"), installed("kata", "kata-runtime", &[]));
        // Without a block, no other program of the node is a runtime.
        assert_eq!((plain.choose("rm"), plain.choose("")), (None, None));

        let configured = runtimes(json!({
            "crun": {},
            "runsc": { "args": ["--platform=systrap"] },
            "kata": { "path": "/opt/kata/bin/kata-runtime" },
            "nvidia": { "path": "/usr/bin/nvidia-container-runtime" },
        }));
        let configured = configured.expect("valid");
        assert_eq!(configured.choose("crun"), installed("crun", "crun", &[]));
        assert_eq!(configured.choose("runc"), Some(RuntimeChoice::BuiltIn));
        assert_eq!(configured.choose("runsc"), installed("runsc", "runsc", &["--platform=systrap"]));
        assert_eq!(configured.choose("kata"), installed("kata", "/opt/kata/bin/kata-runtime", &[]));
        assert_eq!(configured.choose("nvidia"), installed("nvidia", "/usr/bin/nvidia-container-runtime", &[]));
    }

    #[test]
    fn wrong_blocks_are_refused() {
        for (blocks, expected) in [
            (json!({ "a/b": {} }), "runtime: \"a/b\" is not the name of a runtime"),
            (json!({ "runsc": { "path": "runsc" } }), "runtime[\"runsc\"].path: \"runsc\" is not an absolute path"),
            (json!({ "runsc": { "argv": [] } }), "runtime[\"runsc\"].argv: is no option of this driver"),
        ] {
            let error = runtimes(blocks).expect_err("an error");
            assert!(error.contains(expected), "{error}");
        }
    }
}
