//! Host volumes whose records are gone or cannot be read: their content stays.

use std::fs;

use fixtures::must::Must;
use serde_json::{Value as Json, json};

use crate::host_volumes::{Client, ID, MEBIBYTE, POINT, Spec};

const SECOND: &str = "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d02";
const THIRD: &str = "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d03";

#[test]
fn a_lost_record_is_an_error_and_costs_no_content() {
    let client = Client::in_memory();
    let other = Spec { id: SECOND, ..Spec::directory(Json::Null) };
    for (spec, problem) in [
        (Spec::limited(0, 16 * MEBIBYTE), "the content of the volume is kept: restore the record"),
        (Spec::directory(Json::Null), "this plugin has no record of it"),
        (Spec::directory(json!({"read_only": "true"})), "the content of the volume is kept: restore the record"),
    ] {
        client.create(&spec).well();
        let is_read_only = spec.parameters["read_only"] == "true";
        let data = if is_read_only { client.volumes().join(".oci-rs").join(ID).join("data") } else { client.path(ID) };
        fs::write(data.join("file"), "kept").must("written");
        let own = client.volumes().join(".oci-rs").join(ID);
        let record = fs::read(own.join("volume.json")).must("the record");
        fs::remove_file(own.join("volume.json")).must("removed");
        // The sweep of another call does not take the content for that of a killed call.
        let swept = client.create(&other);
        swept.well();
        let said = String::from_utf8_lossy(&swept.0.stderr).into_owned();
        assert_eq!(said.contains("is gone, and the content"), spec.max > 0 || is_read_only, "{said}");
        client.delete(&other).well();
        for said in [client.create(&spec), client.delete(&spec)] {
            let refusal = said.refusal();
            assert!(refusal.contains(problem) && refusal.contains(ID), "{refusal}");
        }
        fs::create_dir_all(&own).must("a directory");
        fs::write(own.join("volume.json"), record).must("restored");
        client.create(&spec).well();
        assert_eq!(fs::read_to_string(client.path(ID).join("file")).must("the file"), "kept");
        client.delete(&spec).well();
        client.assert_empty();
    }
}

#[test]
fn a_record_that_cannot_be_read_does_not_end_the_sweep() {
    let client = Client::in_memory();
    let [first, second, third] = [ID, SECOND, THIRD].map(|id| Spec { id, ..Spec::directory(Json::Null) });
    // One of both comes after the unreadable one in the directory.
    for [unreadable, killed] in [[&first, &second], [&second, &first]] {
        client.create(unreadable).well();
        let path = client.volumes().join(".oci-rs").join(unreadable.id).join("volume.json");
        let record = fs::read(&path).must("the record");
        fs::write(&path, r#"{"version": 1000}"#).must("written");
        let call = client.command("create", killed).env(POINT, "volume-before-sync").output().must("a call");
        if call.status.success() {
            // A release build has no failpoints.
            client.delete(killed).well();
        }
        let swept = client.create(&third);
        swept.well();
        let said = String::from_utf8_lossy(&swept.0.stderr).into_owned();
        assert!(said.contains(&format!("volume {} was passed over", unreadable.id)), "{said}");
        assert!(said.contains("version 1000"), "{said}");
        let mut own = client.own();
        own.sort();
        assert_eq!(own, [unreadable.id, THIRD], "{said}");
        assert!(client.create(unreadable).refusal().contains("version 1000"));
        assert!(client.delete(unreadable).refusal().contains("version 1000"));
        fs::write(&path, record).must("restored");
        client.delete(unreadable).well();
        client.delete(&third).well();
        client.assert_empty();
    }
}
