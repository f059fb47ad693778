//! Which devices are offered to Nomad, and as what.
//!
//! A device of the kind `vendor/class` has the vendor `vendor` and the type `class`. Its name is a setting of the
//! operator, an annotation, or [`DEFAULT_NAME`]. Devices of the same vendor, type and name are one group, and jobs can
//! constrain on the attributes that all of them have.
//!
//! Specs may have several names for one piece of hardware, as NVIDIA's do: index, UUID, and `all`. Each piece of
//! hardware must be counted once, so a device is not offered if another one of its kind has the same nodes, or only
//! some of them.

use std::collections::{BTreeMap, BTreeSet};

use cdi::{Entry, Kind, QualifiedName, Registry};

use super::{attributes::Attribute, facts::Facts};
use crate::config::DevicePluginConfig;

/// Begins the annotations that the plugin knows. Attributes have their names without it.
const OWN_ANNOTATION: &str = "oci-rs/";
/// The annotation with Nomad's name of a device.
const NAME: &str = "oci-rs/name";
/// The annotation with the PCI address of a device, where sysfs does not tell it.
const PCI_BUS_ID: &str = "oci-rs/pci-bus-id";
/// Nomad's name of devices that have none.
const DEFAULT_NAME: &str = "cdi";
/// The attribute of devices that several tasks can have at the same time.
const REPLICAS: &str = "replicas";
/// Separates the id of a device from the number of a replica. No name of a device has it.
const REPLICA: char = '#';

/// Devices of one vendor, type and name.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The vendor of the kind.
    pub vendor: String,
    /// The class of the kind.
    pub class: String,
    /// Nomad's name.
    pub name: String,
    /// The devices, in the order of their ids.
    pub devices: Vec<Detected>,
    /// What all devices have in common.
    pub attributes: BTreeMap<String, Attribute>,
}

/// A device of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Detected {
    /// The full name, and the number of the replica if there are several.
    pub id: String,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// Its address on the PCI bus.
    pub pci_bus_id: Option<String>,
}

/// The name of the device with this id.
pub fn name_of(id: &str) -> &str {
    id.split_once(REPLICA).map_or(id, |(name, _)| name)
}

/// The devices that are offered: those of the operator's kinds, each piece of hardware once.
pub fn offered<'a>(registry: &'a Registry, config: &DevicePluginConfig) -> Vec<(&'a QualifiedName, Entry<'a>)> {
    let mut of_kinds: BTreeMap<&Kind, Vec<(&QualifiedName, Entry)>> = BTreeMap::new();
    for (name, entry) in registry.devices().filter(|(name, _)| config.offers(&name.kind().to_string())) {
        of_kinds.entry(name.kind()).or_default().push((name, entry));
    }
    of_kinds.into_values().flat_map(each_once).collect()
}

/// Leaves out second names, and devices that consist of others.
fn each_once<'a>(devices: Vec<(&'a QualifiedName, Entry<'a>)>) -> Vec<(&'a QualifiedName, Entry<'a>)> {
    let nodes: Vec<BTreeSet<&str>> = devices
        .iter()
        .map(|(_, entry)| entry.device.container_edits.device_nodes.iter().map(|node| node.path_on_node()).collect())
        .collect();
    // Of several names, a long one is a UUID, which stays the same when devices are added.
    let rank = |index: usize| {
        let name = devices[index].0.device();
        (std::cmp::Reverse(name.len()), name)
    };
    let is_other = |index: usize, other: usize| {
        !nodes[other].is_empty()
            && (nodes[index].is_superset(&nodes[other]) && nodes[index] != nodes[other]
                || nodes[index] == nodes[other] && rank(other) < rank(index))
    };
    let kept = (0..devices.len()).filter(|index| !(0..devices.len()).any(|other| is_other(*index, other)));
    kept.map(|index| devices[index]).collect()
}

