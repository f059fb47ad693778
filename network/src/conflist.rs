//! Network configurations as CNI has them (specification 1.0, section 1), and the request that each plugin of one gets.

use std::{collections::BTreeSet, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{admin::CHAIN, settings::Settings};

/// The version of the specification that our own network speaks: every plugin since 1.0.0 (2021) knows it.
const VERSION: &str = "1.0.0";

/// A network: plugins that are called one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflist {
    /// Its name.
    pub name: String,
    /// The version of the specification that its plugins are to speak.
    #[serde(rename = "cniVersion")]
    version: String,
    plugins: Vec<Map<String, Value>>,
}

impl Conflist {
    /// The network of our own bridge; `leases` is the directory in which its addresses are written down. The plugin that maps ports
    /// takes part only for containers that have some.
    pub fn of_bridge(settings: &Settings, leases: &Path, publishes: bool) -> Self {
        let mut ranges = vec![json!([{ "subnet": settings.subnet.to_string() }])];
        let mut routes = vec![json!({ "dst": "0.0.0.0/0" })];
        if let Some(subnet) = settings.subnet_ipv6 {
            ranges.push(json!([{ "subnet": subnet.to_string() }]));
            routes.push(json!({ "dst": "::/0" }));
        }
        let bridge = json!({
            "type": "bridge",
            "bridge": settings.bridge,
            "isGateway": true,
            // After a change of the subnet the bridge takes the new address.
            "forceAddress": true,
            "ipMasq": true,
            // A container reaches its own published port.
            "hairpinMode": true,
            "capabilities": { "mac": true, "ips": true },
            "ipam": { "type": "host-local", "dataDir": leases, "ranges": ranges, "routes": routes },
        });
        let firewall = json!({ "type": "firewall", "backend": "iptables", "iptablesAdminChainName": CHAIN });
        let portmap = json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } });
        let plugins = [Some(bridge), Some(firewall), publishes.then_some(portmap)];
        let plugins = plugins.into_iter().flatten().filter_map(|plugin| plugin.as_object().cloned()).collect();
        Self { name: settings.bridge.clone(), version: VERSION.to_owned(), plugins }
    }

    /// Reads a configuration: a list of plugins, or a single one as older files have it. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Value::Object(mut file) = value else { return Err("is no JSON object".to_owned()) };
        let text_of = |file: &Map<String, Value>, key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = text_of(&file, "name").filter(|name| !name.is_empty()).ok_or("has no name")?;
        let version = text_of(&file, "cniVersion").unwrap_or_else(|| "0.2.0".to_owned());
        let plugins = match file.remove("plugins") {
            None => vec![file],
            Some(Value::Array(list)) => {
                let objects = list.into_iter().map(|plugin| match plugin {
                    Value::Object(plugin) => Ok(plugin),
                    _ => Err("has a plugin that is no JSON object"),
                });
                objects.collect::<Result<_, _>>()?
            }
            Some(_) => return Err("has plugins that are no list".to_owned()),
        };
        let typed = |plugin: &Map<String, Value>| {
            // The type becomes a file's name in the directories of plugins.
            text_of(plugin, "type").is_some_and(|kind| !kind.is_empty() && !kind.contains('/') && kind != "..")
        };
        if plugins.is_empty() || !plugins.iter().all(typed) {
            return Err("has no plugins, or one without a type that could name a program".to_owned());
        }
        Ok(Self { name, version, plugins })
    }

    /// How many plugins there are.
    pub fn len(&self) -> usize {
        self.plugins.len()
    }

    /// Whether there are none; never so in a configuration that was read.
    pub fn is_empty(&self) -> bool {
        self.plugins.is_empty()
    }

    /// The program of a plugin.
    pub(crate) fn program(&self, index: usize) -> &str {
        self.plugins.get(index).and_then(|plugin| plugin.get("type")).and_then(Value::as_str).unwrap_or_default()
    }

    /// All programs that must be installed, those that plugins call for addresses included.
    pub(crate) fn programs(&self) -> BTreeSet<&str> {
        let kind = |value: &'_ Value| value.as_object().and_then(|object| object.get("type")).is_some();
        let ipam = self.plugins.iter().filter_map(|plugin| plugin.get("ipam")).filter(|ipam| kind(ipam));
        let ipam = ipam.filter_map(|ipam| ipam.get("type").and_then(Value::as_str)).filter(|kind| !kind.is_empty());
        (0..self.len()).map(|index| self.program(index)).chain(ipam).collect()
    }

    /// Whether some plugin takes this capability's argument.
    pub(crate) fn offers(&self, capability: &str) -> bool {
        self.plugins.iter().any(|plugin| declares(plugin, capability))
    }

    /// What a plugin is given: its part of the configuration, with what it declared itself able to do of what is asked, and the
    /// result of the plugins before it.
    pub(crate) fn request(&self, index: usize, asked: &Map<String, Value>, previous: Option<&Value>) -> Value {
        let mut request = self.plugins.get(index).cloned().unwrap_or_default();
        let granted: Map<String, Value> = asked
            .iter()
            .filter(|(capability, _)| declares(&request, capability))
            .map(|(capability, value)| (capability.clone(), value.clone()))
            .collect();
        if !granted.is_empty() {
            request.insert("runtimeConfig".to_owned(), Value::Object(granted));
        }
        request.insert("name".to_owned(), json!(self.name));
        request.insert("cniVersion".to_owned(), json!(self.version));
        if let Some(previous) = previous {
            request.insert("prevResult".to_owned(), previous.clone());
        }
        Value::Object(request)
    }
}

