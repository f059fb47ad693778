//! The operator's commands of the built binary, beside a plugin and its tasks.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use fixtures::{
    busybox::{self, Images},
    image::{Compression, archive},
    must::Must,
    registry::{Action, Auth, Fault},
    wait::seconds,
};
use kit::{
    calls::recoverable,
    node::Node,
    plugin::{COOKIE, Plugin, PluginCommand},
    task::Task,
};
use proto::driver::DriverTaskEvent;
use serde_json::{Value as Json, json};

/// The result of a command.
pub struct Said {
    /// The exit code.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// The output as JSON.
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.out).must(&format!("JSON in {:?} {:?}", self.out, self.err))
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.code, 0, "{} {}", self.out, self.err);
        self
    }
}

/// Runs a command of an operator on this node.
pub async fn run(node: &Node, args: &[&str]) -> Said {
    let mut process = PluginCommand::new(node.root()).without(COOKIE.0).args(args).spawn();
    let (out, err) = (process.stdout.all(seconds(30)).await, process.stderr.all(seconds(30)).await);
    let code = process.ended(seconds(30)).await.code().must("an exit code");
    Said { code, out: out.join("\n"), err: err.join("\n") }
}

/// `oci-rs image … --data-dir …`
async fn image(node: &Node, args: &[&str]) -> Said {
    let directory = node.data_dir().display().to_string();
    run(node, &[&["image"], args, &["--data-dir", &directory]].concat()).await
}

/// The plugin block of this node as a file.
fn config(node: &Node, more: &Json) -> String {
    let mut config = node.config();
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        config.extend(more.clone());
    }
    let path = node.root().join("oci-rs.json");
    fs::write(&path, config.to_string()).must("write the configuration");
    path.display().to_string()
}

/// Starts a task that does nothing.
pub async fn sleeper(node: &Node, plugin: &mut Plugin, image: &str) -> Task {
    let task = node.task(image).sh("sleep 1000").build(plugin).await;
    plugin.started(&task).await;
    task
}

#[tokio::test]
async fn an_image_in_use_is_listed_and_kept() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let name = images.busybox();
    let task = sleeper(&node, &mut plugin, &name).await;

    let listed = image(&node, &["ls"]).await.well();
    assert!(listed.out.contains(&name) && listed.out.contains("1 task"), "{}", listed.out);
    let listed = image(&node, &["ls", "--json"]).await.well().json();
    assert_eq!((&listed[0]["reference"], listed[0]["used_by"].as_array().map(Vec::len)), (&json!(name), Some(1)));
    assert_eq!((&listed[0]["private"], &listed[0]["missing_layers"]), (&json!(false), &json!([])));

    let shown = image(&node, &["inspect", &name]).await.well();
    assert!(shown.out.contains("used by") && shown.out.contains("of allocation"), "{}", shown.out);
    let shown = image(&node, &["inspect", &name, "--json"]).await.well().json();
    assert!(shown[0]["config"]["config"]["Env"].to_string().contains("IMAGE_ENV=from-image"), "{shown}");

    let refused = image(&node, &["rm", &name]).await;
    assert_eq!((refused.code, refused.out.as_str()), (5, ""));
    let alloc = task.config.alloc_id.clone();
    assert!(refused.err.contains(&format!("of allocation {alloc}")), "{}", refused.err);
    let kept = image(&node, &["prune"]).await.well();
    assert!(kept.out.contains(&format!("kept {name}: in use by task")), "{}", kept.out);
    let sound = image(&node, &["fsck"]).await.well();
    assert!(sound.out.contains("1 images, 1 layers: 0 damaged, 0 left over, 0 not ours"), "{}", sound.out);

    // The task was not affected.
    let exec = plugin.exec(task.id(), &["cat", "/etc/passwd"], seconds(10)).await.must("ExecTask");
    assert_eq!(exec.result.map(|result| result.exit_code), Some(0));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let removed = image(&node, &["rm", &name]).await.well();
    assert_eq!(removed.out, format!("removed {name}"));
    assert_eq!(image(&node, &["ls", "--json"]).await.well().json(), json!([]));
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_image_pulled_ahead_is_used_by_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let name = images.busybox();
    let pulled = image(&node, &["pull", &name, "--json"]).await.well().json();
    assert_eq!(pulled["reference"], json!(name));
    // The image has no lease, and only the image is left of the pull.
    let listed = image(&node, &["ls", "--json"]).await.well().json();
    assert_eq!((&listed[0]["digest"], &listed[0]["used_by"]), (&pulled["digest"], &json!([])));
    let checked = image(&node, &["fsck", "--json"]).await.well().json();
    assert_eq!((&checked["findings"], &checked["layers_not_compared"]), (&json!([]), &json!(0)));
    images.stop();
    let task = sleeper(&node, &mut plugin, &name).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let pruned = image(&node, &["prune", "--json"]).await.well().json();
    assert_eq!((&pruned["removed"], &pruned["layers"]), (&json!([name]), &json!(1)));
    // The registry is gone, so a second pull is not possible.
    let failed = image(&node, &["pull", &name]).await;
    assert!(failed.code == 1 && failed.err.starts_with("oci-rs: "), "{} {}", failed.code, failed.err);
    node.finish(plugin).await;
}

