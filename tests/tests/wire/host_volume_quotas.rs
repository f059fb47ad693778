//! Host volumes with a project quota. They need a kernel with quotas: that of the virtual machine has them.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use fixtures::must::Must;
use kit::project_quota::is_required;
use rustix::fs::statvfs;
use serde_json::json;

use crate::{
    host_volume_content::describe,
    host_volume_copies::{COPY, NodeDisk, copy, fill, log},
    host_volumes::{Client, ID, MEBIBYTE, Spec, kill_at_any_moment, kill_at_each_failpoint, kill_growth},
};

const QUOTAS: &str = "loop,prjquota";

/// The disks of this machine that have project quotas.
pub fn disks() -> impl Iterator<Item = NodeDisk> {
    let ext4 = NodeDisk::with("ext4", &["-O", "quota,project", "-E", "quotatype=prjquota"], QUOTAS);
    let disks = [ext4, NodeDisk::with("xfs", &[], QUOTAS)];
    assert!(!is_required() || disks.iter().all(Option::is_some), "OCI_RS_QUOTAS=1, and project quotas are missing");
    disks.into_iter().flatten()
}

fn limited(max: u64) -> Spec {
    Spec { parameters: json!({"uid": "1000", "gid": "1000"}), ..Spec::limited(0, max * MEBIBYTE) }
}

/// Writes as a user of the node until there is no room. Returns the number of bytes.
fn fill_up(directory: &Path) -> u64 {
    let output = format!("of={}", directory.join("big").display());
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", &output, "bs=65536", "count=1600"]).uid(1000).gid(1000).stderr(Stdio::piped());
    let said = dd.output().must("dd");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success(), "{text}");
    assert!(text.contains("No space left") || text.contains("uota exceeded"), "{text}");
    let found = fs::metadata(directory.join("big")).must("the file").len();
    fs::remove_file(directory.join("big")).must("removed");
    found
}

#[test]
fn a_capacity_is_a_project_quota_where_the_file_system_has_them() {
    for disk in disks() {
        let client = disk.client();
        let spec = limited(16);
        let said = client.create(&spec);
        let made = said.well();
        assert!(log(&said).contains("a directory with a project quota"), "{}", log(&said));
        assert_eq!(made["bytes"], json!(16 * MEBIBYTE));
        disk.open_to_users(&client);
        let path = client.path(ID);
        assert!(client.mounts(ID).is_empty() && client.devices().is_empty());
        let shown = statvfs(&path).must("the size");
        assert_eq!(shown.f_blocks * shown.f_frsize, 16 * MEBIBYTE, "df shows the limit");
        for _ in 0..2 {
            let written = fill_up(&path);
            assert!((14 * MEBIBYTE..=16 * MEBIBYTE).contains(&written), "{}: {written}", disk.kind);
            // The agent repeats the call when it starts.
            assert_eq!(client.create(&spec).well(), made);
        }
        // Another volume has its own limit, and `fs` chooses a file system.
        let other = Spec { id: COPY, ..limited(32) };
        client.create(&other).well();
        assert!(fill_up(&client.path(COPY)) > 28 * MEBIBYTE);
        client.delete(&other).well();
        let own = Spec { id: COPY, parameters: json!({"fs": "ext4"}), ..Spec::limited(0, 16 * MEBIBYTE) };
        assert!(log(&client.create(&own)).contains("ext4 in a sparse file"));
        client.delete(&own).well();
        assert!(client.create(&limited(8)).refusal().contains("cannot become smaller"));
        // A larger capacity raises the limit.
        for _ in 0..2 {
            assert_eq!(client.create(&limited(48)).well()["bytes"], json!(48 * MEBIBYTE));
        }
        assert!(fill_up(&path) > 44 * MEBIBYTE);
        assert!(client.create(&spec).refusal().contains("cannot become smaller"));
        client.delete(&spec).well();
        // The limit of the removed volume is gone with it.
        assert_eq!(client.create(&limited(32)).well()["bytes"], json!(32 * MEBIBYTE));
        assert!(fill_up(&path) > 28 * MEBIBYTE);
        client.delete(&limited(32)).well();
        client.assert_empty();
    }
}

#[test]
fn copies_of_volumes_with_a_project_quota_have_one() {
    for disk in disks() {
        let client = disk.client();
        client.create(&limited(16)).well();
        fill(&client.path(ID));
        let expected = describe(&client.path(ID));
        for (max, bytes) in [(0, 16), (24, 24)] {
            for parameters in [json!({}), json!({"read_only": "true"})] {
                let spec = copy(COPY, max * MEBIBYTE, &parameters);
                let said = client.create(&spec);
                assert_eq!(said.well()["bytes"], json!(bytes * MEBIBYTE), "{}", log(&said));
                assert_eq!(describe(&client.path(COPY)), expected, "{} {max} {parameters}", disk.kind);
                client.delete(&spec).well();
            }
        }
        assert!(client.create(&copy(COPY, 8 * MEBIBYTE, &json!({}))).refusal().contains("cannot be smaller"));
        client.delete(&limited(16)).well();
        // The content of a directory must fit.
        let source = Spec::directory(json!({}));
        client.create(&source).well();
        fs::write(client.path(ID).join("large"), vec![b'x'; 12 << 20]).must("written");
        let refusal = client.create(&copy(COPY, 8 * MEBIBYTE, &json!({}))).refusal();
        assert!(refusal.contains("give"), "{refusal}");
        assert_eq!(client.own(), [ID]);
        client.delete(&source).well();
        client.assert_empty();
    }
}

#[test]
fn a_quota_that_is_not_enforced_any_more_is_an_error_and_the_data_stay() {
    for disk in disks() {
        let client = disk.client();
        client.create(&limited(16)).well();
        fs::write(client.path(ID).join("file"), "kept").must("written");
        disk.unmount();
        assert!(disk.mount("loop,noquota"));
        let refusal = client.create(&limited(16)).refusal();
        assert!(refusal.contains("are not enforced any more: mount its file system with prjquota"), "{refusal}");
        disk.unmount();
        assert!(disk.mount(QUOTAS));
        client.create(&limited(16)).well();
        assert_eq!(fs::read_to_string(client.path(ID).join("file")).must("the file"), "kept");
        client.delete(&limited(16)).well();
        client.assert_empty();
    }
}

#[test]
fn a_kill_is_mended_by_the_next_call() {
    for disk in disks() {
        let client: Client = disk.client();
        kill_at_each_failpoint(&client, &[limited(16)]);
        kill_at_any_moment(&client, &[limited(16)]);
        kill_growth(&client, &limited(16), &limited(32));
    }
}
