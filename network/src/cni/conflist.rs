//! CNI network configuration lists (specification 1.0, section 1), and the request that each plugin of a list gets.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A network configuration list: plugins that are called one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflist {
    /// The name of the network.
    pub name: String,
    /// The version of the specification in requests to its plugins.
    #[serde(rename = "cniVersion")]
    version: String,
    plugins: Vec<Map<String, Value>>,
}

impl Conflist {
    /// Parses a configuration: a list of plugins, or the older form with a single plugin.
    ///
    /// # Errors
    ///
    /// The problem, as the end of a sentence about the file ("has no name").
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Value::Object(mut file) = value else { return Err("is not a JSON object".to_owned()) };
        let text_of = |file: &Map<String, Value>, key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = text_of(&file, "name").filter(|name| !name.is_empty()).ok_or("has no name")?;
        let version = text_of(&file, "cniVersion").unwrap_or_else(|| "0.2.0".to_owned());
        let plugins = match file.remove("plugins") {
            None => vec![file],
            Some(Value::Array(list)) => {
                let objects = list.into_iter().map(|plugin| match plugin {
                    Value::Object(plugin) => Ok(plugin),
                    _ => Err("has a plugin that is not a JSON object"),
                });
                objects.collect::<Result<_, _>>()?
            }
            Some(_) => return Err("has plugins that are not a list".to_owned()),
        };
        let has_type = |plugin: &Map<String, Value>| {
            // The type is the name of a file in the directories of plugins.
            text_of(plugin, "type").is_some_and(|kind| !kind.is_empty() && !kind.contains('/') && kind != "..")
        };
        if plugins.is_empty() || !plugins.iter().all(has_type) {
            return Err("has no plugins, or one without a type that could name a program".to_owned());
        }
        Ok(Self { name, version, plugins })
    }

    /// The number of plugins.
    pub fn len(&self) -> usize {
        self.plugins.len()
    }

    /// Whether there are none. A parsed configuration always has one.
    pub fn is_empty(&self) -> bool {
        self.plugins.is_empty()
    }

    /// The name of a plugin's program.
    pub(crate) fn program(&self, index: usize) -> &str {
        self.plugins.get(index).and_then(|plugin| plugin.get("type")).and_then(Value::as_str).unwrap_or_default()
    }

    /// The names of all programs that must be installed, including the IPAM plugins.
    pub(crate) fn programs(&self) -> BTreeSet<&str> {
        let ipam = self.plugins.iter().filter_map(|plugin| plugin.get("ipam")?.get("type")?.as_str());
        let ipam = ipam.filter(|program| !program.is_empty());
        (0..self.len()).map(|index| self.program(index)).chain(ipam).collect()
    }

    /// Whether a plugin declares this capability.
    pub(crate) fn declares(&self, capability: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin_declares(plugin, capability))
    }

    /// The configuration for one plugin: its part of the list, the arguments of the capabilities that it declares
    /// (`runtimeConfig`), and the result of the previous plugin (`prevResult`).
    pub(crate) fn request(&self, index: usize, arguments: &Map<String, Value>, previous: Option<&Value>) -> Value {
        let mut request = self.plugins.get(index).cloned().unwrap_or_default();
        let declared: Map<String, Value> = arguments
            .iter()
            .filter(|(capability, _)| plugin_declares(&request, capability))
            .map(|(capability, value)| (capability.clone(), value.clone()))
            .collect();
        if !declared.is_empty() {
            request.insert("runtimeConfig".to_owned(), Value::Object(declared));
        }
        request.insert("name".to_owned(), json!(self.name));
        request.insert("cniVersion".to_owned(), json!(self.version));
        if let Some(previous) = previous {
            request.insert("prevResult".to_owned(), previous.clone());
        }
        Value::Object(request)
    }
}

