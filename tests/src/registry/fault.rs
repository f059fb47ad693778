//! What goes wrong on purpose, and with which requests.

use std::{collections::HashMap, time::Duration};

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Action {
    /// Answer with this status and these headers.
    Status(u16, Vec<(String, String)>),
    /// Close the connection after so many bytes of the body.
    Cut(usize),
    /// Say nothing more after so many bytes of a body that has more.
    Stall(usize),
    /// Serve this body instead.
    Body(Vec<u8>),
    /// Serve a body that does not end.
    Endless,
    /// Serve the whole body whatever range was asked for.
    IgnoreRange,
    /// Redirect there; `{path}` stands for the path that was asked for.
    Redirect(String),
    /// Wait before answering.
    Delay(Duration),
    /// Add a header to the answer.
    Header(String, String),
}

/// A disturbance of some requests.
#[derive(Debug, Clone)]
pub struct Fault {
    method: Option<String>,
    path: String,
    times: usize,
    skip: usize,
    pub(super) action: Action,
}

impl Fault {
    /// Disturbs all requests whose path contains `path`.
    pub fn on(path: impl Into<String>, action: Action) -> Self {
        Self { method: None, path: path.into(), times: usize::MAX, skip: 0, action }
    }

    /// Only so many of them.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Not the first few.
    pub fn after(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Only with this method.
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    pub(super) fn take(&mut self, request: &Request) -> bool {
        let matches = request.path.contains(&self.path)
            && self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.times > 0;
        if matches && self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if matches && self.times != usize::MAX {
            self.times -= 1;
        }
        matches
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The host that was meant, if we were asked as a proxy.
    pub proxied: Option<String>,
    pub(super) headers: HashMap<String, String>,
    /// The body of a POST.
    pub body: String,
}

impl Request {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(&name.to_ascii_lowercase()).map(String::as_str)
    }
}