/// The groups of these devices with these facts.
pub fn decide(devices: &[(&QualifiedName, Entry, Facts)], config: &DevicePluginConfig) -> Vec<Group> {
    let mut groups: BTreeMap<(&Kind, String), Group> = BTreeMap::new();
    for (name, entry, facts) in devices {
        let annotation = |key: &str| {
            let of_device = entry.device.annotations.get(key);
            of_device.or_else(|| entry.spec.annotations.get(key)).filter(|text| !text.is_empty())
        };
        let settings = config.settings(&name.kind().to_string());
        let group_name = settings.name.or_else(|| annotation(NAME).cloned()).unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let mut of_device = attributes(entry, facts);
        if settings.replicas > 1 {
            let replicas = i64::try_from(settings.replicas).unwrap_or(i64::MAX);
            of_device.insert(REPLICAS.to_owned(), Attribute::number(replicas, ""));
        }
        let group = groups.entry((name.kind(), group_name.clone())).or_insert_with(|| Group {
            vendor: name.kind().vendor().to_owned(),
            class: name.kind().class().to_owned(),
            name: group_name,
            devices: Vec::new(),
            attributes: of_device.clone(),
        });
        group.attributes.retain(|key, value| of_device.get(key) == Some(value));
        let detected = |id: String| Detected {
            id,
            problem: facts.problem.clone(),
            pci_bus_id: annotation(PCI_BUS_ID).cloned().or_else(|| facts.pci_bus_id.clone()),
        };
        match settings.replicas {
            1 => group.devices.push(detected(name.to_string())),
            replicas => group.devices.extend((1..=replicas).map(|number| detected(format!("{name}{REPLICA}{number}")))),
        }
    }
    groups.into_values().collect()
}

/// The attributes of a device: those of the kernel, replaced by the annotations of spec and device.
fn attributes(entry: &Entry, facts: &Facts) -> BTreeMap<String, Attribute> {
    let numa = facts.numa_node.map(|node| ("numa_node", Attribute::number(node, "")));
    let memory = facts.memory_mib.map(|mib| ("memory", Attribute::number(mib, "MiB")));
    let pci = facts.pci_id.as_deref().map(|id| ("pci_id", Attribute::parse(id)));
    let known = numa.into_iter().chain(memory).chain(pci).map(|(key, value)| (key.to_owned(), value));
    let annotations = entry.spec.annotations.iter().chain(&entry.device.annotations);
    let annotated = annotations
        .filter(|(key, _)| ![NAME, PCI_BUS_ID].contains(&key.as_str()))
        .map(|(key, text)| (key.strip_prefix(OWN_ANNOTATION).unwrap_or(key).to_owned(), Attribute::parse(text)));
    known.chain(annotated).collect()
}

#[cfg(test)]
mod tests {
    use cdi::{Source, Spec};
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::config::{decode_device_plugin, from_json};

    /// A document with devices that have these nodes and annotations.
    fn registry(kind: &str, annotations: Json, devices: &[(&str, &[&str], Json)]) -> Registry {
        let device = |(name, nodes, annotations): &(&str, &[&str], Json)| {
            let nodes: Vec<Json> = nodes.iter().map(|path| json!({ "path": path })).collect();
            let edits = json!({ "deviceNodes": nodes, "env": ["A=b"] });
            json!({ "name": name, "annotations": annotations, "containerEdits": edits })
        };
        let devices: Vec<Json> = devices.iter().map(device).collect();
        let spec = json!({ "cdiVersion": "0.6.0", "kind": kind, "annotations": annotations, "devices": devices });
        let spec = Spec::parse(cdi::Format::Json, spec.to_string().as_bytes()).map_err(|error| error.to_string());
        let registry = Registry::new([Source { path: "/etc/cdi/v.json".into(), priority: 0, spec }]);
        assert_eq!(registry.problems().collect::<Vec<_>>(), [""; 0]);
        registry
    }

    fn config(block: Json) -> DevicePluginConfig {
        decode_device_plugin(&from_json(&block)).unwrap()
    }

    fn groups(registry: &Registry, block: Json, facts: impl Fn(&str) -> Facts) -> Vec<Group> {
        let config = config(block);
        let devices = offered(registry, &config).into_iter();
        let devices: Vec<_> = devices.map(|(name, entry)| (name, entry, facts(name.device()))).collect();
        decide(&devices, &config)
    }

    fn ids(groups: &[Group]) -> Vec<&str> {
        groups.iter().flat_map(|group| &group.devices).map(|device| device.id.as_str()).collect()
    }

