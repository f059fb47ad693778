//! A `data_dir` without room: the node is unhealthy and says why, and it is healthy again when there is room.

use std::{fs, path::PathBuf};

use fixtures::{busybox::Images, must::Must};
use kit::{node::Node, plugin::Plugin};
use proto::driver::fingerprint_response::HealthState;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;

/// A small file system. Dropped, it is unmounted.
pub struct Disk(PathBuf);

impl Disk {
    pub fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).must("a mount point");
        mount("tmpfs", &path, "tmpfs", MountFlags::NODEV, Some(c"size=16m,mode=0700")).must("mount a tmpfs");
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// The health that a new stream of fingerprints begins with.
pub async fn health(plugin: &mut Plugin) -> (HealthState, String) {
    plugin.reattach().await;
    let told = plugin.streams.fingerprint().await;
    (told.health(), told.health_description)
}

#[tokio::test]
async fn a_node_without_disk_space_is_unhealthy_until_there_is_room() {
    let node = Node::new();
    let disk = Disk::mount(node.data_dir());
    let mut plugin = node.launch_with(json!({"image_limits": {"free_mib": 4}})).await;
    assert_eq!(health(&mut plugin).await.0, HealthState::Healthy);

    let filler = node.data_dir().join("filler");
    fs::write(&filler, vec![0; 14 << 20]).must("fill the disk");
    let (state, why) = health(&mut plugin).await;
    assert_eq!(state, HealthState::Unhealthy);
    let directory = node.data_dir().join("images").display().to_string();
    for part in [directory.as_str(), "less than 4 MiB", "image_limits.free_mib"] {
        assert!(why.contains(part), "{part} in {why:?}");
    }

    fs::remove_file(&filler).must("make room");
    assert_eq!(health(&mut plugin).await, (HealthState::Healthy, "Healthy".to_owned()));
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exit 5").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 5);
    plugin.end(&task).await;
    assert!(plugin.shutdown().await.success());
    drop(disk);
    node.finish_without_plugin().await;
}
