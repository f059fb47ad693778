//! Credentials that are not in the job: docker's `config.json`, credential helpers, and access to local images.

use std::path::Path;

use fixtures::{busybox::Images, must::Must, registry::Auth};
use kit::{
    calls::recoverable,
    node::Node,
    plugin::{Plugin, PluginCommand},
};
use serde_json::json;

const USER: &str = "ann";
const PASSWORD: &str = "s3cret";

async fn private() -> Images {
    let images = Images::start().await;
    images.require(Auth::Basic { user: USER.into(), password: PASSWORD.into() });
    images
}

fn write_config(path: &Path, images: &Images, password: &str) {
    let config = json!({"auths": {images.host(): {"username": USER, "password": password}}});
    std::fs::write(path, config.to_string()).must("config.json");
}

async fn runs(node: &Node, plugin: &mut Plugin, image: &str) {
    let task = node.task(image).sh("true").build(plugin).await;
    plugin.start(&task).await.must("StartTask");
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
}

/// The error of a start that must fail permanently. It contains no secret.
async fn refused(node: &Node, plugin: &mut Plugin, image: &str) -> String {
    let task = node.task(image).sh("true").build(plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(!recoverable(&status), "{status}");
    assert!(!status.message().contains(PASSWORD), "{status}");
    status.message().to_owned()
}

#[tokio::test]
async fn the_docker_config_file_is_read_at_each_pull() {
    let node = Node::new();
    let images = private().await;
    let path = node.root().join("config.json");
    let mut plugin = node.launch_with(json!({"auth": {"config": path.to_str()}})).await;
    let missing = refused(&node, &mut plugin, &images.busybox()).await;
    assert!(missing.contains("config.json") && missing.contains("auth_soft_fail"), "{missing}");
    // Without credentials, the registry refuses the pull.
    let task = node.task(&images.busybox()).sh("true").option("auth_soft_fail", json!(true)).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("without credentials"), "{status}");
    write_config(&path, &images, "old");
    refused(&node, &mut plugin, &images.busybox()).await;
    write_config(&path, &images, PASSWORD);
    runs(&node, &mut plugin, &images.busybox()).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_credential_helper_is_used() {
    let node = Node::new();
    let images = private().await;
    let directory = node.root().join("helpers");
    std::fs::create_dir(&directory).must("a directory for helpers");
    let helper = |name: &str, text: &str| {
        let path = directory.join(format!("docker-credential-{name}"));
        // Another process writes the file: a file that is open for writing cannot be executed, and other tests fork.
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let status = std::process::Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status();
        assert!(status.must("a helper").success());
    };
    let answer = format!(
        r#"read host; [ "$host" = {} ] && echo '{{"Username":"{USER}","Secret":"{PASSWORD}"}}'"#,
        images.host()
    );
    helper("kit", &format!("echo {PASSWORD} >&2; exit 1"));
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").must("PATH"));
    let launch = PluginCommand::new(node.root()).env("PATH", &path);
    let mut plugin = node.launch_as(launch, json!({"auth": {"helper": "kit"}})).await;
    let failed = refused(&node, &mut plugin, &images.busybox()).await;
    assert!(failed.contains("docker-credential-kit") && failed.contains("exit code 1"), "{failed}");
    helper("kit", &answer);
    runs(&node, &mut plugin, &images.busybox()).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_job_without_credentials_cannot_use_an_image_that_another_job_pulled() {
    let node = Node::new();
    let images = private().await;
    let mut plugin = node.launch().await;
    let auth = json!({"username": USER, "password": PASSWORD});
    let task = node.task(&images.busybox()).sh("true").option("auth", auth).build(&mut plugin).await;
    plugin.start(&task).await.must("StartTask");
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let denied = refused(&node, &mut plugin, &images.busybox()).await;
    assert!(denied.contains("verify_access"), "{denied}");
    // The operator can disable this check.
    plugin.process.kill().await;
    let mut plugin = node.launch_with(json!({"verify_access": false})).await;
    runs(&node, &mut plugin, &images.busybox()).await;
    node.finish(plugin).await;
}
