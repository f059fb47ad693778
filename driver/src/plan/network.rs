//! The container's network namespace, and the request for the task's own network if it gets one.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use ::network::{AttachRequest, Attachment, Interface, LendRequest, LendTarget, NetworkChoice, PortMapping, Protocol};
use runtime::plan::Network;

use super::{
    context::TaskContext,
    etc_files::EtcFiles,
    identity::container_id,
    nomad_task::{AllocatedPort, NomadTask},
    ports,
};
use crate::{
    config::{DefaultNetwork, ErrorCollector, Needs, NetworkMode, Permission, Policy, TaskSpec},
    events::Content,
};

/// The task's own network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNetwork {
    /// The request to the network crate.
    pub request: AttachRequest,
    /// The container's ports by label.
    pub ports: BTreeMap<String, u16>,
    /// Services advertise the container's IPv6 address.
    pub advertise_ipv6: bool,
}

impl OwnNetwork {
    /// Whether services with `address_mode = "auto"` advertise the container's address. On docker's default bridge, and
    /// therefore on the driver's, they advertise the host's.
    pub fn auto_advertise(&self) -> bool {
        self.advertise_ipv6 || self.request.network != NetworkChoice::Bridge
    }

    /// The address that services advertise.
    pub fn address(&self, attachment: &Attachment) -> Option<IpAddr> {
        let all = &attachment.addresses;
        all.iter().find(|address| address.is_ipv6() == self.advertise_ipv6).or(all.first()).copied()
    }
}

/// The network namespace that the container uses. `lend` are the interfaces of the node that move there.
pub fn namespace(context: &TaskContext, own_network: Option<&OwnNetwork>, lend: Option<&LendRequest>) -> Network {
    let TaskContext { spec, task, node, .. } = *context;
    let pinned = own_network.is_some() || lend.is_some_and(|lend| lend.target == LendTarget::Unconnected);
    match (&spec.network_mode, &task.network_path) {
        _ if pinned => {
            Network::Path(::network::namespace_of(&node.state_dir, container_id(&task.id, node.driver).as_str()))
        }
        (NetworkMode::None, _) => Network::Private,
        (NetworkMode::Host, _) | (_, None) => Network::Host,
        (_, Some(path)) => Network::Path(path.clone()),
    }
}

/// The move of interfaces of the node to the container's network.
pub fn lend(
    context: &TaskContext,
    own_network: Option<&OwnNetwork>,
    interfaces: &[Interface],
    errors: &ErrorCollector,
) -> Option<LendRequest> {
    let TaskContext { spec, task, policy, .. } = *context;
    let first = interfaces.first()?;
    let target = match &task.network_path {
        _ if own_network.is_some() => LendTarget::Attached,
        _ if uses_host_network(spec, task, policy) => {
            errors.add(
                "devices",
                format!(
                    "the network interface {:?} of a device's spec cannot move to the task: the task uses the host's \
                     network",
                    first.host_name()
                ),
                "write `network_mode = \"bridge\"` or \"none\", or `network { mode = \"bridge\" }` in the group",
            );
            return None;
        }
        Some(path) if spec.network_mode != NetworkMode::None => LendTarget::Group(path.clone()),
        _ => LendTarget::Unconnected,
    };
    Some(LendRequest { target, interfaces: interfaces.to_vec() })
}

/// Refuses aliases of a task that has no address of its own.
pub fn check_aliases(context: &TaskContext, namespace: &Network, errors: &ErrorCollector) {
    if !context.spec.network_aliases.is_empty() && !matches!(namespace, Network::Path(_)) {
        errors.add(
            "network_aliases",
            "needs a network of the group's or of the task's own, and the task uses the host's or none",
            "remove it, or write `network { mode = \"bridge\" }` in the group",
        );
    }
}

/// Whether the container uses the host's network.
pub fn uses_host_network(spec: &TaskSpec, task: &NomadTask, policy: &Policy) -> bool {
    match (&spec.network_mode, &task.network_path) {
        (NetworkMode::Host, _) => true,
        (NetworkMode::Unset, None) => policy.default_network != DefaultNetwork::Bridge,
        _ => false,
    }
}

/// The task's own network, if it gets one.
pub fn own_network(context: &TaskContext, errors: &ErrorCollector) -> Option<OwnNetwork> {
    let Some(network) = choose(context, errors) else {
        refuse_options_of_own_network(context, errors);
        ports::refuse_without_own_network(context, errors);
        return None;
    };
    let published = ports::published(context, errors);
    if network == NetworkChoice::Bridge {
        check_addresses_on_bridge(context, errors);
        ports::check_on_bridge(context, &published, errors);
    }
    let addresses = &context.spec.addresses;
    let request = AttachRequest {
        network,
        ports: published.iter().flat_map(mappings).collect(),
        mac: addresses.mac.clone(),
        addresses: addresses.ipv4.map(IpAddr::V4).into_iter().chain(addresses.ipv6.map(IpAddr::V6)).collect(),
    };
    // A label of `port_map` needs no port. Services find its number in the map, as with docker.
    let mapped = context.spec.port_map.clone().into_iter();
    let ports = mapped.chain(published.into_iter().map(|port| (port.label, port.container_port))).collect();
    Some(OwnNetwork { request, ports, advertise_ipv6: addresses.advertise_ipv6 })
}