    #[test]
    fn each_piece_of_hardware_is_offered_once() {
        // As `nvidia-ctk` writes them with two strategies of names.
        let nvidia = registry(
            "nvidia.com/gpu",
            json!({}),
            &[
                ("0", &["/dev/nvidia0", "/dev/dri/card0"], json!({})),
                ("1", &["/dev/nvidia1"], json!({})),
                ("GPU-aaaa", &["/dev/nvidia0", "/dev/dri/card0"], json!({})),
                ("GPU-bbbb", &["/dev/nvidia1"], json!({})),
                ("all", &["/dev/nvidia0", "/dev/dri/card0", "/dev/nvidia1"], json!({})),
            ],
        );
        let found = groups(&nvidia, json!({}), |_| Facts::default());
        assert_eq!(ids(&found), ["nvidia.com/gpu=GPU-aaaa", "nvidia.com/gpu=GPU-bbbb"]);
        assert_eq!((&*found[0].vendor, &*found[0].class, &*found[0].name), ("nvidia.com", "gpu", "cdi"));
        // A GPU in MIG mode is only its parts.
        let mig = registry(
            "nvidia.com/gpu",
            json!({}),
            &[
                ("0:0", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"], json!({})),
                ("0:1", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"], json!({})),
                ("1", &["/dev/nvidia1"], json!({})),
                ("GPU-bbbb", &["/dev/nvidia1"], json!({})),
                ("MIG-aaaa", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"], json!({})),
                ("MIG-cccc", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"], json!({})),
                (
                    "all",
                    &["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap30"],
                    json!({}),
                ),
            ],
        );
        let expected = ["nvidia.com/gpu=GPU-bbbb", "nvidia.com/gpu=MIG-aaaa", "nvidia.com/gpu=MIG-cccc"];
        assert_eq!(ids(&groups(&mig, json!({}), |_| Facts::default())), expected);
        // Parts of one GPU share a node, and devices without nodes share nothing.
        let others = registry(
            "v.com/c",
            json!({}),
            &[
                ("mig0", &["/dev/nvidia0", "/dev/cap1"], json!({})),
                ("mig1", &["/dev/nvidia0", "/dev/cap2"], json!({})),
                ("license1", &[], json!({})),
                ("license2", &[], json!({})),
            ],
        );
        let expected = ["v.com/c=license1", "v.com/c=license2", "v.com/c=mig0", "v.com/c=mig1"];
        assert_eq!(ids(&groups(&others, json!({}), |_| Facts::default())), expected);
        assert_eq!(groups(&others, json!({ "kinds": ["other.com/*"] }), |_| Facts::default()), []);
    }

    #[test]
    fn groups_have_names_and_the_attributes_of_all_their_devices() {
        let other = json!({ "oci-rs/name": "h100", "oci-rs/memory": "80 GiB", "oci-rs/pci-bus-id": "0000:01:00.0" });
        let found = registry(
            "v.com/gpu",
            json!({ "oci-rs/memory": "40 GiB", "oci-rs/name": "a100", "v.com/firmware": "7" }),
            &[("a", &[], json!({ "oci-rs/slot": "1" })), ("b", &[], json!({ "oci-rs/slot": "2" })), ("c", &[], other)],
        );
        let facts = |name: &str| Facts {
            problem: (name == "b").then(|| "/dev/b: gone".to_owned()),
            pci_bus_id: Some("0000:3b:00.0".into()),
            pci_id: Some("10de:2330".into()),
            numa_node: Some(1),
            memory_mib: Some(7),
        };
        let found = groups(&found, json!({}), facts);
        let [a100, h100] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((a100.name.as_str(), h100.name.as_str()), ("a100", "h100"));
        let keys = |group: &Group| group.attributes.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(a100), ["memory", "numa_node", "pci_id", "v.com/firmware"]);
        assert_eq!(a100.attributes["pci_id"], Attribute::parse("10de:2330"));
        assert_eq!(a100.attributes["memory"], Attribute::number(40, "GiB"));
        assert_eq!(h100.attributes["memory"], Attribute::number(80, "GiB"));
        assert_eq!(h100.devices[0].pci_bus_id.as_deref(), Some("0000:01:00.0"));
        assert_eq!(a100.devices[0].pci_bus_id.as_deref(), Some("0000:3b:00.0"));
        let problems: Vec<_> = a100.devices.iter().map(|device| device.problem.as_deref()).collect();
        assert_eq!(problems, [None, Some("/dev/b: gone")]);
    }

    #[test]
    fn replicas_have_ids_that_lead_to_one_device() {
        let devices: [(&str, &[&str], Json); 2] = [("0", &[], json!({})), ("1", &[], json!({}))];
        let found = registry("v.com/gpu", json!({ "oci-rs/name": "a" }), &devices);
        let block = json!({ "kind": { "v.com/gpu": { "replicas": 2, "name": "shared" } } });
        let found = groups(&found, block, |_| Facts::default());
        assert_eq!(ids(&found), ["v.com/gpu=0#1", "v.com/gpu=0#2", "v.com/gpu=1#1", "v.com/gpu=1#2"]);
        assert_eq!(found[0].name, "shared", "the operator's name counts");
        assert_eq!(found[0].attributes["replicas"], Attribute::number(2, ""), "a job sees that the device is shared");
        assert_eq!((name_of("v.com/gpu=0#2"), name_of("v.com/gpu=0")), ("v.com/gpu=0", "v.com/gpu=0"));
    }
}