fn declares(plugin: &Map<String, Value>, capability: &str) -> bool {
    plugin.get("capabilities").and_then(|all| all.get(capability)).and_then(Value::as_bool).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::Conflist;
    use crate::settings::Settings;

    fn asked(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn our_own_network_has_what_docker_has() {
        let settings = Settings { subnet_ipv6: "fd00::/64".parse().ok(), ..Settings::default() };
        let list = Conflist::of_bridge(&settings, Path::new("/leases"), true);
        assert_eq!(
            (0..list.len()).map(|index| list.program(index)).collect::<Vec<_>>(),
            ["bridge", "firewall", "portmap"]
        );
        assert_eq!(list.programs().into_iter().collect::<Vec<_>>(), ["bridge", "firewall", "host-local", "portmap"]);
        let ports = json!([{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]);
        let all = asked(json!({"portMappings": ports, "mac": "02:00:00:00:00:01"}));
        let bridge = list.request(0, &all, None);
        assert_eq!(bridge["ipam"]["ranges"], json!([[{"subnet": "172.26.80.0/20"}], [{"subnet": "fd00::/64"}]]));
        assert_eq!(bridge["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
        assert_eq!((&bridge["name"], &bridge["cniVersion"]), (&json!("oci-rs"), &json!("1.0.0")));
        assert!(bridge.get("prevResult").is_none());
        let previous = json!({"ips": []});
        let portmap = list.request(2, &all, Some(&previous));
        assert_eq!((&portmap["runtimeConfig"], &portmap["prevResult"]), (&json!({ "portMappings": ports }), &previous));
    }

    #[test]
    fn without_ports_and_ipv6_there_is_less_to_do() {
        let list = Conflist::of_bridge(&Settings::default(), Path::new("/leases"), false);
        assert_eq!(list.len(), 2);
        assert_eq!(list.request(0, &Map::new(), None)["ipam"]["routes"], json!([{"dst": "0.0.0.0/0"}]));
        assert!(list.offers("mac") && list.offers("ips") && !list.offers("portMappings"));
    }

    #[test]
    fn lists_and_single_configurations_are_read() {
        let list =
            r#"{"cniVersion": "0.4.0", "name": "lan", "plugins": [{"type": "macvlan", "ipam": {"type": "dhcp"}}]}"#;
        let list = Conflist::parse(list).expect("a list");
        assert_eq!((list.name.as_str(), list.len()), ("lan", 1));
        assert_eq!(list.programs().into_iter().collect::<Vec<_>>(), ["dhcp", "macvlan"]);
        let single = Conflist::parse(r#"{"name": "lan", "type": "ptp", "capabilities": {"portMappings": true}}"#);
        let single = single.expect("a configuration");
        assert!(single.offers("portMappings") && !single.offers("mac"));
        assert_eq!(single.request(0, &Map::new(), None)["cniVersion"], "0.2.0");
    }

    #[test]
    fn configurations_that_are_none_are_refused() {
        for (text, expected) in [
            ("[]", "is no JSON object"),
            ("{", "EOF"),
            ("{}", "has no name"),
            (r#"{"name": ""}"#, "has no name"),
            (r#"{"name": "a"}"#, "has no plugins"),
            (r#"{"name": "a", "plugins": []}"#, "has no plugins"),
            (r#"{"name": "a", "plugins": {}}"#, "has plugins that are no list"),
            (r#"{"name": "a", "plugins": [1]}"#, "has a plugin that is no JSON object"),
            (r#"{"name": "a", "plugins": [{"type": "../sh"}]}"#, "has no plugins, or one without a type"),
        ] {
            let problem = Conflist::parse(text).expect_err(text);
            assert!(problem.starts_with(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn a_record_of_a_network_is_the_network() {
        let list = Conflist::of_bridge(&Settings::default(), Path::new("/leases"), true);
        let text = serde_json::to_string(&list).expect("JSON");
        assert_eq!(Conflist::parse(&text).expect("a list"), list);
        assert_eq!(serde_json::from_str::<Conflist>(&text).expect("a list"), list);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in any::<String>()) {
            Conflist::parse(&text).ok();
        }

        #[test]
        fn a_plugin_gets_only_what_it_declared(capabilities in prop::collection::btree_map("[a-c]", any::<bool>(), 0..3)) {
            let plugin = json!({"name": "n", "type": "t", "capabilities": capabilities});
            let list = Conflist::parse(&plugin.to_string()).expect("a configuration");
            let all = asked(json!({"a": 1, "b": 2, "c": 3}));
            let request = list.request(0, &all, None);
            for name in ["a", "b", "c"] {
                let declared = capabilities.get(name).copied().unwrap_or(false);
                prop_assert_eq!(request["runtimeConfig"].get(name).is_some(), declared);
            }
        }
    }
}