#[tokio::test]
async fn image_pull_uses_the_plugin_blocks_registry_settings() {
    let node = Node::new();
    let images = Images::start().await;
    let name = images.busybox();
    images.require(Auth::Basic { user: "joe".into(), password: "hunter2".into() });
    let path = config(&node, &json!({}));
    let denied = run(&node, &["image", "pull", &name, "--config", &path]).await;
    assert!(denied.code == 1 && denied.err.contains("access denied without credentials"), "{}", denied.err);
    let registry = json!({"registry": {images.host(): {"auth": {"username": "joe", "password": "hunter2"}}}});
    let path = config(&node, &registry);
    run(&node, &["image", "pull", &name, "--unpinned", "--config", &path]).await.well();
    // The same block in the agent's own configuration file.
    let block: Json = serde_json::from_slice(&fs::read(&path).must("the block")).must("JSON");
    let agent = json!({"client": {"enabled": true}, "plugin": [{"oci-rs": [{"config": [block]}]}]});
    fs::write(&path, agent.to_string()).must("write the agent's configuration");
    let listed = run(&node, &["image", "ls", "--json", "--config", &path]).await.well().json();
    assert_eq!(listed[0]["private"], json!(true));
    // And in HCL, in the directory that an agent reads.
    let directory = node.root().join("nomad.d");
    fs::create_dir(&directory).must("the agent's directory");
    fs::write(directory.join("nomad.hcl"), "client {\n  enabled = true\n}\n").must("the agent's configuration");
    let (data, state) = (node.data_dir(), node.state_dir());
    let auth = "auth { username = \"joe\" password = \"hunter2\" }";
    let options = format!("data_dir = {data:?}\n  state_dir = {state:?}\n  registry {:?} {{ {auth} }}", images.host());
    let block = format!("plugin \"oci-rs\" {{\n config {{\n  {options}\n }}\n}}");
    fs::write(directory.join("oci-rs.hcl"), &block).must("the plugin block");
    let hcl = directory.display().to_string();
    run(&node, &["image", "pull", &name, "--unpinned", "--config", &hcl]).await.well();
    fs::write(directory.join("oci-rs.hcl"), block.replace("username = \"joe\"", "")).must("the plugin block");
    let wrong = run(&node, &["image", "ls", "--config", &hcl]).await;
    let place = "nomad.d/oci-rs.hcl: invalid plugin config: line 5: registry[";
    assert!(wrong.code == 1 && wrong.err.contains(place) && !wrong.err.contains("hunter2"), "{}", wrong.err);
    // Errors of the file have the same texts as in the plugin, and never contain its values.
    let path = config(&node, &json!({"registry": {images.host(): {"auth": {"password": "hunter2"}}}}));
    let wrong = run(&node, &["image", "ls", "--config", &path]).await;
    assert!(wrong.code == 1 && wrong.err.contains("auth: needs both username and password"), "{}", wrong.err);
    assert!(!wrong.err.contains("hunter2"));
    node.finish_without_plugin().await;
}

fn layer(node: &Node) -> PathBuf {
    let mut layers = fs::read_dir(node.data_dir().join("images/layers")).must("the layers");
    layers.next().must("a layer").must("a layer").path()
}

/// Changes the name or the mode of `etc/passwd`.
fn damage(layer: &Path) {
    let (passwd, image) = (layer.join("fs/etc/passwd"), layer.join("fs.erofs"));
    if passwd.exists() {
        fs::set_permissions(&passwd, PermissionsExt::from_mode(0o666)).must("change a file of a layer");
        return;
    }
    let mut bytes = fs::read(&image).must("the image");
    // The last occurrence is the directory entry, after the data of all files.
    let at = bytes.windows(6).rposition(|part| part == b"passwd").must("the name");
    bytes[at..at + 6].copy_from_slice(b"passwe");
    fs::write(&image, bytes).must("change the image of a layer");
}

