//! Complete specs of a few plans, kept as files. A change of any field shows in a review as a change of a file.
//!
//! `OCI_RS_WRITE_DOCS=1` writes the files again.

use std::{fs, path::PathBuf};

use serde_json::{Value as Json, json};

use super::*;

/// The spec as JSON with sorted keys. The filter's calls are tested where they are made, and would be most of the file.
fn json(spec: &Spec) -> Json {
    let mut json = serde_json::to_value(spec).expect("JSON");
    // Sets, in the library's words.
    for set in json.pointer_mut("/process/capabilities").and_then(Json::as_object_mut).into_iter().flatten() {
        let Some(names) = set.1.as_array_mut() else { continue };
        names.sort_by_key(Json::to_string);
    }
    if let Some(seccomp) = json.pointer_mut("/linux/seccomp") {
        *seccomp = json!("the default filter");
    }
    json
}

fn check(name: &str, spec: &Spec) {
    schema::assert_valid(&serde_json::to_value(spec).expect("JSON"));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/spec/tests/golden/{name}.json"));
    let text = format!("{}\n", serde_json::to_string_pretty(&json(spec)).expect("JSON"));
    if std::env::var_os("OCI_RS_WRITE_DOCS").is_some() {
        fs::write(&path, &text).expect("written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is not the spec of today: look at the change that OCI_RS_WRITE_DOCS=1 makes",
        path.display()
    );
}

fn bind(source: &str, destination: &str, readonly: bool, propagation: Propagation) -> Mount {
    let kind = MountKind::Bind { source: source.into() };
    Mount { destination: destination.to_owned(), kind, readonly, propagation }
}

#[test]
fn a_plain_container() {
    check("plain", &spec(&plan()));
}

#[test]
fn a_nomad_service() {
    let mut plan = plan();
    plan.hostname = Some("web-1".to_owned());
    plan.user = "app".to_owned();
    plan.cwd = "/srv".to_owned();
    plan.namespaces.network = Network::Path("/run/netns/alloc".into());
    plan.namespaces.private_cgroup = false;
    plan.mounts = vec![
        bind("/alloc/id/alloc", "/alloc", false, Propagation::Private),
        bind("/alloc/id/web/local", "/local", false, Propagation::Private),
        bind("/alloc/id/web/secrets", "/secrets", false, Propagation::Private),
        bind("/alloc/id/alloc/logs", "/alloc/logs", true, Propagation::Private),
    ];
    plan.files = vec![("/etc/hosts".to_owned(), "127.0.0.1 localhost\n".to_owned())];
    plan.resources = Resources {
        memory_limit: Some(256 << 20),
        memory_reservation: Some(128 << 20),
        cpu_shares: Some(500),
        pids_limit: Some(100),
        ..Resources::default()
    };
    plan.rlimits = BTreeMap::from([("nofile".to_owned(), Rlimit { soft: 1024, hard: 4096 })]);
    plan.sysctl = BTreeMap::from([("net.core.somaxconn".to_owned(), "1024".to_owned())]);
    plan.annotations = BTreeMap::from([("com.hashicorp.nomad.alloc_id".to_owned(), "id".to_owned())]);
    let groups = vec![("memory".to_owned(), PathBuf::from("/sys/fs/cgroup/memory/nomad/task"))].leak();
    check("service", &spec_with(&plan, |inputs| inputs.visible_cgroups = groups).expect("a spec"));
}

#[test]
fn a_read_only_root_with_volumes_that_follow_the_host() {
    let mut plan = plan();
    plan.root.readonly = true;
    plan.root.volumes = vec!["/data".to_owned()];
    plan.mounts = vec![
        bind("/srv/shared", "/shared", true, Propagation::HostToContainer),
        Mount {
            destination: "/cache".to_owned(),
            kind: MountKind::Tmpfs { size: Some(1 << 20), mode: Some(0o700), uid: Some(1000), gid: Some(50) },
            readonly: false,
            propagation: Propagation::Private,
        },
    ];
    let volume = PreparedSource {
        destination: "/data".to_owned(),
        original: "/data_dir/containers/t/volumes/0".into(),
        prepared: "/state/mounts/volume-0".into(),
    };
    let volumes = vec![volume].leak();
    check("read-only", &spec_with(&plan, |inputs| inputs.volumes = volumes).expect("a spec"));
}

#[test]
fn a_privileged_container_in_host_namespaces() {
    let mut plan = plan();
    plan.security.privileged = true;
    plan.security.no_new_privileges = false;
    plan.terminal = true;
    plan.namespaces = Namespaces {
        network: Network::Host,
        private_pid: false,
        private_ipc: false,
        private_uts: false,
        private_cgroup: false,
    };
    check("privileged", &spec_with(&plan, |inputs| inputs.cgroup_version = Version::V2).expect("a spec"));
}

#[test]
fn an_unconfined_container_of_cgroup_v2() {
    let mut plan = plan();
    plan.security.seccomp = Seccomp::Unconfined;
    plan.security.no_new_privileges = false;
    plan.resources = Resources {
        memory_limit: Some(64 << 20),
        cpu_shares: Some(1024),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        cpuset_cpus: Some("0-1".to_owned()),
        ..Resources::default()
    };
    check("unconfined", &spec_with(&plan, |inputs| inputs.cgroup_version = Version::V2).expect("a spec"));
}
