//! Changes of a task's `config` block that make it acceptable, found by trying.
//!
//! A proposed change always removes the error and adds none. Options are removed, not rewritten, except where exactly
//! one other value has the same meaning.

use serde_json::{Map, Value as Json};

/// The name of the host's address among the node's attributes.
const HOST_ADDRESS: &str = "${attr.unique.network.ip-address}";

/// Blocks whose options have no meaning without the refused one.
const UNITS: [&str; 2] = ["driver_config", "logging"];

/// A changed `config` block, and the part that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The changed block.
    pub config: Json,
    /// The name of the changed option.
    name: String,
    /// The option's value before, and after if it is still there.
    before: Json,
    after: Option<Json>,
}

impl Change {
    /// The lines that go.
    pub fn removed(&self) -> Vec<String> {
        hcl(&self.name, &self.before)
    }

    /// The lines that come.
    pub fn added(&self) -> Vec<String> {
        self.after.as_ref().map(|after| hcl(&self.name, after)).unwrap_or_default()
    }
}

/// The change after which an error about `option` is gone. `is_better` says whether a block has none of the errors of
/// before about this option, and no new one.
pub fn find(config: &Json, option: &str, is_better: &dyn Fn(&Json) -> bool) -> Option<Change> {
    let steps = steps(option);
    // A block whose options belong together, then the option itself, then the blocks around it.
    let is_unit = |step: &Step| step.name().is_some_and(|name| UNITS.contains(&name));
    let unit = steps.iter().rposition(is_unit).map(|position| position + 1);
    let unit = unit.filter(|_| !is_log_option(&steps));
    unit.into_iter().chain((1..=steps.len()).rev()).find_map(|depth| {
        let path = locate(config, &steps[..depth])?;
        let value = value_at(config, &path)?;
        let name = path.iter().rev().find_map(Step::name)?.to_owned();
        let with = |after: Option<Json>| {
            let config = replaced(config, &path, after.clone())?;
            let change = Change { name: name.clone(), before: value.clone(), after, config };
            is_better(&change.config).then_some(change)
        };
        let tried = |after: Json| is_better(&replaced(config, &path, Some(after)).unwrap_or_default());
        rewritten(&name, value)
            .and_then(|after| with(Some(after)))
            .or_else(|| with(accepted_part(value, &tried)))
            .or_else(|| with(None))
    })
}

/// Whether this is one option of a log driver, without which the driver sends to the same server.
fn is_log_option(steps: &[Step]) -> bool {
    let names: Vec<&str> = steps.iter().filter_map(Step::name).collect();
    matches!(names.as_slice(), ["logging", "config", option, ..] if !option.ends_with("-address"))
}

/// One step of a path into a block.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Name(String),
    Index(usize),
}

impl Step {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Index(_) => None,
        }
    }
}

/// The steps of an option's path, as in `mount[1].volume_options.driver_config.name`.
fn steps(option: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in option.split('.') {
        let (name, index) = part.split_once('[').unwrap_or((part, ""));
        steps.push(Step::Name(name.to_owned()));
        if let Ok(index) = index.trim_end_matches(']').parse() {
            steps.push(Step::Index(index));
        }
    }
    steps
}

/// The path in the JSON, in which a block is a list of one map, and a text that is left out of a list is null.
fn locate(config: &Json, steps: &[Step]) -> Option<Vec<Step>> {
    let (mut path, mut value) = (Vec::new(), config);
    for step in steps {
        if let (Step::Name(_), Json::Array(items)) = (step, value) {
            let index = items.iter().position(Json::is_object)?;
            path.push(Step::Index(index));
            value = &items[index];
        }
        match (step, value) {
            (Step::Index(nth), Json::Array(items)) => {
                let has_blocks = items.iter().any(Json::is_object);
                let counted = |item: &Json| has_blocks || !item.is_null();
                let index =
                    items.iter().enumerate().filter(|(_, item)| counted(item)).map(|(index, _)| index).nth(*nth)?;
                path.push(Step::Index(index));
                value = &items[index];
            }
            // A block that is written without a list.
            (Step::Index(0), Json::Object(_)) => {}
            (Step::Name(name), Json::Object(fields)) => {
                value = fields.get(name)?;
                path.push(step.clone());
            }
            _ => return None,
        }
    }
    Some(path)
}

