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

/// Whether the host is an address that is valid only inside a private network.
pub fn is_internal(url: &Url) -> bool {
    let address: IpAddr = match url.host() {
        Some(url::Host::Ipv4(address)) => address.into(),
        Some(url::Host::Ipv6(address)) => address.to_canonical(),
        _ => return is_loopback(url),
    };
    match address {
        IpAddr::V4(v4) => {
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
        }
    }
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
}
