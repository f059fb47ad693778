//! The driver's part of a task handle. Nomad stores it and returns it after a restart of the agent or of the plugin.
//!
//! Recovery receives nothing else of the task's configuration: all that it needs is here or in the task's state
//! directory. The format is versioned: older versions stay readable, a newer one is refused.

use std::collections::BTreeMap;

use runtime::plan::ContainerId;
use serde::{Deserialize, Serialize};

use crate::error::TaskError;

/// The version that this release writes.
const VERSION: u32 = 1;

/// The driver's part of a task handle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverState {
    version: u32,
    /// The container in the runtime's state directory.
    pub container: ContainerId,
    /// The signal of StopTask if the job names none.
    pub stop_signal: i32,
    /// The image as the job names it.
    pub image: String,
    /// The manifest that the image resolved to.
    pub image_digest: String,
    /// The task's own network, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<DriverNetwork>,
}

/// The task's own network, as Nomad's services advertise it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverNetwork {
    /// The container's address.
    pub address: String,
    /// The container's ports by label.
    pub ports: BTreeMap<String, u16>,
    /// Services advertise the address by default.
    pub auto_advertise: bool,
}

impl DriverState {
    /// The state of a task that just started.
    pub fn new(container: ContainerId, stop_signal: i32, image: String, image_digest: String) -> Self {
        Self { version: VERSION, container, stop_signal, image, image_digest, network: None }
    }

    /// The bytes that go into a handle.
    pub fn encode(&self) -> Result<Vec<u8>, TaskError> {
        serde_json::to_vec(self).map_err(|error| TaskError::Internal(format!("task handle: {error}")))
    }

    /// Reads a handle's bytes back.
    pub fn decode(bytes: &[u8]) -> Result<Self, TaskError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let unreadable = |error| TaskError::Invalid(format!("the task's handle is not one of this driver's: {error}"));
        let Version { version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if version > VERSION {
            return Err(TaskError::Invalid(format!(
                "the task's handle has version {version}, this driver reads up to {VERSION}: it was started by a newer \
                 oci-rs"
            )));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{DriverNetwork, DriverState};

    /// A handle of the first version. It must stay readable for as long as such tasks may run.
    const VERSION_1: &str =
        r#"{"version":1,"container":"a.web.01234567","stop_signal":15,"image":"nginx:1","image_digest":"sha256:00"}"#;

    #[test]
    fn handles_survive_the_way_through_nomad() {
        let state = DriverState::new("a.web.01234567".parse().unwrap(), 15, "nginx:1".into(), "sha256:00".into());
        assert_eq!(DriverState::decode(&state.encode().unwrap()).unwrap(), state);
        let network = DriverNetwork {
            address: "172.26.80.2".into(),
            ports: BTreeMap::from([("http".to_owned(), 80)]),
            auto_advertise: false,
        };
        let own = DriverState { network: Some(network), ..state.clone() };
        assert_eq!(DriverState::decode(&own.encode().unwrap()).unwrap(), own);
        assert_eq!(DriverState::decode(VERSION_1.as_bytes()).unwrap(), state);
    }

    /// The file holds every field. No field changes its name: handles of older builds have it.
    #[test]
    fn a_handle_keeps_the_names_of_its_fields() {
        let text = include_str!("../../tests/records/handle.json");
        let written = DriverState::decode(text.as_bytes()).unwrap().encode().unwrap();
        let value = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        let (recorded, written) = (value(text.as_bytes()), value(&written));
        assert!(host::record::keeps_fields(&recorded, &written), "{recorded} became {written}");
    }

    #[test]
    fn newer_and_foreign_handles_are_refused() {
        let newer = VERSION_1.replace("\"version\":1", "\"version\":9");
        assert!(DriverState::decode(newer.as_bytes()).unwrap_err().to_string().contains("newer oci-rs"));
        assert!(DriverState::decode(b"\x00\x01").is_err());
        assert!(DriverState::decode(b"").is_err());
    }
}