#[tokio::test]
async fn fsck_finds_damage_under_a_running_task_and_repairs_it_afterwards() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let name = images.busybox();
    image(&node, &["pull", &name]).await.well();
    let task = sleeper(&node, &mut plugin, &name).await;
    damage(&layer(&node));
    for args in [&["fsck"][..], &["fsck", "--repair"]] {
        let found = image(&node, args).await;
        assert!(found.code == 3 && found.out.contains("; in use by task"), "{} {}", found.out, found.err);
        assert!(found.out.contains("1 damaged"), "{}", found.out);
    }
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let found = image(&node, &["fsck", "--json"]).await;
    assert_eq!(found.code, 3);
    let found = found.json();
    assert_eq!((&found["findings"][0]["kind"], &found["sound"]), (&json!("layer-changed"), &json!(false)));
    image(&node, &["fsck", "--repair"]).await.well();
    assert!(image(&node, &["fsck"]).await.well().out.contains("0 damaged"));
    let task = sleeper(&node, &mut plugin, &name).await;
    assert!(image(&node, &["fsck"]).await.well().out.contains("0 damaged"), "it was fetched anew");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// Only the plugin block contains the state directory, by which leases without a task are recognized.
#[tokio::test]
async fn leases_without_a_task_are_recognized() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    let leases = node.data_dir().join("images/leases");
    let lease = fs::read_dir(&leases).must("the leases").next().must("a lease").must("a lease").path();
    let long_ago = std::time::SystemTime::now() - seconds(3600);
    fs::File::open(&lease).and_then(|file| file.set_modified(long_ago)).must("age the lease");
    let path = config(&node, &json!({}));
    let fsck = ["image", "fsck", "--json", "--repair", "--config", &path];
    assert_eq!(run(&node, &fsck).await.well().json()["findings"], json!([]));
    plugin.process.kill().await;
    // As after a reboot: no container has a directory. The node removes the task's processes.
    let tasks = node.state_dir().join("tasks");
    fs::rename(&tasks, tasks.with_file_name("gone")).must("hide the tasks");
    fs::create_dir(&tasks).must("a directory without tasks");
    let unknown = image(&node, &["fsck", "--json", "--repair"]).await.well().json();
    assert!(unknown["findings"][0]["kind"] == json!("staging-of-the-dead") && lease.exists(), "{unknown}");
    assert_eq!(run(&node, &fsck).await.well().json()["findings"][0]["kind"], json!("lease-of-nobody"));
    assert!(!lease.exists());
    fs::remove_dir(&tasks).must("remove the directory");
    fs::rename(tasks.with_file_name("gone"), &tasks).must("show the tasks");
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_archive_can_be_loaded_before_its_task() {
    let node = Node::new();
    let bytes = archive(busybox::image(Compression::Gzip).saved(&["team/app:1"]));
    let path = node.root().join("image.tar");
    fs::write(&path, bytes).must("write the archive");
    let path = path.display().to_string();
    image(&node, &["load", &path, "team/app:1"]).await.well();
    let listed = image(&node, &["ls"]).await.well();
    assert!(listed.out.contains("team/app:1 (archive)"), "{}", listed.out);
    image(&node, &["fsck"]).await.well();
    let other = image(&node, &["load", &path, "other:1"]).await;
    assert!(other.code == 1 && other.err.contains("team/app:1"), "{}", other.err);
    image(&node, &["rm", "team/app:1"]).await.well();
    node.finish_without_plugin().await;
}

