//! The state of a container, as hooks get it.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::Hook;

/// The parts of a plan that hooks need. The plan itself may be of another build.
#[derive(Debug, Deserialize)]
pub(crate) struct HookPlan {
    pub id: String,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub hooks: Vec<Hook>,
}

/// The container's state (OCI runtime specification, `state`).
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookState {
    pub id: String,
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    pub bundle: PathBuf,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl HookState {
    /// The JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Versioned<'a> {
            oci_version: &'static str,
            #[serde(flatten)]
            state: &'a HookState,
        }
        // Maps with text keys always become JSON.
        serde_json::to_vec(&Versioned { oci_version: "1.2.0", state: self }).unwrap_or_default()
    }
}
