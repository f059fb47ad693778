//! Traces of starts, received by a collector of the test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use fixtures::{busybox::Images, must::Must};
use kit::node::Node;
use serde_json::{Value as Json, json};

/// A collector that accepts everything: its address, and the received requests (path, header lines, body).
pub(crate) fn collector() -> (String, mpsc::Receiver<(String, Json)>) {
    let listener = TcpListener::bind("127.0.0.1:0").must("a port");
    let address = listener.local_addr().must("its address").to_string();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.must("a connection");
            let mut reader = BufReader::new(connection.try_clone().must("the connection"));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|length| length > 0) {}
            let length =
                head.to_ascii_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).must("the body");
            connection
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
                .must("an answer");
            // The test may have ended.
            sender.send((head, serde_json::from_slice(&body).must("JSON"))).ok();
        }
    });
    (address, requests)
}

/// The value of an attribute of a span or a resource.
pub(crate) fn attribute<'a>(of: &'a Json, name: &str) -> Option<&'a str> {
    let attributes = of["attributes"].as_array()?;
    attributes.iter().find(|one| one["key"] == name)?["value"]["stringValue"].as_str()
}

#[tokio::test]
async fn a_start_is_a_trace_that_names_its_allocation() {
    let node = Node::new();
    let (address, requests) = collector();
    let headers = json!([{"X-Scope": "team"}]);
    let endpoint = format!("http://{address}");
    let mut plugin = node.launch_with(json!({"traces": {"endpoint": endpoint, "headers": headers}})).await;
    let images = Images::start().await;
    let image = images.busybox();
    let task = node.task(&image).sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    let (head, body) = requests.recv_timeout(Duration::from_secs(60)).must("a trace");
    assert!(head.starts_with("POST /v1/traces ") && head.to_lowercase().contains("x-scope: team"), "{head}");
    let resource = &body["resourceSpans"][0];
    assert_eq!(attribute(&resource["resource"], "service.name"), Some("oci-rs"));
    let spans = resource["scopeSpans"][0]["spans"].as_array().must("spans");
    let names: Vec<_> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["start task", "image", "plan", "prepare", "volumes", "network", "container"]);
    let whole = &spans[0];
    for (name, value) in [
        ("nomad.alloc.id", &task.config.alloc_id),
        ("nomad.task.name", &task.config.name),
        ("nomad.job.name", &task.config.job_name),
        ("container.image.name", &image),
    ] {
        assert_eq!(attribute(whole, name), Some(value.as_str()), "{whole}");
    }
    let time = |span: &Json, end: &str| span[end].as_str().and_then(|text| text.parse::<u64>().ok()).must(end);
    for part in &spans[1..] {
        assert_eq!((&part["parentSpanId"], &part["traceId"]), (&whole["spanId"], &whole["traceId"]));
        assert!(time(part, "startTimeUnixNano") >= time(whole, "startTimeUnixNano"), "{part}");
        assert!(time(part, "endTimeUnixNano") <= time(whole, "endTimeUnixNano"), "{part}");
    }
    assert_eq!(
        (attribute(&spans[1], "registry"), attribute(&spans[1], "cached")),
        (Some(images.host()), Some("false"))
    );
    let missing = node.task(&images.missing()).sh("true").build(&mut plugin).await;
    let refused = plugin.start(&missing).await.err().must("an image that does not exist");
    let (_, body) = requests.recv_timeout(Duration::from_secs(60)).must("another trace");
    let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
    assert_eq!(spans.as_array().map(Vec::len), Some(2), "the phases until the failure: {spans}");
    let text = spans[0]["status"]["message"].as_str().must("a message");
    assert!(spans[0]["status"]["code"] == 2 && refused.message().contains(text), "{spans}, {refused}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// A collector that is gone costs a line in the log, and no time of a start.
#[tokio::test]
async fn a_start_does_not_wait_for_a_collector() {
    let node = Node::new();
    // The kernel accepts the connections, and nothing answers.
    let silent = TcpListener::bind("127.0.0.1:0").must("a port");
    let endpoint = format!("http://{}", silent.local_addr().must("its address"));
    let mut plugin = node.launch_with(json!({"traces": {"endpoint": endpoint}})).await;
    let images = Images::start().await;
    for _ in 0..3 {
        let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
        plugin.started(&task).await;
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    assert!(!plugin.process.stderr.so_far().iter().any(|line| line.contains("traces.endpoint")), "it still waits");
    drop(silent);
    let failed = |line: &str| line.contains("traces.endpoint");
    let line = plugin.process.stderr.find(Duration::from_secs(30), "the failure", failed).await;
    assert!(line.contains(r#""@level":"warn""#), "{line}");
    node.finish(plugin).await;
}
