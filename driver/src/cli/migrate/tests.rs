//! Whole checks: a job, a plugin block, and the report.

use serde_json::{Value as Json, json};

use super::{
    check::{Assessment, assess},
    exit_code,
    job::docker_tasks,
    node::{Addition, Nodes},
    report::{Checked, Report},
};
use crate::{
    config::{decode_plugin, from_json},
    name::DriverName,
};

fn nodes(block: Json) -> Nodes {
    Nodes::new(decode_plugin(&from_json(&block), DriverName::Docker).unwrap())
}

fn job(network: Json, config: Json) -> Json {
    json!({ "ID": "shop", "Name": "shop", "TaskGroups": [{ "Name": "web", "Networks": [network], "Tasks": [{
        "Name": "t", "Driver": "docker", "Config": config, "Resources": { "CPU": 100, "MemoryMB": 64 },
    }] }] })
}

/// A task with this config, and an image unless it names one.
fn check_in(network: Json, mut config: Json, nodes: &Nodes) -> Assessment {
    let fields = config.as_object_mut().unwrap();
    fields.entry("image").or_insert(json!("nginx:1.27"));
    assess(&docker_tasks(&job(network, config))[0], nodes)
}

/// The verdict, then one word for each reason: `!option` must change, `~behaviour` differs, the plugin block must allow
/// `+option`, and `?option` is not checked.
fn summary(assessment: &Assessment) -> String {
    let mut words = vec![assessment.verdict().as_str().to_owned()];
    words.extend(assessment.refusals.iter().map(|refusal| format!("!{}", refusal.error.option)));
    words.extend(assessment.differences.iter().map(|difference| format!("~{}", difference.behaviour)));
    words.extend(assessment.permissions.iter().map(|permission| format!("+{}", permission.option)));
    words.extend(assessment.unchecked.iter().map(|unchecked| format!("?{}", unchecked.option)));
    words.join(" ")
}

#[test]
fn tasks_without_a_group_network() {
    for (config, expected) in [
        (json!({}), "unchanged"),
        (json!({ "command": "sh", "args": ["-c", "echo ${NOMAD_ALLOC_ID} ${attr.unique.hostname}"] }), "unchanged"),
        // The forms in which Nomad's API has blocks, maps and numbers.
        (
            json!({ "labels": [{ "a": "b" }], "shm_size": "9", "auth": [{ "username": "${U}", "password": "x" }] }),
            "unchanged",
        ),
        (json!({ "logging": [{ "type": "json-file", "config": [{ "max-file": "2" }] }] }), "unchanged"),
        (json!({ "image": "${meta.registry}/app:1" }), "unchanged ?image"),
        (json!({ "image": "Not A Name" }), "change !image"),
        (json!({ "privileged": true }), "unchanged +allow_privileged"),
        (json!({ "cap_add": ["net_admin"], "runtime": "crun" }), "unchanged +allow_caps +allow_runtimes"),
        (json!({ "volumes": ["/srv/data:/data"] }), "unchanged +volumes.enabled"),
        (json!({ "volumes": ["local/data:/data"] }), "unchanged"),
        // Nomad's variable is a path of the container, which is a host path here. So it is with docker.
        (json!({ "volumes": ["${NOMAD_ALLOC_DIR}/x:/x"] }), "unchanged +volumes.enabled"),
        (json!({ "volumes": ["${meta.disk}/data:/data", "bad"] }), "change !volumes[0] ?volumes[0]"),
        (
            json!({ "mount": [{ "type": "volume", "source": "data", "target": "/data" }] }),
            "differs ~content of named volumes +volumes.enabled",
        ),
        (
            json!({ "mount": [{ "target": "/data", "volume_options": [{ "driver_config": [{ "options": [
                { "type": "ext4", "device": "/dev/sdb" },
            ] }] }] }] }),
            "unchanged +volumes.enabled",
        ),
        (json!({ "tty": true }), "differs ~size of a new terminal"),
        (
            json!({ "volumes": ["/var/run/docker.sock:/var/run/docker.sock:ro"] }),
            "differs ~host paths of docker's daemon +volumes.enabled",
        ),
        (
            json!({ "mount": [{ "type": "bind", "source": "/var/lib/docker/containers", "target": "/c" }] }),
            "differs ~host paths of docker's daemon +volumes.enabled",
        ),
        (json!({ "volumes": ["/var/run/docker.socket:/x"] }), "unchanged +volumes.enabled"),
        (json!({ "volume_driver": "pxd", "volumes": ["name:/data"] }), "change !volume_driver"),
        (json!({ "network_mode": "weave" }), "change !network_mode"),
        (json!({ "network_mode": "container:x", "pid_mode": "container:x" }), "change !pid_mode !network_mode"),
        (json!({ "network_mode": "host", "sysctl": [{ "net.core.somaxconn": "1" }] }), "change !sysctl"),
        (json!({ "sysctl": [{ "net.core.somaxconn": "1" }] }), "unchanged"),
        (json!({ "no_such_option": 1 }), "change !no_such_option"),
        (json!({ "memory_hard_limit": 32 }), "change !memory_hard_limit"),
        (json!({ "ports": ["http"] }), "change !ports"),
        (json!({ "ipv6_address": "fd00::9" }), "unchanged +network.subnet_ipv6"),
        (json!({ "pid_mode": "host", "security_opt": ["seccomp=unconfined"] }), "unchanged"),
        // The second error is found after the first one is gone.
        (json!({ "isolation": "hyperv", "ports": ["http"] }), "change !isolation !ports"),
    ] {
        let assessment = check_in(Json::Null, config.clone(), &nodes(json!({})));
        assert_eq!(summary(&assessment), expected, "{config}");
    }
}

