//! The files that the driver makes in a container's /etc: hostname, hosts and resolv.conf.
//!
//! Always holds: a file over which the task mounts something itself is not made.

use std::net::IpAddr;

use ::network::Attachment;
use runtime::plan::{Mount, Network};

use super::{context::TaskContext, hosts::Hosts, resolv_conf::ResolvConf};
use crate::{config::ErrorCollector, events::Content};

const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The sources of the files. Kept in the plan, because their content is final only when the task's own network exists.
#[derive(Debug, Clone, PartialEq)]
pub struct EtcFiles {
    hosts: Hosts,
    resolv_conf: ResolvConf,
    /// Paths over which the task mounts something.
    mounted_over: Vec<&'static str>,
}

impl EtcFiles {
    /// Collects the sources. `own_network` says that the task gets its own network.
    pub fn new(context: &TaskContext, namespace: &Network, own_network: bool, mounts: &[Mount]) -> Self {
        let mounted = |path: &&str| mounts.iter().any(|mount| mount.destination == *path);
        Self {
            hosts: Hosts::new(context, namespace, own_network),
            resolv_conf: ResolvConf::new(context, namespace),
            mounted_over: [HOSTNAME, HOSTS, RESOLV_CONF].into_iter().filter(mounted).collect(),
        }
    }

    /// Takes the address of the group's network for the host name, unless Nomad has named one. Returns whether it did.
    pub fn learn_address(&mut self, address: IpAddr) -> bool {
        self.hosts.learn_address(address)
    }

    /// The container's host name.
    pub fn hostname(&self) -> &str {
        &self.hosts.hostname
    }

    /// The lines of /etc/hosts that the other tasks of the group get too.
    pub fn shared_names(&self, attachment: Option<&Attachment>) -> Vec<String> {
        self.hosts.shared(attachment)
    }

    /// Path and content of each file. `attachment` describes the task's own network, once it exists.
    pub fn render(&self, attachment: Option<&Attachment>, errors: &ErrorCollector) -> Vec<(String, String)> {
        let files = [
            (HOSTNAME, format!("{}\n", self.hosts.hostname)),
            (HOSTS, self.hosts.render(attachment, errors)),
            (RESOLV_CONF, self.resolv_conf.render(attachment)),
        ];
        let made = files.into_iter().filter(|(path, _)| !self.mounted_over.contains(path));
        made.map(|(path, content)| (path.to_owned(), content)).collect()
    }

    /// Why the container cannot resolve names with the file that the driver makes, if so.
    pub fn dns_warning(&self) -> Option<Content> {
        if self.mounted_over.contains(&RESOLV_CONF) { None } else { self.resolv_conf.warning() }
    }
}
