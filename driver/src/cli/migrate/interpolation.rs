//! Values of a job with `${…}`: those that are known before the task is on a node are filled in.
//!
//! A value that depends on the node cannot be checked. It is left out of the block, and reported, unless any text is
//! valid at its place.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::nomad::interpolate;

/// Options whose texts need no check.
const ANY_TEXT: [&str; 5] = ["args", "auth", "command", "entrypoint", "labels"];
/// Blocks that are left out as a whole, because their options belong together.
const UNITS: [&str; 3] = ["devices", "mount", "mounts"];
/// The image in place of an unknown one.
const SOME_IMAGE: &str = "image";
/// The text in place of an unknown one.
const SOME_TEXT: &str = "unknown";

/// An option that cannot be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unchecked {
    /// The option with its block, as in `mount[1].source`.
    pub option: String,
    /// The unknown variables, as in `${meta.disk}`.
    pub variables: Vec<String>,
}

/// A `config` block without unknown values, and the options that therefore are not checked. Positions in lists stay:
/// a value that is left out of a list is null.
pub fn resolve(config: &Json, known: &BTreeMap<String, String>) -> (Json, Vec<Unchecked>) {
    let mut unchecked = Vec::new();
    let mut resolver = Resolver { known, unchecked: &mut unchecked };
    let resolved = resolver.value(config, "", false).unwrap_or(Json::Null);
    (resolved, unchecked)
}

struct Resolver<'a> {
    known: &'a BTreeMap<String, String>,
    unchecked: &'a mut Vec<Unchecked>,
}

impl Resolver<'_> {
    /// The value. `None` if it depends on the node.
    fn value(&mut self, value: &Json, path: &str, any_text: bool) -> Option<Json> {
        match value {
            Json::String(text) => match interpolate(text, self.known) {
                Ok(text) => Some(Json::String(text)),
                Err(_) if any_text => Some(Json::from(SOME_TEXT)),
                Err(variables) => {
                    self.unchecked.push(Unchecked { option: path.to_owned(), variables });
                    (path == "image").then(|| Json::from(SOME_IMAGE))
                }
            },
            Json::Array(items) => {
                // A block that occurs once is a list of one map.
                let indexed = |index| match items.as_slice() {
                    [Json::Object(_)] if !UNITS.contains(&path) => path.to_owned(),
                    _ => format!("{path}[{index}]"),
                };
                let item = |(index, item)| self.value(item, &indexed(index), any_text).unwrap_or(Json::Null);
                Some(Json::Array(items.iter().enumerate().map(item).collect()))
            }
            Json::Object(fields) => self.object(fields, path, any_text),
            other => Some(other.clone()),
        }
    }

    fn object(&mut self, fields: &Map<String, Json>, path: &str, any_text: bool) -> Option<Json> {
        let is_unit = UNITS.iter().any(|unit| path.split('[').next() == Some(unit));
        let before = self.unchecked.len();
        let mut resolved = Map::new();
        for (name, value) in fields {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let any_text = any_text || ANY_TEXT.contains(&name.as_str());
            if let Some(value) = self.value(value, &path, any_text) {
                resolved.insert(name.clone(), value);
            }
        }
        let is_whole = !is_unit || self.unchecked.len() == before;
        is_whole.then_some(Json::Object(resolved))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value as Json, json};

    use super::resolve;

    fn known() -> BTreeMap<String, String> {
        BTreeMap::from([("NOMAD_TASK_DIR".to_owned(), "/local".to_owned()), ("A".to_owned(), "1".to_owned())])
    }

    #[test]
    fn unknown_values_are_left_out_and_reported() {
        let check = |config: Json, expected: Json, unchecked: &[&str]| {
            let (resolved, found) = resolve(&config, &known());
            assert_eq!(resolved, expected, "{config}");
            assert_eq!(found.iter().map(|one| one.option.as_str()).collect::<Vec<_>>(), unchecked, "{config}");
        };
        check(json!({ "image": "${meta.image}" }), json!({ "image": "image" }), &["image"]);
        check(
            json!({ "volumes": ["${meta.a}:/a", "local/b:/b"], "args": ["${attr.x}"], "shm_size": 5 }),
            json!({ "volumes": [null, "local/b:/b"], "args": ["unknown"], "shm_size": 5 }),
            &["volumes[0]"],
        );
        check(
            json!({ "mount": [{ "source": "${meta.a}", "target": "/a" }, { "target": "/${A}" }] }),
            json!({ "mount": [null, { "target": "/1" }] }),
            &["mount[0].source"],
        );
        check(
            json!({ "auth": [{ "username": "${USER}", "password": "x" }], "sysctl": [{ "a": "${meta.a}", "b": "1" }] }),
            json!({ "auth": [{ "username": "unknown", "password": "x" }], "sysctl": [{ "b": "1" }] }),
            &["sysctl.a"],
        );
        check(json!({ "hostname": "${attr.unique.hostname}" }), json!({}), &["hostname"]);
    }
}
