//! Parses `WWW-Authenticate` headers into challenges. Pure.
//!
//! A header may contain several challenges, and quoted strings may contain commas and escapes. Text that does not parse
//! ends the list and does not fail the pull.

use std::collections::BTreeMap;

/// One way to authenticate that the registry offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// Lower case.
    pub(crate) scheme: String,
    /// Keys in lower case.
    pub(crate) parameters: BTreeMap<String, String>,
}

/// All challenges of one header value.
pub fn parse(header: &str) -> Vec<Challenge> {
    let mut rest = header;
    let mut challenges: Vec<Challenge> = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (name, after) = token(rest);
        if name.is_empty() {
            return challenges;
        }
        let after_space = after.trim_start_matches([' ', '\t']);
        if let (Some(value), Some(current)) = (after_space.strip_prefix('='), challenges.last_mut()) {
            let Some((value, after)) = parameter_value(value.trim_start_matches([' ', '\t'])) else {
                return challenges;
            };
            // The first value counts, so that a later one cannot replace it.
            current.parameters.entry(name.to_ascii_lowercase()).or_insert(value);
            rest = after;
        } else {
            challenges.push(Challenge { scheme: name.to_ascii_lowercase(), parameters: BTreeMap::new() });
            rest = after;
        }
    }
}

fn token(text: &str) -> (&str, &str) {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/".contains(c);
    let end = text.find(|c| !is_token(c)).unwrap_or(text.len());
    text.split_at(end)
}

fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // Outside quotes the standard allows tokens only; registries also send bare URLs.
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get<'a>(challenge: &'a Challenge, key: &str) -> Option<&'a str> {
        challenge.parameters.get(key).map(String::as_str)
    }

    #[test]
    fn reads_what_registries_send() {
        let hub = parse(
            "Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\",\
             scope=\"repository:a/b:pull,push\"",
        );
        assert_eq!(hub.len(), 1);
        assert_eq!(hub[0].scheme, "bearer");
        assert_eq!(get(&hub[0], "realm"), Some("https://auth.docker.io/token"));
        assert_eq!(get(&hub[0], "scope"), Some("repository:a/b:pull,push"));

        let two = parse(r#"Basic realm="x, y", BEARER Realm = "https://a/t" , service=plain"#);
        assert_eq!(two.iter().map(|c| c.scheme.as_str()).collect::<Vec<_>>(), ["basic", "bearer"]);
        assert_eq!(get(&two[0], "realm"), Some("x, y"));
        assert_eq!(get(&two[1], "service"), Some("plain"));

        assert_eq!(get(&parse(r#"Bearer realm="a\"b""#)[0], "realm"), Some("a\"b"));
        assert_eq!(get(&parse("Bearer realm=https://a/t?x=1,service=s")[0], "realm"), Some("https://a/t?x=1"));
    }

    #[test]
    fn broken_headers_end_the_list() {
        assert!(parse("").is_empty());
        assert!(parse("=x").is_empty());
        assert_eq!(parse(r#"Bearer realm="open"#)[0].parameters.len(), 0);
        assert_eq!(get(&parse(r#"Bearer realm="a",realm="b""#)[0], "realm"), Some("a"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") {
            parse(&text);
        }

        #[test]
        fn quoted_values_survive(value in "[ -~]{0,40}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let parsed = parse(&format!("Bearer a=\"{quoted}\", b=\"c\""));
            prop_assert_eq!(parsed[0].parameters.get("a"), Some(&value));
            prop_assert_eq!(parsed[0].parameters.get("b").map(String::as_str), Some("c"));
        }
    }
}
