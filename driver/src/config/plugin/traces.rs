//! The plugin block's options for traces.

use hyper::header::{HeaderName, HeaderValue};
use image_store::Secret;

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of `traces`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "endpoint",
        OptionType::String,
        Words("no traces"),
        "URL of a collector that accepts OTLP over HTTP with JSON, as in `http://127.0.0.1:4318`. Without a path it is \
         `/v1/traces`",
    ),
    OptionSpec::honoured(
        "headers",
        OptionType::StringMaps,
        Words("none"),
        "further headers of requests to the collector, for example `Authorization`",
    ),
];

/// The path of a collector without a path.
const PATH: &str = "/v1/traces";

/// Where traces are sent.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// The URL.
    pub endpoint: String,
    /// Further headers.
    pub headers: Vec<(String, Secret)>,
}

/// Reads the block. `None`: no traces.
pub fn read(traces: &ConfigBlock) -> Option<TraceOptions> {
    let headers: Vec<_> =
        traces.string_map("headers").into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    let Some(text) = traces.string("endpoint") else {
        if !headers.is_empty() {
            traces.error("headers", "has no effect without endpoint", "set endpoint, or remove the block");
        }
        return None;
    };
    for (name, value) in &headers {
        if name.parse::<HeaderName>().is_err() {
            traces.error("headers", format!("{name:?} is no name of a header"), "write one as in `Authorization`");
        } else if value.expose().parse::<HeaderValue>().is_err() {
            let remedy = "a value has no line breaks and no other control characters";
            traces.error("headers", format!("the value of {name:?} cannot be sent"), remedy);
        }
    }
    let endpoint = endpoint(&text);
    if endpoint.is_none() {
        let remedy = "write it as in \"http://127.0.0.1:4318\" or \"https://collector.example/v1/traces\"";
        traces.error("endpoint", format!("{text:?} is no URL of a collector"), remedy);
    }
    Some(TraceOptions { endpoint: endpoint?, headers })
}

fn endpoint(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_host = !host.is_empty() && !host.contains(['@', ' ', '?', '#']);
    let url = if path.is_empty() { format!("{}{PATH}", text.trim_end_matches('/')) } else { text.to_owned() };
    is_host.then_some(url)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::endpoint;
    use crate::{
        config::{decode_plugin, from_json},
        name::DriverName,
    };

    #[test]
    fn headers_that_cannot_be_sent_are_errors_of_the_configuration() {
        for (name, value, part) in [
            ("Authorization", "Bearer hunter2", ""),
            ("a header", "x", "\"a header\" is no name of a header"),
            ("X-Team", "hunter2\nX-Other: y", "the value of \"X-Team\" cannot be sent"),
        ] {
            let block = json!({ "traces": { "endpoint": "http://127.0.0.1:4318", "headers": { name: value } } });
            let decoded = decode_plugin(&from_json(&block), DriverName::OciRs);
            let errors = decoded.err().map(|errors| errors.to_string()).unwrap_or_default();
            assert_eq!(errors.is_empty(), part.is_empty(), "{errors}");
            assert!(errors.contains(part) && !errors.contains("hunter2"), "{errors}");
        }
    }

    #[test]
    fn a_collector_without_a_path_gets_that_of_the_specification() {
        assert_eq!(endpoint("http://127.0.0.1:4318").as_deref(), Some("http://127.0.0.1:4318/v1/traces"));
        assert_eq!(endpoint("https://c.example/").as_deref(), Some("https://c.example/v1/traces"));
        assert_eq!(endpoint("https://c.example/otlp/v1/traces").as_deref(), Some("https://c.example/otlp/v1/traces"));
        for wrong in ["", "127.0.0.1:4318", "http://", "grpc://c.example", "http://u:p@c.example"] {
            assert_eq!(endpoint(wrong), None, "{wrong}");
        }
    }
}
