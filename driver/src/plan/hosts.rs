//! The container's host name and its /etc/hosts.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr},
};

use ::network::Attachment;
use runtime::plan::Network;

use super::context::TaskContext;
use crate::config::{ErrorCollector, ExtraHost};

/// The address of the host name in a container without an address of its own. 127.0.0.1 stays the address of
/// `localhost`.
const HOSTNAME_LOOPBACK: &str = "127.0.1.1";

/// The lines that every container has.
const LOCAL_NAMES: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                           ff00::0\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n";

/// The sources of /etc/hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Hosts {
    /// The host name.
    pub hostname: String,
    /// The address of the host name, unless the task's own network assigns addresses. `None` is a loopback address.
    address: Option<String>,
    /// `extra_hosts` of the task.
    extra_hosts: Vec<ExtraHost>,
    /// `network_aliases` of the task, as in /etc/hosts.
    aliases: String,
    /// The task uses the host's network.
    host_network: bool,
    /// The node's /etc/hosts, if the container gets a copy of it.
    copy: Option<String>,
    /// The task gets its own network.
    own_network: bool,
}

impl Hosts {
    /// Collects the sources.
    pub fn new(context: &TaskContext, namespace: &Network, own_network: bool) -> Self {
        let host_network = *namespace == Network::Host;
        let extra_hosts = context.spec.extra_hosts.clone();
        let copied = host_network && extra_hosts.is_empty() && !context.node.hosts.is_empty();
        Self {
            hostname: hostname(context, host_network),
            address: address(context, namespace),
            extra_hosts,
            aliases: context.spec.network_aliases.join(" "),
            host_network,
            copy: copied.then(|| context.node.hosts.clone()),
            own_network,
        }
    }

    /// Takes the address of the group's network for the host name, unless Nomad has named one. Returns whether it did.
    pub fn learn_address(&mut self, address: IpAddr) -> bool {
        let learned = self.address.is_none();
        self.address.get_or_insert_with(|| address.to_string());
        learned
    }

    /// The content of /etc/hosts.
    ///
    /// On the host's network it is docker's: a copy of the node's file, or with `extra_hosts` the names of localhost
    /// and `extra_hosts`. The node resolves its own name by other means.
    pub fn render(&self, attachment: Option<&Attachment>, errors: &ErrorCollector) -> String {
        if let Some(copy) = &self.copy {
            return copy.clone();
        }
        let mut text = String::from(LOCAL_NAMES);
        let mut line = |address: &str, name: &str| {
            // Writing to a string cannot fail.
            writeln!(text, "{address}\t{name}").ok();
        };
        let names = names(&self.hostname);
        match attachment.map(|attachment| attachment.addresses.as_slice()) {
            None | Some([]) if self.host_network && !self.extra_hosts.is_empty() => {}
            None | Some([]) => line(self.address.as_deref().unwrap_or(HOSTNAME_LOOPBACK), &names),
            Some(addresses) => addresses.iter().for_each(|address| line(&address.to_string(), &names)),
        }
        self.alias_addresses(attachment).iter().for_each(|address| line(address, &self.aliases));
        for host in &self.extra_hosts {
            // An address that the task's own network may yet provide is left out until the network exists.
            let pending = host.address.is_none() && self.own_network && attachment.is_none();
            match host.address.or_else(|| self.gateway(attachment)) {
                Some(address) => line(&address.to_string(), &host.name),
                None if pending => {}
                None => errors.add(
                    "extra_hosts",
                    format!("the address of the host is not known for {:?}", host.name),
                    format!("write \"{}:${{attr.unique.network.ip-address}}\" instead of host-gateway", host.name),
                ),
            }
        }
        text
    }

    /// The lines that also the other tasks of the group get: the task's aliases. In the group's network its address is
    /// theirs. Its own network has addresses when it exists.
    pub fn shared(&self, attachment: Option<&Attachment>) -> Vec<String> {
        let addresses = self.alias_addresses(attachment).into_iter();
        addresses.map(|address| format!("{address}\t{}", self.aliases)).collect()
    }

    fn alias_addresses(&self, attachment: Option<&Attachment>) -> Vec<String> {
        match attachment {
            _ if self.aliases.is_empty() => Vec::new(),
            Some(attachment) => attachment.addresses.iter().map(ToString::to_string).collect(),
            None if self.own_network => Vec::new(),
            None => vec![self.address.as_deref().unwrap_or(HOSTNAME_LOOPBACK).to_owned()],
        }
    }

    /// The address of docker's `host-gateway`: the host, as the container reaches it.
    fn gateway(&self, attachment: Option<&Attachment>) -> Option<IpAddr> {
        if self.host_network {
            return Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        attachment.and_then(|attachment| attachment.gateways.first().copied())
    }
}

/// The host name as in /etc/hosts. A name with a domain is followed by the name without it, as docker does.
fn names(hostname: &str) -> String {
    match hostname.split_once('.') {
        Some((short, _)) => format!("{hostname} {short}"),
        None => hostname.to_owned(),
    }
}

/// The task's `hostname`, the group's, or the first part of the allocation's id. In the host's UTS namespace it is the
/// host's name, and on the host's network too if the task sets none.
fn hostname(context: &TaskContext, host_network: bool) -> String {
    let TaskContext { spec, task, node, .. } = *context;
    if spec.namespaces.host_uts || (host_network && spec.hostname.is_none()) {
        return node.host_name.clone();
    }
    let group = task.hosts_entry.as_ref().map(|entry| entry.hostname.clone());
    let id = if task.alloc_id.is_empty() { &task.id } else { &task.alloc_id };
    let short = || id.chars().take_while(|c| c.is_ascii_alphanumeric()).take(12).collect::<String>();
    let name = spec.hostname.clone().or(group).unwrap_or_else(short);
    if name.is_empty() { "container".to_owned() } else { name }
}

/// The address of the host name in the group's network, if Nomad names one.
fn address(context: &TaskContext, namespace: &Network) -> Option<String> {
    if !matches!(namespace, Network::Path(_)) {
        return None;
    }
    let task = context.task;
    let from_group = task.hosts_entry.as_ref().map(|entry| entry.address.as_str());
    // Nomad puts the address in the group's network into one variable per port label.
    let from_env =
        || task.env.iter().find(|(name, _)| name.starts_with("NOMAD_ALLOC_IP_")).map(|(_, value)| value.as_str());
    let valid = |address: &&str| address.parse::<IpAddr>().is_ok();
    from_group.filter(valid).or_else(|| from_env().filter(valid)).map(str::to_owned)
}
