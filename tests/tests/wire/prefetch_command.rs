//! `oci-rs image prefetch`: images are pulled before their tasks, by name or for job files.

use std::fs;

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
};
use kit::node::Node;
use serde_json::json;

use crate::operator::{Said, run};

/// `oci-rs image prefetch … --data-dir …`
async fn prefetch(node: &Node, args: &[&str]) -> Said {
    let directory = node.data_dir().display().to_string();
    run(node, &[&["image", "prefetch"], args, &["--data-dir", &directory]].concat()).await
}

#[tokio::test]
async fn the_command_pulls_what_is_missing_and_says_what_it_did() {
    let (node, images) = (Node::new(), Images::start().await);
    let (first, second) =
        (images.busybox(), images.with_layers("second", [Layer::of([Entry::file("home/second", "2")])]));
    let said = prefetch(&node, &[&first, &first]).await.well();
    assert!(said.out.starts_with(&format!("{first} is pulled, ")) && said.out.lines().count() == 1, "{}", said.out);

    let task = |image: &str| json!({ "Name": "t", "Driver": "oci-rs", "Config": { "image": image } });
    let tasks = [task(&first), task(&second), task("r.example/${meta.app}:1")];
    let job = json!({ "ID": "shop", "TaskGroups": [{ "Name": "web", "Tasks": tasks }] });
    let file = node.root().join("shop.json");
    fs::write(&file, json!({ "Job": job }).to_string()).must("write the job");
    let before = images.requests().len();
    let said = prefetch(&node, &["-f", &file.display().to_string(), "--json"]).await.well();
    let (json, path) = (said.json(), format!("/{}", first.split_once('/').must("a name").1.replace(":1", "/")));
    let outcome = |name: &str| {
        let all = json["images"].as_array().must("images");
        all.iter().find(|image| image["reference"] == name).must(name)["outcome"].clone()
    };
    assert_eq!((outcome(&first), outcome(&second)), (json!("present"), json!("pulled")), "{json}");
    assert_eq!(json["skipped"][0]["reason"], "variables", "{json}");
    assert!(said.err.contains("shop/web/t") && said.err.contains("${meta.app}"), "{}", said.err);
    assert!(!images.requests()[before..].iter().any(|request| request.contains(&path)), "no question about {path}");

    let said = prefetch(&node, &[&first, &images.missing()]).await;
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    assert!(said.out.contains(&format!("{first} was here")) && said.err.contains("1 of 2 images are not here"));
    let left = fs::read_dir(node.data_dir().join("images/leases")).must("the leases").count();
    assert_eq!(left, 0, "an image is not held");
    node.finish_without_plugin().await;
}
