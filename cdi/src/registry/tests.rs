use proptest::prelude::*;

use super::*;
use crate::parse::Format;

/// A document of one kind with these devices, each of which sets a variable.
fn source(path: &str, priority: usize, kind: &str, devices: &[&str]) -> Source {
    let devices: Vec<String> = devices
        .iter()
        .map(|name| format!(r#"{{"name": "{name}", "containerEdits": {{"env": ["DEVICE={path} {name}"]}}}}"#))
        .collect();
    let text = format!(
        r#"{{"cdiVersion": "0.5.0", "kind": "{kind}", "devices": [{}], "containerEdits": {{"env": ["ALL={path}"]}}}}"#,
        devices.join(",")
    );
    let spec = Spec::parse(Format::Json, text.as_bytes()).map_err(|error| error.to_string());
    Source { path: path.into(), priority, spec }
}

fn name(text: &str) -> QualifiedName {
    text.parse().unwrap()
}

#[test]
fn a_directory_of_higher_priority_wins_and_equals_conflict() {
    let registry = Registry::new([
        source("/etc/a", 0, "v.com/c", &["0", "1", "both"]),
        source("/etc/b", 0, "v.com/c", &["both", "2"]),
        source("/etc/c", 0, "v.com/other", &["0"]),
        source("/run/a", 1, "v.com/c", &["1", "both"]),
    ]);
    let found: Vec<_> =
        registry.devices().map(|(name, entry)| (name.to_string(), entry.path.display().to_string())).collect();
    let expected =
        [("v.com/c=0", "/etc/a"), ("v.com/c=1", "/run/a"), ("v.com/c=2", "/etc/b"), ("v.com/other=0", "/etc/c")];
    assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
    assert_eq!(
        registry.get(&name("v.com/c=both")).map(|entry| entry.path).unwrap_err().to_string(),
        "several specs of one directory have the device v.com/c=both: /etc/a, /etc/b"
    );
    assert_eq!(registry.problems().count(), 1);
}

#[test]
fn a_device_that_is_not_there_is_an_error_that_helps() {
    let broken = Source { path: "/etc/broken.json".into(), priority: 0, spec: Err("not JSON".into()) };
    let registry = Registry::new([source("/etc/a", 0, "v.com/c", &["0", "1"]), broken]);
    assert_eq!(
        registry.edits(&[name("v.com/c=2")]).unwrap_err().to_string(),
        "no spec has the device v.com/c=2; v.com/c has 0, 1; specs that cannot be used: /etc/broken.json: not JSON"
    );
    assert_eq!(
        registry.edits(&[name("v.com/c=0"), name("v.com/d=2")]).unwrap_err().to_string(),
        "no spec has devices of the kind v.com/d; specs that cannot be used: /etc/broken.json: not JSON"
    );
    let none = Registry::new([]);
    let error = none.edits(&[name("v.com/c=2")]).unwrap_err().to_string();
    assert_eq!(error, "no spec has devices of the kind v.com/c");
}

#[test]
fn edits_of_a_document_come_once_and_before_those_of_its_devices() {
    let registry = Registry::new([source("/a", 0, "v.com/c", &["0", "1"]), source("/b", 0, "v.com/d", &["0"])]);
    let edits = registry.edits(&["v.com/c=1", "v.com/d=0", "v.com/c=0", "v.com/c=1"].map(name)).unwrap();
    assert_eq!(edits.env, ["ALL=/a", "DEVICE=/a 1", "ALL=/b", "DEVICE=/b 0", "DEVICE=/a 0"]);
    assert!(registry.edits(&[]).unwrap().is_empty());
}

#[test]
fn the_last_class_of_service_counts() {
    let rdt = |class: &str| ContainerEdits {
        intel_rdt: Some(crate::IntelRdt { clos_id: class.into(), ..Default::default() }),
        ..ContainerEdits::default()
    };
    let mut edits = rdt("a");
    edits.append(&ContainerEdits::default());
    assert_eq!(edits, rdt("a"));
    edits.append(&rdt("b"));
    assert_eq!(edits, rdt("b"));
}

proptest! {
    /// Compared with the definition: the last document counts, unless two documents of one priority have the device.
    #[test]
    fn each_device_is_of_the_one_document_of_the_highest_priority(
        documents in prop::collection::vec((0..3usize, prop::collection::btree_set(0..4u8, 1..4)), 0..6)
    ) {
        let mut documents = documents;
        documents.sort_by_key(|(priority, _)| *priority);
        let sources = documents.iter().enumerate().map(|(index, (priority, devices))| {
            let names: Vec<String> = devices.iter().map(u8::to_string).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            source(&format!("/{index}"), *priority, "v.com/c", &names)
        });
        let registry = Registry::new(sources);
        for device in 0..4u8 {
            let with: Vec<(usize, usize)> = documents
                .iter()
                .enumerate()
                .filter(|(_, (_, devices))| devices.contains(&device))
                .map(|(index, (priority, _))| (index, *priority))
                .collect();
            let twice = with.windows(2).any(|pair| pair[0].1 == pair[1].1);
            let expected = with.last().filter(|_| !twice).map(|(index, _)| format!("/{index}"));
            let found = registry.get(&name(&format!("v.com/c={device}")));
            prop_assert_eq!(found.as_ref().ok().map(|entry| entry.path.display().to_string()), expected);
            prop_assert_eq!(matches!(found, Err(ResolveError::Conflict { .. })), twice);
        }
    }
}
