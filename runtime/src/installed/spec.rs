//! The spec that an installed runtime gets, and the process of a command.

use std::path::Path;

use oci_spec::runtime::{Box as ConsoleSize, LinuxResources, Process, Spec};

use super::dialect::Dialect;
use crate::{
    cgroup::Version,
    spec::{CGROUP_DIR, PreparedSources},
};

/// The annotations that the runtime gets. Runtimes obey some annotations, and others come from the labels of a job.
const ANNOTATIONS: &str = "com.hashicorp.nomad.";

/// The version of the specification that every runtime knows. crun 1.8 refuses 1.2.
const VERSION: &str = "1.0.2";

/// Changes a complete spec for an installed runtime.
///
/// * Prepared mount sources replace those of the plan.
/// * On version 1 the limits are ours to set ([`MembershipGuard`](crate::cgroup::MembershipGuard)), except for the
///   devices of the runtime's own cgroup, if it makes one.
/// * A runtime whose containers have a kernel of their own shows that kernel's cgroups.
/// * gVisor refuses a process with an SELinux label. The label of the files stays.
pub(crate) fn for_installed(mut spec: Spec, dialect: Dialect, version: Version, sources: &PreparedSources) -> Spec {
    if let Some(linux) = spec.linux_mut() {
        let path = linux.cgroups_path().as_ref().and_then(|task| dialect.cgroups_path(version, task));
        if version == Version::V1 {
            let devices = linux.resources().as_ref().and_then(|resources| resources.devices().clone());
            let mut resources = LinuxResources::default();
            resources.set_devices(devices);
            linux.set_resources(path.is_some().then_some(resources));
        }
        linux.set_cgroups_path(path);
        linux.set_rootfs_propagation(Some("private".to_owned()));
        if let Some(paths) = linux.readonly_paths_mut().as_mut().filter(|_| !dialect.shares_kernel()) {
            paths.retain(|path| !Path::new(path).starts_with(CGROUP_DIR));
        }
    }
    if let Some(list) = spec.mounts_mut() {
        sources.replace(list);
        if !dialect.shares_kernel() {
            list.retain(|mount| !mount.destination().starts_with(CGROUP_DIR));
            for option in list.iter_mut().filter_map(|mount| mount.options_mut().as_mut()).flatten() {
                if let Some(known) = without_recursion(option) {
                    known.clone_into(option);
                }
            }
        }
    }
    if dialect == Dialect::Runsc
        && let Some(process) = spec.process_mut()
    {
        process.set_selinux_label(None);
    }
    spec.set_version(VERSION.to_owned());
    if let Some(annotations) = spec.annotations_mut() {
        annotations.retain(|name, _| name.starts_with(ANNOTATIONS));
    }
    spec
}

/// The option of a bind mount that every runtime knows, for one that also applies to the mounts below.
fn without_recursion(option: &str) -> Option<&'static str> {
    Some(match option {
        "rro" => "ro",
        "rnosuid" => "nosuid",
        "rnodev" => "nodev",
        _ => return None,
    })
}

