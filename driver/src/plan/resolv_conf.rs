//! The container's /etc/resolv.conf.
//!
//! Each list (name servers, search domains, options) has its own source. The group's `dns` block replaces the task's
//! options, these replace the values of the task's own network, and these replace the host's.

use std::{fmt::Write, net::IpAddr};

use ::network::Attachment;
use runtime::plan::Network;

use super::{context::TaskContext, nomad_task::GroupDns};
use crate::{config::DnsOptions, events::Content};

/// The sources of /etc/resolv.conf.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvConf {
    /// The host's file.
    host: String,
    /// The group's `dns` block.
    group: Option<GroupDns>,
    /// The task's options.
    task: DnsOptions,
    /// The container's network namespace.
    namespace: Network,
}

impl ResolvConf {
    /// Collects the sources.
    pub fn new(context: &TaskContext, namespace: &Network) -> Self {
        Self {
            host: context.node.host_resolv_conf.clone(),
            group: context.task.dns.clone(),
            task: context.spec.dns.clone(),
            namespace: namespace.clone(),
        }
    }

    /// The content: the host's file, with each list replaced for which another source has values.
    pub fn render(&self, attachment: Option<&Attachment>) -> String {
        let [servers, searches, options] = self.replacements(attachment);
        let nothing_replaced = servers.is_empty() && searches.is_empty() && options.is_empty();
        let host_servers = self.reachable_host_servers();
        if nothing_replaced && host_servers.len() == words(&self.host, "nameserver").len() {
            return self.host.clone();
        }
        // Values are split at white space, so that a value with a line break does not become a line of its own.
        let split = |own: &[String]| own.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
        let pick = |own: &[String], host: Vec<String>| if own.is_empty() { host } else { split(own) };
        let servers = pick(servers, host_servers);
        let searches = pick(searches, last_line(&self.host, &["search", "domain"]));
        let options = pick(options, words(&self.host, "options"));

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

    /// Why the container cannot resolve names: every name server of the host listens on the host's loopback, and the
    /// job names no other.
    pub fn warning(&self) -> Option<Content> {
        let [replacements, ..] = self.replacements(None);
        let servers = words(&self.host, "nameserver");
        let all_on_loopback = !servers.is_empty() && servers.iter().all(|server| is_loopback(server));
        let unreachable = matches!(self.namespace, Network::Path(_)) && replacements.is_empty() && all_on_loopback;
        unreachable.then(|| Content::NamesUnresolved { servers: servers.join(", ") })
    }

    /// Servers, search domains and options that replace the host's. An empty list replaces nothing.
    fn replacements<'a>(&'a self, attachment: Option<&'a Attachment>) -> [&'a [String]; 3] {
        if let Some(group) = &self.group {
            return [&group.servers, &group.searches, &group.options];
        }
        let task: [&[String]; 3] = [&self.task.servers, &self.task.searches, &self.task.options];
        let Some(Attachment { dns, .. }) = attachment else { return task };
        let network: [&[String]; 3] = [&dns.servers, &dns.searches, &dns.options];
        std::array::from_fn(|list| if task[list].is_empty() { network[list] } else { task[list] })
    }

    /// The host's name servers without those on its loopback, which another network namespace cannot reach. If all are
    /// on the loopback, they are kept.
    fn reachable_host_servers(&self) -> Vec<String> {
        let all = words(&self.host, "nameserver");
        if self.namespace == Network::Host {
            return all;
        }
        let others: Vec<String> = all.iter().filter(|server| !is_loopback(server)).cloned().collect();
        if others.is_empty() { all } else { others }
    }
}

fn is_loopback(server: &str) -> bool {
    server.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The words of each line that begins with the keyword.
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

/// The words of the last line with one of the keywords. The resolver uses only the last `search` or `domain` line.
fn last_line(resolv_conf: &str, keywords: &[&str]) -> Vec<String> {
    let last =
        resolv_conf.lines().rev().find_map(|line| keywords.iter().find_map(|keyword| lines(line, keyword).next()));
    last.unwrap_or_default()
}
