//! `oci-rs migrate` on a real agent: each verdict about a docker job is compared with what happens when the job runs.

use std::{fs, os::unix::fs::symlink, process::Output};

use e2e::{Context, Failure, Outcome};
use serde_json::{Value, json};

use crate::{Case, Env, Needs::SharedAgent};

pub const CASES: &[Case] = &[
    ("migrate_verdicts_are_what_happens", SharedAgent, verdicts),
    ("migrate_reads_hcl_and_standard_input", SharedAgent, files),
];

/// The part of the plugin block of `docker.hcl.in` that decides about tasks.
fn plugin_block() -> Value {
    json!({ "plugin": { "docker": { "config": {
        "allow_privileged": false,
        "volumes": { "enabled": true },
        "network": { "default_mode": "host" },
    } } } })
}

/// The network of a group with one port.
fn bridge() -> Value {
    json!({ "Mode": "bridge", "DynamicPorts": [{ "Label": "http", "To": 8080 }] })
}

/// A config block without an image, its group's network, and the expected verdict with the options that cause it: those
/// to change, those of the plugin block behind `+`.
type Sample = (Value, Value, &'static str);

/// The block with a command for the shell.
fn shell(mut config: Value, script: &str) -> Value {
    config["command"] = json!("/bin/sh");
    config["args"] = json!(["-c", script]);
    config
}

fn samples() -> Vec<Sample> {
    let host = Value::Null;
    let dns = json!({ "Servers": ["192.0.2.1"] });
    let volume = json!([{ "type": "volume", "source": "migrate", "target": "/data" }]);
    vec![
        (host.clone(), json!({}), "unchanged"),
        (host.clone(), json!({ "labels": [{ "a": "b" }], "shm_size": "1048576", "hostname": "shop" }), "unchanged"),
        (host.clone(), json!({ "logging": [{ "type": "json-file", "config": [{ "max-file": "2" }] }] }), "unchanged"),
        (host.clone(), json!({ "volumes": ["local/${NOMAD_META_dir}:/x", "/tmp:/host-tmp:ro"] }), "unchanged"),
        (
            host.clone(),
            json!({ "mount": [{ "type": "tmpfs", "target": "/x", "tmpfs_options": [{ "size": 65536 }] }] }),
            "unchanged",
        ),
        (
            host.clone(),
            json!({ "mounts": [{ "type": "bind", "source": "local", "target": "/x", "readonly": true }] }),
            "unchanged",
        ),
        (host.clone(), json!({ "ulimit": [{ "nofile": "100:200" }], "pids_limit": 100, "init": true }), "unchanged"),
        (host.clone(), json!({ "network_mode": "bridge", "sysctl": [{ "net.core.somaxconn": "16" }] }), "unchanged"),
        (host.clone(), json!({ "network_mode": "none", "cap_drop": ["all"], "cap_add": ["chown"] }), "unchanged"),
        (
            host.clone(),
            json!({ "security_opt": ["seccomp=unconfined"], "pid_mode": "host", "ipc_mode": "host" }),
            "unchanged",
        ),
        (
            host.clone(),
            json!({ "extra_hosts": ["db.internal:10.0.0.5"], "work_dir": "/tmp", "runtime": "runc" }),
            "unchanged",
        ),
        (host.clone(), json!({ "memory_hard_limit": 64, "cpu_hard_limit": true, "userns_mode": "host" }), "unchanged"),
        (
            host.clone(),
            json!({ "auth": [{ "username": "user", "password": "secret" }], "force_pull": "false" }),
            "unchanged",
        ),
        (bridge(), json!({ "ports": ["http"], "dns_servers": ["192.0.2.1"] }), "unchanged"),
        (bridge(), json!({ "sysctl": [{ "net.core.somaxconn": "16" }], "network_aliases": ["shop"] }), "unchanged"),
        // These tasks succeed only if the difference exists.
        (host.clone(), shell(json!({ "tty": true }), "[ \"$(stty size)\" = \"24 80\" ]"), "differs"),
        (host.clone(), shell(json!({ "readonly_rootfs": true }), "! touch /x && echo >>/etc/hosts"), "differs"),
        (json!({ "Mode": "bridge", "DNS": dns }), shell(json!({}), "echo >>/etc/resolv.conf"), "differs"),
        (host.clone(), shell(json!({ "mount": volume }), "touch /data/x"), "differs"),
        (host.clone(), json!({ "volume_driver": "local", "volumes": ["migrate:/data"] }), "differs"),
        (host.clone(), json!({ "privileged": true }), "unchanged +allow_privileged"),
        (host.clone(), json!({ "cap_add": ["net_admin"] }), "unchanged +allow_caps"),
        (host.clone(), json!({ "runtime": "crun" }), "unchanged +allow_runtimes"),
        (host.clone(), json!({ "network_mode": "weave" }), "change network_mode"),
        (
            host.clone(),
            json!({ "network_mode": "container:shop", "pid_mode": "container:shop" }),
            "change pid_mode network_mode",
        ),
        (host.clone(), json!({ "volume_driver": "pxd", "volumes": ["migrate:/data"] }), "change volume_driver"),
        (host.clone(), json!({ "logging": [{ "type": "awslogs" }] }), "change logging.type"),
        (host.clone(), json!({ "isolation": "hyperv" }), "change isolation"),
        (host.clone(), json!({ "storage_opt": [{ "size": "1G" }] }), "unchanged"),
        (host.clone(), json!({ "storage_opt": [{ "inodes": "9" }] }), "change storage_opt"),
        (host.clone(), json!({ "no_such_option": 1 }), "change no_such_option"),
        (host.clone(), json!({ "image": "Not A Name" }), "change image"),
        (host.clone(), json!({ "ulimit": [{ "files": "1" }], "oom_score_adj": 2000 }), "change ulimit oom_score_adj"),
        (host.clone(), json!({ "network_mode": "host", "sysctl": [{ "net.core.somaxconn": "16" }] }), "change sysctl"),
        (host.clone(), json!({ "memory_hard_limit": 8 }), "change memory_hard_limit"),
        (host.clone(), json!({ "security_opt": ["systempaths=shop"] }), "change security_opt"),
        (host, json!({ "volumes": ["nonsense"] }), "change volumes[0]"),
        (bridge(), json!({ "port_map": [{ "http": 80 }] }), "change port_map"),
        (bridge(), json!({ "extra_hosts": ["node:host-gateway"] }), "change extra_hosts"),
    ]
}

fn job(id: &str, image: &str, network: &Value, mut config: Value) -> Value {
    for (option, value) in [("image", json!(image)), ("command", json!("true"))] {
        if config[option].is_null() {
            config[option] = value;
        }
    }
    let networks = if network.is_null() { json!([]) } else { json!([network]) };
    json!({ "ID": id, "Name": id, "Type": "batch", "Datacenters": ["*"], "Meta": { "dir": "made" }, "TaskGroups": [{
        "Name": "group",
        "Networks": networks,
        "RestartPolicy": { "Attempts": 0, "Mode": "fail" },
        "ReschedulePolicy": { "Attempts": 0, "Unlimited": false },
        "Tasks": [{
            "Name": "task", "Driver": "docker", "Config": config, "Resources": { "CPU": 50, "MemoryMB": 16 },
            "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
        }],
    }] })
}

/// Runs `oci-rs migrate --json`. Returns its answer and its exit code.
fn migrate(env: &Env, words: &[&str]) -> Outcome<(Value, Option<i32>)> {
    let mut command = env.agent.command(env.agent.driver());
    let output = command.args(["migrate", "-json"]).args(words).output().context("migrate")?;
    answer(&output)
}

fn answer(output: &Output) -> Outcome<(Value, Option<i32>)> {
    let value = serde_json::from_slice(&output.stdout);
    Ok((value.map_err(|error| Failure(format!("{error}: {output:?}")))?, output.status.code()))
}

fn names(list: &Value, field: Option<&str>) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    let name = |item: &Value| field.map_or(item, |field| &item[field]).as_str().unwrap_or_default().to_owned();
    items.map(name).collect()
}

