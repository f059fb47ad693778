//! The network namespace, and the files that say who and where the container is.

use std::{fmt::Write, net::IpAddr};

use runtime::plan::{Mount, Network};

use super::TaskContext;
use crate::config::{Mistakes, NetworkMode};

/// Which network the container uses.
pub fn namespace(context: &TaskContext, mistakes: &Mistakes) -> Network {
    let TaskContext { spec, task, .. } = *context;
    let network = match (spec.network_mode, &task.network_path) {
        (NetworkMode::None, _) => Network::Private,
        (NetworkMode::Host, _) | (NetworkMode::Group, None) => Network::Host,
        (NetworkMode::Group, Some(path)) => Network::Path(path.clone()),
    };
    // In the group's namespace Nomad maps the ports. On the host's network by the job's own wish docker ignores `ports`, too.
    if spec.network_mode == NetworkMode::Group && network == Network::Host && !spec.ports.is_empty() {
        mistakes.add(
            "ports",
            "cannot be mapped: the group has no network of its own",
            "write `network { mode = \"bridge\" }` in the group, or `network_mode = \"host\"` here if the task listens on the node's ports itself",
        );
    }
    network
}

/// The task's choice, the group's, or the first part of the allocation's id.
pub fn hostname(context: &TaskContext) -> String {
    let TaskContext { spec, task, .. } = *context;
    let group = task.hosts_entry.as_ref().map(|entry| entry.hostname.clone());
    let id = if task.alloc_id.is_empty() { &task.id } else { &task.alloc_id };
    let short = || id.chars().take_while(|c| c.is_ascii_alphanumeric()).take(12).collect::<String>();
    let name = spec.hostname.clone().or(group).unwrap_or_else(short);
    if name.is_empty() { "container".to_owned() } else { name }
}

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
        ("/etc/resolv.conf", resolv_conf(context, network)),
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
    line(&own_address(context, network), hostname);
    for host in &context.spec.extra_hosts {
        match (host.address, network) {
            (Some(address), _) => line(&address.to_string(), &host.name),
            (None, Network::Host) => line("127.0.0.1", &host.name),
            (None, _) => mistakes.add(
                "extra_hosts",
                format!("the address of the host is not known for {:?}", host.name),
                format!("write \"{}:${{attr.unique.network.ip-address}}\" instead of host-gateway", host.name),
            ),
        }
    }
    text
}

/// The address that the container's own name resolves to: the group's if it is known, otherwise loopback in the form that
/// keeps `localhost` the name of 127.0.0.1.
fn own_address(context: &TaskContext, network: &Network) -> String {
    const OWN_LOOPBACK: &str = "127.0.1.1";
    let task = context.task;
    if !matches!(network, Network::Path(_)) {
        return OWN_LOOPBACK.to_owned();
    }
    let given = task.hosts_entry.as_ref().map(|entry| entry.address.as_str());
    // Nomad tells the address in the group's network per port label.
    let from_env =
        || task.env.iter().find(|(name, _)| name.starts_with("NOMAD_ALLOC_IP_")).map(|(_, value)| value.as_str());
    let valid = |address: &&str| address.parse::<IpAddr>().is_ok();
    given.filter(valid).or_else(|| from_env().filter(valid)).unwrap_or(OWN_LOOPBACK).to_owned()
}

/// The host's resolv.conf with each list replaced that the group's `dns` block, or else the task, sets.
fn resolv_conf(context: &TaskContext, network: &Network) -> String {
    let host = context.node.host_resolv_conf.as_str();
    let dns = &context.spec.dns;
    let (servers, searches, options) = match &context.task.dns {
        Some(group) => (&group.servers, &group.searches, &group.options),
        None => (&dns.servers, &dns.searches, &dns.options),
    };
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
