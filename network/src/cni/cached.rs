//! Connections that another program made with CNI plugins, as libcni remembers them in its cache.
//!
//! Nomad connects the namespaces of groups in this way, with the allocation's id as container id. libcni writes one
//! file for each connection: the configuration list, the arguments and the result. They are what DEL needs.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use host::{Context, program::memory_file};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    conflist::Conflist,
    plugin::{Operation, PluginCall},
};
use crate::error::NetworkError;

/// The directory of libcni's cache.
pub(crate) const CACHE: &str = "/var/lib/cni/results";

/// One file of the cache.
#[derive(Debug, Deserialize)]
struct CachedFile {
    #[serde(rename = "containerId")]
    container_id: String,
    #[serde(rename = "ifName")]
    interface: String,
    /// Base64, as Go encodes bytes.
    config: String,
    #[serde(rename = "cniArgs", default)]
    arguments: Vec<(String, String)>,
    #[serde(rename = "capabilityArgs", default)]
    capability_arguments: Map<String, Value>,
    #[serde(default)]
    result: Option<Value>,
}

/// A connection of a container.
#[derive(Debug, PartialEq)]
struct Connection {
    interface: String,
    network: Conflist,
    /// `CNI_ARGS`.
    arguments: String,
    capability_arguments: Map<String, Value>,
    result: Option<Value>,
}

impl Connection {
    /// Parses a file; `None` if it belongs to another container.
    fn parse(text: &[u8], container: &str) -> Result<Option<Self>, String> {
        let file: CachedFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if file.container_id != container {
            return Ok(None);
        }
        let config = STANDARD.decode(&file.config).map_err(|error| error.to_string())?;
        let pairs: Vec<String> = file.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Ok(Some(Self {
            interface: file.interface,
            network: Conflist::parse(&String::from_utf8_lossy(&config))?,
            arguments: pairs.join(";"),
            capability_arguments: file.capability_arguments,
            result: file.result,
        }))
    }
}

/// Undoes all connections of a container that are in the cache: the plugins are called with DEL in reverse order, then
/// the file is removed. `namespace` is that of the container, if it still exists. Idempotent.
pub(crate) fn disconnect(
    cache: &Path,
    container: &str,
    namespace: Option<&Path>,
    directories: &[PathBuf],
) -> Result<(), NetworkError> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.context(|| format!("listing {}", cache.display()))?,
    };
    // The name of a file contains the container's id.
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(container));
    for path in entries.flatten().map(|entry| entry.path()).filter(named) {
        let reading = || format!("reading {}", path.display());
        let text = fs::read(&path).context(reading)?;
        let Some(connection) = Connection::parse(&text, container)
            .map_err(|problem| std::io::Error::new(ErrorKind::InvalidData, problem))
            .context(reading)?
        else {
            continue;
        };
        undo(&connection, container, namespace, directories)?;
        fs::remove_file(&path).context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn undo(
    connection: &Connection,
    container: &str,
    namespace: Option<&Path>,
    directories: &[PathBuf],
) -> Result<(), NetworkError> {
    let log = memory_file().context(|| "making a file for the output of CNI plugins".to_owned())?;
    for index in (0..connection.network.len()).rev() {
        let program = connection.network.program(index);
        let call = PluginCall {
            program,
            operation: Operation::Del,
            container_id: container,
            namespace,
            interface: &connection.interface,
            arguments: &connection.arguments,
            directories,
            request: connection.network.request(index, &connection.capability_arguments, connection.result.as_ref()),
            log: &log,
        };
        call.run().map_err(|problem| NetworkError::ProgramFailed {
            network: connection.network.name.clone(),
            program: program.to_owned(),
            command: Operation::Del.name(),
            problem,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use base64::{Engine, engine::general_purpose::STANDARD};
    use serde_json::{Value, json};

    use super::{Connection, disconnect};

    const ALLOC: &str = "9f7b0c1e-1111-2222-3333-444455556666";

    fn file(container: &str) -> Value {
        let list = json!({"name": "nomad", "cniVersion": "1.0.0", "plugins": [
            {"type": "first"}, {"type": "second", "capabilities": {"portMappings": true}}]});
        json!({
            "kind": "cniCacheV1", "containerId": container, "config": STANDARD.encode(list.to_string()),
            "ifName": "eth0", "networkName": "nomad", "cniArgs": [["IgnoreUnknown", "true"], ["K", "v"]],
            "capabilityArgs": {"portMappings": [{"hostPort": 80}]}, "result": {"ips": []},
        })
    }

    #[test]
    fn only_a_file_of_the_container_describes_its_connection() {
        let parse = |value: &Value| Connection::parse(value.to_string().as_bytes(), ALLOC);
        let connection = parse(&file(ALLOC)).expect("a file").expect("a connection");
        assert_eq!((connection.interface.as_str(), connection.network.len()), ("eth0", 2));
        assert_eq!(connection.arguments, "IgnoreUnknown=true;K=v");
        assert_eq!(parse(&file("other")), Ok(None));
        let mut broken = file(ALLOC);
        broken["config"] = json!("not base64!");
        assert!(parse(&broken).is_err() && parse(&json!([])).is_err());
    }

    /// Each plugin is a script that writes down its call.
    #[test]
    fn the_plugins_are_called_in_reverse_order_once() {
        let root = tempfile::tempdir().expect("a directory");
        let (cache, calls) = (root.path().join("cache"), root.path().join("calls"));
        fs::create_dir(&cache).expect("a cache");
        let mine = cache.join(format!("nomad-{ALLOC}-eth0"));
        fs::write(&mine, file(ALLOC).to_string()).expect("a file");
        fs::write(cache.join("nomad-other-eth0"), file("other").to_string()).expect("a file");
        // A child process writes the scripts: a file that a process of ours has open for writing cannot be executed.
        let words = "$CNI_COMMAND $CNI_CONTAINERID [$CNI_NETNS] $CNI_IFNAME $CNI_ARGS $(cat)";
        for name in ["first", "second"] {
            let script = format!("echo {name} {words} >>{}", calls.display());
            let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
            let status = Command::new("sh").args(["-c", write, "sh"]).arg(root.path().join(name)).arg(script).status();
            assert!(status.expect("a shell").success());
        }
        for _ in 0..2 {
            disconnect(&cache, ALLOC, Some(Path::new("/run/ns")), &[root.path().to_owned()]).expect("disconnected");
        }
        let text = fs::read_to_string(&calls).expect("the calls");
        let [second, first] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let same = format!("DEL {ALLOC} [/run/ns] eth0 IgnoreUnknown=true;K=v");
        assert!(second.starts_with(&format!("second {same}")) && second.contains("hostPort"), "{second}");
        assert!(first.starts_with(&format!("first {same}")) && !first.contains("hostPort"), "{first}");
        assert!(!mine.exists() && cache.join("nomad-other-eth0").exists());
        disconnect(&root.path().join("missing"), ALLOC, None, &[]).expect("no cache");
    }
}
