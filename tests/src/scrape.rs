//! Scrapes of a plugin's metrics, over HTTP as Prometheus does.

use std::{collections::BTreeMap, io, time::Duration};

use fixtures::{
    must::Must,
    wait::{seconds, within},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use crate::plugin::Plugin;

/// The media type by which Prometheus asks for OpenMetrics.
pub const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

/// The answer to one request.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// The HTTP status.
    pub status: u16,
    /// The header `Content-Type`.
    pub content_type: String,
    /// The body.
    pub text: String,
}

/// One sample of a scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The name with its suffix.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// The address at which a plugin with `metrics { address = "127.0.0.1:0" }` listens.
pub async fn address(plugin: &Plugin) -> String {
    let served = |line: &str| line.contains("metrics are served");
    let line = plugin.process.stderr.find(seconds(10), "the line with the address", served).await;
    let line: serde_json::Value = serde_json::from_str(&line).must("a log line");
    line["address"].as_str().must("an address").to_owned()
}

/// Scrapes the metrics.
pub async fn scrape(address: &str) -> Scrape {
    let answer = request(address, "GET", "/metrics", OPENMETRICS).await.must("a scrape");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.ends_with("# EOF\n"), "a whole text: {}", answer.text);
    answer
}

/// Scrapes until a condition is met.
pub async fn scrape_until(address: &str, what: &str, met: impl Fn(&Scrape) -> bool) -> Scrape {
    let found = async {
        loop {
            let scrape = scrape(address).await;
            if met(&scrape) {
                return scrape;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    within(seconds(20), what, found).await
}

/// Sends one request to `host:port` or `unix://path`.
pub async fn request(address: &str, method: &str, path: &str, accept: &str) -> io::Result<Scrape> {
    match address.strip_prefix("unix://") {
        Some(socket) => exchange(UnixStream::connect(socket).await?, method, path, accept).await,
        None => exchange(TcpStream::connect(address).await?, method, path, accept).await,
    }
}

async fn exchange(
    mut connection: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    accept: &str,
) -> io::Result<Scrape> {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nAccept: {accept}\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    within(seconds(20), "the answer", connection.read_to_string(&mut answer)).await?;
    let (head, text) = answer.split_once("\r\n\r\n").must("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).must("a status");
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-type").then(|| value.to_owned())
    };
    Ok(Scrape { status, content_type: head.lines().find_map(header).unwrap_or_default(), text: text.to_owned() })
}

impl Scrape {
    /// All samples.
    pub fn samples(&self) -> Vec<Sample> {
        self.text.lines().filter(|line| !line.starts_with('#')).map(|line| parse(line).must(line)).collect()
    }

    /// The samples of a name that have these labels.
    pub fn matching(&self, name: &str, labels: &[(&str, &str)]) -> Vec<Sample> {
        let mut samples = self.samples();
        samples.retain(|sample| {
            let has = |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|found| found == value);
            sample.name == name && labels.iter().all(has)
        });
        samples
    }

    /// The sum of the samples of a name that have these labels; `None` if there are none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found = self.matching(name, labels);
        (!found.is_empty()).then(|| found.iter().map(|sample| sample.value).sum())
    }
}

/// Parses a line such as `name{label="value"} 1`.
fn parse(line: &str) -> Option<Sample> {
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = head.split_once('{') else {
        return Some(Sample { name: head.to_owned(), labels: BTreeMap::new(), value });
    };
    let mut rest = labels.strip_suffix('}')?;
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"")?;
        let (mut text, mut escaped, mut end) = (String::new(), false, None);
        for (at, c) in after.char_indices() {
            match c {
                c if escaped => {
                    text.push(if c == 'n' { '\n' } else { c });
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => {
                    end = Some(at);
                    break;
                }
                c => text.push(c),
            }
        }
        labels.insert(label.to_owned(), text);
        rest = after.get(end? + 1..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn samples_are_parsed_with_escaped_labels() {
        let sample = parse(r#"a_total{x="1,\"}",y="b\\c"} 2.5"#).unwrap();
        assert_eq!((sample.name.as_str(), sample.value), ("a_total", 2.5));
        assert_eq!((sample.labels["x"].as_str(), sample.labels["y"].as_str()), ("1,\"}", "b\\c"));
        assert!(parse("a 1").unwrap().labels.is_empty() && parse("a").is_none());
    }
}
