//! Edits become parts of a plan, or are refused.

use ::cdi::{Format, Registry, Source, Spec};
use runtime::plan::{MountKind, Propagation};

use super::*;
use crate::config::ConfigError;

/// The edits of a device with these edits, in YAML.
fn edits(text: &str) -> ContainerEdits {
    let document = format!(
        "cdiVersion: 1.1.0\nkind: v.com/c\ndevices: [ {{ name: d, containerEdits: {{ env: [ A=b ], {text} }} }} ]"
    );
    let spec = Spec::parse(Format::Yaml, document.as_bytes()).map_err(|error| error.to_string());
    let registry = Registry::new([Source { path: "/etc/cdi/v.yaml".into(), priority: 0, spec }]);
    registry.edits(&["v.com/c=d".parse().unwrap()]).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn plan(text: &str) -> CdiPlan {
    let errors = ErrorCollector::default();
    let plan = decide(&edits(text), &errors);
    let errors: Vec<ConfigError> = errors.into_inner();
    assert_eq!(errors, [], "{text}");
    plan
}

#[test]
fn nodes_have_their_description_and_the_last_one_of_a_path_counts() {
    let plan = plan(
        "deviceNodes: [ { path: /dev/a, permissions: r }, { path: /dev/../dev//a, hostPath: /dev/null, type: u, \
         major: 1, minor: 3, fileMode: 0600, uid: 7, gid: 8 }, { path: /dev/p, type: p, permissions: none } ]",
    );
    let expected = DescribedDevice {
        host_path: "/dev/null".into(),
        container_path: "/dev/a".into(),
        kind: Some(NodeKind::Character),
        number: Some((1, 3)),
        mode: Some(0o600),
        uid: Some(7),
        gid: Some(8),
        permissions: Some("rwm".into()),
    };
    let fifo = DescribedDevice {
        host_path: "/dev/p".into(),
        container_path: "/dev/p".into(),
        kind: Some(NodeKind::Fifo),
        number: None,
        mode: None,
        uid: None,
        gid: None,
        permissions: None,
    };
    assert_eq!(plan.devices, [expected, fifo]);
}

#[test]
fn mounts_have_the_options_of_the_spec() {
    let bind = |source: &str| MountKind::Bind { source: source.into() };
    let tmpfs = |size, mode| MountKind::Tmpfs { size, mode, uid: None, gid: None };
    use MountRestriction::{Nodev, Noexec, Nosuid};
    use Propagation::{HostToContainer, Private};
    for (options, kind, readonly, propagation, restrictions) in [
        ("", bind("/s"), false, Private, vec![]),
        ("options: [ ro, nosuid, nodev, rbind, rprivate ]", bind("/s"), true, Private, vec![Nodev, Nosuid]),
        ("type: none, options: [ bind, noexec, rslave ]", bind("/s"), false, HostToContainer, vec![Noexec]),
        ("type: bind, options: [ ro, rw ]", bind("/s"), false, Private, vec![]),
        ("type: tmpfs, options: [ size=64k, mode=0750 ]", tmpfs(Some(65536), Some(0o750)), false, Private, vec![]),
        ("type: tmpfs, options: [ ro, nodev ]", tmpfs(None, None), true, Private, vec![Nodev]),
    ] {
        let plan = plan(&format!("mounts: [ {{ hostPath: /s, containerPath: /d//e/, {options} }} ]"));
        let mount = Mount { destination: "/d/e".into(), kind, readonly, propagation };
        assert_eq!(plan.mounts, [(mount, restrictions.into_iter().collect())], "{options}");
    }
    let two = plan("mounts: [ { hostPath: /s, containerPath: /d }, { hostPath: /t, containerPath: /d/ } ]");
    assert_eq!(two.mounts.iter().map(|(mount, _)| &mount.kind).collect::<Vec<_>>(), [&bind("/t")]);
}

#[test]
fn what_the_driver_cannot_do_is_refused_and_named() {
    for (text, problem) in [
        ("mounts: [ { hostPath: /s, containerPath: d } ]", "\"d\" of the device's spec is not an absolute path"),
        ("mounts: [ { hostPath: s, containerPath: /d } ]", "\"s\" of the device's spec is not an absolute path"),
        ("mounts: [ { hostPath: s, containerPath: /d, type: proc } ]", "the type \"proc\" is neither"),
        ("mounts: [ { hostPath: /s, containerPath: /d, options: [ rshared ] } ]", "would appear on the node"),
        ("mounts: [ { hostPath: /s, containerPath: /d, options: [ mode=9 ], type: tmpfs } ]", "\"mode=9\" is no mode"),
        ("mounts: [ { hostPath: /s, containerPath: /d, options: [ size=x ], type: tmpfs } ]", "\"size=x\" is no size"),
        ("mounts: [ { hostPath: /s, containerPath: /d, options: [ size=1 ] } ]", "a bind has no size"),
        ("mounts: [ { hostPath: /s, containerPath: /d, options: [ fast ] } ]", "\"fast\" is not known"),
        ("deviceNodes: [ { path: dev/a } ]", "\"dev/a\" of the device's spec is not an absolute path"),
        ("deviceNodes: [ { path: /dev/a, major: -1 } ]", "-1 of \"/dev/a\""),
        (
            "netDevices: [ { hostInterfaceName: enp3s0, name: eth%d } ]",
            "`netDevices` of the device's spec: \"eth%d\" is not the name of a network interface",
        ),
    ] {
        let errors = ErrorCollector::default();
        decide(&edits(text), &errors);
        let texts: Vec<String> = errors.into_inner().iter().map(ConfigError::to_string).collect();
        assert!(texts.len() == 1 && texts[0].contains(problem), "{text}: {texts:?}");
    }
}

#[test]
fn each_interface_of_the_node_moves_once_and_names_in_the_container_are_unique() {
    let net = |host: &str, name: &str| ::cdi::NetDevice { host_interface_name: host.into(), name: name.into() };
    let decided = |net_devices: Vec<::cdi::NetDevice>| {
        let errors = ErrorCollector::default();
        let plan = decide(&ContainerEdits { net_devices, ..ContainerEdits::default() }, &errors);
        (plan.interfaces, errors.into_inner().iter().map(ConfigError::to_string).collect::<Vec<_>>())
    };
    let (interfaces, errors) = decided(vec![net("a", "x"), net("b", "y"), net("a", "z")]);
    assert_eq!(interfaces, [("b", "y"), ("a", "z")].map(|(host, name)| Interface::new(host, name).unwrap()));
    assert_eq!(errors, [""; 0]);
    let (_, errors) = decided(vec![net("a", "x"), net("b", "x")]);
    assert!(errors[0].contains("several network interfaces of the devices' specs have the name \"x\""), "{errors:?}");
}

#[test]
fn a_class_of_cache_has_its_lines_in_order() {
    let class = |text: &str| plan(text).cache_class.unwrap();
    let found = class(
        "intelRdt: { closID: fast, schemata: [ \"L2:0=f\" ], memBwSchema: \"MB:0=20\", l3CacheSchema: \"L3:0=f\", \
         enableMonitoring: true }",
    );
    let schemata = ["L3:0=f", "MB:0=20", "L2:0=f"].map(str::to_owned).to_vec();
    assert_eq!(found, CacheClass { name: Some("fast".into()), schemata, monitored: true });
    assert_eq!(class("intelRdt: { }"), CacheClass { name: None, schemata: Vec::new(), monitored: false });
}

#[test]
fn hooks_and_classes_need_the_built_in_runtime() {
    let errors = ErrorCollector::default();
    let hook = "hooks: [ { hookName: prestart, path: /bin/true } ]";
    refuse_with_installed_runtime(&plan(&format!("{hook}, intelRdt: {{ closID: fast }}")), &errors);
    let texts: Vec<String> = errors.into_inner().iter().map(ConfigError::to_string).collect();
    assert!(texts.len() == 2 && texts[0].contains("/bin/true") && texts[1].contains("`intelRdt`"), "{texts:?}");
}

#[test]
fn groups_and_variables_are_taken_over() {
    let plan = plan("additionalGids: [ 44, 0, 109 ]");
    assert_eq!(plan.groups, ["44", "109"]);
    assert_eq!(plan.env, [("A".to_owned(), "b".to_owned())]);
}
