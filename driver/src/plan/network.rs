//! The network namespace, and the files that say who and where the container is.

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::{IpAddr, Ipv4Addr},
};

use network::{AttachRequest, Attachment, NetworkChoice, PortMapping, Protocol};
use runtime::plan::{Mount, Network};

use super::{AllocatedPort, Attached, TaskContext, container_id};
use crate::config::{DefaultNetwork, Mistakes, NetworkMode};

/// A network that is the task's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNetwork {
    /// What it is to be.
    pub request: AttachRequest,
    /// The container's ports by label.
    pub ports: BTreeMap<String, u16>,
    /// Services advertise its IPv6 address.
    pub advertise_ipv6: bool,
}

impl OwnNetwork {
    /// Whether services advertise the container's address without being told to: on docker's default bridge, and so on ours, they
    /// advertise the host's.
    pub fn auto_advertise(&self) -> bool {
        self.advertise_ipv6 || self.request.network != NetworkChoice::Bridge
    }

    /// The address that stands for the container.
    pub fn address(&self, attachment: &Attachment) -> Option<IpAddr> {
        let all = &attachment.addresses;
        all.iter().find(|address| address.is_ipv6() == self.advertise_ipv6).or(all.first()).copied()
    }
}

/// Which network namespace the container uses.
pub fn namespace(context: &TaskContext, own: Option<&OwnNetwork>) -> Network {
    let TaskContext { spec, task, node, .. } = *context;
    match (&spec.network_mode, &task.network_path) {
        _ if own.is_some() => Network::Path(network::namespace_of(&node.state_dir, container_id(&task.id).as_str())),
        (NetworkMode::None, _) => Network::Private,
        (NetworkMode::Host, _) | (_, None) => Network::Host,
        (_, Some(path)) => Network::Path(path.clone()),
    }
}

/// The task's own network, if it is to have one.
pub fn own(context: &TaskContext, mistakes: &Mistakes) -> Option<OwnNetwork> {
    let TaskContext { spec, task, policy, .. } = *context;
    let choice = match (&spec.network_mode, &task.network_path) {
        (NetworkMode::Bridge, None) => Some(NetworkChoice::Bridge),
        (NetworkMode::Unset, None) if policy.default_network == DefaultNetwork::Bridge => Some(NetworkChoice::Bridge),
        (NetworkMode::Named(name), None) => Some(NetworkChoice::Named(name.clone())),
        (NetworkMode::Named(name), Some(_)) => {
            mistakes.add(
                "network_mode",
                format!("\"cni/{name}\" is not possible in a group that has a network of its own"),
                format!("write `network {{ mode = \"cni/{name}\" }}` in the group and remove it here"),
            );
            None
        }
        _ => None,
    };
    let Some(choice) = choice else {
        refuse_without_own(context, mistakes);
        return None;
    };
    let published = published(context, mistakes);
    if choice == NetworkChoice::Bridge {
        check_bridge(context, &published, mistakes);
    }
    let mapping = |port: &AllocatedPort, protocol| PortMapping {
        host_ip: port.host_ip,
        host_port: port.host_port,
        container_port: port.container_port,
        protocol,
    };
    let addresses = &spec.addresses;
    let request = AttachRequest {
        network: choice,
        // As docker does: Nomad's ports have no protocol.
        ports: published.iter().flat_map(|port| [mapping(port, Protocol::Tcp), mapping(port, Protocol::Udp)]).collect(),
        mac: addresses.mac.clone(),
        addresses: addresses.ipv4.map(IpAddr::V4).into_iter().chain(addresses.ipv6.map(IpAddr::V6)).collect(),
    };
    let ports = published.into_iter().map(|port| (port.label, port.container_port)).collect();
    Some(OwnNetwork { request, ports, advertise_ipv6: addresses.advertise_ipv6 })
}