fn value_at<'a>(config: &'a Json, path: &[Step]) -> Option<&'a Json> {
    path.iter().try_fold(config, |value, step| match step {
        Step::Name(name) => value.get(name),
        Step::Index(index) => value.get(index),
    })
}

/// The block with another value at the path, or without one.
fn replaced(config: &Json, path: &[Step], after: Option<Json>) -> Option<Json> {
    let (last, parents) = path.split_last()?;
    let mut config = config.clone();
    let parent = parents.iter().try_fold(&mut config, |value, step| match step {
        Step::Name(name) => value.get_mut(name),
        Step::Index(index) => value.get_mut(index),
    })?;
    match (last, parent) {
        (Step::Name(name), Json::Object(fields)) => match after {
            Some(after) => drop(fields.insert(name.clone(), after)),
            None => drop(fields.remove(name)),
        },
        (Step::Index(index), Json::Array(items)) => match after {
            Some(after) => items[*index] = after,
            None => drop(items.remove(*index)),
        },
        _ => return None,
    }
    Some(config)
}

/// The same request in the form that the driver accepts.
fn rewritten(name: &str, value: &Json) -> Option<Json> {
    let Json::Array(items) = value else { return None };
    if name != "extra_hosts" {
        return None;
    }
    let with_address = |item: &Json| match item.as_str().and_then(|text| text.strip_suffix(":host-gateway")) {
        Some(host) => Json::from(format!("{host}:{HOST_ADDRESS}")),
        None => item.clone(),
    };
    let after: Vec<Json> = items.iter().map(with_address).collect();
    (after != *items).then_some(Json::Array(after))
}

/// The items of a list, or the entries of a map, that are accepted alone. `None` if that is none or all.
fn accepted_part(value: &Json, is_accepted: &dyn Fn(Json) -> bool) -> Option<Json> {
    match value {
        Json::Array(items) if items.iter().all(|item| item.is_string() || item.is_null()) => {
            let kept: Vec<Json> =
                items.iter().filter(|item| is_accepted(Json::Array(vec![(*item).clone()]))).cloned().collect();
            (!kept.is_empty() && kept.len() < items.len()).then_some(Json::Array(kept))
        }
        Json::Array(items) => match items.as_slice() {
            [map @ Json::Object(_)] => {
                let part = accepted_part(map, &|part| is_accepted(Json::Array(vec![part])))?;
                Some(Json::Array(vec![part]))
            }
            _ => None,
        },
        Json::Object(fields) if fields.values().all(|value| !value.is_object() && !value.is_array()) => {
            let alone = |name: &str, value: &Json| Json::Object(Map::from_iter([(name.to_owned(), value.clone())]));
            let kept: Map<String, Json> = fields
                .iter()
                .filter(|(name, value)| is_accepted(alone(name, value)))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            (!kept.is_empty() && kept.len() < fields.len()).then_some(Json::Object(kept))
        }
        _ => None,
    }
}

/// Maps whose values may be secrets.
const SECRET_MAPS: [&str; 3] = ["auth", "config", "options"];

/// An option in HCL. Values that may be secrets are not shown.
fn hcl(name: &str, value: &Json) -> Vec<String> {
    let is_secret = SECRET_MAPS.contains(&name);
    match value {
        Json::Array(items) if items.iter().any(Json::is_object) => {
            items.iter().filter(|item| item.is_object()).flat_map(|item| hcl(name, item)).collect()
        }
        Json::Object(fields) => {
            let mut lines = vec![format!("{name} {{")];
            for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let inner = match value {
                    _ if is_secret => vec![format!("{} = …", key(field))],
                    value => hcl(field, value),
                };
                lines.extend(inner.into_iter().map(|line| format!("  {line}")));
            }
            lines.push("}".to_owned());
            lines
        }
        value => vec![format!("{} = {}", key(name), literal(value))],
    }
}