#[test]
fn tasks_in_a_group_with_a_network() {
    let network = json!({ "Mode": "bridge", "Hostname": "shop", "DynamicPorts": [{ "Label": "http", "To": 80 }] });
    for (config, expected) in [
        (json!({ "ports": ["http"], "sysctl": [{ "net.core.somaxconn": "1" }] }), "unchanged"),
        (json!({ "port_map": [{ "http": 80 }] }), "change !port_map"),
        (json!({ "network_mode": "cni/lan" }), "change !network_mode"),
        (json!({ "extra_hosts": ["node:host-gateway"] }), "change !extra_hosts"),
        (json!({ "network_aliases": ["a"] }), "unchanged"),
    ] {
        let assessment = check_in(network.clone(), config.clone(), &nodes(json!({})));
        assert_eq!(summary(&assessment), expected, "{config}");
    }
    let dns = json!({ "Mode": "bridge", "DNS": { "Servers": ["10.0.0.2"] } });
    let assessment = check_in(dns, json!({}), &nodes(json!({})));
    assert_eq!(summary(&assessment), "differs ~`/etc/resolv.conf` of a group with `dns`");
}

#[test]
fn the_plugin_block_decides_what_is_missing() {
    let config = json!({ "privileged": true, "pids_limit": 500, "volumes": ["/srv:/srv"] });
    for (block, expected) in [
        (json!({ "allow_privileged": true, "volumes": { "enabled": true } }), "unchanged"),
        (json!({ "pids_limit": 100, "volumes": { "enabled": true } }), "unchanged +allow_privileged +pids_limit"),
        (json!({ "strict": true }), "unchanged +allow_privileged +volumes.enabled"),
    ] {
        assert_eq!(summary(&check_in(Json::Null, config.clone(), &nodes(block.clone()))), expected, "{block}");
    }
    for (modes, expected) in
        [(json!({}), "unchanged +allowed_modes.userns"), (json!({ "userns": ["host"] }), "unchanged")]
    {
        let nodes = nodes(json!({ "userns": { "mode": "require" }, "allowed_modes": modes }));
        assert_eq!(summary(&check_in(Json::Null, json!({ "userns_mode": "host" }), &nodes)), expected);
        assert_eq!(summary(&check_in(Json::Null, json!({}), &nodes)), "unchanged");
    }
    let migrating = nodes(json!({ "migrate_volumes": true, "volumes": { "enabled": true } }));
    let volume = json!({ "mount": [{ "type": "volume", "source": "data", "target": "/data" }] });
    assert_eq!(summary(&check_in(Json::Null, volume, &migrating)), "unchanged");
    let strict = nodes(json!({ "strict": true }));
    let assessment = check_in(Json::Null, json!({ "ipc_mode": "host" }), &strict);
    assert_eq!(summary(&assessment), "differs ~`no-new-privileges` +allowed_modes.ipc");
}

#[test]
fn nodes_with_the_drivers_own_name_only_need_another_driver_in_each_task() {
    let nodes = Nodes::new(decode_plugin(&from_json(&json!({})), DriverName::OciRs).unwrap());
    let network = json!({ "Mode": "bridge", "Hostname": "shop" });
    let assessment = check_in(network, json!({ "security_opt": ["no-new-privileges"] }), &nodes);
    assert_eq!(summary(&assessment), "change !driver +network.group_networks");
    let refusal = &assessment.refusals[0];
    assert_eq!((&refusal.removed[0][..], &refusal.added[0][..]), ("driver = \"docker\"", "driver = \"oci-rs\""));
}

/// The report of tasks with these configs.
fn report(configs: &[Json], nodes: &Nodes) -> Report {
    let checked = |config: &Json| {
        let task = docker_tasks(&job(Json::Null, config.clone())).remove(0);
        Checked { assessment: assess(&task, nodes), task }
    };
    Report::new(configs.iter().map(checked).collect(), nodes)
}

#[test]
fn the_exit_code_is_that_of_the_worst_verdict() {
    let nodes = nodes(json!({}));
    let unchanged = json!({ "image": "a" });
    let differs = json!({ "image": "a", "tty": true });
    let privileged = json!({ "image": "a", "privileged": true });
    let change = json!({ "image": "a", "isolation": "process" });
    for (configs, expected) in [
        (vec![], 0),
        (vec![unchanged.clone()], 0),
        (vec![unchanged.clone(), differs.clone()], 3),
        (vec![privileged.clone(), differs.clone()], 4),
        (vec![change, privileged, differs, unchanged], 5),
    ] {
        assert_eq!(exit_code(&report(&configs, &nodes)), expected);
    }
}

