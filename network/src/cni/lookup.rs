//! The network configuration of a request, and the plugins that it needs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{conflist::Conflist, program::find};
use crate::{error::NetworkError, request::AttachRequest, settings::Settings};

/// The extensions of network configuration files, as libcni reads them.
const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];

/// Finds the operator's network of this name.
///
/// # Errors
///
/// The network does not exist, or its plugins lack a capability that the request needs.
pub(crate) fn find_network(settings: &Settings, name: &str, request: &AttachRequest) -> Result<Conflist, NetworkError> {
    let network = find_by_name(&settings.config_dir, name)?;
    match request.capability_arguments().keys().find(|capability| !network.declares(capability)) {
        Some(capability) => Err(lacks_capability(name, capability)),
        None => Ok(network),
    }
}

fn lacks_capability(network: &str, capability: &str) -> NetworkError {
    let (purpose, plugin) = match capability {
        "portMappings" => ("publish ports", "portmap"),
        "mac" => ("set mac_address", "tuning"),
        _ => ("choose addresses", "static"),
    };
    NetworkError::Unsupported(format!(
        "CNI network {network} cannot {purpose}: none of its plugins declares the capability {capability:?} (the \
         plugin {plugin} has it; add it to the network's .conflist, or remove the option)"
    ))
}

/// The plugins that a network needs and that are not installed.
pub(crate) fn missing_programs(settings: &Settings, network: &Conflist) -> Vec<String> {
    let plugins = network.programs().into_iter().filter(|program| find(program, &settings.cni_path).is_none());
    plugins.map(|program| format!("CNI plugin {program}")).collect()
}

/// Finds the operator's network of this name: in the first file, sorted by file name, that has it.
fn find_by_name(directory: &Path, name: &str) -> Result<Conflist, NetworkError> {
    let mut problems = String::new();
    for file in configuration_files(directory) {
        let text = fs::read_to_string(&file).map_err(|error| error.to_string());
        match text.and_then(|text| Conflist::parse(&text)) {
            Ok(network) if network.name == name => return Ok(network),
            Ok(_) => {}
            Err(problem) => problems += &format!("; {} {problem}", file.display()),
        }
    }
    Err(NetworkError::UnknownNetwork { name: name.to_owned(), directory: directory.to_owned(), problems })
}

fn configuration_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    let extension_of = |file: &Path| file.extension().and_then(|extension| extension.to_str()).map(str::to_owned);
    files.retain(|file| extension_of(file).is_some_and(|extension| EXTENSIONS.contains(&extension.as_str())));
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::find_by_name;

    #[test]
    fn the_operators_networks_are_found_by_their_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).expect("a file");
        write("20-late.conflist", r#"{"name": "lan", "plugins": [{"type": "late"}]}"#);
        write("10-first.conf", r#"{"name": "lan", "type": "first"}"#);
        write("other.json", r#"{"name": "dmz", "type": "other"}"#);
        write("broken.conflist", "{}");
        write("lan.txt", r#"{"name": "hidden", "type": "x"}"#);
        let find = |name: &str| find_by_name(directory.path(), name);
        assert_eq!(find("lan").expect("a network").program(0), "first");
        assert_eq!(find("dmz").expect("a network").program(0), "other");
        let error = find("hidden").expect_err("no network").to_string();
        assert!(
            error.contains("no CNI network \"hidden\"") && error.contains("broken.conflist has no name"),
            "{error}"
        );
        assert!(find_by_name(&directory.path().join("none"), "lan").is_err());
    }
}
