use std::{fs, path::Path};

use proptest::{collection::vec, option, prelude::*};

use crate::{
    ContainerEdits, Device, DeviceNode, Format, Hook, HookStage, IntelRdt, Mount, NetDevice, NodeType, QualifiedName,
    Spec,
};

/// Every field of version 1.1.
const ALL: &str = r#"
cdiVersion: "1.1.0"
kind: example.com/accelerator
annotations:
  example.com/made-by: hand
devices:
  - name: first
    annotations: { note: "the first" }
    containerEdits:
      env: [ "ACCELERATOR=first", "EMPTY=" ]
      deviceNodes:
        - path: /dev/accelerator0
          hostPath: /dev/null
          type: c
          major: 1
          minor: 3
          fileMode: 0660
          permissions: rw
          uid: 7
          gid: 8
        - { path: /dev/pipe, type: p, permissions: none }
      netDevices:
        - { hostInterfaceName: enp3s0, name: fast0 }
      mounts:
        - { hostPath: /usr/lib/a.so, containerPath: /usr/lib/a.so, type: none, options: [ ro, rbind ] }
      hooks:
        - { hookName: createContainer, path: /usr/bin/hook, args: [ hook, run ], env: [ A=b ], timeout: 5 }
        - { hookName: poststop, path: /usr/bin/hook }
      intelRdt:
        closID: fast
        l3CacheSchema: "L3:0=f"
        memBwSchema: "MB:0=10"
        schemata: [ "L3:0=f" ]
        enableMonitoring: true
      additionalGids: [ 44, 109 ]
containerEdits:
  env: [ "ALL=1" ]
"#;

