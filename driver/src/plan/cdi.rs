//! What devices of the Container Device Interface change in a container.
//!
//! The edits of the specs become parts of the plan here. A later edit replaces an earlier one of the same place, and an
//! edit replaces what image and task say, as in docker.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use ::cdi::{ContainerEdits, DeviceNode, NameError, NodeType, QualifiedName};
use image_store::ImageConfig;
use network::Interface;
use runtime::plan::{DescribedDevice, Hook, HookStage, Mount, MountKind, MountRestriction, NodeKind, Propagation};

use super::{
    nomad_task::NomadTask,
    nvidia,
    path::{normalize_container_path, normalize_host_path},
};
use crate::config::{ErrorCollector, NVIDIA_RUNTIME, Policy, TaskSpec};

/// The option in errors about the content of specs.
const OPTION: &str = "devices";

/// Begins the variables with which our device plugin names the devices of a reservation.
pub const RESERVED: &str = "OCI_RS_CDI_DEVICES_";

/// A variable that names devices which cannot be.
pub struct WrongName {
    /// The variable.
    pub variable: String,
    /// What is wrong.
    pub error: NameError,
}

/// A device that a task gets through the specs of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDevice {
    /// Its name.
    pub name: QualifiedName,
    /// A device plugin has reserved it for the task. Otherwise it needs the operator's permission.
    pub reserved: bool,
}

/// The devices that a task gets through specs: those of its block, those that our device plugin has reserved, and
/// NVIDIA's by their variable.
pub fn wanted(spec: &TaskSpec, task: &NomadTask, image: &ImageConfig) -> Result<Vec<WantedDevice>, WrongName> {
    let of_job = |name| WantedDevice { name, reserved: false };
    let of_plugin = |name| WantedDevice { name, reserved: true };
    let mut devices: Vec<WantedDevice> = spec.cdi_devices.iter().cloned().map(of_job).collect();
    for (variable, names) in task.device_env.iter().filter(|(variable, _)| variable.starts_with(RESERVED)) {
        let names = names.split(',').map(str::parse).collect::<Result<Vec<QualifiedName>, NameError>>();
        let names = names.map_err(|error| WrongName { variable: variable.clone(), error })?;
        devices.extend(names.into_iter().map(of_plugin));
    }
    let own_runtime = spec.runtime.as_ref().is_some_and(|runtime| runtime.name == NVIDIA_RUNTIME);
    if own_runtime {
        // NVIDIA's own runtime of the node reads the variable.
        return Ok(devices);
    }
    if let Some(value) = task.device_env.get(nvidia::VARIABLE) {
        devices.extend(nvidias(value)?.into_iter().map(of_plugin));
    } else if spec.nvidia_runtime {
        let of_image = || image.env.iter().find(|(name, _)| name == nvidia::VARIABLE).map(|(_, value)| value);
        let value = task.env.get(nvidia::VARIABLE).or_else(of_image).map(String::as_str);
        devices.extend(nvidias(value.unwrap_or_default())?.into_iter().map(of_job));
    }
    Ok(devices)
}

fn nvidias(value: &str) -> Result<Vec<QualifiedName>, WrongName> {
    nvidia::devices(value).map_err(|error| WrongName { variable: nvidia::VARIABLE.to_owned(), error })
}

/// The devices of a task, in order to read their specs. None if the task may not have all of them: the plan reports it.
pub fn permitted_names(spec: &TaskSpec, task: &NomadTask, image: &ImageConfig, policy: &Policy) -> Vec<QualifiedName> {
    let devices = wanted(spec, task, image).unwrap_or_default();
    let permitted = devices.iter().all(|device| device.reserved || policy.allows_device(&device.name.to_string()));
    if permitted { devices.into_iter().map(|device| device.name).collect() } else { Vec::new() }
}

/// The parts of a plan that follow from edits.
#[derive(Debug, Default, PartialEq)]
pub struct CdiPlan {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Device nodes, by their paths in the container.
    pub devices: Vec<DescribedDevice>,
    /// Mounts, with what files on them cannot do.
    pub mounts: Vec<(Mount, BTreeSet<MountRestriction>)>,
    /// Additional groups of the command.
    pub groups: Vec<String>,
    /// Programs that run while the container is made, started and removed.
    pub hooks: Vec<Hook>,
    /// Network interfaces of the node that move to the container.
    pub interfaces: Vec<Interface>,
}

