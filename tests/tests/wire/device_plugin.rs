//! The device plugin `oci-rs-cdi` over the protocol of an agent, with real device nodes.

use std::{fs, os::unix::fs::symlink, path::Path};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{seconds, within},
};
use kit::{
    hcl,
    node::Node,
    plugin::{Plugin, PluginCommand, binary},
};
use proto::{
    base::{ConfigSchemaRequest, PluginInfoRequest, PluginType},
    device::{
        ContainerReservation, DeviceGroup, FingerprintRequest, FingerprintResponse, ReserveRequest, StatsRequest,
        device_plugin_client::DevicePluginClient,
    },
    structs::attribute::Value,
};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value as Json, json};
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::cdi::{IDLE, Specs, hook_program};

/// The device plugin of a node: a link to the binary.
async fn launch(node: &Node, options: Json) -> Plugin {
    let link = node.root().join("oci-rs-cdi");
    if !link.exists() {
        symlink(binary(), &link).must("a link to the binary");
    }
    let plugin = PluginCommand::new(node.root()).binary(&link).connect().await;
    let packed = plugin.encode_config(&options).await;
    plugin.set_config(packed, None).await.must("SetConfig");
    plugin
}

fn client(plugin: &Plugin) -> DevicePluginClient<Channel> {
    DevicePluginClient::new(plugin.channel())
}

async fn end(mut plugin: Plugin) {
    let ended = plugin.streams.ended();
    assert!(ended.is_empty(), "streams ended that must stay open: {ended:?}");
    let status = plugin.shutdown().await;
    assert!(status.success(), "the plugin ended with {status}");
    assert!(!plugin.handshake.socket.exists(), "the socket is left behind");
}

async fn next(fingerprints: &mut Streaming<FingerprintResponse>) -> Vec<DeviceGroup> {
    let message = within(seconds(20), "a fingerprint", fingerprints.message()).await.must("a fingerprint");
    message.must("no end of the stream").device_group
}

/// The devices of the only group: id, and why it is unhealthy.
fn devices(groups: &[DeviceGroup]) -> Vec<(&str, &str)> {
    let [group] = groups else { panic!("not one group: {groups:?}") };
    let devices = group.devices.iter();
    devices
        .map(|device| {
            assert_eq!(device.healthy, device.health_description.is_empty(), "{device:?}");
            assert!(device.hw_locality.is_some());
            (device.id.as_str(), device.health_description.as_str())
        })
        .collect()
}

async fn reserve(plugin: &Plugin, ids: &[&str]) -> Result<ContainerReservation, Status> {
    let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    let answer = client(plugin).reserve(ReserveRequest { device_ids }).await?;
    Ok(answer.into_inner().container_res.must("a reservation"))
}

