//! Answers to a registry's 401: the scheme, the token server, and a cache of tokens for their lifetime.
//!
//! - Credentials go to the registry itself (Basic) or to the token server that the registry names (Bearer).
//! - They are sent over HTTPS, unless the registry itself uses plain HTTP.
//! - They are never sent to an internal address that a registry outside the network names.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::Engine as _;
use layer::Digest;
use reqwest::Url;
use serde::Deserialize;

use super::{
    address, body,
    challenge::Challenge,
    failure::{Asked, Failure, network_failure, status_failure},
    host::Host,
};
use crate::{
    credentials::{Credentials, IDENTITY_TOKEN_USER, REGISTRY_TOKEN_USER},
    error::PullError,
};

/// Bounds of the lifetime of a token.
const MIN_LIFE: Duration = Duration::from_secs(60);
const MAX_LIFE: Duration = Duration::from_secs(3600);
/// A token is renewed this long before its end.
const MARGIN: Duration = Duration::from_secs(10);

/// The key of an answer: host, repository, and the fingerprint of the credentials.
pub(crate) type Key = (String, String, Option<Digest>);

/// The `Authorization` values that registries accepted, with their expiry.
#[derive(Default)]
pub(crate) struct AuthCache {
    known: Mutex<HashMap<Key, (String, Instant)>>,
}

impl AuthCache {
    pub(crate) fn get(&self, key: &Key) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(_, until)| *until > Instant::now()).map(|(value, _)| value.clone())
    }

    pub(crate) fn put(&self, key: Key, value: String, life: Duration) {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, until)| *until > now);
        known.insert(key, (value, now + life));
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// A fingerprint of credentials for cache keys.
pub(crate) fn fingerprint(credentials: &Credentials) -> Digest {
    Digest::sha256(format!("{}\0{}", credentials.username, credentials.password.expose()).as_bytes())
}

/// The answer to a challenge.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// User name and password.
    Basic,
    /// A token of a token server.
    Bearer {
        /// The token server.
        realm: Url,
        /// The service that the token is for.
        service: Option<String>,
        /// The access that is asked for.
        scope: String,
    },
}

/// Selects the best challenge that can be answered. Pure. `wanted` is the scope if the registry names none. `Ok(None)`:
/// none can be answered.
pub fn plan(
    challenges: &[Challenge],
    registry: &Url,
    wanted: &str,
    have_credentials: bool,
) -> Result<Option<Plan>, String> {
    if let Some(bearer) = challenges.iter().find(|c| c.scheme == "bearer" && c.parameters.contains_key("realm")) {
        let realm = bearer.parameters.get("realm").map(String::as_str).unwrap_or_default();
        let realm = registry.join(realm).map_err(|error| format!("its token server {realm:?} is no URL: {error}"))?;
        check_realm(registry, &realm)?;
        let scope = bearer.parameters.get("scope").filter(|scope| !scope.is_empty());
        return Ok(Some(Plan::Bearer {
            realm,
            service: bearer.parameters.get("service").cloned(),
            scope: scope.cloned().unwrap_or_else(|| wanted.to_owned()),
        }));
    }
    let basic = challenges.iter().any(|c| c.scheme == "basic");
    Ok((basic && have_credentials).then_some(Plan::Basic))
}

fn check_realm(registry: &Url, realm: &Url) -> Result<(), String> {
    let refuse = |why: &str| {
        let host = realm.host_str().unwrap_or_default();
        Err(format!("refusing its token server {}://{host}: {why}", realm.scheme()))
    };
    match (registry.scheme(), realm.scheme()) {
        (_, "https") | ("http", "http") => {}
        _ => return refuse("it is not HTTPS although the registry is"),
    }
    if !realm.username().is_empty() || realm.password().is_some() {
        return refuse("it names a user");
    }
    if realm.host() != registry.host() && address::is_internal(realm) && !address::is_internal(registry) {
        return refuse("it is an internal address and the registry is not");
    }
    Ok(())
}

/// The answer with a token for the registry itself: it needs a Bearer challenge but no token server. `None`: the
/// credentials are of another kind.
pub(crate) fn registry_token(
    challenges: &[Challenge],
    credentials: Option<&Credentials>,
) -> Option<Option<(String, Duration)>> {
    let token = credentials.filter(|credentials| credentials.username == REGISTRY_TOKEN_USER)?.password.expose();
    let asked = challenges.iter().any(|challenge| challenge.scheme == "bearer");
    Some(asked.then(|| (format!("Bearer {token}"), MAX_LIFE)))
}

/// The `Basic` header value.
pub(crate) fn basic(credentials: &Credentials) -> String {
    let pair = format!("{}:{}", credentials.username, credentials.password.expose());
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Option<u64>,
}

/// Limits for the exchange with a token server.
pub(crate) struct TokenLimits {
    pub(crate) bytes: u64,
    pub(crate) idle_timeout: Duration,
}

