//! Encrypted host volumes. They need a kernel with dm-crypt: that of the virtual machine has it.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fixtures::must::Must;
use kit::project_quota::is_required;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value as Json, json};

use crate::{
    host_volume_content::{describe, lower, set_up, upper},
    host_volume_copies::{COPY, NodeDisk, copy, fill, grows_ext4, log},
    host_volumes::{Client, ID, MEBIBYTE, Spec, kill_at_any_moment, kill_at_each_failpoint},
};

const KEY: &str = "a key that nobody may read 0123456789";
const CONTENT: &str = "content that nobody may find on the disk 9876543210";

/// Whether this kernel has dm-crypt.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn has_dm_crypt() -> bool {
    Command::new("modprobe").arg("dm-crypt").stderr(Stdio::null()).status().ok();
    let found = fs::read_to_string("/proc/misc").is_ok_and(|list| list.contains("device-mapper"));
    if !found {
        assert!(!is_required(), "OCI_RS_QUOTAS=1, and this kernel has no dm-crypt");
        println!("skipped: this kernel has no dm-crypt");
    }
    found
}

/// A file with a key.
fn key(client: &Client, name: &str, content: &str) -> PathBuf {
    let path = client.root().join(name);
    fs::write(&path, content).must("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).must("a mode");
    path
}

fn encrypted(client: &Client) -> Json {
    json!({"encryption": "luks", "key_file": key(client, "key", KEY)})
}

/// Unmounts the volume as a reboot does. Its devices go too.
fn unmount_as_a_reboot(client: &Client) {
    unmount(client.path(ID), UnmountFlags::empty()).must("unmounted");
    let end = Instant::now() + Duration::from_secs(60);
    while !client.devices().is_empty() {
        assert!(Instant::now() < end, "{:?}", client.devices());
        thread::sleep(Duration::from_millis(10));
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn an_encrypted_volume_has_neither_content_nor_key_in_the_clear() {
    if !has_dm_crypt() {
        return;
    }
    let client = Client::new();
    let spec = Spec { parameters: encrypted(&client), ..Spec::limited(8 * MEBIBYTE, 16 * MEBIBYTE) };
    let said = client.create(&spec);
    let made = said.well();
    assert!(log(&said).contains("encrypted by LUKS"), "{}", log(&said));
    assert!((8 * MEBIBYTE..=16 * MEBIBYTE).contains(&made["bytes"].as_u64().must("bytes")), "{made}");
    let [mounted] = &client.mounts(ID)[..] else { panic!("{:?}", client.mounts(ID)) };
    assert!(mounted.contains("nosuid") && mounted.contains("nodev") && mounted.contains("/dev/dm-"), "{mounted}");
    fs::write(client.path(ID).join("file"), CONTENT).must("written");
    // An open volume needs no key.
    fs::rename(client.root().join("key"), client.root().join("away")).must("moved");
    assert_eq!(client.create(&spec).well(), made);
    unmount_as_a_reboot(&client);
    let own = client.volumes().join(".oci-rs").join(ID);
    let disk = fs::read(own.join("volume.luks")).must("the file");
    assert!(disk.starts_with(b"LUKS") && !contains(&disk, CONTENT) && !contains(&disk, KEY));
    let record = fs::read_to_string(own.join("volume.json")).must("the record");
    assert!(!record.contains(KEY) && !record.contains("key_file"), "{record}");

    let refusal = client.create(&spec).refusal();
    assert!(refusal.contains("parameter key_file: opening"), "{refusal}");
    key(&client, "key", "another key");
    let refusal = client.create(&spec).refusal();
    assert!(refusal.contains("is not the key of the volume"), "{refusal}");
    let without = Spec { parameters: json!({}), ..spec.clone() };
    assert!(client.create(&without).refusal().contains("the volume is encrypted: give both"));
    key(&client, "key", KEY);
    let again = client.create(&spec);
    assert_eq!(again.well(), made);
    assert!(!log(&again).contains(KEY));
    assert_eq!(fs::read_to_string(client.path(ID).join("file")).must("the file"), CONTENT);
    assert!(client.create(&without).refusal().contains("parameter encryption: the volume is encrypted"));
    client.delete(&without).well();
    client.assert_empty();
}

#[tokio::test]
async fn an_encrypted_volume_is_filled_from_an_image_and_can_be_read_only() {
    if !has_dm_crypt() {
        return;
    }
    let (node, plugin, client, images) = set_up(json!({}), Client::new()).await;
    let name = images.of_layers("several", [lower(), upper()]);
    for (max, fs_kind, content, read_only) in
        [(32, "ext4", json!({"image": name}), "true"), (320, "xfs", json!({"image": name, "path": "srv"}), "false")]
    {
        let plain = Spec { parameters: content.clone(), ..Spec::limited(0, 0) };
        client.create(&plain).well();
        let expected = describe(&client.path(ID));
        client.delete(&plain).well();
        let mut parameters = encrypted(&client);
        let more = [("fs", json!(fs_kind)), ("read_only", json!(read_only))];
        let content = content.as_object().cloned().unwrap_or_default();
        for (name, value) in content.into_iter().chain(more.map(|(name, value)| (name.to_owned(), value))) {
            parameters[name] = value;
        }
        let spec = Spec { parameters, ..Spec::limited(0, max * MEBIBYTE) };
        let said = client.create(&spec);
        let made = said.well();
        assert!(log(&said).contains("encrypted by LUKS"), "{}", log(&said));
        assert_eq!(describe(&client.path(ID)), expected, "{}", spec.parameters);
        assert_eq!(fs::write(client.path(ID).join("new"), CONTENT).is_ok(), read_only == "false");
        unmount_as_a_reboot(&client);
        let mut start = [0; 4];
        let file = fs::File::open(client.volumes().join(".oci-rs").join(ID).join("volume.luks"));
        file.must("the file").read_exact(&mut start).must("its start");
        assert_eq!(&start, b"LUKS");
        assert_eq!(client.create(&spec).well(), made);
        client.delete(&spec).well();
        client.assert_empty();
    }
    node.finish(plugin).await;
}

#[test]
fn a_copy_of_an_encrypted_volume_is_encrypted() {
    if !has_dm_crypt() {
        return;
    }
    for disk in ["ext4", "xfs"].into_iter().filter_map(NodeDisk::make) {
        let client = disk.client();
        let parameters = encrypted(&client);
        let source = Spec { parameters: parameters.clone(), ..Spec::limited(0, 16 * MEBIBYTE) };
        client.create(&source).well();
        fill(&client.path(ID));
        let expected = describe(&client.path(ID));
        for is_open in [true, false] {
            for max in [0, 32] {
                if !is_open {
                    unmount(client.path(ID), UnmountFlags::empty()).ok();
                }
                let spec = copy(COPY, max * MEBIBYTE, &parameters);
                let said = client.create(&spec);
                let bytes = said.well()["bytes"].as_u64().must("bytes");
                assert_eq!(bytes > 16 * MEBIBYTE, max > 0, "{bytes}");
                let is_shared = disk.has_reflinks() && (max == 0 || grows_ext4());
                let method = if is_shared { "by reflink" } else { "by a full copy" };
                assert!(log(&said).contains(method), "{}", log(&said));
                assert_eq!(describe(&client.path(COPY)), expected, "{} {is_open} {max}", disk.kind);
                client.delete(&spec).well();
            }
        }
        assert!(client.create(&copy(COPY, 0, &json!({}))).refusal().contains("copy of an encrypted one"));
        // A volume in the clear can get an encrypted copy.
        client.delete(&source).well();
        client.create(&Spec::limited(0, 16 * MEBIBYTE)).well();
        fs::write(client.path(ID).join("file"), CONTENT).must("written");
        let spec = copy(COPY, 0, &parameters);
        client.create(&spec).well();
        assert_eq!(fs::read_to_string(client.path(COPY).join("file")).must("the file"), CONTENT);
        client.delete(&spec).well();
        client.delete(&source).well();
        client.assert_empty();
    }
}

#[test]
fn a_kill_of_an_encrypted_volume_is_mended_by_the_next_call() {
    if !has_dm_crypt() {
        return;
    }
    let client = Client::in_memory();
    let spec = Spec { parameters: encrypted(&client), ..Spec::limited(0, 8 * MEBIBYTE) };
    kill_at_each_failpoint(&client, std::slice::from_ref(&spec));
    kill_at_any_moment(&client, &[spec]);
}

#[test]
fn a_node_without_encryption_says_so_and_nothing_is_left() {
    if has_dm_crypt() {
        return;
    }
    let client = Client::new();
    let spec = Spec { parameters: encrypted(&client), ..Spec::limited(0, 16 * MEBIBYTE) };
    let refusal = client.create(&spec).refusal();
    assert!(refusal.contains("parameter encryption: ") && !refusal.contains(KEY), "{refusal}");
    client.assert_empty();
}