/// Options that mean nothing without a network of the task's own.
fn refuse_without_own(context: &TaskContext, mistakes: &Mistakes) {
    let TaskContext { spec, task, .. } = *context;
    let addresses = &spec.addresses;
    for (option, set) in [
        ("mac_address", addresses.mac.is_some()),
        ("ipv4_address", addresses.ipv4.is_some()),
        ("ipv6_address", addresses.ipv6.is_some()),
        ("advertise_ipv6_address", addresses.advertise_ipv6),
    ] {
        if set {
            mistakes.add(
                option,
                "needs a network of the task's own, and the task uses another one",
                "remove it, or remove `network` from the group and write `network_mode = \"bridge\"`",
            );
        }
    }
    // On the host's network by the job's own request docker ignores ports, too; in the group's Nomad maps them.
    let by_default = spec.network_mode == NetworkMode::Unset && task.network_path.is_none();
    if by_default && !spec.ports.is_empty() {
        mistakes.add(
            "ports",
            "cannot be mapped: on this node tasks use the host's network unless they say otherwise",
            "write `network_mode = \"bridge\"`, or `network_mode = \"host\"` if the task listens on the node's ports itself",
        );
    }
    if !spec.port_map.is_empty() && (by_default || task.network_path.is_some()) {
        mistakes.add("port_map", "cannot map ports of the group's network", PORT_MAP_REMEDY);
    }
}

const PORT_MAP_REMEDY: &str =
    "write `port \"<label>\" { to = <port> }` in the group's network block and the label into `ports`";

/// The ports that lead into the container: those of the group's network that the task lists, otherwise those of the task's own.
fn published(context: &TaskContext, mistakes: &Mistakes) -> Vec<AllocatedPort> {
    let TaskContext { spec, task, .. } = *context;
    let mut published = Vec::new();
    for label in &spec.ports {
        match task.resources.ports.iter().find(|port| port.label == *label) {
            Some(port) if !published.contains(port) => published.push(port.clone()),
            Some(_) => {}
            None => mistakes.add(
                "ports",
                format!("{label:?} is no port of the group's network block"),
                format!("write `network {{ port \"{label}\" {{}} }}` in the group, or remove it"),
            ),
        }
    }
    for label in
        spec.port_map.keys().filter(|label| !task.resources.task_ports.iter().any(|port| port.label == **label))
    {
        mistakes.add(
            "port_map",
            format!("{label:?} is no port of a network block in the task's own `resources`"),
            PORT_MAP_REMEDY,
        );
    }
    let own = task.resources.task_ports.iter().map(|port| {
        let container_port = spec.port_map.get(&port.label).copied().unwrap_or(port.container_port);
        AllocatedPort { container_port, ..port.clone() }
    });
    published.extend(own);
    published
}

/// What the bridge of this node cannot do.
fn check_bridge(context: &TaskContext, published: &[AllocatedPort], mistakes: &Mistakes) {
    let (addresses, bridge) = (&context.spec.addresses, &context.policy.network);
    let first = bridge.subnet.hosts().next();
    if let Some(address) = addresses.ipv4.filter(|address| !bridge.holds_ipv4(*address) || Some(*address) == first) {
        mistakes.add(
            "ipv4_address",
            format!("{address} is none that a task can have on this node's bridge, {}", bridge.subnet),
            "choose one of that subnet but not its first, which is the bridge's, or have the operator set `network { subnet = … }`",
        );
    }
    if let Some(subnet) = bridge.subnet_ipv6 {
        let first = subnet.hosts().nth(1);
        if let Some(address) = addresses.ipv6.filter(|address| !bridge.holds_ipv6(*address) || Some(*address) == first)
        {
            mistakes.add(
                "ipv6_address",
                format!("{address} is none that a task can have on this node's bridge, {subnet}"),
                "choose one of that subnet but not its first, which is the bridge's",
            );
        }
        return;
    }
    const REMEDY: &str = "have the operator set `network { subnet_ipv6 = … }` in the plugin block, or remove it";
    const PROBLEM: &str = "is not possible: this node's bridge has no IPv6";
    for (option, set) in
        [("ipv6_address", addresses.ipv6.is_some()), ("advertise_ipv6_address", addresses.advertise_ipv6)]
    {
        if set {
            mistakes.add(option, PROBLEM, REMEDY);
        }
    }
    for port in published
        .iter()
        .filter(|port| port.host_ip.is_some_and(|address| address.is_ipv6() && !address.is_unspecified()))
    {
        mistakes.add("ports", format!("{:?} on an IPv6 address of the host {PROBLEM}", port.label), REMEDY);
    }
}

/// Kernel parameters: what docker sets in a network of the container's own (every user may listen on every port, and ping), and over it
/// what the task chose.
pub fn parameters(chosen: BTreeMap<String, String>, own: Option<&OwnNetwork>) -> BTreeMap<String, String> {
    const DOCKERS: [(&str, &str); 2] =
        [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];
    let set = own.iter().flat_map(|_| DOCKERS).map(|(name, value)| (name.to_owned(), value.to_owned()));
    set.chain(chosen).collect()
}