fn verdicts(env: &Env) -> Outcome {
    let samples = samples();
    let ids: Vec<String> = (0..samples.len()).map(|index| format!("migrate-{index}")).collect();
    for (id, (network, config, _)) in ids.iter().zip(&samples) {
        let job = job(id, &env.registry.image(), network, config.clone());
        env.agent.api().put("/v1/jobs", &json!({ "Job": job })).context(config)?;
    }
    let config = env.agent.path().join("migrate.json");
    fs::write(&config, plugin_block().to_string())?;
    let (report, code) = migrate(env, &["-config", &config.to_string_lossy()])?;
    assert_eq!(code, Some(5));
    let needed = names(&report["plugin_block"]["additions"], Some("option"));
    assert_eq!(needed, ["allow_caps", "allow_privileged", "allow_runtimes"]);
    let tasks = report["tasks"].as_array().cloned().unwrap_or_default();
    assert_eq!(tasks.len(), samples.len(), "{report}");
    for (id, (_, config, expected)) in ids.iter().zip(&samples) {
        let task = tasks.iter().find(|task| task["job"] == id.as_str()).ok_or_else(|| Failure(format!("no {id}")))?;
        let changes = names(&task["changes"], Some("option"));
        let permissions = names(&task["plugin_block"], None);
        let words = changes.iter().cloned().chain(permissions.iter().map(|option| format!("+{option}")));
        let verdict = [task["verdict"].as_str().unwrap_or_default().to_owned()].into_iter().chain(words);
        assert_eq!(verdict.collect::<Vec<_>>().join(" "), *expected, "{config}");
        // What happens.
        let alloc = env.agent.placed(id, 1)?.swap_remove(0);
        let status = alloc.wait_over()?["ClientStatus"].clone();
        let events = alloc.events()?.join("\n");
        if changes.is_empty() && permissions.is_empty() {
            assert_eq!(status, "complete", "{config}: {events}");
            continue;
        }
        assert_eq!(status, "failed", "{config}: {events}");
        for option in &changes {
            assert!(events.contains(option), "{option} of {config}: {events}");
        }
        assert!(permissions.is_empty() || events.contains("allow"), "{config}: {events}");
    }
    Ok(())
}