/// The network to which the task's own namespace is attached, or `None` if the task uses another namespace.
fn choose(context: &TaskContext, errors: &ErrorCollector) -> Option<NetworkChoice> {
    let TaskContext { spec, task, policy, .. } = *context;
    match (&spec.network_mode, &task.network_path) {
        (NetworkMode::Bridge, None) => Some(NetworkChoice::Bridge),
        (NetworkMode::Unset, None) if policy.default_network == DefaultNetwork::Bridge => Some(NetworkChoice::Bridge),
        (NetworkMode::Named(name), None) => Some(NetworkChoice::Named(name.clone())),
        (NetworkMode::Named(name), Some(_)) => {
            errors.add(
                "network_mode",
                format!("\"cni/{name}\" is not possible in a group that has a network of its own"),
                format!("write `network {{ mode = \"cni/{name}\" }}` in the group and remove it here"),
            );
            None
        }
        _ => None,
    }
}

/// A port for both protocols, as docker does: Nomad's ports have no protocol.
fn mappings(port: &AllocatedPort) -> [PortMapping; 2] {
    [Protocol::Tcp, Protocol::Udp].map(|protocol| PortMapping {
        host_ip: port.host_ip,
        host_port: port.host_port,
        container_port: port.container_port,
        protocol,
    })
}

/// Refuses addresses of a task that gets no network of its own.
fn refuse_options_of_own_network(context: &TaskContext, errors: &ErrorCollector) {
    let addresses = &context.spec.addresses;
    for (option, set) in [
        ("mac_address", addresses.mac.is_some()),
        ("ipv4_address", addresses.ipv4.is_some()),
        ("ipv6_address", addresses.ipv6.is_some()),
        ("advertise_ipv6_address", addresses.advertise_ipv6),
    ] {
        if set {
            errors.add(
                option,
                "needs a network of the task's own, and the task uses another one",
                "remove it, or remove `network` from the group and write `network_mode = \"bridge\"`",
            );
        }
    }
}

/// Refuses addresses that the driver's bridge cannot assign.
fn check_addresses_on_bridge(context: &TaskContext, errors: &ErrorCollector) {
    let (addresses, bridge) = (&context.spec.addresses, &context.policy.network);
    // The first address of each subnet is the bridge's.
    let first = bridge.subnet.hosts().next();
    if let Some(address) = addresses.ipv4.filter(|address| !bridge.holds_ipv4(*address) || Some(*address) == first) {
        errors.forbid(
            "ipv4_address",
            format!("{address} is not an address that a task can have on this node's bridge, {}", bridge.subnet),
            "choose another address of that subnet (the first one is the bridge's), or have the operator set \
             `network { subnet = … }`",
            Permission { option: "network.subnet", needs: Needs::AnyValue },
        );
    }
    if let Some(subnet) = bridge.subnet_ipv6 {
        let first = subnet.hosts().nth(1);
        let possible = |address: &_| bridge.holds_ipv6(*address) && Some(*address) != first;
        if let Some(address) = addresses.ipv6.filter(|address| !possible(address)) {
            errors.add(
                "ipv6_address",
                format!("{address} is not an address that a task can have on this node's bridge, {subnet}"),
                "choose another address of that subnet (the first one is the bridge's)",
            );
        }
        return;
    }
    for (option, set) in
        [("ipv6_address", addresses.ipv6.is_some()), ("advertise_ipv6_address", addresses.advertise_ipv6)]
    {
        if set {
            errors.forbid(option, ports::NO_IPV6_PROBLEM, ports::NO_IPV6_REMEDY, ports::IPV6_ALLOWED);
        }
    }
}

/// The network namespace of the group, if the container joins it.
pub fn group_namespace(context: &TaskContext, namespace: &Network) -> Option<PathBuf> {
    match namespace {
        Network::Path(path) => context.task.network_path.clone().filter(|group| group == path),
        _ => None,
    }
}

/// Kernel parameters: docker's for a namespace that is the container's own, overridden by the task's. In the group's
/// namespace docker's are set once, before the container exists.
pub fn sysctl(
    context: &TaskContext,
    chosen: BTreeMap<String, String>,
    namespace: &Network,
) -> BTreeMap<String, String> {
    let own = *namespace != Network::Host && group_namespace(context, namespace).is_none();
    let dockers = ::network::UNPRIVILEGED.into_iter().filter(|_| own);
    dockers.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(chosen).collect()
}

/// Why the container cannot resolve names. `None` for a CNI network, which may yet provide name servers.
pub fn dns_warning(own_network: Option<&OwnNetwork>, etc_files: &EtcFiles) -> Option<Content> {
    let may_provide_servers = own_network.is_some_and(|own| own.request.network != NetworkChoice::Bridge);
    if may_provide_servers { None } else { etc_files.dns_warning() }
}