/// Decides the parts of a plan. Edits that the driver cannot make are errors.
pub fn decide(edits: &ContainerEdits, errors: &ErrorCollector) -> CdiPlan {
    let refuse = |problem: String| errors.add(OPTION, problem, "change the spec of the device on this node");
    if edits.intel_rdt.is_some() {
        refuse("`intelRdt` of the device's spec is not supported".to_owned());
    }
    let mut plan = CdiPlan {
        env: edits.env.iter().filter_map(|entry| entry.split_once('=')).map(owned).collect(),
        groups: edits.additional_gids.iter().filter(|gid| **gid != 0).map(u32::to_string).collect(),
        hooks: edits.hooks.iter().map(hook).collect(),
        ..CdiPlan::default()
    };
    for node in &edits.device_nodes {
        match device(node) {
            Ok(device) => {
                plan.devices.retain(|earlier| earlier.container_path != device.container_path);
                plan.devices.push(device);
            }
            Err(problem) => refuse(problem),
        }
    }
    for wanted in &edits.mounts {
        match mount(wanted) {
            Ok((mount, restrictions)) => {
                plan.mounts.retain(|(earlier, _)| earlier.destination != mount.destination);
                plan.mounts.push((mount, restrictions));
            }
            Err(problem) => refuse(problem),
        }
    }
    for wanted in &edits.net_devices {
        match Interface::new(&wanted.host_interface_name, &wanted.name) {
            Ok(interface) => {
                plan.interfaces.retain(|earlier| earlier.host_name() != interface.host_name());
                plan.interfaces.push(interface);
            }
            Err(problem) => refuse(format!("`netDevices` of the device's spec: {problem}")),
        }
    }
    if let Some(name) = repeated(plan.interfaces.iter().map(Interface::name)) {
        refuse(format!("several network interfaces of the devices' specs have the name {name:?}"));
    }
    plan
}

/// A name that comes again.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn hook(hook: &::cdi::Hook) -> Hook {
    Hook {
        stage: match hook.hook_name {
            ::cdi::HookStage::Prestart => HookStage::Prestart,
            ::cdi::HookStage::CreateRuntime => HookStage::CreateRuntime,
            ::cdi::HookStage::CreateContainer => HookStage::CreateContainer,
            ::cdi::HookStage::StartContainer => HookStage::StartContainer,
            ::cdi::HookStage::PostStart => HookStage::Poststart,
            ::cdi::HookStage::PostStop => HookStage::Poststop,
        },
        path: (&hook.path).into(),
        args: hook.args.clone(),
        env: hook.env.iter().filter_map(|entry| entry.split_once('=')).map(owned).collect(),
        timeout_s: hook.timeout.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
    }
}

fn absolute(path: &str) -> Result<&str, String> {
    if path.starts_with('/') { Ok(path) } else { Err(format!("{path:?} of the device's spec is not an absolute path")) }
}

fn device(node: &DeviceNode) -> Result<DescribedDevice, String> {
    let number = |number: i64| {
        u32::try_from(number)
            .map_err(|_| format!("{number} of {:?} in the device's spec is no device number", node.path))
    };
    let number = (node.major != 0).then(|| Ok::<_, String>((number(node.major)?, number(node.minor)?))).transpose()?;
    Ok(DescribedDevice {
        host_path: normalize_host_path(Path::new(absolute(node.path_on_node())?)),
        container_path: normalize_container_path(absolute(&node.path)?),
        kind: node.node_type.map(|kind| match kind {
            NodeType::Block => NodeKind::Block,
            NodeType::Character | NodeType::Unbuffered => NodeKind::Character,
            NodeType::Fifo => NodeKind::Fifo,
        }),
        number,
        mode: node.file_mode,
        uid: node.uid,
        gid: node.gid,
        permissions: match node.permissions.as_str() {
            "" => Some("rwm".to_owned()),
            "none" => None,
            letters => Some(letters.to_owned()),
        },
    })
}

