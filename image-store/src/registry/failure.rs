//! What a failed exchange means: the error, and whether another attempt can help.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde::Deserialize;

use super::guard::REFUSED;
use crate::error::PullError;

/// Enough of an error page to find the message of the registry in it.
const ERROR_BYTES: u64 = 16 << 10;

/// The text of an error with its causes.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// A failed exchange.
pub(crate) struct Failure {
    pub(crate) error: PullError,
    /// `None`: another attempt is useless. `Some(pause)`: the least pause before the next attempt.
    pub(crate) retry: Option<Duration>,
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Failure { error, retry: None }
    }
}

/// The failure for an error of the HTTP client. The URL is left out, because it may contain a signature.
pub(crate) fn network_failure(host: &str, what: &str, error: reqwest::Error) -> Failure {
    let by_tls = error.url().is_some_and(|url| url.scheme() == "https");
    let unanswered = if by_tls { error.is_connect() } else { error.is_request() };
    let error = error.without_url();
    let mut problem = chain(&error);
    let remedy = remedy(&problem);
    let hopeless = error.is_builder() || error.is_decode() || remedy.is_some();
    let closed = || unanswered.then(|| remedy_of_a_closed_connection(&problem, by_tls)).flatten();
    if let Some(remedy) = remedy.or_else(closed).filter(|remedy| !remedy.is_empty()) {
        problem.push_str(remedy);
        problem.push_str(DOCUMENTED);
    }
    Failure {
        error: PullError::Network { host: host.to_owned(), what: what.to_owned(), problem },
        retry: (!hopeless).then_some(Duration::ZERO),
    }
}

/// The place of the options that the remedies name.
const DOCUMENTED: &str = " (docs/configuration.md, \"registry\")";

/// The alerts by which a server refuses a client without a certificate that it trusts (RFC 8446, 6.2).
const CLIENT_REFUSED: [&str; 3] = ["CertificateRequired", "BadCertificate", "UnknownCA"];

/// The options against a TLS error, by its text: the types of the causes belong to several crates. Another attempt
/// without these options is useless.
fn remedy(text: &str) -> Option<&'static str> {
    if text.contains("invalid peer certificate") {
        return Some(
            "; set ca_file in this registry's block to the certificate of its authority, or insecure_skip_verify to \
             accept any certificate",
        );
    }
    if text.contains("fatal alert") && CLIENT_REFUSED.iter().any(|alert| text.contains(alert)) {
        return Some(
            "; the registry wants a client certificate that it trusts: set cert_file and key_file in this registry's \
             block",
        );
    }
    if text.contains(REFUSED) {
        // The text itself names the remedy.
        return Some("");
    }
    text.contains("received corrupt message")
        .then_some("; it does not answer with TLS: if it speaks plain HTTP, set plain_http in this registry's block")
}

/// The options that may help against a connection that the host closed before its first answer. The cause may be
/// another one, so another attempt follows.
fn remedy_of_a_closed_connection(text: &str, by_tls: bool) -> Option<&'static str> {
    let closed = ["Connection reset by peer", "handshake eof", "connection closed before message completed"];
    if !closed.iter().any(|part| text.contains(part)) {
        return None;
    }
    Some(if by_tls { "; if the registry speaks plain HTTP, set plain_http in its block" } else { ASKED_PLAINLY })
}

/// The remedy for a registry that speaks TLS and was asked without.
const ASKED_PLAINLY: &str = "; it was asked by plain HTTP: if the registry speaks TLS, remove plain_http from its \
                             block, or, for a loopback address, set ca_file or insecure_skip_verify";

/// A request, for errors.
pub(crate) struct Asked<'a> {
    pub(crate) host: &'a str,
    pub(crate) what: &'a str,
    /// The request was sent without credentials.
    pub(crate) anonymous: bool,
    /// The host itself answered. The text of another host's answer is not quoted.
    pub(crate) own: bool,
}

