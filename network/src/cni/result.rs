//! The part of a CNI result (specification 1.0, section 5) that a container needs.

use std::{net::IpAddr, path::PathBuf};

use ipnet::IpNet;
use serde_json::Value;

use crate::attachment::{Attachment, Dns};

/// Parses the last plugin's result.
///
/// # Errors
///
/// The problem, as the end of a sentence about the result.
pub(crate) fn parse(namespace: PathBuf, result: &Value) -> Result<Attachment, String> {
    let mut addresses = Vec::new();
    let mut gateways = Vec::new();
    for ip in list(result, "ips").filter(|ip| is_in_container(result, ip)) {
        let address = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        let address: IpNet = address.parse().map_err(|_| format!("has an invalid address: {address:?}"))?;
        addresses.push(address.addr());
        gateways.extend(ip.get("gateway").and_then(Value::as_str).and_then(|text| text.parse::<IpAddr>().ok()));
    }
    let dns = result.get("dns").unwrap_or(&Value::Null);
    let texts = |key: &str| list(dns, key).filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
    let domain = dns.get("domain").and_then(Value::as_str).filter(|domain| !domain.is_empty());
    let searches = match texts("search") {
        empty if empty.is_empty() => domain.into_iter().map(str::to_owned).collect(),
        searches => searches,
    };
    let dns = Dns { servers: texts("nameservers"), searches, options: texts("options") };
    Ok(Attachment { namespace, addresses, gateways, dns })
}

fn list<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Whether an address belongs to an interface in the container. A result may also list addresses of the host's
/// interfaces.
fn is_in_container(result: &Value, ip: &Value) -> bool {
    let index = ip.get("interface").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
    let Some(index) = index else { return true };
    let interface = result.get("interfaces").and_then(|all| all.get(index));
    interface.is_none_or(|interface| {
        interface.get("sandbox").and_then(Value::as_str).is_some_and(|sandbox| !sandbox.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::parse;
    use crate::attachment::{Attachment, Dns};

    fn read(result: &Value) -> Result<Attachment, String> {
        parse("/netns".into(), result)
    }

    #[test]
    fn addresses_gateways_and_dns_of_the_container_are_parsed() {
        let result = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "oci-rs"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/netns"}],
            "ips": [
                {"interface": 2, "address": "172.26.80.7/20", "gateway": "172.26.80.1"},
                {"interface": 0, "address": "192.0.2.1/24"},
                {"interface": 2, "address": "fd00::7/64", "gateway": "fd00::1"},
            ],
            "dns": {"nameservers": ["10.0.0.2"], "domain": "lan", "options": ["ndots:2"]},
        });
        let address = |text: &str| text.parse().expect("an address");
        assert_eq!(
            read(&result).expect("a result"),
            Attachment {
                namespace: "/netns".into(),
                addresses: vec![address("172.26.80.7"), address("fd00::7")],
                gateways: vec![address("172.26.80.1"), address("fd00::1")],
                dns: Dns {
                    servers: vec!["10.0.0.2".into()],
                    searches: vec!["lan".into()],
                    options: vec!["ndots:2".into()]
                },
            }
        );
    }

    #[test]
    fn missing_fields_are_accepted_and_invalid_addresses_are_refused() {
        let minimal = read(&json!({"ips": [{"address": "10.1.0.2/16"}], "dns": {}})).expect("a result");
        assert_eq!((minimal.addresses.len(), minimal.gateways.len(), minimal.dns), (1, 0, Dns::default()));
        assert!(read(&json!({})).expect("a network without addresses").addresses.is_empty());
        assert!(read(&json!({"ips": [{"address": "10.1.0.2"}]})).expect_err("no prefix").contains("10.1.0.2"));
    }

    proptest! {
        #[test]
        fn no_result_makes_the_parser_panic(text in "[\\[\\]{}\":,0-9a-z./]{0,40}", index in any::<u64>()) {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                read(&value).ok();
                read(&json!({"ips": value, "dns": value, "interfaces": value})).ok();
            }
            read(&json!({"ips": [{"interface": index, "address": text}], "interfaces": []})).ok();
        }
    }
}
