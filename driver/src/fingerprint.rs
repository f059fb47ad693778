//! The node's fingerprint: its health, and the attributes that jobs can constrain on.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    config::{PluginConfig, RootChoice, UserNamespaceMode},
    health::{self, HostFindings, NodeFindings},
    name::DriverName,
};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A boolean.
    Flag(bool),
    /// A whole number.
    Number(i64),
}

/// The driver's fingerprint of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Values by attribute name.
    pub attributes: BTreeMap<String, Value>,
    /// Why no container can run here. `None` is healthy.
    pub problem: Option<String>,
    /// A restriction that tasks do not get although the node could have it.
    pub warning: Option<String>,
}

/// Inspects the host. `opened` are the findings about the opened node, or the error of its opening.
pub fn fingerprint(config: &PluginConfig, opened: Result<NodeFindings, String>) -> Fingerprint {
    judge(config, &HostFindings::inspect(config, opened))
}

fn judge(config: &PluginConfig, host: &HostFindings) -> Fingerprint {
    let attributes = match config.driver {
        DriverName::OciRs => own_attributes(config, host),
        DriverName::Docker => dockers_attributes(config, host),
    };
    let attributes = attributes.into_iter().chain(node_attributes(config, host));
    let named = |(name, value)| (format!("driver.{}.{name}", config.driver), value);
    let mut attributes: BTreeMap<String, Value> = attributes.map(named).collect();
    if config.driver == DriverName::Docker {
        attributes.insert("driver.docker".to_owned(), Value::Flag(true));
    }
    let findings = health::judge(&config.policy, host);
    Fingerprint { attributes, problem: health::problem(&findings), warning: health::missing_restriction(&findings) }
}

/// The attributes that only the driver's own name has.
fn own_attributes(config: &PluginConfig, host: &HostFindings) -> Vec<(&'static str, Value)> {
    let policy = &config.policy;
    vec![
        ("version", text(env!("CARGO_PKG_VERSION"))),
        ("privileged.enabled", Value::Flag(policy.allow_privileged)),
        ("volumes.enabled", Value::Flag(policy.volumes_enabled)),
        ("runtimes", names(host.runtimes.iter().map(String::as_str))),
    ]
}

/// The attributes of Nomad's docker driver, with its names and values. It leaves a flag out that is not set.
fn dockers_attributes(config: &PluginConfig, host: &HostFindings) -> Vec<(&'static str, Value)> {
    let policy = &config.policy;
    let runtimes = ["io.containerd.runc.v2", "runc"].into_iter().chain(host.runtimes.iter().map(String::as_str));
    let bridge = policy.network.subnet.hosts().next().filter(|_| host.has_bridge());
    let optional = [
        ("privileged.enabled", policy.allow_privileged.then_some(Value::Flag(true))),
        ("volumes.enabled", policy.volumes_enabled.then_some(Value::Flag(true))),
        ("pids.limit", policy.pids_limit.map(Value::Number)),
        ("bridge_ip", bridge.map(|address| Value::Text(address.to_string()))),
    ];
    [
        ("version", text(&config.docker_version)),
        ("oci_rs_version", text(env!("CARGO_PKG_VERSION"))),
        ("os_type", text("linux")),
        ("runtimes", names(runtimes)),
    ]
    .into_iter()
    .chain(optional.into_iter().filter_map(|(name, value)| Some((name, value?))))
    .collect()
}

