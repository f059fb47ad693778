//! The plugin block's options for metrics.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of `metrics`.
pub const OPTIONS: &[OptionSpec] = &[OptionSpec::honoured(
    "address",
    OptionType::String,
    Words("no metrics"),
    "where the plugin answers `GET /metrics`: `127.0.0.1:9420`, `:9420` (the same), or \
     `unix:///run/oci-rs/metrics.sock` (for root only). Each process that reaches the address can read the metrics",
)];

/// The address at which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Reads the address. `None`: no metrics.
pub fn address(metrics: &ConfigBlock) -> Option<MetricsAddress> {
    let text = metrics.string("address")?;
    let address = parse(&text);
    if address.is_none() {
        let remedy = "write an IP address with a port, as in \"127.0.0.1:9420\", or a socket, as in \
                      \"unix:///run/oci-rs/metrics.sock\"";
        metrics.error("address", format!("{text:?} is no address"), remedy);
    }
    address
}

fn parse(text: &str) -> Option<MetricsAddress> {
    if let Some(path) = text.strip_prefix("unix://") {
        return Path::new(path).is_absolute().then(|| MetricsAddress::Unix(path.into()));
    }
    // Without a host, only this machine reaches it.
    let local = text.strip_prefix(':').or_else(|| text.strip_prefix("localhost:"));
    let port = local.map(|port| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?)));
    port.unwrap_or_else(|| text.parse().ok()).map(MetricsAddress::Tcp)
}

#[cfg(test)]
mod tests {
    use super::{MetricsAddress, parse};

    #[test]
    fn an_address_without_a_host_is_on_loopback() {
        let tcp = |text: &str| Some(MetricsAddress::Tcp(text.parse().unwrap()));
        assert_eq!(parse(":9420"), tcp("127.0.0.1:9420"));
        assert_eq!(parse("localhost:9420"), tcp("127.0.0.1:9420"));
        assert_eq!(parse("[::]:9420"), tcp("[::]:9420"));
        assert_eq!(parse("unix:///run/x.sock"), Some(MetricsAddress::Unix("/run/x.sock".into())));
        for wrong in
            ["", ":", "9420", "host.example:9420", "127.0.0.1", "unix://x.sock", "http://127.0.0.1:1", ":99999"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
