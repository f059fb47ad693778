//! Questions about the host of a URL. Pure.

use std::net::IpAddr;

use reqwest::Url;

/// Same scheme, host and port.
pub(crate) fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme() && a.host() == b.host() && a.port_or_known_default() == b.port_or_known_default()
}

/// Whether the host is this machine, by its name or address.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Where an address is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Everywhere.
    Global,
    /// In a private network.
    Private,
    /// On one link. Cloud providers serve a machine's credentials there.
    Link,
    /// On this machine.
    Machine,
}

/// The scope of an address.
pub(crate) fn scope(address: IpAddr) -> Scope {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_loopback() || v4.octets()[0] == 0 => Scope::Machine,
        IpAddr::V4(v4) if v4.is_link_local() || v4.is_multicast() || v4.is_broadcast() => Scope::Link,
        // 100.64.0.0/10 is for the networks of providers.
        IpAddr::V4(v4) if v4.is_private() || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64) => Scope::Private,
        IpAddr::V4(_) => Scope::Global,
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unspecified() => Scope::Machine,
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => Scope::Link,
        // fec0::/10 was for sites, before fc00::/7.
        IpAddr::V6(v6) if v6.is_unique_local() || v6.segments()[0] & 0xffc0 == 0xfec0 => Scope::Private,
        IpAddr::V6(_) => Scope::Global,
    }
}

/// The scope of the host of a URL, if it is an address or a name of this machine.
pub(crate) fn literal_scope(url: &Url) -> Option<Scope> {
    match url.host() {
        Some(url::Host::Ipv4(address)) => Some(scope(address.into())),
        Some(url::Host::Ipv6(address)) => Some(scope(address.into())),
        _ => is_loopback(url).then_some(Scope::Machine),
    }
}

/// Whether the host is an address that is valid only inside a private network.
pub fn is_internal(url: &Url) -> bool {
    literal_scope(url).is_some_and(|scope| scope != Scope::Global)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_internal_addresses() {
        for (url, internal) in [
            ("https://10.1.2.3/", true),
            ("https://169.254.169.254/", true),
            ("https://[fe80::1]/", true),
            ("https://[::ffff:127.0.0.1]/", true),
            ("https://localhost/", true),
            ("https://8.8.8.8/", false),
            ("https://auth.docker.io/", false),
        ] {
            assert_eq!(is_internal(&url.parse().unwrap()), internal, "{url}");
        }
    }

    #[test]
    fn each_address_has_a_scope() {
        for (address, expected) in [
            ("127.1.2.3", Scope::Machine),
            ("0.0.0.0", Scope::Machine),
            ("0.1.2.3", Scope::Machine),
            ("::1", Scope::Machine),
            ("::", Scope::Machine),
            ("::ffff:127.0.0.1", Scope::Machine),
            ("169.254.169.254", Scope::Link),
            ("224.0.0.1", Scope::Link),
            ("255.255.255.255", Scope::Link),
            ("fe80::1", Scope::Link),
            ("ff02::1", Scope::Link),
            ("10.0.0.1", Scope::Private),
            ("172.31.255.255", Scope::Private),
            ("192.168.0.1", Scope::Private),
            ("100.64.0.1", Scope::Private),
            ("100.127.255.255", Scope::Private),
            ("fd00::1", Scope::Private),
            ("fec0::1", Scope::Private),
            ("::ffff:10.0.0.1", Scope::Private),
            ("172.32.0.1", Scope::Global),
            ("100.128.0.1", Scope::Global),
            ("8.8.8.8", Scope::Global),
            ("2606:4700::1", Scope::Global),
        ] {
            assert_eq!(scope(address.parse().unwrap()), expected, "{address}");
        }
    }
}