fn key(name: &str) -> String {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if plain { name.to_owned() } else { Json::from(name).to_string() }
}

fn literal(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            let items: Vec<String> = items.iter().filter(|item| !item.is_null()).map(literal).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::find;

    /// Refuses each text that has "bad" in it, and each key.
    fn is_better(config: &Json) -> bool {
        !config.to_string().contains("bad")
    }

    #[test]
    fn only_what_is_refused_goes() {
        for (config, option, removed, added) in [
            (json!({ "pid_mode": "bad" }), "pid_mode", vec!["pid_mode = \"bad\""], vec![]),
            (
                json!({ "security_opt": ["a", "bad", null] }),
                "security_opt",
                vec!["security_opt = [\"a\", \"bad\"]"],
                vec!["security_opt = [\"a\"]"],
            ),
            (
                json!({ "ulimit": [{ "nofile": "1", "bad": "2" }] }),
                "ulimit",
                vec!["ulimit {", "  bad = \"2\"", "  nofile = \"1\"", "}"],
                vec!["ulimit {", "  nofile = \"1\"", "}"],
            ),
            (json!({ "volumes": [null, "a:/a", "bad"] }), "volumes[1]", vec!["volumes = \"bad\""], vec![]),
            (
                json!({ "mount": [{ "target": "/" }, { "volume_options": [{ "driver_config": { "name": "bad" } }] }] }),
                "mount[1].volume_options.driver_config.name",
                vec!["driver_config {", "  name = \"bad\"", "}"],
                vec![],
            ),
            (
                json!({ "logging": [{ "type": "x", "config": [{ "bad": "secret" }] }] }),
                "logging.config",
                vec!["logging {", "  config {", "    bad = …", "  }", "  type = \"x\"", "}"],
                vec![],
            ),
            (
                json!({ "logging": [{ "type": "x", "config": [{ "tag": "a", "bad": "secret" }] }] }),
                "logging.config.bad",
                vec!["bad = \"secret\""],
                vec![],
            ),
            (
                json!({ "logging": [{ "type": "x", "config": [{ "x-address": "bad" }] }] }),
                "logging.config.x-address",
                vec!["logging {", "  config {", "    x-address = …", "  }", "  type = \"x\"", "}"],
                vec![],
            ),
            (json!({ "devices": { "host_path": "bad" } }), "devices[0].host_path", vec!["host_path = \"bad\""], vec![]),
        ] {
            let change = find(&config, option, &is_better).unwrap();
            assert_eq!(
                (change.removed(), change.added()),
                (
                    removed.iter().map(|line| (*line).to_owned()).collect(),
                    added.iter().map(|line: &&str| (*line).to_owned()).collect()
                ),
                "{config}"
            );
            assert!(is_better(&change.config));
        }
    }

    #[test]
    fn a_block_goes_if_an_option_in_it_must_not() {
        let config = json!({ "logging": [{ "type": "syslog" }], "image": "a" });
        let change = find(&config, "logging.type", &|config| config.get("logging").is_none()).unwrap();
        assert_eq!(change.config, json!({ "image": "a" }));
        assert_eq!(change.removed(), ["logging {", "  type = \"syslog\"", "}"]);
    }

    #[test]
    fn without_a_way_there_is_no_change() {
        assert_eq!(find(&json!({ "image": "a" }), "command", &|_| true), None);
        assert_eq!(find(&json!({ "image": "a" }), "image", &|_| false), None);
    }

    #[test]
    fn the_hosts_address_has_another_form() {
        let config = json!({ "extra_hosts": ["a:10.0.0.1", "b:host-gateway"] });
        let change = find(&config, "extra_hosts", &|config| !config.to_string().contains("gateway")).unwrap();
        assert_eq!(change.added(), ["extra_hosts = [\"a:10.0.0.1\", \"b:${attr.unique.network.ip-address}\"]"]);
    }
}