const TEXT: &str = r#"TASK        VERDICT  BECAUSE OF
shop/web/t  differs  size of a new terminal, plugin block: al…
shop/web/t  change   security_opt, network_mode, plugin block…

shop/web/t needs these changes:
  security_opt: "x" is no option of SELinux labels
    - security_opt = ["label=x", "no-new-privileges"]
    + security_opt = ["no-new-privileges"]
    What to do: write `disable`, or `user:…`, `role:…`,
        `type:…`, `level:…` or `filetype:…`
  network_mode: "weave" is not supported: there are no docker
      networks
    - network_mode = "weave"
    What to do: write bridge, host, none, or cni/<name> for a
        CNI network of the operator's; tasks that talk to each
        other belong into one group with `network { mode =
        "bridge" }`, or find each other by their services

Differs: size of a new terminal
  docker: 0 rows and 0 columns until a client sets it.
  oci-rs: 24 rows and 80 columns until a client sets it.
  What to do: nothing.
  Tasks: shop/web/t

Not checked, because the values depend on the node:
  shop/web/t: hostname has ${attr.unique.hostname}

The plugin block must have:
  plugin "docker" {
    config {
      allow_caps = ["CHOWN", "KILL", "NET_ADMIN", "SYS_TIME"]
    }
  }
  allow_caps: for shop/web/t, shop/web/t

2 tasks: 0 unchanged, 1 with differences, 1 to change
"#;

#[test]
fn the_operators_options_for_devices_shared_mounts_and_oom_scores_are_proposed() {
    let nodes = nodes(json!({ "strict": true, "volumes": { "enabled": true } }));
    let config = |device: &str, score: i32| {
        let bind = json!({ "type": "bind", "source": "/srv", "target": "/srv",
            "bind_options": { "propagation": "rshared" } });
        json!({ "image": "a", "devices": [{ "host_path": device }], "mount": [bind], "oom_score_adj": score })
    };
    let report = report(&[config("/dev/fuse", -10), config("/dev/kvm", -500)], &nodes);
    let hcl: Vec<String> = report.additions().iter().map(Addition::hcl).collect();
    assert_eq!(
        hcl,
        [r#"allow_devices = ["/dev/fuse", "/dev/kvm"]"#, "min_oom_score_adj = -500", "volumes { allow_shared = true }",]
    );
}

#[test]
fn the_text_fits_the_width() {
    let nodes = nodes(json!({ "allow_caps": ["KILL", "chown"] }));
    let configs = [
        json!({ "image": "a", "tty": true, "hostname": "${attr.unique.hostname}", "cap_add": ["NET_ADMIN"] }),
        json!({
            "image": "a",
            "network_mode": "weave",
            "cap_add": ["sys_time"],
            "security_opt": ["label=x", "no-new-privileges"],
        }),
    ];
    let lines = report(&configs, &nodes).text(62);
    let text = lines.join("\n");
    let (text, general) = text.split_at(text.rfind("to change\n").unwrap() + "to change\n".len());
    assert_eq!(text, TEXT);
    assert!(general.contains("docs/docker-parity.md"), "{general}");
    assert!(lines.iter().all(|line| line.chars().count() <= 62));
    assert_eq!(report(&[], &nodes).text(62), ["no tasks with driver = \"docker\""]);
}

#[test]
fn the_json_has_everything_that_the_text_has() {
    let config = json!({ "image": "a", "isolation": "process", "privileged": true, "hostname": "${meta.a}" });
    let json = report(&[config], &nodes(json!({}))).json();
    let task = &json["tasks"][0];
    assert_eq!(task["job"], "shop");
    assert_eq!(task["verdict"], "change");
    assert_eq!(task["changes"][0]["option"], "isolation");
    assert_eq!(task["changes"][0]["removed"], json!(["isolation = \"process\""]));
    assert_eq!(task["plugin_block"], json!(["allow_privileged"]));
    assert_eq!(task["not_checked"], json!([{ "option": "hostname", "variables": ["${meta.a}"] }]));
    let additions = json!([{ "option": "allow_privileged", "hcl": "allow_privileged = true" }]);
    assert_eq!(json["plugin_block"], json!({ "driver": "docker", "additions": additions }));
    assert!(json["differences_of_every_task"].as_array().unwrap().len() > 5);
}

#[test]
fn secrets_of_a_job_are_not_in_the_report() {
    let config = json!({
        "image": "a",
        "auth": [{ "username": "user", "password": "s3cret" }, { "password": "s3cret" }],
        "logging": [{ "type": "splunk", "config": [{ "splunk-token": "s3cret" }] }],
        "mount": [{
            "type": "volume",
            "target": "/a",
            "source": "a",
            "volume_options": [{ "driver_config": [{ "name": "x", "options": [{ "o": "password=s3cret" }] }] }],
        }],
    });
    let report = report(&[config], &nodes(json!({})));
    let text = report.text(100).join("\n") + &report.json().to_string();
    assert!(text.contains("logging") && text.contains("volume_options"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}