/// The process of a command, from the spec of its container. With a size it has a terminal.
pub(crate) fn exec_process(
    mut process: Process,
    args: Vec<String>,
    cwd: Option<String>,
    terminal: Option<ConsoleSize>,
) -> Process {
    process.set_args(Some(args)).set_terminal(Some(terminal.is_some())).set_console_size(terminal);
    if let Some(cwd) = cwd {
        process.set_cwd(cwd.into());
    }
    let env = process.env_mut().get_or_insert_default();
    if terminal.is_some() && !env.iter().any(|entry| entry.starts_with("TERM=")) {
        env.push("TERM=xterm".to_owned());
    }
    process
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::BoxBuilder;
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::PreparedSource;

    fn spec() -> Spec {
        let value = json!({
            "ociVersion": "1.2.0",
            "root": { "path": "/task/rootfs" },
            "process": {
                "args": ["/bin/app"], "env": ["PATH=/bin"], "cwd": "/srv", "user": { "uid": 5, "gid": 6 },
                "selinuxLabel": "system_u:system_r:container_t:s0:c1,c2",
            },
            "annotations": {
                "com.hashicorp.nomad.alloc_id": "a", "run.oci.hooks.stderr": "/etc/passwd", "dev.gvisor.flag.debug": "1"
            },
            "mounts": [
                { "destination": "/local", "type": "bind", "source": "/alloc/local", "options": ["rbind", "rro"] },
                { "destination": "/sys/fs/cgroup", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"] },
                { "destination": "/sys/fs/cgroup/pids", "type": "bind", "source": "/g", "options": ["rbind", "rro"] },
                { "destination": "/data", "type": "bind", "source": "/d", "options": ["rbind", "rnosuid", "rnodev"] },
            ],
            "linux": {
                "cgroupsPath": "/nomad/a.web",
                "readonlyPaths": ["/proc/sys", "/sys/fs/cgroup"],
                "rootfsPropagation": "slave",
                "resources": { "memory": { "limit": 5 }, "devices": [{ "allow": false, "access": "rwm" }] },
            },
        });
        serde_json::from_value(value).expect("a spec")
    }

    fn adapted(dialect: Dialect, version: Version) -> Value {
        let sources = PreparedSources(vec![PreparedSource {
            destination: "/local".to_owned(),
            original: "/alloc/local".into(),
            prepared: "/task/mounts/0".into(),
        }]);
        serde_json::to_value(for_installed(spec(), dialect, version, &sources)).expect("JSON")
    }

    #[test]
    fn every_runtime_gets_prepared_sources_and_no_annotation_of_a_job() {
        for dialect in [Dialect::Runc, Dialect::Crun, Dialect::Runsc, Dialect::Kata] {
            for version in [Version::V1, Version::V2] {
                let spec = adapted(dialect, version);
                assert_eq!(spec["mounts"][0]["source"], "/task/mounts/0");
                assert_eq!(spec["annotations"], json!({ "com.hashicorp.nomad.alloc_id": "a" }));
                assert_eq!(spec["linux"]["rootfsPropagation"], "private");
                assert_eq!((&spec["root"]["path"], &spec["ociVersion"]), (&json!("/task/rootfs"), &json!("1.0.2")));
            }
        }
    }

    #[test]
    fn only_gvisor_gets_no_label_for_the_process() {
        for dialect in [Dialect::Runc, Dialect::Crun, Dialect::Runsc, Dialect::Kata] {
            let label = adapted(dialect, Version::V1)["process"].get("selinuxLabel").cloned();
            assert_eq!(label.is_none(), dialect == Dialect::Runsc, "{dialect:?}: {label:?}");
        }
    }

    #[test]
    fn the_limits_of_version_1_are_ours() {
        for (dialect, path) in [(Dialect::Runc, json!("runtime")), (Dialect::Crun, Value::Null)] {
            let linux = &adapted(dialect, Version::V1)["linux"];
            assert_eq!(linux["cgroupsPath"], path);
            let devices = json!([{ "allow": false, "access": "rwm" }]);
            let expected = if path.is_null() { Value::Null } else { json!({ "devices": devices }) };
            assert_eq!(linux["resources"], expected);
            let linux = &adapted(dialect, Version::V2)["linux"];
            assert_eq!(
                (&linux["cgroupsPath"], &linux["resources"]["memory"]["limit"]),
                (&json!("/nomad/a.web"), &json!(5))
            );
        }
    }

    #[test]
    fn a_runtime_with_its_own_kernel_gets_no_cgroup_and_no_recursive_option() {
        let spec = adapted(Dialect::Runsc, Version::V1);
        let options: Vec<&Value> =
            spec["mounts"].as_array().expect("mounts").iter().map(|mount| &mount["options"]).collect();
        assert_eq!(options, [&json!(["rbind", "ro"]), &json!(["rbind", "nosuid", "nodev"])]);
        assert_eq!(spec["linux"]["readonlyPaths"], json!(["/proc/sys"]));
        let spec = adapted(Dialect::Runc, Version::V1);
        assert_eq!(spec["mounts"].as_array().map(Vec::len), Some(4));
        assert_eq!(spec["mounts"][0]["options"], json!(["rbind", "rro"]));
        assert_eq!(spec["linux"]["readonlyPaths"], json!(["/proc/sys", "/sys/fs/cgroup"]));
    }

    #[test]
    fn a_command_has_the_containers_process_with_its_own_arguments() {
        let process = || spec().process().clone().expect("a process");
        let made = exec_process(process(), vec!["id".to_owned()], None, None);
        let value = serde_json::to_value(&made).expect("JSON");
        assert_eq!(
            (&value["args"], &value["cwd"], &value["env"]),
            (&json!(["id"]), &json!("/srv"), &json!(["PATH=/bin"]))
        );
        assert_eq!((&value["user"]["uid"], &value["terminal"]), (&json!(5), &json!(false)));
        let size = BoxBuilder::default().height(24u64).width(80u64).build().expect("a size");
        let made = exec_process(process(), vec!["sh".to_owned()], Some("/tmp".to_owned()), Some(size));
        let value = serde_json::to_value(&made).expect("JSON");
        assert_eq!((&value["cwd"], &value["terminal"]), (&json!("/tmp"), &json!(true)));
        assert_eq!(value["env"], json!(["PATH=/bin", "TERM=xterm"]));
        assert_eq!(value["consoleSize"], json!({ "height": 24, "width": 80 }));
    }
}
