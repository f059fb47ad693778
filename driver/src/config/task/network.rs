//! The task block's options for the network, its addresses and its ports.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::partial(
        "network_mode",
        OptionType::String,
        Words("the group's network, otherwise the plugin's `network.default_mode`, `bridge`"),
        "`bridge` (or `default`): the group's network, or without one the task's own network on the driver's bridge. \
         `cni/<name>`: the task's own network, attached to the operator's CNI network of this name. `host`: the host's \
         network. `none`: only loopback",
    ),
    OptionSpec::honoured(
        "ports",
        OptionType::Strings,
        Words("none"),
        "labels of the group's ports that are published, TCP and UDP, if the task has its own network. In a group \
         with a network, Nomad publishes all ports of the group",
    ),
    OptionSpec::partial(
        "port_map",
        OptionType::NumberMaps,
        Words("the same ports as on the host"),
        "container ports by label, for ports of a `network` block in the task's `resources`, which is docker's older \
         form. Each label sets `NOMAD_PORT_<label>`, also one without a port. Ports of the group's `network` block use \
         `to` instead",
    ),
    OptionSpec::honoured(
        "ipv4_address",
        OptionType::String,
        Words("a free one"),
        "IPv4 address in the task's own network",
    ),
    OptionSpec::honoured(
        "ipv6_address",
        OptionType::String,
        Words("a free one"),
        "IPv6 address in the task's own network",
    ),
    OptionSpec::honoured("mac_address", OptionType::String, Words("any"), "hardware address in the task's own network"),
    OptionSpec::honoured(
        "advertise_ipv6_address",
        OptionType::Bool,
        Words("false"),
        "services with `address_mode = \"driver\"` or `\"auto\"` advertise the container's IPv6 address. Needs a \
         network of the task's own with IPv6",
    ),
    OptionSpec::honoured(
        "network_aliases",
        OptionType::Strings,
        Words("none"),
        "further names of the task for itself and for the other tasks of its group, in `/etc/hosts`. Needs a network \
         of the group's or of the task's own",
    ),
];

/// The source of the container's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// The group's network namespace, or without one the operator's default.
    #[default]
    Unset,
    /// The group's network namespace, or without one the task's own network on the driver's bridge.
    Bridge,
    /// The task's own network, attached to the operator's CNI network of this name.
    Named(String),
    /// The host's network, also in a group that has its own.
    Host,
    /// Only loopback.
    None,
}

/// Addresses that the task asks for in its own network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Hardware address, `aa:bb:cc:dd:ee:ff`.
    pub mac: Option<String>,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Services advertise the IPv6 address.
    pub advertise_ipv6: bool,
}

/// Reads `network_aliases`.
pub fn aliases(block: &ConfigBlock) -> Vec<String> {
    let names = block.strings("network_aliases");
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    for name in names.iter().filter(|name| !is_name(name)) {
        block.error("network_aliases", format!("{name:?} is no host name"), "use letters, digits, `-`, `_` and `.`");
    }
    names
}

/// Reads `network_mode`.
pub fn mode(block: &ConfigBlock) -> NetworkMode {
    let Some(mode) = block.string("network_mode") else { return NetworkMode::Unset };
    match mode.as_str() {
        "host" => NetworkMode::Host,
        "none" => NetworkMode::None,
        "bridge" | "default" => NetworkMode::Bridge,
        _ => match mode.strip_prefix("cni/").filter(|name| !name.is_empty() && !name.contains('/')) {
            Some(name) => NetworkMode::Named(name.to_owned()),
            None => {
                refuse(block, &mode);
                NetworkMode::Unset
            }
        },
    }
}

/// Refuses networks that only docker's daemon has.
fn refuse(block: &ConfigBlock, mode: &str) {
    let refuse = |problem: &str, remedy: &str| {
        block.error("network_mode", format!("{mode:?} is not supported: {problem}"), remedy);
    };
    if mode.starts_with("container:") {
        refuse(
            "another container's network cannot be joined by its name",
            "put both tasks into one group with `network { mode = \"bridge\" }`, where they share a network",
        );
    } else {
        refuse(
            "there are no docker networks",
            "write bridge, host, none, or cni/<name> for a CNI network of the operator's; tasks that talk to each \
             other belong into one group with `network { mode = \"bridge\" }`, or find each other by their services",
        );
    }
}

/// Reads the addresses.
pub fn addresses(block: &ConfigBlock) -> Addresses {
    let mac = block.string("mac_address");
    if let Some(text) = mac.as_deref().filter(|text| !is_hardware_address(text)) {
        block.error(
            "mac_address",
            format!("{text:?} is not the hardware address of one interface"),
            "write it as in \"02:42:ac:11:00:02\"; the first number is even",
        );
    }
    Addresses {
        mac,
        ipv4: address(block, "ipv4_address", "IPv4", "172.26.80.9"),
        ipv6: address(block, "ipv6_address", "IPv6", "fd00::9"),
        advertise_ipv6: block.bool("advertise_ipv6_address"),
    }
}

fn address<T: FromStr>(block: &ConfigBlock, option: &str, family: &str, example: &str) -> Option<T> {
    let text = block.string(option)?;
    let address = text.parse().ok();
    if address.is_none() {
        block.error(option, format!("{text:?} is not an {family} address"), format!("write it as in {example:?}"));
    }
    address
}

/// Six bytes that address one interface and not a group.
fn is_hardware_address(text: &str) -> bool {
    let bytes: Vec<Option<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2 && !part.starts_with('+')))
        .collect();
    let [Some(first), rest @ ..] = bytes.as_slice() else { return false };
    first & 1 == 0 && rest.len() == 5 && rest.iter().all(Option::is_some)
}