/// The attributes that describe the node.
fn node_attributes(config: &PluginConfig, host: &HostFindings) -> Vec<(&'static str, Value)> {
    let policy = &config.policy;
    let profile = host.opened.as_ref().ok().and_then(|node| node.apparmor.profile.clone());
    let labelled = host.opened.as_ref().is_ok_and(|node| node.selinux.labels.is_some());
    let fixed = [
        ("cgroup", text(host.cgroup.unwrap_or("none"))),
        ("kernel", Value::Text(host.kernel.clone())),
        ("seccomp", Value::Flag(host.seccomp)),
        ("apparmor", Value::Flag(host.apparmor)),
        ("selinux", Value::Flag(labelled)),
        ("runtime", text("libcontainer")),
        ("network.bridge", Value::Flag(host.has_bridge())),
        ("network.bridge.ipv6", Value::Flag(host.has_bridge() && policy.network.subnet_ipv6.is_some())),
        ("userns", Value::Flag(gives_user_namespaces(policy.userns.mode, host))),
        ("rootfs", text(if copies_images(policy.rootfs, host) { "copy" } else { "overlay" })),
    ];
    fixed.into_iter().chain(profile.map(|name| ("apparmor.profile", Value::Text(name)))).collect()
}

/// Names in their order, separated by commas, as the docker driver lists its runtimes.
fn names<'a>(list: impl Iterator<Item = &'a str>) -> Value {
    let list: BTreeSet<&str> = list.collect();
    Value::Text(list.into_iter().collect::<Vec<_>>().join(","))
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

/// Whether images are copied and not mounted.
fn copies_images(rootfs: RootChoice, host: &HostFindings) -> bool {
    let cannot_mount = host.opened.as_ref().is_ok_and(|node| node.overlay_problem.is_some());
    rootfs == RootChoice::Copy || rootfs == RootChoice::Auto && cannot_mount
}

/// Whether each task that can have a user namespace of its own gets one.
fn gives_user_namespaces(mode: UserNamespaceMode, host: &HostFindings) -> bool {
    mode != UserNamespaceMode::Off && host.opened.as_ref().is_ok_and(|node| node.userns_problem.is_none())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{HostFindings, NodeFindings, Value, copies_images};
    use crate::{
        apparmor::Finding,
        config::{DefaultProfile, PluginConfig, Policy, RootChoice, UserNamespaceMode},
        health::tests::healthy,
        name::DriverName,
    };

    fn judge(config: &PluginConfig, host: HostFindings) -> super::Fingerprint {
        super::judge(config, &host)
    }

    fn problem(rootfs: RootChoice, host: HostFindings) -> Option<String> {
        let policy = Policy { rootfs, ..Policy::default() };
        judge(&PluginConfig { policy, ..PluginConfig::default() }, host).problem
    }

    #[test]
    fn a_profile_that_cannot_be_loaded_is_a_warning_unless_the_operator_chose_it() {
        let missing = |profile: Option<&str>| {
            let apparmor = Finding { profile: profile.map(str::to_owned), problem: Some("no parser".into()) };
            HostFindings { opened: Ok(NodeFindings { apparmor, ..NodeFindings::default() }), ..healthy() }
        };
        let mut config = PluginConfig::default();
        let automatic = judge(&config, missing(None));
        assert_eq!((automatic.problem, automatic.attributes.get("driver.oci-rs.apparmor.profile")), (None, None));
        assert_eq!(automatic.warning.as_deref(), Some("tasks run without an AppArmor profile: no parser"));
        config.policy.apparmor = DefaultProfile::Required("web".into());
        let required = judge(&config, missing(Some("web")));
        assert!(required.problem.is_some_and(|problem| problem.starts_with("no parser: load it")));
        assert_eq!(required.warning, None);
        assert_eq!(required.attributes["driver.oci-rs.apparmor.profile"], Value::Text("web".into()));
    }

    #[test]
    fn a_kernel_without_bridges_is_healthy() {
        let host = HostFindings { bridge_problem: Some("no veth".into()), ..healthy() };
        for (host, expected) in [(healthy(), true), (host, false)] {
            let fingerprint = judge(&PluginConfig::default(), host);
            assert_eq!(fingerprint.attributes["driver.oci-rs.network.bridge"], Value::Flag(expected));
            assert_eq!(fingerprint.attributes["driver.oci-rs.network.bridge.ipv6"], Value::Flag(false));
            assert_eq!(fingerprint.problem, None);
        }
    }

    #[test]
    fn a_node_without_user_namespaces_is_unhealthy_only_if_they_are_required() {
        let found = |problem: Option<&str>| {
            let userns_problem = problem.map(str::to_owned);
            HostFindings { opened: Ok(NodeFindings { userns_problem, ..NodeFindings::default() }), ..healthy() }
        };
        use UserNamespaceMode::{Auto, Off, Require};
        for (mode, problem, gives, healthy) in [
            (Off, None, false, true),
            (Auto, None, true, true),
            (Auto, Some("no tmpfs"), false, true),
            (Require, None, true, true),
            (Require, Some("no tmpfs"), false, false),
        ] {
            let mut config = PluginConfig::default();
            config.policy.userns.mode = mode;
            let told = judge(&config, found(problem));
            assert_eq!(told.attributes["driver.oci-rs.userns"], Value::Flag(gives), "{mode:?}");
            assert_eq!(told.problem.is_none(), healthy, "{mode:?}");
            assert!(healthy || told.problem.is_some_and(|text| text.contains("no tmpfs") && text.contains("\"auto\"")));
        }
    }

    #[test]
    fn a_driver_named_docker_has_the_attributes_of_nomads_docker_driver() {
        let config = PluginConfig { driver: DriverName::Docker, ..PluginConfig::default() };
        let attributes = judge(&config, healthy()).attributes;
        let of = |name: &str| attributes.get(&format!("driver.docker{name}")).cloned();
        let text = |value: &str| Some(super::text(value));
        assert_eq!(of(""), Some(Value::Flag(true)));
        assert_eq!((of(".version"), of(".oci_rs_version")), (text("28.0.0"), text(env!("CARGO_PKG_VERSION"))));
        assert_eq!((of(".os_type"), of(".runtimes")), (text("linux"), text("io.containerd.runc.v2,runc")));
        assert_eq!(of(".bridge_ip"), text("172.26.80.1"));
        assert_eq!((of(".privileged.enabled"), of(".volumes.enabled"), of(".pids.limit")), (None, None, None));
        assert!(attributes.keys().all(|name| name.starts_with("driver.docker")));

        let mut config = PluginConfig { docker_version: "20.10.24".into(), ..config };
        config.policy.allow_privileged = true;
        config.policy.volumes_enabled = true;
        config.policy.pids_limit = Some(100);
        let found = HostFindings {
            bridge_problem: Some("no veth".into()),
            runtimes: vec!["runsc".into(), "crun".into()],
            ..healthy()
        };
        let attributes = judge(&config, found).attributes;
        let of = |name: &str| attributes.get(&format!("driver.docker.{name}")).cloned();
        assert_eq!((of("version"), of("bridge_ip")), (text("20.10.24"), None));
        assert_eq!(
            (of("privileged.enabled"), of("volumes.enabled")),
            (Some(Value::Flag(true)), Some(Value::Flag(true)))
        );
        assert_eq!(
            (of("pids.limit"), of("runtimes")),
            (Some(Value::Number(100)), text("crun,io.containerd.runc.v2,runc,runsc"))
        );
    }

    /// The attributes, without the plugin's name, and their meanings for `docs/attributes.md`.
    const MEANINGS: [(&str, &str); 20] = [
        ("", "the driver is here, as Nomad's docker driver says it"),
        ("apparmor", "the kernel uses AppArmor"),
        ("apparmor.profile", "the AppArmor profile of tasks that name none. Missing if they have none"),
        ("bridge_ip", "the address of the driver's bridge. Missing if the node cannot have the bridge"),
        ("cgroup", "the version of cgroups that enforces limits: `v1`, `v2` or `none`"),
        ("kernel", "the kernel's release"),
        ("network.bridge", "the kernel can connect tasks to the driver's own bridge"),
        ("network.bridge.ipv6", "the bridge gives IPv6 addresses"),
        ("oci_rs_version", "the version of oci-rs"),
        ("os_type", "`linux`"),
        ("pids.limit", "`pids_limit` of the plugin block. Missing if it is not set"),
        ("privileged.enabled", "tasks may be privileged (`allow_privileged`). With docker's name missing if not"),
        ("rootfs", "how an image becomes a root file system: `overlay` or `copy`"),
        ("runtime", "the built-in OCI runtime"),
        ("runtimes", "the values of `runtime` that tasks can use"),
        ("seccomp", "the kernel has system call filters"),
        ("selinux", "tasks have SELinux labels"),
        ("userns", "each task that can have a user namespace of its own gets one"),
        ("version", "the version of oci-rs. With docker's name `docker_version` of the plugin block"),
        ("volumes.enabled", "tasks may use host paths (`volumes { enabled }`). With docker's name missing if not"),
    ];

    /// All attributes of a plugin with this name on a node that has everything.
    fn all_attributes(driver: DriverName) -> BTreeMap<String, Value> {
        let mut config = PluginConfig { driver, ..PluginConfig::default() };
        config.policy.allow_privileged = true;
        config.policy.volumes_enabled = true;
        config.policy.pids_limit = Some(4096);
        let apparmor = Finding { profile: Some("oci-rs-default".into()), problem: None };
        let host = HostFindings { opened: Ok(NodeFindings { apparmor, ..NodeFindings::default() }), ..healthy() };
        judge(&config, host).attributes
    }

    #[test]
    fn the_document_lists_the_attributes() {
        let [own, dockers] = [DriverName::OciRs, DriverName::Docker].map(all_attributes);
        let of = |attributes: &BTreeMap<String, Value>, driver: &str, name: &str| {
            let name = if name.is_empty() { format!("driver.{driver}") } else { format!("driver.{driver}.{name}") };
            attributes.contains_key(&name)
        };
        let listed = |attributes: &BTreeMap<String, Value>, driver: &str| {
            MEANINGS.iter().filter(|(name, _)| of(attributes, driver, name)).count()
        };
        assert_eq!((listed(&own, "oci-rs"), listed(&dockers, "docker")), (own.len(), dockers.len()), "see MEANINGS");
        let mut text = "\n| attribute | `oci-rs` | `docker` | meaning |\n|---|---|---|---|\n".to_owned();
        for (name, meaning) in MEANINGS {
            let [own, dockers] = [of(&own, "oci-rs", name), of(&dockers, "docker", name)];
            let told = |has: bool| if has { "yes" } else { "" };
            let name = if name.is_empty() { "driver.docker" } else { name };
            text += &format!("| `{name}` | {} | {} | {meaning} |\n", told(own), told(dockers));
        }
        fixtures::documents::check("attributes.md", &[("attributes", text + "\n")]);
    }

    #[test]
    fn a_problem_names_its_remedy() {
        assert_eq!(problem(RootChoice::Overlay, healthy()), None);
        let found = |node| HostFindings { opened: Ok(node), ..healthy() };
        let nfs =
            || found(NodeFindings { overlay_problem: Some("data_dir is on NFS".into()), ..NodeFindings::default() });
        assert!(problem(RootChoice::Overlay, nfs()).unwrap().contains("rootfs = \"auto\""));
        assert!(problem(RootChoice::Auto, nfs()).is_none() && copies_images(RootChoice::Auto, &nfs()));
        assert!(copies_images(RootChoice::Copy, &healthy()) && !copies_images(RootChoice::Auto, &healthy()));
        for (host, part) in [
            (HostFindings { root: false, ..healthy() }, "as root"),
            (HostFindings { cgroup: None, ..healthy() }, "mount cgroup"),
            (HostFindings { opened: Err("data_dir is read-only".into()), ..healthy() }, "data_dir"),
            (
                found(NodeFindings { space_problem: Some("/data is full".into()), ..NodeFindings::default() }),
                "/data is full: free space there",
            ),
        ] {
            assert!(problem(RootChoice::Auto, host).unwrap().contains(part), "{part}");
        }
    }
}