fn plugin_declares(plugin: &Map<String, Value>, capability: &str) -> bool {
    plugin.get("capabilities").and_then(|all| all.get(capability)).and_then(Value::as_bool).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::Conflist;

    fn arguments(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    /// A network as earlier releases recorded it for the driver's bridge.
    const BRIDGE: &str = r#"{"name": "oci-rs", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": "oci-rs", "capabilities": {"mac": true, "ips": true},
            "ipam": {"type": "host-local", "dataDir": "/leases"}},
        {"type": "firewall"},
        {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}"#;

    #[test]
    fn each_plugin_gets_its_part_of_the_list_and_what_it_declares() {
        let list = Conflist::parse(BRIDGE).expect("a list");
        assert_eq!(
            (0..list.len()).map(|index| list.program(index)).collect::<Vec<_>>(),
            ["bridge", "firewall", "portmap"]
        );
        assert_eq!(list.programs().into_iter().collect::<Vec<_>>(), ["bridge", "firewall", "host-local", "portmap"]);
        let ports = json!([{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]);
        let all = arguments(json!({"portMappings": ports, "mac": "02:00:00:00:00:01"}));
        let bridge = list.request(0, &all, None);
        assert_eq!(bridge["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
        assert_eq!((&bridge["name"], &bridge["cniVersion"]), (&json!("oci-rs"), &json!("1.0.0")));
        assert!(bridge.get("prevResult").is_none());
        let previous = json!({"ips": []});
        let portmap = list.request(2, &all, Some(&previous));
        assert_eq!((&portmap["runtimeConfig"], &portmap["prevResult"]), (&json!({ "portMappings": ports }), &previous));
        assert!(list.declares("mac") && list.declares("ips") && !list.declares("bandwidth"));
    }

    #[test]
    fn lists_and_single_plugins_are_parsed() {
        let list =
            r#"{"cniVersion": "0.4.0", "name": "lan", "plugins": [{"type": "macvlan", "ipam": {"type": "dhcp"}}]}"#;
        let list = Conflist::parse(list).expect("a list");
        assert_eq!((list.name.as_str(), list.len()), ("lan", 1));
        assert_eq!(list.programs().into_iter().collect::<Vec<_>>(), ["dhcp", "macvlan"]);
        let single = Conflist::parse(r#"{"name": "lan", "type": "ptp", "capabilities": {"portMappings": true}}"#);
        let single = single.expect("a configuration");
        assert!(single.declares("portMappings") && !single.declares("mac"));
        assert_eq!(single.request(0, &Map::new(), None)["cniVersion"], "0.2.0");
    }

    #[test]
    fn invalid_configurations_are_refused() {
        for (text, expected) in [
            ("[]", "is not a JSON object"),
            ("{", "EOF"),
            ("{}", "has no name"),
            (r#"{"name": ""}"#, "has no name"),
            (r#"{"name": "a"}"#, "has no plugins"),
            (r#"{"name": "a", "plugins": []}"#, "has no plugins"),
            (r#"{"name": "a", "plugins": {}}"#, "has plugins that are not a list"),
            (r#"{"name": "a", "plugins": [1]}"#, "has a plugin that is not a JSON object"),
            (r#"{"name": "a", "plugins": [{"type": "../sh"}]}"#, "has no plugins, or one without a type"),
        ] {
            let problem = Conflist::parse(text).expect_err(text);
            assert!(problem.starts_with(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn a_serialized_network_parses_to_the_same_network() {
        let list = Conflist::parse(BRIDGE).expect("a list");
        let text = serde_json::to_string(&list).expect("JSON");
        assert_eq!(Conflist::parse(&text).expect("a list"), list);
        assert_eq!(serde_json::from_str::<Conflist>(&text).expect("a list"), list);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in any::<String>()) {
            Conflist::parse(&text).ok();
        }

        #[test]
        fn a_plugin_gets_only_the_capabilities_that_it_declares(
            capabilities in prop::collection::btree_map("[a-c]", any::<bool>(), 0..3),
        ) {
            let plugin = json!({"name": "n", "type": "t", "capabilities": capabilities});
            let list = Conflist::parse(&plugin.to_string()).expect("a configuration");
            let all = arguments(json!({"a": 1, "b": 2, "c": 3}));
            let request = list.request(0, &all, None);
            for name in ["a", "b", "c"] {
                let declared = capabilities.get(name).copied().unwrap_or(false);
                prop_assert_eq!(request["runtimeConfig"].get(name).is_some(), declared);
            }
        }
    }
}
