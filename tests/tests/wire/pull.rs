//! Images: sources, compressions, and the recoverability of failures.

use std::time::Instant;

use fixtures::{
    busybox::{self, Images},
    image::Compression,
    must::Must,
    registry::Auth,
    wait::{all, patient, seconds},
};
use kit::{
    calls::recoverable,
    node::Node,
    plugin::{Plugin, PluginCommand},
};
use proto::driver::DriverTaskEvent;
use serde_json::json;

async fn runs(node: &Node, plugin: &mut Plugin, image: &str) {
    let task = node.task(image).sh("echo ran").build(plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0, "{image}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "ran\n", "{image}");
}

#[tokio::test]
async fn every_compression_tags_and_digests_work() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for packing in [Compression::Zstd, Compression::Plain, Compression::Gzip] {
        runs(&node, &mut plugin, &images.packed(packing)).await;
    }
    let reference = images.by_digest();
    runs(&node, &mut plugin, &reference).await;
    // Users paste a leading https://, and docker accepts it.
    runs(&node, &mut plugin, &format!("https://{}", images.busybox())).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_resolved_digest_is_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let digest = busybox::image(Compression::Gzip).digest();
    let task = node.task(&images.busybox()).sh("sleep 100").build(&mut plugin).await;
    plugin.started(&task).await;
    for what in ["Downloaded image", "Started container"] {
        let ours = |event: &DriverTaskEvent| event.task_id == task.id() && event.message.starts_with(what);
        let event = plugin.streams.event(what, ours).await;
        assert_eq!(event.annotations.get("digest").map(String::as_str), Some(&*digest), "{event:?}");
    }
    let inspected = plugin.inspect(task.id()).await.must("InspectTask");
    let attributes = inspected.driver.must("the driver's part").attributes;
    assert_eq!(attributes.get("image_digest").map(String::as_str), Some(&*digest), "{attributes:?}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_proxy_of_the_environment_is_used_except_for_loopback() {
    let node = Node::new();
    let images = Images::start().await;
    // The test registry answers as a proxy for any host.
    let proxy = format!("http://{}", images.host());
    let launch = PluginCommand::new(node.root()).env("HTTP_PROXY", &proxy).env("http_proxy", &proxy);
    let options = json!({"registry": {"registry.example:5000": {"plain_http": true}}});
    let mut plugin = node.launch_as(launch, options).await;
    let name = images.busybox().replace(images.host(), "registry.example:5000");
    runs(&node, &mut plugin, &name).await;
    let seen = || images.with(|registry| registry.requests());
    let meant: Vec<_> = seen().into_iter().map(|request| request.proxied).collect();
    assert!(!meant.is_empty());
    assert!(meant.iter().all(|host| host.as_deref() == Some("registry.example:5000")), "{meant:?}");
    // The registry on loopback is contacted directly.
    runs(&node, &mut plugin, &images.busybox()).await;
    assert!(seen().last().must("a request").proxied.is_none());
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_image_is_pulled_once() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    runs(&node, &mut plugin, &images.busybox()).await;
    let blobs = |images: &Images| images.requests().iter().filter(|request| request.contains("/blobs/")).count();
    let (before, all) = (blobs(&images), images.requests().len());
    runs(&node, &mut plugin, &images.busybox()).await;
    assert_eq!(images.requests().len(), all, "a tag that is there is not asked for again");
    // Another image with the same layer.
    let other = images.with_config("other", json!({"Labels": {"other": "image"}}));
    runs(&node, &mut plugin, &other).await;
    assert_eq!(blobs(&images), before + 1, "only its configuration");
    // Everything is still present after a kill of the plugin.
    plugin.process.kill().await;
    let mut plugin = node.launch().await;
    images.stop();
    runs(&node, &mut plugin, &images.busybox()).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn concurrent_tasks_share_one_pull() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(node.task(&images.busybox()).sh("exit 0").build(&mut plugin).await);
    }
    let (a, b, c, d) = tokio::join!(
        plugin.start(&tasks[0]),
        plugin.start(&tasks[1]),
        plugin.start(&tasks[2]),
        plugin.start(&tasks[3])
    );
    for started in [a, b, c, d] {
        started.must("StartTask");
    }
    let layers =
        images.requests().iter().filter(|request| request.starts_with("GET") && request.contains("/blobs/")).count();
    assert!(layers <= 2, "one configuration and one layer: {:?}", images.requests());
    for task in &tasks {
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn credentials_of_the_job_are_used() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let (user, password) = ("ann".to_owned(), "s3cret:x".to_owned());
    let token_for = Some((user.clone(), password.clone()));
    for access in [Auth::Basic { user, password }, Auth::Bearer { user: token_for, realm: None }] {
        let images = Images::start().await;
        images.require(access.clone());
        let reference = images.busybox();
        for (name, password) in [(None, None), (Some("ann"), Some("wrong"))] {
            let mut task = node.task(&reference).sh("true");
            if let (Some(name), Some(password)) = (name, password) {
                task = task.option("auth", json!({"username": name, "password": password}));
            }
            let task = task.build(&mut plugin).await;
            let status = plugin.start(&task).await.err().must("a refusal");
            assert!(!recoverable(&status), "{access:?}: trying again cannot help: {status}");
            assert!(!status.message().contains("wrong"), "{status}");
        }
        let auth = json!({"username": "ann", "password": "s3cret:x"});
        let task = node.task(&reference).sh("true").option("auth", auth).build(&mut plugin).await;
        plugin.start(&task).await.must(&format!("{access:?}"));
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn credentials_of_the_operator_are_used() {
    let node = Node::new();
    let images = Images::start().await;
    images.require(Auth::Basic { user: "ann".into(), password: "s3cret".into() });
    let registry = json!({"registry": {images.host(): {"auth": {"username": "ann", "password": "s3cret"}}}});
    let mut plugin = node.launch_with(registry).await;
    runs(&node, &mut plugin, &images.busybox()).await;
    node.finish(plugin).await;
}

/// A failure that may be gone in a moment is recoverable. Every other failure is final.
#[tokio::test]
async fn pull_failures_are_recoverable_or_final() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let mut failures = vec![("missing", images.missing(), false), ("corrupt", images.corrupt(), false)];
    let broken = Images::start().await;
    broken.fail(503);
    failures.push(("unavailable", broken.busybox(), true));
    let denied = Images::start().await;
    denied.fail(403);
    failures.push(("denied", denied.busybox(), false));
    let down = Images::start().await;
    down.stop();
    failures.push(("down", down.busybox(), true));
    failures.push(("no such host", "registry.invalid/x:1".to_owned(), true));
    let mut tasks = Vec::new();
    for (what, reference, again) in failures {
        let task = node.task(&reference).sh("true").option("image_pull_timeout", json!("20s")).build(&mut plugin).await;
        tasks.push((what, reference, again, task));
    }
    all(tasks.iter().map(async |(what, reference, again, task)| {
        let begun = Instant::now();
        let status = plugin.start(task).await.err().must(what);
        assert!(begun.elapsed() < patient(seconds(30)), "{what}: {:?}", begun.elapsed());
        assert_eq!(recoverable(&status), *again, "{what}: {status}");
        assert!(status.message().contains(reference), "{what}: the text names the image: {status}");
    }))
    .await;
    // No part of a corrupt image is used later.
    let task = node.task(&images.corrupt()).sh("true").build(&mut plugin).await;
    plugin.start(&task).await.err().must("corrupt again");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_image_configuration_is_used() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let fields = json!({
        "Entrypoint": ["/bin/echo", "entry"], "Cmd": ["cmd"], "WorkingDir": "/home/user", "User": "1000:50",
        "Volumes": {"/var/data": {}}, "Env": ["PATH=/bin", "A=image", "B=image"]
    });
    let reference = images.with_config("described", fields);
    let output = async |options: &[(&str, serde_json::Value)], plugin: &mut Plugin| {
        let mut task = node.task(&reference).env("B", "job");
        for (name, value) in options {
            task = task.option(name, value.clone());
        }
        let task = task.build(plugin).await;
        plugin.started(&task).await;
        plugin.wait(task.id()).await;
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        task.stdout().all(seconds(5)).await
    };
    assert_eq!(output(&[], &mut plugin).await, "entry cmd\n");
    assert_eq!(output(&[("args", json!(["a", "b"]))], &mut plugin).await, "entry a b\n");
    assert_eq!(output(&[("command", json!("c")), ("args", json!(["d"]))], &mut plugin).await, "entry c d\n");
    let script = json!(["/bin/sh", "-c", "echo $A $B; pwd; id -u; id -g"]);
    assert_eq!(output(&[("entrypoint", script)], &mut plugin).await, "image job\n/home/user\n1000\n50\n");
    // With the job's own entrypoint, the image's command is not used.
    assert_eq!(output(&[("entrypoint", json!(["/bin/echo", "mine"]))], &mut plugin).await, "mine\n");
    node.finish(plugin).await;
}
