//! The time in which a host volume must be filled. Tests shorten the 45 seconds of the plugin.

use std::{
    fs,
    time::{Duration, Instant},
};

use fixtures::{
    image::{self, Entry, Layer},
    must::Must,
    registry::{Action, Fault},
    wait::{patient, seconds},
};
use serde_json::json;

use crate::{
    host_volume_content::{OTHER, set_up},
    host_volumes::{Client, ID, MEBIBYTE, Said, Spec},
};

/// A call with another limit than 45 seconds.
fn create_within(client: &Client, spec: &Spec, limit: Duration) -> Said {
    let mut call = client.command("create", spec);
    Said(call.env("OCI_RS_VOLUME_LIMIT_MS", limit.as_millis().to_string()).output().must("a call"))
}

/// The registry sends only the beginning of a layer.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
async fn a_filling_that_takes_too_long_fails_and_the_next_call_downloads_the_missing_layers() {
    if !cfg!(debug_assertions) {
        return println!("skipped: a release build has no other limit");
    }
    let (node, plugin, client, images) = set_up(json!({}), Client::new()).await;
    for capacity in [0, 16 * MEBIBYTE] {
        let name = format!("slow-{capacity}");
        let quick = Layer::of([Entry::dir("srv"), Entry::file("srv/quick", name.clone())]);
        let slow = Layer::of([Entry::file("srv/slow", name.repeat(1000))]);
        let [of_quick, of_slow] = [&quick, &slow].map(|layer| image::digest(&layer.blob()));
        let name = images.of_layers(&name, [quick, slow]);
        images.with(|registry| registry.fault(Fault::on(format!("/blobs/{of_slow}"), Action::Stall(10))));
        let spec = Spec { parameters: json!({"image": name}), ..Spec::limited(0, capacity) };
        let (begin, limit) = (Instant::now(), patient(seconds(3)));
        let refusal = create_within(&client, &spec, limit).refusal();
        let took = begin.elapsed();
        assert!((limit..limit + patient(seconds(15))).contains(&took), "{took:?}: {refusal}");
        let remedy = "complete layers stay on the node: run `oci-rs image pull` there, then make the volume";
        assert!(refusal.contains("parameter image: pulling") && refusal.ends_with(remedy), "{refusal}");
        client.assert_empty();
        images.with(|registry| {
            registry.heal();
            registry.forget_requests();
        });
        client.create(&spec).well();
        let requests = images.requests();
        let requested = |digest: &str| requests.iter().any(|request| request.contains(digest));
        assert!(requested(&of_slow) && !requested(&of_quick), "{requests:?}");
        assert!(["srv/quick", "srv/slow"].iter().all(|file| client.path(ID).join(file).exists()));
        client.delete(&spec).well();
        client.assert_empty();
    }
    node.finish(plugin).await;
}

#[tokio::test]
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
async fn a_copy_that_takes_too_long_names_its_remedy_and_leaves_nothing() {
    if !cfg!(debug_assertions) {
        return println!("skipped: a release build has no other limit");
    }
    let (node, plugin, client, images) = set_up(json!({}), Client::in_memory()).await;
    let files = (0..3000).map(|number| Entry::file(format!("file-{number}"), "x"));
    let spec = Spec::directory(json!({"image": images.of_layers("many", [Layer::of(files)])}));
    client.create(&spec).well();
    let copy = Spec { id: OTHER, ..Spec::directory(json!({"from": ID})) };
    let refusal = create_within(&client, &copy, Duration::ZERO).refusal();
    let remedy = "the volume was not filled within 0 seconds: put host_volumes_dir on a file system with reflinks";
    assert!(refusal.contains("parameter from: ") && refusal.contains(remedy), "{refusal}");
    assert!(client.own() == [ID] && !client.path(OTHER).exists(), "{:?}", client.own());
    client.delete(&spec).well();
    // The node has the image now. Limits that only let it be found end in the copy, which takes longer.
    let mut limit = Duration::from_millis(10);
    let refusal = (0..200).find_map(|_| {
        let said = create_within(&client, &spec, limit);
        if said.0.status.success() {
            client.delete(&spec).well();
            limit = Duration::from_millis(10);
            return None;
        }
        client.assert_empty();
        limit = limit * 5 / 4;
        Some(said.refusal()).filter(|refusal| !refusal.contains("pulling"))
    });
    let refusal = refusal.must("a refusal during the copy");
    let parts = ["parameter image: ", "the volume was not filled within ", " seconds: mount the image without a copy"];
    assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    client.create(&spec).well();
    assert_eq!(fs::read_dir(client.path(ID)).must("the volume").count(), 3000);
    client.delete(&spec).well();
    client.assert_empty();
    node.finish(plugin).await;
}
