//! The entries of docker's `config.json` for an image. Pure.
//!
//! Keys follow docker and containers-auth.json(5): a host, a URL of a host, or a host with a prefix of a repository
//! path. The longest matching key decides.

use base64::Engine as _;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::secret::{Credentials, IDENTITY_TOKEN_USER, REGISTRY_TOKEN_USER};
use crate::reference::Reference;

/// The key of docker.io in `config.json` and at helpers.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The parts of a `config.json` that concern credentials. An entry is parsed when it is needed, so a mistake in one
/// entry does not affect the others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    #[serde(default)]
    auths: Option<Map<String, Value>>,
    #[serde(default)]
    cred_helpers: Option<Map<String, Value>>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default, rename = "identitytoken")]
    identity_token: Option<String>,
    #[serde(default, rename = "registrytoken")]
    registry_token: Option<String>,
}

/// The name of a registry at a helper.
pub(crate) fn server(domain: &str) -> &str {
    if domain == "docker.io" { DOCKER_HUB } else { domain }
}

impl Config {
    /// Reads the file's text.
    pub fn parse(text: &[u8]) -> Result<Config, String> {
        // The error text of the parser may quote a secret.
        serde_json::from_slice(text)
            .map_err(|error| format!("it is no docker config.json (line {}, column {})", error.line(), error.column()))
    }

    /// The helper for the registry of the image.
    pub fn helper(&self, reference: &Reference) -> Option<&str> {
        let (_, name) = longest(self.cred_helpers.as_ref()?, reference)?;
        name.as_str().filter(|name| !name.is_empty())
    }

    /// The helper for all other registries.
    pub(crate) fn store(&self) -> Option<&str> {
        self.creds_store.as_deref().filter(|name| !name.is_empty())
    }

    /// The credentials in the file itself. An empty entry, which docker writes beside a credential store, has none.
    pub fn stored(&self, reference: &Reference) -> Result<Option<Credentials>, String> {
        let Some((key, entry)) = self.auths.as_ref().and_then(|auths| longest(auths, reference)) else {
            return Ok(None);
        };
        let wrong = |problem: &str| format!("auths[{key:?}]: {problem}");
        let entry: Option<Entry> = Entry::deserialize_value(entry).map_err(|()| wrong("it is no block of texts"))?;
        let Some(entry) = entry else { return Ok(None) };
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        // As for docker, it overrides everything else.
        if let Some(token) = given(entry.registry_token) {
            return Ok(Some(Credentials { username: REGISTRY_TOKEN_USER.into(), password: token.into() }));
        }
        if let Some(token) = given(entry.identity_token) {
            return Ok(Some(Credentials { username: IDENTITY_TOKEN_USER.into(), password: token.into() }));
        }
        if let Some(auth) = given(entry.auth) {
            const PROBLEM: &str = "auth is not the base64 form of user:password; log in again";
            return decode(&auth).map(Some).ok_or_else(|| wrong(PROBLEM));
        }
        match (given(entry.username), given(entry.password)) {
            (Some(username), Some(password)) => Ok(Some(Credentials { username, password: password.into() })),
            (None, None) => Ok(None),
            _ => Err(wrong("username and password must stand together")),
        }
    }
}

impl Entry {
    fn deserialize_value(value: &Value) -> Result<Option<Entry>, ()> {
        Option::<Entry>::deserialize(value).map_err(drop)
    }
}

/// `base64(user:password)`; docker pads old passwords with NUL bytes.
fn decode(auth: &str) -> Option<Credentials> {
    use base64::{
        alphabet::STANDARD,
        engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
    };
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text = String::from_utf8(GeneralPurpose::new(&STANDARD, lenient).decode(auth.trim()).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    let password = password.trim_matches('\0');
    if username.is_empty() || password.is_empty() {
        return None;
    }
    Some(Credentials { username: username.into(), password: password.into() })
}

/// The entry with the longest key that is a prefix of the image's name.
fn longest<'a>(entries: &'a Map<String, Value>, reference: &Reference) -> Option<(&'a str, &'a Value)> {
    let image = format!("{}/{}", reference.domain(), reference.repository());
    let fitting = entries.iter().filter_map(|(key, value)| {
        let scope = scope(key);
        let rest = image.strip_prefix(scope.as_str())?;
        // Among keys of equal scope, docker's own spelling decides, otherwise the first key.
        (rest.is_empty() || rest.starts_with('/')).then_some(((scope.len(), key == DOCKER_HUB), key, value))
    });
    fitting.max_by_key(|(rank, _, _)| *rank).map(|(_, key, value)| (key.as_str(), value))
}