const HCL: &str = r#"
variable "shape" { type = string }

job "shop" {
  group "web" {
    count = 2

    task "nginx" {
      driver = "docker"

      config {
        image        = "nginx:1.27"
        network_mode = var.shape
        args         = ["-c", "${NOMAD_TASK_DIR}/nginx.conf"]

        labels {
          team = "shop"
        }

        mount {
          type   = "bind"
          source = "local/html"
          target = "/usr/share/nginx/html"
        }
      }
    }
  }
}
"#;

/// HCL is converted by the installed `nomad`. It needs no agent.
fn files(env: &Env) -> Outcome {
    let directory = env.agent.path().join("migrate");
    fs::create_dir_all(&directory)?;
    symlink(env.agent.nomad_program(), directory.join("nomad"))?;
    let file = directory.join("shop.nomad.hcl");
    fs::write(&file, HCL)?;
    let run = |shape: &str| {
        let mut command = env.agent.command(env.agent.driver());
        command.env("PATH", &directory).args(["migrate", "-json", "-var", shape]);
        answer(&command.arg(&file).output().context("migrate")?)
    };
    let (report, code) = run("shape=host")?;
    assert_eq!((&report["tasks"][0]["verdict"], code), (&json!("unchanged"), Some(0)), "{report}");
    assert_eq!(report["tasks"][0]["task"], "nginx");
    let (report, code) = run("shape=weave")?;
    assert_eq!(code, Some(5));
    assert_eq!(report["tasks"][0]["changes"][0]["removed"], json!(["network_mode = \"weave\""]));
    fs::remove_dir_all(&directory)?;
    Ok(())
}
