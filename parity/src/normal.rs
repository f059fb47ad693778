//! Replaces what differs between any two runs of a job: ids, addresses, ports and directories.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Replaces the literal texts, the longest first, and then generated ids and addresses.
#[must_use]
pub fn normal(text: &str, literals: &[(String, &str)]) -> String {
    let mut text = text.to_owned();
    let mut literals: Vec<&(String, &str)> = literals.iter().filter(|(literal, _)| !literal.is_empty()).collect();
    literals.sort_by_key(|(literal, _)| std::cmp::Reverse(literal.len()));
    for (literal, name) in literals {
        text = text.replace(literal.as_str(), name);
    }
    words(&text)
}

/// Replaces words: runs of letters, digits, dots and colons.
fn words(text: &str) -> String {
    let mut result = String::new();
    let mut word = String::new();
    for character in text.chars().chain(['\n']) {
        if character.is_ascii_alphanumeric() || character == '.' || character == ':' {
            word.push(character);
            continue;
        }
        result.push_str(&replace(&word));
        word.clear();
        result.push(character);
    }
    result.pop();
    result
}

fn replace(word: &str) -> String {
    let hexadecimal = word.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let parts: Vec<&str> = word.split(':').collect();
    if hexadecimal && word.len() == 64 {
        return "<id>".to_owned();
    }
    if parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && u8::from_str_radix(part, 16).is_ok()) {
        return "<mac>".to_owned();
    }
    // The networks of dockerd and of the driver's bridge.
    if word.parse::<Ipv6Addr>().is_ok_and(|address| [0xfd28, 0xfd29].contains(&address.segments()[0])) {
        return "<address6>".to_owned();
    }
    let (address, port) = word.split_once(':').map_or((word, None), |(address, port)| (address, Some(port)));
    let address = match address.parse::<Ipv4Addr>() {
        // The networks of dockerd, of Nomad's bridge and of the driver's bridge.
        Ok(address) if address.octets()[0] == 172 && (16..32).contains(&address.octets()[1]) => "<address>".to_owned(),
        _ => address.to_owned(),
    };
    match port {
        Some(port) => format!("{address}:{}", dynamic(port)),
        None => dynamic(&address),
    }
}

/// The agents of tests use the ports from 20000 on for dynamic ports.
fn dynamic(word: &str) -> String {
    match word.parse::<u32>() {
        Ok(20_000..30_000) if word.len() == 5 => "<port>".to_owned(),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_values_become_names() {
        let literals = [("/tmp/agent.1".to_owned(), "<agent>"), ("/tmp/agent.1/x".to_owned(), "<x>")];
        for (text, expected) in [
            ("/tmp/agent.1/x/y", "<x>/y"),
            ("inet 172.17.0.2/16", "inet <address>/16"),
            ("192.0.2.1 name", "192.0.2.1 name"),
            ("inet6 fd28:0:0:2::5/64", "inet6 <address6>/64"),
            ("2001:db8:51::2 name", "2001:db8:51::2 name"),
            ("link 02:42:ac:11:00:02 up", "link <mac> up"),
            ("PORT=20017", "PORT=<port>"),
            ("127.0.0.1:20017", "127.0.0.1:<port>"),
            ("nofile 1048576", "nofile 1048576"),
        ] {
            assert_eq!(normal(text, &literals), expected);
        }
        assert_eq!(normal(&"0f".repeat(32), &[]), "<id>");
    }
}