/// The scope of a key: `host` or `host/path`.
fn scope(key: &str) -> String {
    let url = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let text = url.unwrap_or(key);
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    // The path of a URL is the protocol version, and so is `v1/` or `v2/` without a scheme.
    let path = if url.is_some() || matches!(path, "v1/" | "v2/") { "" } else { path.trim_end_matches('/') };
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(value: Value) -> Config {
        Config::parse(value.to_string().as_bytes()).unwrap()
    }

    fn stored(value: Value, image: &str) -> Result<Option<(String, String)>, String> {
        let found = config(value).stored(&image.parse().unwrap())?;
        Ok(found.map(|found| (found.username, found.password.expose().to_owned())))
    }

    fn user(auths: &[&str], image: &str) -> Option<String> {
        let entry = |key: &&str| ((*key).to_owned(), json!({"username": key, "password": "x"}));
        let auths: Map<String, Value> = auths.iter().map(entry).collect();
        stored(json!({"auths": auths}), image).unwrap().map(|(user, _)| user)
    }

    #[test]
    fn the_longest_key_decides() {
        let keys = ["q.example", "q.example/ns", "q.example/ns/img", "q.example:5000", "other.example"];
        for (image, expected) in [
            ("q.example/ns/img:1", Some("q.example/ns/img")),
            ("q.example/ns/img/deeper", Some("q.example/ns/img")),
            ("q.example/ns/img2", Some("q.example/ns")),
            ("q.example/nsx/img", Some("q.example")),
            ("q.example:5000/ns/img", Some("q.example:5000")),
            ("q.example:5001/ns/img", None),
            ("nginx", None),
        ] {
            assert_eq!(user(&keys, image).as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn docker_hub_has_many_names() {
        for key in
            ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io", "docker.io/v1/"]
        {
            assert_eq!(user(&[key], "nginx").as_deref(), Some(key));
            assert_eq!(user(&[key], "r.example/nginx"), None);
        }
        assert_eq!(user(&["docker.io", DOCKER_HUB], "nginx").as_deref(), Some(DOCKER_HUB));
        assert_eq!(user(&[DOCKER_HUB, "docker.io/team"], "team/app").as_deref(), Some("docker.io/team"));
        assert_eq!(user(&["docker.io/team"], "nginx"), None);
        assert_eq!(user(&["https://r.example/v2/"], "r.example/a").as_deref(), Some("https://r.example/v2/"));
        assert_eq!((server("docker.io"), server("r.example:5000")), (DOCKER_HUB, "r.example:5000"));
    }

    #[test]
    fn every_form_of_an_entry() {
        let pair = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        let with = |entry: Value| stored(json!({"auths": {"r.example": entry}}), "r.example/app");
        assert_eq!(with(json!({"auth": "am9lOnBhc3M6d29yZA=="})), pair("joe", "pass:word"));
        assert_eq!(with(json!({"auth": "am9lOnBhc3M6d29yZA"})), pair("joe", "pass:word"));
        assert_eq!(with(json!({"auth": "am9lOnAAAA=="})), pair("joe", "p"));
        assert_eq!(with(json!({"username": "u", "password": "p", "auth": null})), pair("u", "p"));
        assert_eq!(with(json!({"auth": "eDp5", "identitytoken": "t"})), pair("<token>", "t"));
        assert_eq!(with(json!({"identitytoken": "t", "registrytoken": "r"})), pair("<registrytoken>", "r"));
        assert_eq!(with(json!({"auth": "eDp5", "identitytoken": "", "registrytoken": ""})), pair("x", "y"));
        for empty in [json!({}), json!(null), json!({"auth": "", "email": "x"})] {
            assert_eq!(with(empty), Ok(None));
        }
        for wrong in [json!({"auth": "c2VjcmV0"}), json!({"auth": "$ecret"}), json!("secret"), json!({"username": "u"})]
        {
            let problem = with(wrong).unwrap_err();
            assert!(problem.contains("r.example") && !problem.contains("ecret"), "{problem}");
        }
    }

    #[test]
    fn helpers_by_registry_and_for_the_rest() {
        let config = config(json!({
            "auths": null,
            "credsStore": "pass",
            "credHelpers": {"https://index.docker.io/v1/": "hub", "ecr.example": "ecr"},
        }));
        let helper = |image: &str| config.helper(&image.parse().unwrap());
        assert_eq!((helper("nginx"), helper("ecr.example/a"), helper("r.example/a")), (Some("hub"), Some("ecr"), None));
        assert_eq!(config.store(), Some("pass"));
    }

    #[test]
    fn parse_errors_quote_nothing() {
        for text in [r#"{"credsStore": ["hunter2"]}"#, r#"{"auths": "hunter2"}"#, "hunter2"] {
            let problem = Config::parse(text.as_bytes()).err().unwrap();
            assert!(problem.contains("line 1") && !problem.contains("hunter2"), "{problem}");
        }
    }
}