#[tokio::test]
async fn a_link_with_its_name_is_the_device_plugin() {
    let node = Node::new();
    let plugin = launch(&node, json!({})).await;
    let info = plugin.base().plugin_info(PluginInfoRequest {}).await.must("PluginInfo").into_inner();
    assert_eq!((info.r#type(), info.name.as_str()), (PluginType::Device, "oci-rs-cdi"));
    assert_eq!(info.plugin_api_versions, ["v0.1.0"]);
    let schema = plugin.base().config_schema(ConfigSchemaRequest {}).await.must("ConfigSchema").into_inner().spec;
    let schema = schema.must("a schema");
    assert_eq!(hcl::schema_faults(&schema), Vec::<String>::new());
    assert_eq!(hcl::keys(&schema).into_iter().collect::<Vec<_>>(), ["kind", "kinds", "spec_dirs"]);
    let health = HealthCheckRequest { service: "plugin".to_owned() };
    let health = HealthClient::new(plugin.channel()).check(health).await.must("the health").into_inner();
    assert_eq!(health.status(), ServingStatus::Serving);

    let wrong = plugin.encode_config(&json!({"spec_dirs": ["cdi"], "kind": {"gpu": {"replicas": 0}}})).await;
    let refused = plugin.set_config(wrong, None).await.err().must("a refusal");
    assert_eq!(refused.code(), Code::InvalidArgument);
    for part in ["spec_dirs: \"cdi\" is not an absolute path", "kind[\"gpu\"]", "replicas: 0 is not possible"] {
        assert!(refused.message().contains(part), "{refused:?}");
    }
    end(plugin).await;
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn devices_that_come_and_go_reach_a_running_plugin() {
    let node = Node::new();
    let directory = node.root().join("cdi");
    let plugin = launch(&node, json!({"spec_dirs": [directory]})).await;
    let mut fingerprints = client(&plugin).fingerprint(FingerprintRequest {}).await.must("Fingerprint").into_inner();
    assert_eq!(next(&mut fingerprints).await, [], "the directory does not exist");

    let bus = node.root().join("bus");
    let (there, later) = (Path::new("/dev/null"), bus.join("later"));
    let edits = |path: &Path| json!({"deviceNodes": [{"path": "/dev/test", "hostPath": path}]});
    let specs = Specs::of(&node);
    // The file gets its name when it is whole, as vendors write it.
    specs.write("spec.tmp", "vendor.test/class", &json!({"a": edits(there), "b": edits(&later)}), &json!({}));
    fs::rename(specs.path("spec.tmp"), specs.path("spec.json")).must("the spec's name");
    let missing = format!("{}: No such file or directory (os error 2)", later.display());
    let (a, b) = ("vendor.test/class=a", "vendor.test/class=b");
    let groups = next(&mut fingerprints).await;
    assert_eq!(devices(&groups), [(a, ""), (b, &missing)]);
    let [group] = groups.as_slice() else { panic!("{groups:?}") };
    let names = [&group.vendor, &group.device_type, &group.device_name].map(String::as_str);
    assert_eq!(names, ["vendor.test", "class", "cdi"]);
    let refused = reserve(&plugin, &[b]).await.err().must("a refusal");
    assert!(refused.message().contains(&missing) && refused.code() == Code::InvalidArgument, "{refused:?}");

    // The node is plugged in, and out.
    fs::create_dir(&bus).must("a directory of nodes");
    mknodat(CWD, &later, FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).must("a node");
    assert_eq!(devices(&next(&mut fingerprints).await), [(a, ""), (b, "")]);
    reserve(&plugin, &[b]).await.must("a reservation");
    fs::remove_file(&later).must("remove the node");
    assert_eq!(devices(&next(&mut fingerprints).await), [(a, ""), (b, &missing)]);

    // Statistics tell the same.
    let interval = prost_types::Duration { seconds: 1, nanos: 0 };
    let request = StatsRequest { collection_interval: Some(interval) };
    let mut stats = client(&plugin).stats(request).await.must("Stats").into_inner();
    let message = within(seconds(20), "statistics", stats.message()).await.must("statistics").must("no end");
    let summary = |id: &str| {
        let stats = message.groups[0].instance_stats.get(id).must("the device");
        assert!(stats.timestamp.is_some() && stats.stats.is_some());
        stats.summary.clone().must("a summary").string_val.must("text")
    };
    assert_eq!((summary(a).as_str(), summary(b).as_str()), ("healthy", missing.as_str()));

    // A spec that cannot be used has no devices, and the log tells why.
    fs::write(specs.path("spec.json"), "{}").must("a spec");
    assert_eq!(next(&mut fingerprints).await, []);
    plugin.process.stderr.find(seconds(10), "the warning", |line| line.contains("spec.json: missing field")).await;
    let refused = reserve(&plugin, &[a]).await.err().must("a refusal");
    assert!(refused.message().contains("no spec has devices of the kind vendor.test/class"), "{refused:?}");
    assert!(refused.message().contains(&format!("searched in {}", directory.display())), "{refused:?}");
    end(plugin).await;
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn groups_have_the_operators_names_replicas_and_the_attributes_of_specs() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let devices_of = |names: &[&str]| {
        let devices = names.iter().map(|name| ((*name).to_owned(), json!({"env": ["A=b"]})));
        Json::Object(devices.collect())
    };
    specs.write("a.json", "vendor.test/a", &devices_of(&["0", "1"]), &json!({}));
    specs.write("b.json", "vendor.test/b", &devices_of(&["0"]), &json!({}));
    specs.write("other.json", "other.test/c", &devices_of(&["0"]), &json!({}));
    let mut annotated: Json = serde_json::from_slice(&fs::read(specs.path("b.json")).must("a spec")).must("JSON");
    annotated["annotations"] = json!({"oci-rs/name": "model", "oci-rs/memory": "80 GiB", "oci-rs/ecc": "true"});
    annotated["cdiVersion"] = json!("0.6.0");
    fs::write(specs.path("b.json"), annotated.to_string()).must("a spec with annotations");
    let options = json!({
        "spec_dirs": [node.root().join("cdi")],
        "kinds": ["vendor.test/*"],
        "kind": {"vendor.test/a": {"replicas": 2, "name": "shared"}},
    });
    let plugin = launch(&node, options).await;
    let mut fingerprints = client(&plugin).fingerprint(FingerprintRequest {}).await.must("Fingerprint").into_inner();
    let groups = next(&mut fingerprints).await;
    let [shared, model] = groups.as_slice() else { panic!("{groups:?}") };
    let ids: Vec<&str> = shared.devices.iter().map(|device| device.id.as_str()).collect();
    assert_eq!(ids, ["vendor.test/a=0#1", "vendor.test/a=0#2", "vendor.test/a=1#1", "vendor.test/a=1#2"]);
    assert_eq!((shared.device_name.as_str(), model.device_name.as_str()), ("shared", "model"));
    let attribute = |name: &str| {
        let attribute = model.attributes.get(name).must(name);
        (attribute.value.clone(), attribute.unit.as_str())
    };
    assert_eq!(attribute("memory"), (Some(Value::IntVal(80)), "GiB"));
    assert_eq!(attribute("ecc"), (Some(Value::BoolVal(true)), ""));
    assert_eq!(model.attributes.len(), 2);

    let names = |reservation: &ContainerReservation| {
        let named = |(name, _): &(&String, &String)| name.starts_with("OCI_RS_CDI_DEVICES_");
        reservation.envs.iter().find(named).map(|(_, names)| names.clone()).must("a variable with the names")
    };
    let two = reserve(&plugin, &["vendor.test/a=0#2", "vendor.test/a=0#1", "vendor.test/a=1#1"]).await;
    assert_eq!(names(&two.must("a reservation")), "vendor.test/a=0,vendor.test/a=1");
    end(plugin).await;
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn a_task_with_a_reservation_has_the_whole_spec_without_permission() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let library = node.root().join("library");
    fs::write(&library, "from the node").must("a library");
    let hook = hook_program(&node, "hook", r#"echo made > "$root/made""#);
    let general = json!({
        "env": ["LIBRARY=/opt/library"],
        "mounts": [{"hostPath": library, "containerPath": "/opt/library", "options": ["ro", "rbind"]}],
        "hooks": [{"hookName": "createContainer", "path": hook, "args": ["hook", "createContainer"]}],
        "additionalGids": [44],
    });
    // A link, as udev makes them for serial devices.
    let link = node.root().join("by-id");
    symlink("/dev/zero", &link).must("a link to a node");
    let zero = json!({"path": "/dev/test", "hostPath": link, "permissions": "r", "uid": 12, "fileMode": 0o640});
    specs.write("a.json", "vendor.test/a", &json!({"0": {"deviceNodes": [zero]}}), &general);
    specs.write("b.json", "vendor.test/b", &json!({"0": {"env": ["B=b"]}}), &json!({}));
    let devices = launch(&node, json!({"spec_dirs": [node.root().join("cdi")]})).await;
    let reserved = reserve(&devices, &["vendor.test/a=0"]).await.must("a reservation");
    let other = reserve(&devices, &["vendor.test/b=0"]).await.must("another reservation");
    let [mount] = reserved.mounts.as_slice() else { panic!("{:?}", reserved.mounts) };
    let [device] = reserved.devices.as_slice() else { panic!("{:?}", reserved.devices) };
    let library = library.display().to_string();
    assert_eq!((&*mount.task_path, &*mount.host_path, mount.read_only), ("/opt/library", &*library, true));
    let link = link.display().to_string();
    assert_eq!((&*device.task_path, &*device.host_path, &*device.permissions), ("/dev/test", &*link, "r"));
    assert_eq!(reserved.envs.get("LIBRARY").map(String::as_str), Some("/opt/library"));

    // No device is allowed: Nomad has decided.
    let mut options = specs.options();
    options["allow_devices"] = json!([]);
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    let mut task = node.task(&images.busybox()).sh(IDLE).user("1000:1001");
    for (name, value) in reserved.envs.iter().chain(&other.envs) {
        task = task.device_env(name, value);
    }
    task = task.mount(Path::new(&mount.host_path), &mount.task_path, mount.read_only, "");
    task = task.device(&device.host_path, &device.task_path, &device.permissions);
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    for (script, expected) in [
        ("cat $LIBRARY; echo; echo $B", "from the node\nb"),
        ("grep -c ' /opt/library ' /proc/self/mountinfo", "1"),
        ("echo x >> /opt/library || echo read only", "read only"),
        ("stat -c '%t:%T %a %u' /dev/test", "1:5 640 12"),
        ("id -G | tr ' ' '\\n' | sort -n | xargs", "44 1001"),
        ("cat /made", "made"),
    ] {
        let got = plugin.sh(&task, &format!("{{ {script}; }} 2> /dev/null")).await;
        assert_eq!(got.trim(), expected, "{script}");
    }
    plugin.end(&task).await;
    end(devices).await;
    node.finish(plugin).await;
}