fn yaml(text: &str) -> Result<Spec, String> {
    Spec::parse(Format::Yaml, text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn every_field_of_version_1_1_is_read() {
    let spec = yaml(ALL).unwrap();
    assert_eq!(spec.parsed_kind().unwrap().to_string(), "example.com/accelerator");
    assert_eq!(spec.annotations["example.com/made-by"], "hand");
    assert_eq!(spec.container_edits, ContainerEdits { env: vec!["ALL=1".into()], ..ContainerEdits::default() });
    let [device] = spec.devices.as_slice() else { panic!("{:?}", spec.devices) };
    assert_eq!((device.name.as_str(), device.annotations["note"].as_str()), ("first", "the first"));
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let hook = Hook {
        hook_name: HookStage::CreateContainer,
        path: "/usr/bin/hook".into(),
        args: strings(&["hook", "run"]),
        env: strings(&["A=b"]),
        timeout: Some(5),
    };
    let last = Hook { hook_name: HookStage::PostStop, args: vec![], env: vec![], timeout: None, ..hook.clone() };
    let expected = ContainerEdits {
        env: strings(&["ACCELERATOR=first", "EMPTY="]),
        device_nodes: vec![
            DeviceNode {
                path: "/dev/accelerator0".into(),
                host_path: "/dev/null".into(),
                node_type: Some(NodeType::Character),
                major: 1,
                minor: 3,
                file_mode: Some(0o660),
                permissions: "rw".into(),
                uid: Some(7),
                gid: Some(8),
            },
            DeviceNode {
                path: "/dev/pipe".into(),
                node_type: Some(NodeType::Fifo),
                permissions: "none".into(),
                ..DeviceNode::default()
            },
        ],
        net_devices: vec![NetDevice { host_interface_name: "enp3s0".into(), name: "fast0".into() }],
        mounts: vec![Mount {
            host_path: "/usr/lib/a.so".into(),
            container_path: "/usr/lib/a.so".into(),
            options: strings(&["ro", "rbind"]),
            mount_type: "none".into(),
        }],
        hooks: vec![hook, last],
        intel_rdt: Some(IntelRdt {
            clos_id: "fast".into(),
            l3_cache_schema: "L3:0=f".into(),
            mem_bw_schema: "MB:0=10".into(),
            schemata: Some(strings(&["L3:0=f"])),
            enable_monitoring: true,
        }),
        additional_gids: vec![44, 109],
    };
    assert_eq!(device.container_edits, expected);
}

/// A document with one device, which has these edits, and with further fields.
fn with(version: &str, edits: &str, more: &str) -> String {
    let devices = format!("devices: [ {{ name: d, containerEdits: {{ {edits} }} }} ]");
    format!("cdiVersion: \"{version}\"\nkind: vendor.com/class\n{devices}\n{more}\n")
}

#[test]
fn wrong_documents_are_refused_and_the_error_names_the_field() {
    for (document, problem) in [
        (String::new(), ""),
        ("[]".into(), ""),
        (with("1.1.0", "env: [ A=b ]", "unknown: 1"), "unknown field `unknown`"),
        (with("1.1.0", "environment: [ A=b ]", ""), "unknown field `environment`"),
        (with("1.1.0", "env: [ A=b ], env: [ C=d ]", ""), "duplicate"),
        (with("1.2.0", "env: [ A=b ]", ""), "cdiVersion \"1.2.0\" is not known"),
        (with("one", "env: [ A=b ]", ""), "cdiVersion \"one\" is not known"),
        ("cdiVersion: 1.1.0\nkind: vendor.com/c\ndevices: []".into(), "devices: there is none"),
        ("cdiVersion: 1.1.0\nkind: vendor.com/c".into(), "devices: there is none"),
        ("cdiVersion: 1.1.0\ndevices: []".into(), "missing field `kind`"),
        ("cdiVersion: 1.1.0\nkind: vendor\ndevices: []".into(), "kind: \"vendor\" is not of the form"),
        (with("1.1.0", "", ""), "device \"d\": containerEdits is empty"),
        (with("1.1.0", "env: [ A ]", ""), "device \"d\": env: \"A\" is not of the form NAME=value"),
        (with("1.1.0", "env: [ A=b ]", "containerEdits: { env: [ =b ] }"), "containerEdits: env: \"=b\""),
        (with("1.1.0", "deviceNodes: [ { path: \"\" } ]", ""), "deviceNodes: path is empty"),
        (with("1.1.0", "deviceNodes: [ { path: /dev/a, permissions: rx } ]", ""), "permissions \"rx\""),
        (with("1.1.0", "deviceNodes: [ { path: /dev/a, type: d } ]", ""), "type \"d\" is not b, c, u or p"),
        (with("1.1.0", "deviceNodes: [ { path: /dev/a, fileMode: 0689 } ]", ""), "fileMode \"0689\""),
        (with("1.1.0", "deviceNodes: [ { path: /dev/a, uid: -1 } ]", ""), "-1"),
        (with("1.1.0", "mounts: [ { hostPath: \"\", containerPath: /a } ]", ""), "mounts: hostPath is empty"),
        (with("1.1.0", "mounts: [ { hostPath: /a } ]", ""), "missing field `containerPath`"),
        (with("1.1.0", "hooks: [ { hookName: start, path: /a } ]", ""), "unknown variant `start`"),
        (with("1.1.0", "hooks: [ { hookName: poststop, path: a } ]", ""), "path \"a\" is not absolute"),
        (with("1.1.0", "hooks: [ { hookName: poststop, path: /a, timeout: 0 } ]", ""), "timeout must be above 0"),
        (with("1.1.0", "hooks: [ { hookName: poststop, path: /a, env: [ A ] } ]", ""), "hooks: env: \"A\""),
        (with("1.1.0", "intelRdt: { closID: a/b }", ""), "closID \"a/b\""),
        (with("1.1.0", "netDevices: [ { hostInterfaceName: a, name: \"\" } ]", ""), "netDevices"),
        (
            with("1.1.0", "netDevices: [ { hostInterfaceName: a, name: b }, { hostInterfaceName: c, name: b } ]", ""),
            "\"c\" is there twice",
        ),
        (
            "cdiVersion: 1.1.0\nkind: v.com/c\ndevices: [ { name: d, containerEdits: { env: [ A=b ] } }, \
             { name: d, containerEdits: { env: [ A=b ] } } ]"
                .into(),
            "device \"d\": the document has it twice",
        ),
        (
            "cdiVersion: 1.1.0\nkind: v.com/c\ndevices: [ { name: -d, containerEdits: { env: [ A=b ] } } ]".into(),
            "device \"-d\"",
        ),
    ] {
        let error = yaml(&document).expect_err(&document);
        assert!(error.contains(problem), "{document}\n{error}\nis not: {problem}");
    }
}

#[test]
fn a_field_needs_the_version_that_it_came_with() {
    const VERSIONS: [&str; 8] = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
    for (edits, more, since) in [
        ("env: [ A=b ]", "", "0.3.0"),
        ("deviceNodes: [ { path: /dev/a } ]", "", "0.3.0"),
        ("mounts: [ { hostPath: /a, containerPath: /a, type: none } ]", "", "0.4.0"),
        ("deviceNodes: [ { path: /dev/a, hostPath: /dev/b } ]", "", "0.5.0"),
        ("env: [ A=b ]", "annotations: { a: b }", "0.6.0"),
        ("additionalGids: [ 7 ]", "", "0.7.0"),
        ("intelRdt: { closID: a }", "", "0.7.0"),
        ("env: [ A=b ]", "containerEdits: { additionalGids: [ 7 ] }", "0.7.0"),
        ("intelRdt: { schemata: [] }", "", "1.1.0"),
        ("intelRdt: { enableMonitoring: true }", "", "1.1.0"),
        ("netDevices: [ { hostInterfaceName: a, name: b } ]", "", "1.1.0"),
    ] {
        for version in VERSIONS {
            let read = yaml(&with(version, edits, more));
            let newer = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
            assert_eq!(read.is_ok(), newer(version) >= newer(since), "{version} {edits} {more}: {read:?}");
            if let Err(error) = read {
                assert!(error.contains(&format!("came with {since}")), "{error}");
            }
        }
    }
    assert!(yaml(&with("v0.3.0", "env: [ A=b ]", "")).is_ok());
    let number = with("0.4.0", "env: [ A=b ]", "").replace("name: d", "name: 0");
    assert!(yaml(&number).unwrap_err().contains("came with 0.5.0"));
    let dotted = with("0.5.0", "env: [ A=b ]", "").replace("vendor.com/class", "vendor.com/a.b");
    assert!(yaml(&dotted).unwrap_err().contains("came with 0.6.0"));
}

#[test]
fn yaml_is_read_as_the_reference_implementation_reads_it() {
    let text = with("0.5.0", "deviceNodes: [ { path: /dev/a, type: \"\", fileMode: 438 } ]", "containerEdits:");
    let spec = yaml(&text.replace("name: d", "name: 0")).unwrap();
    let device = &spec.devices[0];
    assert_eq!(device.name, "0", "a number is a name");
    assert_eq!((device.container_edits.device_nodes[0].node_type, spec.container_edits.is_empty()), (None, true));
    assert_eq!(device.container_edits.device_nodes[0].file_mode, Some(0o666));
    assert!(yaml(&format!("{text}---\n{text}")).is_err(), "two documents in one file");
    let deep = format!("cdiVersion: {}{}", "[".repeat(1000), "]".repeat(1000));
    assert!(yaml(&deep).is_err());
    let bomb = (1..24)
        .fold("a0: &a0 [ x, x ]\n".to_owned(), |text, n| format!("{text}a{n}: &a{n} [ *a{}, *a{} ]\n", n - 1, n - 1));
    assert!(yaml(&bomb).is_err());
}

fn text() -> impl Strategy<Value = String> {
    "[ -~äß\n:#'\"{}]{1,12}"
}

fn edits() -> impl Strategy<Value = ContainerEdits> {
    let permissions = prop_oneof![Just(String::new()), Just("none".into()), Just("rw".into())];
    let node_type = prop_oneof![Just(NodeType::Block), Just(NodeType::Character), Just(NodeType::Fifo)];
    let node = (text(), option::of(node_type), 0..9i64, option::of(0..0o7777u32), permissions).prop_map(
        |(path, node_type, major, file_mode, permissions)| DeviceNode {
            path,
            node_type,
            major,
            file_mode,
            permissions,
            ..DeviceNode::default()
        },
    );
    let mount = (text(), text(), vec(text(), 0..3)).prop_map(|(host_path, container_path, options)| Mount {
        host_path,
        container_path,
        options,
        mount_type: String::new(),
    });
    let stage = prop_oneof![Just(HookStage::Prestart), Just(HookStage::StartContainer), Just(HookStage::PostStart)];
    let hook = (stage, text(), vec(text(), 0..3), option::of(1..9i64)).prop_map(|(hook_name, path, args, timeout)| {
        Hook { hook_name, path: format!("/{path}"), args, env: vec![], timeout }
    });
    let env = text().prop_map(|text| format!("A={text}"));
    let lists = (vec(env, 1..3), vec(node, 0..3), vec(mount, 0..3), vec(hook, 0..3), vec(any::<u32>(), 0..3));
    lists.prop_map(|(env, device_nodes, mounts, hooks, additional_gids)| ContainerEdits {
        env,
        device_nodes,
        mounts,
        hooks,
        additional_gids,
        ..ContainerEdits::default()
    })
}

/// The examples for operators, each with the device that its comment names.
#[test]
fn the_shipped_examples_are_specs() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cdi");
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let spec = Spec::parse(Format::of(&path).unwrap(), text.as_bytes()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let (_, named) = text.split_once("devices { cdi = \"").unwrap();
        let name: QualifiedName = named.split('"').next().unwrap().parse().unwrap();
        assert_eq!(name.kind(), &spec.parsed_kind().unwrap(), "{path:?}");
        assert!(spec.devices.iter().any(|device| device.name == name.device()), "{path:?}: {name}");
        found.push(name.to_string());
    }
    found.sort();
    let expected =
        ["fuse=fuse", "kvm=kvm", "nic=fast", "serial=meter", "usb=radio"].map(|name| format!("node.local/{name}"));
    assert_eq!(found, expected);
}

proptest! {
    #[test]
    fn a_document_that_is_written_is_read_as_the_same_in_both_forms(edits in edits(), general in edits()) {
        let annotations = [("a".into(), "b".into())].into();
        let device = Device { name: "d".into(), annotations, container_edits: edits };
        let spec = Spec {
            cdi_version: "1.1.0".into(),
            kind: "vendor.com/class".into(),
            annotations: Default::default(),
            devices: vec![device],
            container_edits: general,
        };
        let json = serde_json::to_vec_pretty(&spec).unwrap();
        prop_assert_eq!(Spec::parse(Format::Json, &json), Ok(spec.clone()));
        let yaml = yaml_serde::to_string(&spec).unwrap();
        prop_assert_eq!(Spec::parse(Format::Yaml, yaml.as_bytes()), Ok(spec), "{}", yaml);
    }
}
