//! What devices bring into a task: those that a job reserves, with a device plugin on Nomad's library and with ours,
//! and those of a spec that a job names.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e::{Alloc, Failure, Job, Outcome, process, watch};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::json;

use crate::{Case, Env, Needs::OwnAgent, invalid_jobs};

pub const CASES: &[Case] = &[
    ("devices_of_a_plugin", OwnAgent, of_a_plugin),
    ("devices_of_a_spec_need_permission", OwnAgent, of_a_spec_need_permission),
    ("devices_with_replicas_are_shared", OwnAgent, with_replicas_are_shared),
];

const LIMIT: Duration = Duration::from_secs(30);

/// The interface of a device.
const INTERFACE: &str = "box-node";

/// Device nodes that can be opened without an effect. It depends on the kernel which of them exist.
const NODES: [&str; 5] = ["/dev/fuse", "/dev/loop-control", "/dev/net/tun", "/dev/kvm", "/dev/btrfs-control"];

/// The first of [`NODES`] that exists.
fn node() -> Outcome<&'static str> {
    let node = NODES.into_iter().find(|node| Path::new(node).exists());
    node.ok_or_else(|| Failure(format!("none of {NODES:?} is on this machine")))
}

/// Builds `e2e/conformance/deviceplugin` into the plugin directory of the case's agent, puts our device plugin there
/// too, and has the agent load both.
fn add_plugins(env: &Env, node: &str, directory: &Path) -> Outcome {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    env.agent.stop()?;
    let mut build = Command::new("go");
    // With -trimpath, as in the build of Nomad, so that both builds share the cache.
    build.args(["build", "-trimpath", "-buildvcs=false", "-o"]).arg(env.agent.driver().with_file_name("boxes"));
    let output = build.arg("./deviceplugin").current_dir(module).output()?;
    if !output.status.success() {
        return Err(Failure(format!("go build: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let specs = write_spec(env)?;
    let boxes =
        format!("plugin \"boxes\" {{\n  config {{\n    directory = {directory:?}\n    node = {node:?}\n  }}\n}}");
    let ours = add_our_plugin(env, &specs, "")?;
    configure(env, &specs, "", &format!("{ours}{boxes}\n"))?;
    env.agent.launch()
}

/// Puts our device plugin into the plugin directory of a stopped agent. Returns its block, with these options.
pub fn add_our_plugin(env: &Env, specs: &Path, options: &str) -> Outcome<String> {
    fs::hard_link(env.agent.driver(), env.agent.driver().with_file_name("oci-rs-cdi"))?;
    Ok(format!("plugin \"oci-rs-cdi\" {{\n  config {{\n    spec_dirs = [{specs:?}]\n{options}  }}\n}}\n"))
}

/// Gives the driver of a stopped agent the specs and these options, and adds blocks to the configuration.
pub fn configure(env: &Env, specs: &Path, options: &str, blocks: &str) -> Outcome {
    let file = env.agent.path().join("client.hcl");
    let driver = "plugin \"oci-rs\" {\n  config {\n";
    let with_specs = format!("{driver}    cdi_spec_dirs = [{specs:?}]\n{options}");
    fs::write(&file, fs::read_to_string(&file)?.replacen(driver, &with_specs, 1) + blocks)?;
    Ok(())
}

/// The spec's file, and its directory.
fn spec(env: &Env) -> PathBuf {
    env.agent.path().join("specs/boxes.json")
}

/// The node of the second box. It does not exist at first.
fn later(env: &Env) -> PathBuf {
    env.agent.path().join("later-box")
}

/// Writes a spec with two boxes, the second of them without its node. It has every edit that this kernel can make.
/// Returns the directory.
fn write_spec(env: &Env) -> Outcome<PathBuf> {
    let directory = env.agent.path().join("specs");
    fs::create_dir(&directory)?;
    let (hook, library) = (env.agent.path().join("hook"), env.agent.path().join("library"));
    let log = env.agent.path().join("hooks.log");
    fs::write(&hook, format!("#!/bin/sh\necho $1 >> {}\n", log.display()))?;
    fs::set_permissions(&hook, Permissions::from_mode(0o755))?;
    fs::write(&library, "from the node\n")?;
    let node = |path: &Path| json!({ "path": "/dev/box", "hostPath": path, "permissions": "r", "fileMode": 0o644 });
    let stages = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    let mut hooks: Vec<_> =
        stages.iter().map(|stage| json!({ "hookName": stage, "path": hook, "args": ["h", stage] })).collect();
    let inside = ["sh", "-c", "echo $MARK > /tmp/started"];
    hooks.push(json!({ "hookName": "startContainer", "path": "/bin/sh", "args": inside, "env": ["MARK=started"] }));
    let spec_of_boxes = json!({
        "cdiVersion": "1.1.0",
        "kind": "vendor.test/box",
        "annotations": { "oci-rs/memory": "2 GiB" },
        "devices": [
            { "name": "whole", "containerEdits": {
                "deviceNodes": [node(Path::new("/dev/null"))],
                "env": ["BOX=whole"],
                "netDevices": [{ "hostInterfaceName": INTERFACE, "name": "box0" }],
            } },
            { "name": "later", "containerEdits": { "deviceNodes": [node(&later(env))], "env": ["BOX=later"] } },
        ],
        "containerEdits": {
            "hooks": hooks,
            "additionalGids": [4242],
            "mounts": [
                { "hostPath": library, "containerPath": "/opt/library", "options": ["ro", "rbind", "rprivate"] },
                { "hostPath": "none", "containerPath": "/opt/memory", "type": "tmpfs", "options": ["size=64k"] },
            ],
        },
    });
    fs::write(spec(env), spec_of_boxes.to_string())?;
    Ok(directory)
}

/// Writes a spec with one device for each name. Each has the node `/dev/box`, which tasks can read and not write.
/// Returns the directory of the spec.
fn write_simple_spec(env: &Env, names: &[&str]) -> Outcome<PathBuf> {
    let directory = env.agent.path().join("specs");
    fs::create_dir(&directory)?;
    let node = json!({ "path": "/dev/box", "hostPath": node()?, "permissions": "r" });
    let edits = |name: &str| json!({ "deviceNodes": [node], "env": [format!("BOX={name}")] });
    let devices: Vec<_> = names.iter().map(|name| json!({ "name": name, "containerEdits": edits(name) })).collect();
    let spec_of_boxes = json!({ "cdiVersion": "1.1.0", "kind": "vendor.test/box", "devices": devices });
    fs::write(spec(env), spec_of_boxes.to_string())?;
    Ok(directory)
}

/// Waits until the server knows these devices of our plugin with this health.
fn wait_devices(env: &Env, expected: &[(&str, bool)]) -> Outcome {
    env.agent.api().wait("/v1/nodes?resources=true", "the devices of specs", LIMIT, |nodes| {
        let devices = nodes[0]["NodeResources"]["Devices"].as_array()?;
        let boxes = devices.iter().find(|device| device["Vendor"] == "vendor.test")?;
        assert_eq!((&boxes["Type"], &boxes["Name"]), (&json!("box"), &json!("cdi")));
        let found =
            boxes["Instances"].as_array()?.iter().map(|device| (device["ID"].as_str(), device["Healthy"].as_bool()));
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        let expected: Vec<_> = expected.iter().map(|(id, healthy)| (Some(*id), Some(*healthy))).collect();
        (found == expected).then_some(())
    })
}

/// A task with a device of our plugin. The agent chooses the one that is healthy. The task sees every edit.
fn of_our_plugin(env: &Env) -> Outcome {
    let (whole, later_box) = ("vendor.test/box=whole", "vendor.test/box=later");
    ip(&["link", "add", INTERFACE, "type", "veth", "peer", "name", "box-peer"])?;
    ip(&["address", "add", "203.0.113.7/24", "dev", INTERFACE])?;
    wait_devices(env, &[(later_box, false), (whole, true)])?;
    let script = "echo $BOX; stat -c '%t:%T %a' /dev/box; id -G | tr ' ' '\n' | grep 4242; cat /opt/library; \
                  (echo x > /opt/library) 2> /dev/null || echo read only; stat -f -c %T /opt/memory; \
                  cat /tmp/started; ip -o addr show dev box0 scope global | awk '{print $4}'";
    let job = Job::new("cdi").var("image", &env.registry.image()).var("script", script);
    let alloc = env.agent.run(&job)?;
    let expected = "whole\n1:3 644\n4242\nfrom the node\nread only\ntmpfs\nstarted\n203.0.113.7/24\n";
    alloc.wait_log("stdout", |log| log == expected.as_bytes())?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_over()?;
    let directory = env.agent.path();
    let stages = "prestart\ncreateRuntime\ncreateContainer\npoststart\npoststop\n";
    let all = || fs::read_to_string(directory.join("hooks.log")).ok().filter(|log| log == stages);
    watch::until(directory, "all hooks", LIMIT, all)?;
    // The driver removes the record of the task's network when the interface is back.
    let networks = directory.join("state/networks");
    let back = || fs::read_dir(&networks).is_ok_and(|mut left| left.next().is_none()).then_some(());
    watch::until(&networks, "the interface", LIMIT, back)?;
    let address = Command::new("ip").args(["-oneline", "address", "show", "dev", INTERFACE]).output()?.stdout;
    assert!(String::from_utf8_lossy(&address).contains("203.0.113.7/24"), "{address:?}");
    ip(&["link", "delete", INTERFACE])?;

    // A device is plugged in and gets a job. Then its spec changes.
    mknodat(CWD, later(env), FileType::CharacterDevice, Mode::RUSR, makedev(1, 5))?;
    wait_devices(env, &[(later_box, true), (whole, true)])?;
    let text = fs::read_to_string(spec(env))?.replace("\"whole\"", "\"unused\"").replace("box=whole", "box=unused");
    let text = text.replace("/dev/null", "/dev/no-box");
    fs::write(directory.join("boxes.tmp"), text)?;
    fs::rename(directory.join("boxes.tmp"), spec(env))?;
    wait_devices(env, &[(later_box, true), ("vendor.test/box=unused", false)])?;
    let script = "echo $BOX; stat -c '%t:%T' /dev/box; ls /sys/class/net | xargs";
    let alloc = env.agent.run(&Job::new("cdi").var("image", &env.registry.image()).var("script", script))?;
    alloc.wait_log("stdout", |log| log == b"later\n1:5\nlo\n")?;
    alloc.wait_over().map(drop)
}

/// Changes the network of this lane.
fn ip(args: &[&str]) -> Outcome {
    process::succeed(Command::new("ip").args(args))
}

fn of_a_plugin(env: &Env) -> Outcome {
    let node = node()?;
    let directory = env.agent.path().join("boxes");
    for name in ["left", "right", "shared"] {
        fs::create_dir_all(directory.join(name))?;
        fs::write(directory.join(name).join("name"), name)?;
    }
    add_plugins(env, node, &directory)?;
    env.agent.api().wait("/v1/nodes?resources=true", "the devices", LIMIT, |nodes| {
        let devices = nodes[0]["NodeResources"]["Devices"].as_array()?;
        devices.iter().any(|device| device["Name"] == "cardboard").then_some(())
    })?;
    // One device: its directory is read-only, the shared directory is writable, and its node can only be read.
    let script = r#"
        ls /boxes /dev | grep -E 'left|right|shared'
        [ "$(cat /boxes/$BOXES/name)" = "$BOXES" ] && echo "the right one"
        { echo x > /boxes/$BOXES/name; } 2>/dev/null || echo "only to be read"
        echo written > /boxes/shared/from-the-task
        { true < /dev/box-$BOXES; } 2>/dev/null && echo "opened to read"
        { true > /dev/box-$BOXES; } 2>/dev/null || echo "not opened to write"
    "#;
    let run = |boxes: i64, script: &str| -> Outcome<Vec<String>> {
        let job = Job::new("devices").var("image", &env.registry.image()).var("script", script).number("count", boxes);
        let alloc = env.agent.run(&job)?;
        assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
        let output = alloc.wait_log("stdout", |log| log.ends_with(b"end\n"))?;
        Ok(String::from_utf8_lossy(&output).lines().map(str::to_owned).collect())
    };
    let lines = run(1, &format!("{script}\necho $BOXES; echo end"))?;
    let [own, shared, in_dev, ..] = lines.as_slice() else { return Err(Failure(format!("{lines:?}"))) };
    assert!(own == "left" || own == "right", "{lines:?}");
    assert_eq!((shared.as_str(), in_dev), ("shared", &format!("box-{own}")), "{lines:?}");
    let rest = ["the right one", "only to be read", "opened to read", "not opened to write", own, "end"];
    assert_eq!(lines[3..], rest, "{lines:?}");
    assert_eq!(fs::read_to_string(directory.join(own).join("name"))?, *own);
    assert_eq!(fs::read_to_string(directory.join("shared/from-the-task"))?, "written\n");

    // Both devices.
    let lines = run(2, "echo $BOXES; cat /boxes/left/name /boxes/right/name; echo; ls /dev | grep box; echo end")?;
    let expected = ["leftright", "box-left", "box-right", "end"];
    assert!(lines[0] == "left,right" || lines[0] == "right,left", "{lines:?}");
    assert_eq!(lines[1..], expected, "{lines:?}");
    // A task without a reservation gets no device.
    let job = crate::batch::script(env, "ls /dev | grep -c box; [ -e /boxes ] || [ -n \"$BOXES\" ] || echo none");
    let alloc = env.agent.run(&job)?;
    alloc.wait_log("stdout", |log| log == b"0\nnone\n")?;
    alloc.wait_over()?;
    of_our_plugin(env)
}

/// Prints the name of a box and how its node can be opened.
const OPEN: &str = "echo $BOX; { true </dev/box; } 2>/dev/null && echo opened to read; \
                    { true >/dev/box; } 2>/dev/null || echo not opened to write";

/// What [`OPEN`] prints.
fn opened(name: &str) -> String {
    format!("{name}\nopened to read\nnot opened to write\n")
}

/// A job names a device of a spec. The operator's list decides.
fn of_a_spec_need_permission(env: &Env) -> Outcome {
    let specs = write_simple_spec(env, &["allowed", "other"])?;
    env.agent.stop()?;
    configure(env, &specs, "    allow_devices = [\"/dev/null\", \"vendor.test/box=allow*\"]\n", "")?;
    env.agent.launch()?;
    let job = |name: &str| {
        let job = crate::batch::script(env, OPEN).config(&format!("devices {{\n  cdi = \"{name}\"\n}}"));
        job.number("attempts", 2)
    };
    let alloc = env.agent.run(&job("vendor.test/box=allowed"))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log == opened("allowed").as_bytes())?;
    let refused = ["devices: this node does not allow \"vendor.test/box=other\"", "allow_devices"];
    invalid_jobs::refused(env, &job("vendor.test/box=other"), &refused)?;
    // A permitted name that no spec has.
    let missing = "no spec has the device vendor.test/box=allow-none";
    invalid_jobs::refused(env, &job("vendor.test/box=allow-none"), &[missing, "allowed, other"])
}

/// Two replicas of one device. Two jobs have it at the same time, and there is none for a third job.
fn with_replicas_are_shared(env: &Env) -> Outcome {
    let specs = write_simple_spec(env, &["whole"])?;
    env.agent.stop()?;
    let ours = add_our_plugin(env, &specs, "    kind \"vendor.test/box\" {\n      replicas = 2\n    }\n")?;
    configure(env, &specs, "", &ours)?;
    env.agent.launch()?;
    wait_devices(env, &[("vendor.test/box=whole#1", true), ("vendor.test/box=whole#2", true)])?;
    let file = env.agent.path().join("cdi.nomad.hcl");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs/cdi.nomad.hcl"))?;
    let constrained = |operator: &str, value: &str| -> Outcome<Job> {
        let text = text.replace("device.attr.memory", "device.attr.replicas");
        fs::write(&file, text.replace(">=", operator).replace("2 GiB", value))?;
        let script = format!("trap 'exit 0' TERM; {OPEN}; while :; do sleep 0.1; done");
        Ok(Job::at(&file).var("image", &env.registry.image()).var("script", &script))
    };
    let job = constrained("=", "2")?;
    let sharers = [env.agent.run(&job)?, env.agent.run(&job)?];
    for alloc in &sharers {
        alloc.wait_running()?;
        alloc.wait_log("stdout", |log| log == opened("whole").as_bytes())?;
    }
    // Both tasks still run.
    for alloc in &sharers {
        assert_eq!(alloc.sh(OPEN)?, opened("whole"));
    }
    not_placed(env, &job, "\"devices")?;
    sharers.iter().try_for_each(Alloc::stop)?;
    // A job can avoid devices with replicas.
    not_placed(env, &constrained("is_not_set", "")?, "missing devices")
}

/// Nomad finds no place for the job, and the reason contains `reason`. The job is removed, so that it gets no place
/// later either.
fn not_placed(env: &Env, job: &Job, reason: &str) -> Outcome {
    let placed = env.agent.register(job, "unplaced");
    env.agent.api().delete("/v1/job/unplaced?purge=true")?;
    match placed {
        Err(Failure(text)) if text.contains("cannot be placed") && text.contains(reason) => Ok(()),
        other => Err(Failure(format!("expected no place because of {reason}: {other:?}"))),
    }
}