/// What a task is told of ports that are not those that Nomad knows of: `port_map` is applied by drivers.
pub fn port_env(context: &TaskContext, own: Option<&OwnNetwork>) -> Vec<(String, String)> {
    let mapped = own.iter().flat_map(|_| &context.spec.port_map);
    let name = |label: &str| label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect::<String>();
    mapped.map(|(label, port)| (format!("NOMAD_PORT_{}", name(label)), port.to_string())).collect()
}

/// The task's choice, the group's, or the first part of the allocation's id; in the host's UTS namespace the host's.
pub fn hostname(context: &TaskContext) -> String {
    let TaskContext { spec, task, node, .. } = *context;
    if spec.namespaces.host_uts {
        return node.host_name.clone();
    }
    let group = task.hosts_entry.as_ref().map(|entry| entry.hostname.clone());
    let id = if task.alloc_id.is_empty() { &task.id } else { &task.alloc_id };
    let short = || id.chars().take_while(|c| c.is_ascii_alphanumeric()).take(12).collect::<String>();
    let name = spec.hostname.clone().or(group).unwrap_or_else(short);
    if name.is_empty() { "container".to_owned() } else { name }
}

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The files of the container's own, except those over which the task mounts something itself.
pub fn files(
    context: &TaskContext,
    network: &Network,
    hostname: &str,
    mounts: &[Mount],
    mistakes: &Mistakes,
) -> Vec<(String, String)> {
    let files = [
        ("/etc/hostname", format!("{hostname}\n")),
        ("/etc/hosts", hosts(context, network, hostname, mistakes)),
        (RESOLV_CONF, resolv_conf(context, network)),
    ];
    let mounted = |path: &str| mounts.iter().any(|mount| mount.destination == path);
    files.into_iter().filter(|(path, _)| !mounted(path)).map(|(path, content)| (path.to_owned(), content)).collect()
}

fn hosts(context: &TaskContext, network: &Network, hostname: &str, mistakes: &Mistakes) -> String {
    let mut text = String::from(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::\tip6-localnet\nff00::\tip6-mcastprefix\n\
         ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n",
    );
    let mut line = |address: &str, name: &str| {
        // Writing to a string cannot fail.
        writeln!(text, "{address}\t{name}").ok();
    };
    for address in own_addresses(context, network) {
        line(&address, hostname);
    }
    for host in &context.spec.extra_hosts {
        match (host.address, network) {
            (Some(address), _) => line(&address.to_string(), &host.name),
            (None, Network::Host) => line(&Ipv4Addr::LOCALHOST.to_string(), &host.name),
            (None, _) if context.attached == Attached::Soon => {}
            (None, _) => match gateway(context) {
                Some(address) => line(&address.to_string(), &host.name),
                None => mistakes.add(
                    "extra_hosts",
                    format!("the address of the host is not known for {:?}", host.name),
                    format!("write \"{}:${{attr.unique.network.ip-address}}\" instead of host-gateway", host.name),
                ),
            },
        }
    }
    text
}

fn gateway(context: &TaskContext) -> Option<IpAddr> {
    match context.attached {
        Attached::To(attachment) => attachment.gateways.first().copied(),
        Attached::No | Attached::Soon => None,
    }
}

/// The addresses that the container's own name resolves to: its own ones, the group's if that is known, otherwise loopback in the
/// form that keeps `localhost` the name of 127.0.0.1.
fn own_addresses(context: &TaskContext, network: &Network) -> Vec<String> {
    const OWN_LOOPBACK: &str = "127.0.1.1";
    let task = context.task;
    if let Attached::To(attachment) = context.attached
        && !attachment.addresses.is_empty()
    {
        return attachment.addresses.iter().map(IpAddr::to_string).collect();
    }
    if !matches!(network, Network::Path(_)) {
        return vec![OWN_LOOPBACK.to_owned()];
    }
    let given = task.hosts_entry.as_ref().map(|entry| entry.address.as_str());
    // Nomad tells the address in the group's network per port label.
    let from_env =
        || task.env.iter().find(|(name, _)| name.starts_with("NOMAD_ALLOC_IP_")).map(|(_, value)| value.as_str());
    let valid = |address: &&str| address.parse::<IpAddr>().is_ok();
    vec![given.filter(valid).or_else(|| from_env().filter(valid)).unwrap_or(OWN_LOOPBACK).to_owned()]
}

