//! The HTTP APIs of Nomad and Consul: requests, and waiting by blocking queries instead of polling.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use ureq::{Body, http::Response};

use crate::{Context, Failure, Outcome, watch::patient};

/// The header with the ACL token.
const TOKEN: &str = "X-Nomad-Token";

/// The API of one agent.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    http: ureq::Agent,
    /// The ACL token; empty without one.
    token: String,
}

impl Api {
    /// The API at `http://127.0.0.1:port`.
    #[must_use]
    pub fn new(port: u16) -> Self {
        let http = ureq::Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .new_agent();
        Self { base: format!("http://127.0.0.1:{port}"), http, token: String::new() }
    }

    /// The same with an ACL token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// The value for `NOMAD_ADDR`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.base
    }

    /// The `host:port` of the API.
    #[must_use]
    pub fn host(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// The answer to a GET.
    ///
    /// # Errors
    /// Without an answer, or with a status other than 2xx.
    pub fn get(&self, path: &str) -> Outcome<Value> {
        self.query(path).map(|(value, _)| value)
    }

    /// The answer to a PUT.
    ///
    /// # Errors
    /// Without an answer, or with a status other than 2xx.
    pub fn put(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.put_text(path, &body.to_string())
    }

    /// The answer to a PUT of plain text.
    ///
    /// # Errors
    /// Without an answer, or with a status other than 2xx.
    pub fn put_text(&self, path: &str, body: &str) -> Outcome<Value> {
        let request = self.http.put(format!("{}{path}", self.base)).header(TOKEN, &self.token);
        read(request.send(body), path).map(|(value, _)| value)
    }

    /// The answer to a POST.
    ///
    /// # Errors
    /// Without an answer, or with a status other than 2xx.
    pub fn post(&self, path: &str, body: &Value) -> Outcome<Value> {
        let request = self.http.post(format!("{}{path}", self.base)).header(TOKEN, &self.token);
        read(request.send(body.to_string()), path).map(|(value, _)| value)
    }

    /// The answer to a DELETE.
    ///
    /// # Errors
    /// Without an answer, or with a status other than 2xx.
    pub fn delete(&self, path: &str) -> Outcome<Value> {
        read(self.http.delete(format!("{}{path}", self.base)).header(TOKEN, &self.token).call(), path)
            .map(|(value, _)| value)
    }

    /// Waits until `ready` returns a value for the answer to `path`. The path must support blocking queries.
    ///
    /// # Errors
    /// After `limit`, with the last answer.
    pub fn wait<T>(
        &self,
        path: &str,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&Value) -> Option<T>,
    ) -> Outcome<T> {
        let deadline = Instant::now() + patient(limit);
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut index = 0;
        let mut last = String::from("no answer");
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure(format!("waited {limit:?} in vain for {what}; last: {last}")));
            }
            let wait = left.as_millis().clamp(1, 20_000);
            match self.query(&format!("{path}{separator}index={index}&wait={wait}ms")) {
                Ok((value, at)) => {
                    if let Some(found) = ready(&value) {
                        return Ok(found);
                    }
                    last = value.to_string().chars().take(1500).collect();
                    // After a smaller index, a client starts over from 0 (Nomad's documentation of blocking queries).
                    index = if at < index { 0 } else { at };
                }
                // The agent is starting, or it has no leader yet. There is no notification, so this polls.
                Err(error) => {
                    last = error.0;
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn query(&self, path: &str) -> Outcome<(Value, u64)> {
        read(self.http.get(format!("{}{path}", self.base)).header(TOKEN, &self.token).call(), path)
    }
}

/// Fetches a page, as a user of a service does.
///
/// # Errors
/// Without an answer within ten seconds, or with a status other than 2xx.
pub fn fetch(url: &str) -> Outcome<String> {
    let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(Duration::from_secs(10)));
    let mut response = config.build().new_agent().get(url).call().context(url)?;
    response.body_mut().read_to_string().context(url)
}

fn read(response: Result<Response<Body>, ureq::Error>, path: &str) -> Outcome<(Value, u64)> {
    let mut response = response.context(path)?;
    let header = |name: &str| response.headers().get(name)?.to_str().ok()?.parse().ok();
    let index = header("x-nomad-index").or_else(|| header("x-consul-index")).unwrap_or(0);
    let text = response.body_mut().read_to_string().context(path)?;
    if !response.status().is_success() {
        return Err(Failure(format!("{path}: {}: {}", response.status(), text.trim())));
    }
    let value = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).context(path)? };
    Ok((value, index))
}