/// The name's registry does not exist.
#[tokio::test]
async fn an_image_of_the_administrator_runs_without_a_registry() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let name = "registry.invalid/team/app";
    let path = node.root().join("image.tar").display().to_string();
    for tag in ["1", "latest"] {
        let name = format!("{name}:{tag}");
        fs::write(&path, archive(busybox::image(Compression::Gzip).saved(&[&name]))).must("write the archive");
        let loaded = image(&node, &["load", &path, &name]).await.well();
        assert_eq!(loaded.out.contains("ask the registry at each start"), tag == "latest", "{}", loaded.out);
    }
    let shown = image(&node, &["inspect", &format!("{name}:1"), "--json"]).await.well().json();
    assert_eq!((&shown[0]["pinned"], &shown[0]["private"]), (&json!(true), &json!(false)));
    let listed = image(&node, &["ls"]).await.well();
    assert!(listed.out.contains("- (pinned)"), "{}", listed.out);
    let task = sleeper(&node, &mut plugin, &format!("{name}:1")).await;
    let digest = shown[0]["digest"].as_str().must("a digest").to_owned();
    let ours = |event: &DriverTaskEvent| event.task_id == task.id() && event.message.contains(&digest);
    let event = plugin.streams.event("the digest", ours).await;
    assert_eq!(event.annotations.get("digest"), Some(&digest), "{event:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    // As with docker, the tag latest and force_pull ask the registry.
    let forced = node.task(&format!("{name}:1")).option("force_pull", json!(true));
    for task in [node.task(&format!("{name}:latest")), forced] {
        let task = task.option("image_pull_timeout", json!("1s")).sh("true").build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("no registry");
        assert!(recoverable(&status), "{status}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_private_image_that_the_administrator_pulled_is_for_every_job() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let (pinned, private) = (images.busybox(), images.packed(Compression::Zstd));
    images.require(Auth::Basic { user: "joe".into(), password: "hunter2".into() });
    let registry = json!({"registry": {images.host(): {"auth": {"username": "joe", "password": "hunter2"}}}});
    let path = config(&node, &registry);
    run(&node, &["image", "pull", &pinned, "--config", &path]).await.well();
    run(&node, &["image", "pull", &private, "--unpinned", "--config", &path]).await.well();
    let listed = run(&node, &["image", "ls", "--json", "--config", &path]).await.well().json();
    let flags: Vec<_> = listed.as_array().must("a list").iter().map(|one| (&one["pinned"], &one["private"])).collect();
    assert_eq!(flags, [(&json!(true), &json!(false)), (&json!(false), &json!(true))]);
    // This plugin has no credentials.
    let task = node.task(&private).sh("true").build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("verify_access"), "{status}");
    images.stop();
    let task = sleeper(&node, &mut plugin, &pinned).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_wait_for_a_registry_has_an_event() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let delay = Action::Delay(std::time::Duration::from_millis(2500));
    images.with(|registry| registry.fault(Fault::on("/manifests/", delay).times(1)));
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    let host = images.host().to_owned();
    let ours = |event: &DriverTaskEvent| {
        event.task_id == task.id() && event.message.starts_with("Image: waiting for") && event.message.contains(&host)
    };
    plugin.streams.event("the wait", ours).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// Without the event, the job's author would see nothing until the last attempt has failed.
#[tokio::test]
async fn a_retry_has_an_event_with_the_failure() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let unavailable = Action::Status(503, Vec::new());
    images.with(|registry| registry.fault(Fault::on("/manifests/", unavailable).times(3)));
    let task = sleeper(&node, &mut plugin, &images.busybox()).await;
    let ours = |event: &DriverTaskEvent| {
        event.message.starts_with("Image: waiting for the next attempt") && event.message.contains("HTTP status 503")
    };
    plugin.streams.event("the failed attempt", ours).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn exit_codes_of_commands_tell_the_kind_of_error() {
    let node = Node::new();
    for args in [&["ls"][..], &["inspect", "x:1"], &["rm", "x:1"], &["prune"], &["fsck", "--repair"]] {
        let failed = image(&node, args).await;
        assert!(failed.code == 1 && failed.err.contains("no images in"), "{args:?}: {} {}", failed.code, failed.err);
    }
    assert!(!node.data_dir().exists(), "a look makes no store");
    let plugin = node.launch().await;
    for (args, code, expected) in [
        (&["ls"][..], 0, ""),
        (&["inspect", "x:1"], 4, "there is no image docker.io/library/x:1 here"),
        (&["rm", "x:1", "y:1"], 4, "there is no image docker.io/library/y:1 here"),
        (&["rm"], 2, "REFERENCES"),
        (&["fly"], 2, "unrecognized subcommand"),
        (&["inspect", "UPPER"], 1, "invalid image reference"),
        (&["ls", "--config", "/no/such"], 1, "/no/such: No such file"),
    ] {
        let said = image(&node, args).await;
        assert!(said.code == code && said.err.contains(expected), "{args:?}: {} {}", said.code, said.err);
    }
    let help = image(&node, &["--help"]).await.well();
    assert!(help.out.contains("Exit codes: 0 done") && help.out.contains("fsck"), "{}", help.out);
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_interrupted_pull_leaves_nothing() {
    let node = Node::new();
    let images = Images::start().await;
    let name = images.busybox();
    images.with(|registry| registry.fault(Fault::on("/blobs/", Action::Stall(10))));
    let directory = node.data_dir().display().to_string();
    let args = ["image", "pull", &name, "--data-dir", &directory];
    let mut process = PluginCommand::new(node.root()).without(COOKIE.0).args(&args).spawn();
    let asked = || images.requests().iter().any(|request| request.contains("/blobs/"));
    assert!(fixtures::wait::eventually(seconds(20), asked).await);
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.ended(seconds(20)).await.code(), Some(1));
    let checked = image(&node, &["fsck", "--json"]).await.well().json();
    assert_eq!(checked["findings"], json!([]));
    for directory in ["leases", "images", "layers", "staging"] {
        let left =
            fs::read_dir(node.data_dir().join("images").join(directory)).must("a directory of the store").count();
        assert_eq!(left, 0, "{directory}");
    }
    node.finish_without_plugin().await;
}