/// Asks a token server. Redirects are not followed, because the request contains credentials.
pub(crate) async fn fetch_token(
    host: &Host,
    plan: (&Url, Option<&str>, &str),
    credentials: Option<&Credentials>,
    limits: &TokenLimits,
) -> Result<(String, Duration), Failure> {
    let (realm, service, scope) = plan;
    let name = realm.host_str().unwrap_or_default().to_owned();
    let what = format!("token for {}", host.name());
    let client = host.client_for(realm, &what).await?;
    let refresh = credentials.filter(|c| c.username == IDENTITY_TOKEN_USER);
    let request = if let Some(credentials) = refresh {
        let form: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "refresh_token")
            .append_pair("service", service.unwrap_or_default())
            .append_pair("scope", scope)
            .append_pair("client_id", "oci-rs")
            .append_pair("refresh_token", credentials.password.expose())
            .finish();
        let kind = "application/x-www-form-urlencoded";
        client.post(realm.clone()).header(reqwest::header::CONTENT_TYPE, kind).body(form)
    } else {
        let request = client.get(token_url(realm, service, scope));
        match credentials {
            Some(credentials) => request.header(reqwest::header::AUTHORIZATION, basic(credentials)),
            None => request,
        }
    };
    let silent = || PullError::IdleTimeout { host: name.clone(), what: what.clone(), limit: limits.idle_timeout };
    let response = tokio::time::timeout(limits.idle_timeout, request.send())
        .await
        .map_err(|_| Failure { error: silent(), retry: Some(Duration::ZERO) })?
        .map_err(|error| network_failure(&name, &what, error))?;
    if !response.status().is_success() {
        // A token server on another host is a foreign one, although the registry names it.
        let own = realm.host() == host.base().host();
        let asked = Asked { host: &name, what: &what, anonymous: credentials.is_none(), own };
        return Err(status_failure(&asked, response, limits.idle_timeout).await);
    }
    let body = body::read_bounded(response, limits.bytes, &name, &what, limits.idle_timeout).await?;
    let answer: TokenAnswer = serde_json::from_slice(&body)
        .map_err(|_| PullError::malformed(format!("{name}: {what}"), "the answer is no token document"))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| PullError::malformed(format!("{name}: {what}"), "the answer holds no token"))?;
    Ok((format!("Bearer {token}"), life(answer.expires_in)))
}

/// The URL of a token request. Token servers expect one parameter for each entry of a scope. Pure.
fn token_url(realm: &Url, service: Option<&str>, scope: &str) -> Url {
    let mut url = realm.clone();
    let entries = scope.split_ascii_whitespace().map(|entry| ("scope", entry));
    url.query_pairs_mut().extend_pairs(service.map(|service| ("service", service)).into_iter().chain(entries));
    url
}

fn life(expires_in: Option<u64>) -> Duration {
    Duration::from_secs(expires_in.unwrap_or(60)).clamp(MIN_LIFE, MAX_LIFE) - MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::challenge;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn plan_for(header: &str, registry: &str, credentials: bool) -> Result<Option<Plan>, String> {
        plan(&challenge::parse(header), &url(registry), "repository:a/b:pull", credentials)
    }

    #[test]
    fn prefers_bearer_and_fills_the_scope() {
        let header = r#"Basic realm="x", Bearer realm="https://auth.example/token",service="s""#;
        let expected = Plan::Bearer {
            realm: url("https://auth.example/token"),
            service: Some("s".into()),
            scope: "repository:a/b:pull".into(),
        };
        assert_eq!(plan_for(header, "https://r.example/", true), Ok(Some(expected)));
    }

    #[test]
    fn each_entry_of_a_scope_is_a_parameter() {
        let query = |realm: &str, service, scope| token_url(&url(realm), service, scope).query().map(str::to_owned);
        let realm = "https://auth.example/token";
        let two = query(realm, Some("s"), "repository:a:pull,push  repository:b:pull");
        let expected = "service=s&scope=repository%3Aa%3Apull%2Cpush&scope=repository%3Ab%3Apull";
        assert_eq!(two.as_deref(), Some(expected));
        let one = query("https://auth.example/token?x=1", None, "repository:a:pull");
        assert_eq!(one.as_deref(), Some("x=1&scope=repository%3Aa%3Apull"));
    }

    #[test]
    fn basic_needs_credentials() {
        assert_eq!(plan_for("Basic realm=x", "https://r.example/", true), Ok(Some(Plan::Basic)));
        assert_eq!(plan_for("Basic realm=x", "https://r.example/", false), Ok(None));
        assert_eq!(plan_for("Negotiate", "https://r.example/", true), Ok(None));
    }

    #[test]
    fn a_token_for_the_registry_goes_to_no_other_host() {
        let own = |user: &str| Credentials { username: user.into(), password: "t".into() };
        let answer = |header: &str, user: &str| registry_token(&challenge::parse(header), Some(&own(user)));
        let bearer = ("Bearer t".to_owned(), MAX_LIFE);
        assert_eq!(answer("Bearer realm=\"https://auth.example/t\"", REGISTRY_TOKEN_USER), Some(Some(bearer)));
        assert_eq!(answer("Basic realm=\"x\"", REGISTRY_TOKEN_USER), Some(None));
        assert_eq!(answer("Bearer realm=\"https://auth.example/t\"", "<token>"), None);
        assert_eq!(registry_token(&[], None), None);
    }

    #[test]
    fn realms_may_not_lead_inside_or_out_of_tls() {
        for (registry, realm, ok) in [
            ("https://r.example/", "https://auth.example/t", true),
            ("https://r.example/", "http://auth.example/t", false),
            ("https://r.example/", "https://169.254.169.254/t", false),
            ("https://r.example/", "https://localhost/t", false),
            ("https://r.example/", "https://u:p@auth.example/t", false),
            ("https://r.example/", "file:///etc/passwd", false),
            ("https://10.0.0.5/", "https://10.0.0.6/t", true),
            ("http://127.0.0.1:5000/", "http://127.0.0.1:5001/t", true),
        ] {
            let result = plan_for(&format!(r#"Bearer realm="{realm}""#), registry, true);
            assert_eq!(result.is_ok(), ok, "{registry} {realm}: {result:?}");
        }
    }

    #[test]
    fn token_life_is_bounded_both_ways() {
        assert_eq!(life(None).as_secs(), 50);
        assert_eq!(life(Some(1)).as_secs(), 50);
        assert_eq!(life(Some(300)).as_secs(), 290);
        assert_eq!(life(Some(u64::MAX)).as_secs(), 3590);
    }
}
