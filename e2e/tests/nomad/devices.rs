//! The nodes, mounts and variables of a device plugin for the devices that a job reserves.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::Command,
};

use e2e::{Failure, Job, Outcome};

use crate::{Case, Env, Needs::OwnAgent};

pub const CASES: &[Case] = &[("devices_of_a_plugin", OwnAgent, of_a_plugin)];

/// Device nodes that can be opened without an effect. It depends on the kernel which of them exist.
const NODES: [&str; 5] = ["/dev/fuse", "/dev/loop-control", "/dev/net/tun", "/dev/kvm", "/dev/btrfs-control"];

/// Builds `e2e/conformance/deviceplugin` into the plugin directory of the case's agent and has the agent load it.
fn add_plugin(env: &Env, node: &str, directory: &Path) -> Outcome {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    env.agent.stop()?;
    let mut build = Command::new("go");
    // With -trimpath, as in the build of Nomad, so that both builds share the cache.
    build.args(["build", "-trimpath", "-buildvcs=false", "-o"]).arg(env.agent.driver().with_file_name("boxes"));
    let output = build.arg("./deviceplugin").current_dir(module).output()?;
    if !output.status.success() {
        return Err(Failure(format!("go build: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let mut config = OpenOptions::new().append(true).open(env.agent.path().join("client.hcl"))?;
    writeln!(config, "plugin \"boxes\" {{\n  config {{\n    directory = {directory:?}\n    node = {node:?}\n  }}\n}}")?;
    env.agent.launch()
}

fn of_a_plugin(env: &Env) -> Outcome {
    let node = NODES.into_iter().find(|node| Path::new(node).exists());
    let node = node.ok_or_else(|| Failure(format!("none of {NODES:?} is on this machine")))?;
    let directory = env.agent.path().join("boxes");
    for name in ["left", "right", "shared"] {
        fs::create_dir_all(directory.join(name))?;
        fs::write(directory.join(name).join("name"), name)?;
    }
    add_plugin(env, node, &directory)?;
    env.agent.api().wait("/v1/nodes?resources=true", "the devices", std::time::Duration::from_secs(30), |nodes| {
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
        let job = Job::new("devices").var("image", &env.registry.image()).var("script", script).number("boxes", boxes);
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
    alloc.wait_over().map(drop)
}