/// The failure for a status other than success. Reads the beginning of the body for the message of the registry.
pub(crate) async fn status_failure(asked: &Asked<'_>, response: Response, idle_timeout: Duration) -> Failure {
    let status = response.status();
    let retry = match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Some(retry_after(&response)),
        StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Some(retry_after(&response)),
        _ => None,
    };
    let detail = if asked.own {
        let by_tls = response.url().scheme() == "https";
        let body = read_some(response, ERROR_BYTES, idle_timeout.min(Duration::from_secs(10))).await;
        match remedy_of_a_refused_request(status, by_tls, &body) {
            Some(remedy) => format!("{remedy}{DOCUMENTED}"),
            None => registry_message(&body),
        }
    } else {
        String::new()
    };
    let (host, what, anonymous) = (asked.host.to_owned(), asked.what.to_owned(), asked.anonymous);
    let error = match status {
        StatusCode::NOT_FOUND => PullError::NotFound { host, what, detail },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PullError::Denied { host, what, anonymous, detail },
        status => PullError::Status { host, what, status: status.as_u16(), detail },
    };
    Failure { error, retry }
}

/// The option against the answer of a TLS server to a request without TLS: 400, with a text that names HTTPS.
fn remedy_of_a_refused_request(status: StatusCode, by_tls: bool, body: &[u8]) -> Option<&'static str> {
    let names_https = || String::from_utf8_lossy(body).contains("HTTPS");
    (status == StatusCode::BAD_REQUEST && !by_tls && names_https()).then_some(ASKED_PLAINLY)
}

/// The header `Retry-After`, at most one minute.
fn retry_after(response: &Response) -> Duration {
    let header = response.headers().get(reqwest::header::RETRY_AFTER);
    let seconds = header.and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse::<u64>().ok());
    Duration::from_secs(seconds.unwrap_or(0).min(60))
}

/// Up to `limit` bytes of a body. Errors and silence end it early.
async fn read_some(mut response: Response, limit: u64, timeout: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Ok(Some(chunk))) = tokio::time::timeout(timeout, response.chunk()).await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 >= limit {
            break;
        }
    }
    bytes
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    errors: Vec<ErrorItem>,
}

#[derive(Deserialize)]
struct ErrorItem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The message of the registry after ": ", without control characters; empty if there is none.
fn registry_message(body: &[u8]) -> String {
    let Ok(ErrorBody { errors }) = serde_json::from_slice(body) else { return String::new() };
    let Some(first) = errors.into_iter().next() else { return String::new() };
    let text = if first.message.is_empty() { first.code } else { first.message };
    let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_of_a_tls_error_is_an_option() {
        for (text, options) in [
            ("invalid peer certificate: UnknownIssuer", &["ca_file", "insecure_skip_verify"][..]),
            ("received corrupt message of type InvalidContentType", &["plain_http"]),
            ("received fatal alert: CertificateRequired", &["cert_file", "key_file"]),
            ("received fatal alert: UnknownCA", &["cert_file", "key_file"]),
            ("received fatal alert: ProtocolVersion", &[]),
            ("Connection refused", &[]),
        ] {
            let remedy = remedy(text);
            assert_eq!(remedy.is_some(), !options.is_empty(), "{text}");
            assert!(options.iter().all(|option| remedy.unwrap_or_default().contains(option)), "{text}: {remedy:?}");
        }
    }

    #[test]
    fn a_tls_server_that_was_asked_without_tls_is_recognized() {
        let go = b"Client sent an HTTP request to an HTTPS server.\n".as_slice();
        let nginx = b"<center>The plain HTTP request was sent to HTTPS port</center>".as_slice();
        for (status, by_tls, body, expected) in [
            (StatusCode::BAD_REQUEST, false, go, true),
            (StatusCode::BAD_REQUEST, false, nginx, true),
            (StatusCode::BAD_REQUEST, true, go, false),
            (StatusCode::BAD_REQUEST, false, br#"{"errors":[{"code":"NAME_INVALID"}]}"#, false),
            (StatusCode::NOT_FOUND, false, go, false),
        ] {
            assert_eq!(remedy_of_a_refused_request(status, by_tls, body).is_some(), expected, "{status} {by_tls}");
        }
    }

    #[test]
    fn registry_messages_are_cleaned() {
        let body = br#"{"errors":[{"code":"DENIED","message":"no\u001b[31m entry"}]}"#;
        assert_eq!(registry_message(body), ": no[31m entry");
        assert_eq!(registry_message(b"<html>"), "");
    }
}