/// Servers, search domains and options that replace the host's: those of the group's `dns` block, otherwise those of the task, and of
/// its own network where the task has none.
fn chosen<'a>(context: &TaskContext<'a>) -> [&'a [String]; 3] {
    let TaskContext { spec, task, attached, .. } = *context;
    if let Some(group) = &task.dns {
        return [&group.servers, &group.searches, &group.options];
    }
    let own: [&[String]; 3] = [&spec.dns.servers, &spec.dns.searches, &spec.dns.options];
    let networks: [&[String]; 3] = match attached {
        Attached::To(attachment) => [&attachment.dns.servers, &attachment.dns.searches, &attachment.dns.options],
        Attached::No | Attached::Soon => [&[]; 3],
    };
    let mut networks = networks.into_iter();
    own.map(|own| {
        let network = networks.next().unwrap_or_default();
        if own.is_empty() { network } else { own }
    })
}

/// The host's resolv.conf with each list replaced that somebody chose.
fn resolv_conf(context: &TaskContext, network: &Network) -> String {
    let host = context.node.host_resolv_conf.as_str();
    let [servers, searches, options] = chosen(context);
    if servers.is_empty()
        && searches.is_empty()
        && options.is_empty()
        && reachable(host, network).len() == words(host, "nameserver").len()
    {
        return host.to_owned();
    }
    // Split again: a value with a line break must not become a line of its own.
    let split = |own: &[String]| own.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
    let pick = |own: &[String], host: Vec<String>| if own.is_empty() { host } else { split(own) };
    let servers = pick(servers, reachable(host, network));
    let searches = pick(searches, last_line(host, &["search", "domain"]));
    let options = pick(options, words(host, "options"));

    let mut text = String::new();
    if !searches.is_empty() && searches != ["."] {
        writeln!(text, "search {}", searches.join(" ")).ok();
    }
    for server in servers {
        writeln!(text, "nameserver {server}").ok();
    }
    if !options.is_empty() {
        writeln!(text, "options {}", options.join(" ")).ok();
    }
    text
}

/// The host's name servers without those that listen on its loopback, which another network namespace cannot reach; all of
/// them when there are no others.
fn reachable(resolv_conf: &str, network: &Network) -> Vec<String> {
    let all = words(resolv_conf, "nameserver");
    if *network == Network::Host {
        return all;
    }
    let local = |server: &String| server.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let others: Vec<String> = all.iter().filter(|server| !local(server)).cloned().collect();
    if others.is_empty() { all } else { others }
}

/// Why names will not be resolved, when all name servers of the host listen on its loopback and nobody chose others.
pub fn unreachable_servers(context: &TaskContext, network: &Network, files: &[(String, String)]) -> Option<String> {
    let [chosen, ..] = chosen(context);
    let servers = words(&context.node.host_resolv_conf, "nameserver");
    let local = |server: &String| server.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let written = files.iter().any(|(path, _)| path == RESOLV_CONF);
    let all_local = !servers.is_empty() && servers.iter().all(local);
    let unreachable = matches!(network, Network::Path(_)) && written && chosen.is_empty() && all_local;
    unreachable.then(|| {
        format!(
            "Names will not be resolved: the node's name servers ({}) listen on its loopback, which the task's network cannot \
             reach. Set `dns` in the group's network block, or `dns_servers`",
            servers.join(", ")
        )
    })
}

fn lines<'a>(resolv_conf: &'a str, keyword: &'a str) -> impl Iterator<Item = Vec<String>> + 'a {
    resolv_conf.lines().filter_map(move |line| {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        (words.next() == Some(keyword)).then(|| words.map(str::to_owned).collect())
    })
}

fn words(resolv_conf: &str, keyword: &str) -> Vec<String> {
    lines(resolv_conf, keyword).flatten().collect()
}

/// Of `search` and `domain` lines the resolver takes the last.
fn last_line(resolv_conf: &str, keywords: &[&str]) -> Vec<String> {
    let last =
        resolv_conf.lines().rev().find_map(|line| keywords.iter().find_map(|keyword| lines(line, keyword).next()));
    last.unwrap_or_default()
}