/// A mount. Without a type it is a bind.
fn mount(wanted: &::cdi::Mount) -> Result<(Mount, BTreeSet<MountRestriction>), String> {
    let destination = normalize_container_path(absolute(&wanted.container_path)?);
    let in_spec = |problem: String| format!("mount {destination:?} of the device's spec: {problem}");
    let mut options = Options::default();
    for option in &wanted.options {
        options.read(option).map_err(in_spec)?;
    }
    let binds = options.bind || matches!(wanted.mount_type.as_str(), "" | "none" | "bind");
    let kind = match wanted.mount_type.as_str() {
        _ if binds => MountKind::Bind { source: normalize_host_path(Path::new(absolute(&wanted.host_path)?)) },
        "tmpfs" => MountKind::Tmpfs { size: options.size, mode: options.mode, uid: None, gid: None },
        other => return Err(in_spec(format!("the type {other:?} is neither a bind nor a tmpfs"))),
    };
    if binds && (options.size.is_some() || options.mode.is_some()) {
        return Err(in_spec("a bind has no size and no mode".to_owned()));
    }
    let mount = Mount { destination, kind, readonly: options.readonly, propagation: options.propagation };
    Ok((mount, options.restrictions))
}

/// The options of a mount.
struct Options {
    bind: bool,
    readonly: bool,
    propagation: Propagation,
    restrictions: BTreeSet<MountRestriction>,
    size: Option<u64>,
    mode: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        let restrictions = BTreeSet::new();
        let propagation = Propagation::Private;
        Self { bind: false, readonly: false, propagation, restrictions, size: None, mode: None }
    }
}

impl Options {
    fn read(&mut self, option: &str) -> Result<(), String> {
        use MountRestriction::{Nodev, Noexec, Nosuid};
        match option {
            // A bind has all mounts below it.
            "bind" | "rbind" => self.bind = true,
            "ro" | "rro" => self.readonly = true,
            "rw" | "rrw" => self.readonly = false,
            "private" | "rprivate" => self.propagation = Propagation::Private,
            "slave" | "rslave" => self.propagation = Propagation::HostToContainer,
            "shared" | "rshared" => {
                return Err("mounts of the container would appear on the node: use rprivate or rslave".to_owned());
            }
            "nodev" | "rnodev" => drop(self.restrictions.insert(Nodev)),
            "noexec" | "rnoexec" => drop(self.restrictions.insert(Noexec)),
            "nosuid" | "rnosuid" => drop(self.restrictions.insert(Nosuid)),
            // The mount's defaults. Times of access are those of the node's mount.
            "defaults" | "dev" | "exec" | "suid" | "relatime" | "noatime" | "nodiratime" => {}
            other => match other.split_once('=') {
                Some(("size", size)) => self.size = Some(bytes(size).ok_or_else(|| format!("{option:?} is no size"))?),
                Some(("mode", mode)) => {
                    let mode = u32::from_str_radix(mode, 8).map_err(|_| format!("{option:?} is no mode"))?;
                    self.mode = Some(mode & 0o7777);
                }
                _ => return Err(format!("the option {option:?} is not known")),
            },
        }
        Ok(())
    }
}

/// A size as the kernel reads it: a number with `k`, `m` or `g`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.to_ascii_lowercase().strip_suffix(['k', 'm', 'g']) {
        None => (text.to_owned(), 0),
        Some(digits) => (
            digits.to_owned(),
            match text.as_bytes().last()?.to_ascii_lowercase() {
                b'k' => 10,
                b'm' => 20,
                _ => 30,
            },
        ),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The restrictions by destination.
pub fn restrictions(plan: &CdiPlan) -> BTreeMap<String, BTreeSet<MountRestriction>> {
    let some = plan.mounts.iter().filter(|(_, restrictions)| !restrictions.is_empty());
    some.map(|(mount, restrictions)| (mount.destination.clone(), restrictions.clone())).collect()
}

#[cfg(test)]
mod tests {
    use ::cdi::{Format, Registry, Source, Spec};

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
            (
                "mounts: [ { hostPath: /s, containerPath: /d, options: [ mode=9 ], type: tmpfs } ]",
                "\"mode=9\" is no mode",
            ),
            (
                "mounts: [ { hostPath: /s, containerPath: /d, options: [ size=x ], type: tmpfs } ]",
                "\"size=x\" is no size",
            ),
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
        assert!(
            errors[0].contains("several network interfaces of the devices' specs have the name \"x\""),
            "{errors:?}"
        );
    }

    #[test]
    fn groups_and_variables_are_taken_over() {
        let plan = plan("additionalGids: [ 44, 0, 109 ]");
        assert_eq!(plan.groups, ["44", "109"]);
        assert_eq!(plan.env, [("A".to_owned(), "b".to_owned())]);
    }
}
