//! Dynamic host volumes: `nomad volume create` makes a volume, jobs mount it, and it outlives task, job and agent. An
//! image as a volume, and the limit of a writable layer.

use std::{ffi::CStr, fs, path::PathBuf};

use e2e::{Agent, Alloc, Context, Failure, Job, Outcome};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount},
    thread::{CapabilitySet, capabilities},
};

use serde_json::Value;

use crate::{
    Case, Env,
    Needs::{OwnAgent, SharedAgent},
    batch::script,
    commands::{json, line_with},
    service::patiently,
};

pub const CASES: &[Case] = &[
    ("volume_outlives_task_agent_and_job", OwnAgent, outlives_task_agent_and_job),
    ("volume_of_our_plugin_has_a_limit", OwnAgent, of_our_plugin_has_a_limit),
    ("volume_of_an_image_has_its_files", OwnAgent, of_an_image_has_its_files),
    ("volume_of_a_volume_is_a_read_only_copy", OwnAgent, of_a_volume_is_a_read_only_copy),
    ("volume_is_an_image_beside_a_full_layer", SharedAgent, is_an_image_beside_a_full_layer),
];

/// A mount that is removed when the value is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // An error means that the mount is gone already.
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// Runs `nomad` with these arguments. It must succeed.
fn nomad(agent: &Agent, words: &[&str]) -> Outcome<String> {
    let output = agent.nomad(words)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure(format!("nomad {words:?}: {output:?}")))
}

/// Makes a volume by Nomad's plugin `mkdir`. Returns its id and its directory.
fn create(agent: &Agent, name: &str) -> Outcome<(String, PathBuf)> {
    let capability = "capability {\n  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n";
    let (id, volume) = create_of(agent, name, &format!("plugin_id = \"mkdir\"\n{capability}"))?;
    let directory = volume["HostPath"].as_str().ok_or_else(|| Failure(format!("no directory in {volume}")))?;
    Ok((id, directory.into()))
}

/// Makes a volume of this specification. Returns its id and what the server knows of it.
fn create_of(agent: &Agent, name: &str, text: &str) -> Outcome<(String, Value)> {
    create_by(agent, &["volume", "create"], name, text)
}

/// The same by this command. With `-detach`, it does not wait until jobs can use the volume.
pub fn create_by(agent: &Agent, command: &[&str], name: &str, text: &str) -> Outcome<(String, Value)> {
    let file = agent.path().join(format!("{name}.volume.hcl"));
    fs::write(&file, format!("name = \"{name}\"\ntype = \"host\"\n{text}"))?;
    nomad(agent, &[command, &[&file.to_string_lossy()]].concat())?;
    let volumes = agent.api().get("/v1/volumes?type=host")?;
    let id = volumes.as_array().into_iter().flatten().find(|volume| volume["Name"] == name);
    let id = id.and_then(|volume| volume["ID"].as_str()).ok_or_else(|| Failure(format!("no {name} in {volumes}")))?;
    Ok((id.to_owned(), agent.api().get(&format!("/v1/volume/host/{id}"))?))
}

/// Runs a script in the task and returns its output.
fn sh(alloc: &Alloc, script: &str) -> Outcome<String> {
    let output = alloc.exec(&["/bin/sh", "-c", script])?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until the tasks of all allocations together have started this many times.
fn wait_starts(alloc: &Alloc, directory: &std::path::Path, starts: usize) -> Outcome {
    let started = || fs::read_to_string(directory.join("starts")).unwrap_or_default().lines().count();
    e2e::watch::until(directory, &format!("start {starts}"), std::time::Duration::from_secs(60), || {
        (started() >= starts).then_some(())
    })?;
    alloc.wait_running()
}

fn outlives_task_agent_and_job(env: &Env) -> Outcome {
    let (id, directory) = create(env.agent, "kept")?;
    // systemd makes `/` a shared mount. This test does the same for the volume's directory.
    mount_bind(&directory, &directory)?;
    let shared = Mounted(directory.clone());
    mount_change(&directory, MountPropagationFlags::SHARED)?;

    let job = Job::new("volume").var("image", &env.registry.image()).var("volume", "kept");
    let alloc = env.agent.run(&job)?;
    wait_starts(&alloc, &directory, 1)?;
    let written = sh(&alloc, "echo kept > /data/file && cat /readonly/file; echo x > /readonly/file || echo refused")?;
    assert_eq!(written, "kept\nrefused\n");
    assert_eq!(fs::read_to_string(directory.join("file"))?, "kept\n");

    // A later mount of the host is visible only where the job asks for propagation.
    fs::create_dir(directory.join("late"))?;
    mount("tmpfs", directory.join("late"), "tmpfs", MountFlags::empty(), None::<&CStr>)?;
    let late = Mounted(directory.join("late"));
    fs::write(directory.join("late/file"), "late\n")?;
    let look = "cat /following/late/file; ls /data/late /readonly/late";
    assert_eq!(sh(&alloc, look)?, "late\n/data/late:\n\n/readonly/late:\n");
    drop(late);
    assert_eq!(sh(&alloc, "ls /following/late")?, "");

    // An agent restart does not affect the task. Then the task is restarted.
    let init = alloc.init()?;
    env.agent.stop()?;
    env.agent.launch()?;
    alloc.wait_running()?;
    assert_eq!(alloc.init()?, init);
    assert_eq!(sh(&alloc, "cat /data/file /following/file")?, "kept\nkept\n");
    nomad(env.agent, &["alloc", "restart", &alloc.id])?;
    wait_starts(&alloc, &directory, 2)?;
    assert_ne!(alloc.init()?, init);
    assert_eq!(sh(&alloc, "cat /readonly/file; echo x > /readonly/file || echo refused")?, "kept\nrefused\n");
    alloc.stop()?;

    // Another job can use the volume. It can be deleted when no job uses it.
    let next = env.agent.run(&job)?;
    wait_starts(&next, &directory, 3)?;
    assert_eq!(sh(&next, "cat /data/file")?, "kept\n");
    next.stop()?;
    drop(shared);
    nomad(env.agent, &["volume", "delete", "-type", "host", &id])?;
    assert!(!directory.exists(), "{} is left", directory.display());
    Ok(())
}

/// The specification of a volume in `docs/volumes.md` that contains a text, without its name and type.
fn documented(part: &str) -> Outcome<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/volumes.md");
    let text = fs::read_to_string(path).context(path)?;
    let blocks = text.split("```hcl\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut found = blocks.filter(|block| block.contains("\"oci-rs-volume\"") && block.contains(part));
    let block = found.next().ok_or_else(|| Failure(format!("{path} has no volume of our plugin")))?;
    let is_own = |line: &&str| !line.starts_with("name ") && !line.starts_with("type ");
    Ok(block.lines().filter(is_own).map(|line| format!("{line}\n")).collect())
}

/// The volume of the documentation is limited, becomes larger on request, and a reboot does not lose it.
fn of_our_plugin_has_a_limit(env: &Env) -> Outcome {
    let (id, volume) = create_of(env.agent, "limited", &documented("capacity_max")?)?;
    let directory = PathBuf::from(volume["HostPath"].as_str().unwrap_or_default());
    let mounted = Mounted(directory.clone());
    let capacity = volume["CapacityBytes"].as_u64().unwrap_or_default();
    assert!((32 << 20..=48 << 20).contains(&capacity), "{volume}");

    let job = Job::new("volume").var("image", &env.registry.image()).var("volume", "limited");
    let alloc = env.agent.run(&job)?;
    wait_starts(&alloc, &directory, 1)?;
    let look = "stat -c '%a %u %g' /data; dd if=/dev/zero of=/data/big bs=64k 2>&1 | grep -o 'No space left'; \
                test $(stat -c %s /data/big) -ge 33554432 && echo room; rm /data/big; echo kept > /data/file";
    assert_eq!(sh(&alloc, look)?, "750 1000 1000\nNo space left\nroom\n");
    alloc.stop()?;
    // A larger capacity for the same id makes the volume larger.
    if grows_ext4()? {
        let larger = documented("capacity_max")?.replace("32MiB", "64MiB").replace("48MiB", "96MiB");
        let (same, volume) = create_of(env.agent, "limited", &format!("id = \"{id}\"\n{larger}"))?;
        let capacity = volume["CapacityBytes"].as_u64().unwrap_or_default();
        assert!(same == id && (64 << 20..=96 << 20).contains(&capacity), "{volume}");
        fs::write(directory.join("big"), vec![b'x'; 60 << 20])?;
        fs::remove_file(directory.join("big"))?;
    }

    env.agent.stop()?;
    // As after a reboot.
    drop(mounted);
    env.agent.launch()?;
    let _mounted = Mounted(directory.clone());
    assert_eq!(fs::read_to_string(directory.join("file"))?, "kept\n");
    nomad(env.agent, &["volume", "delete", "-type", "host", &id])?;
    assert!(!directory.exists(), "{} is left", directory.display());
    Ok(())
}

/// Whether the agent can let a mounted ext4 file system grow: whether it has `CAP_SYS_RESOURCE`.
fn grows_ext4() -> Outcome<bool> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::SYS_RESOURCE))
}

/// The volume of the documentation that is filled from an image, with the image and a directory of the test registry.
fn of_an_image_has_its_files(env: &Env) -> Outcome {
    let image = env.registry.image();
    let text =
        documented("image = ")?.replace("registry.example/team/models:1", &image).replace("/srv/models", "/bin/..");
    let (id, volume) = create_of(env.agent, "filled", &text)?;
    let directory = PathBuf::from(volume["HostPath"].as_str().unwrap_or_default());
    let job = Job::new("volume").var("image", &image).var("volume", "filled");
    let alloc = env.agent.run(&job)?;
    wait_starts(&alloc, &directory, 1)?;
    // The image of the volume is the image of the task. The task has written one file to it.
    let look = "cd /data && for file in bin etc; do for name in $(find $file); do test -L $name || \
                test \"$(stat -c '%a %u %g %F' $name)\" = \"$(stat -c '%a %u %g %F' /$name)\" || echo $name; \
                test ! -f $name || cmp -s $name /$name || echo content of $name; done; done; ls /data | grep starts; \
                stat -c %u /data";
    let differing = sh(&alloc, look)?;
    let left_out = ["etc/hosts", "etc/resolv.conf", "etc/hostname"];
    let lines: Vec<&str> = differing.lines().filter(|line| !left_out.iter().any(|name| line.contains(name))).collect();
    assert_eq!(lines, ["starts", "1000"], "{differing}");
    alloc.stop()?;
    env.agent.stop()?;
    env.agent.launch()?;
    assert!(fs::read_to_string(directory.join("starts")).is_ok(), "the volume was filled again");
    nomad(env.agent, &["volume", "delete", "-type", "host", &id])?;
    assert!(!directory.exists(), "{} is left", directory.display());
    Ok(())
}

/// The read-only snapshot of the documentation, of a volume that a task has written to.
fn of_a_volume_is_a_read_only_copy(env: &Env) -> Outcome {
    let capability = "capability {\n  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n";
    let (id, volume) = create_of(env.agent, "original", &format!("plugin_id = \"oci-rs-volume\"\n{capability}"))?;
    let directory = PathBuf::from(volume["HostPath"].as_str().unwrap_or_default());
    let job = Job::new("volume").var("image", &env.registry.image()).var("volume", "original");
    let alloc = env.agent.run(&job)?;
    wait_starts(&alloc, &directory, 1)?;
    sh(&alloc, "echo one > /data/file")?;

    let documented = documented("from  ")?;
    let is_of_the_example = |line: &&str| !line.starts_with("node_id") && !line.trim_start().starts_with("from");
    let text: String = documented.lines().filter(is_of_the_example).map(|line| format!("{line}\n")).collect();
    let text = text.replace("parameters {", &format!("parameters {{\n  from = \"{id}\""));
    let (copy, volume) = create_of(env.agent, "snapshot", &text)?;
    let snapshot = PathBuf::from(volume["HostPath"].as_str().unwrap_or_default());
    let _mounted = Mounted(snapshot.clone());
    sh(&alloc, "echo two > /data/file")?;
    alloc.stop()?;
    nomad(env.agent, &["volume", "delete", "-type", "host", &id])?;
    assert!(!directory.exists(), "{} is left", directory.display());

    // The agent makes it available again when it starts.
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(snapshot.join("file"))?, "one\n");
        let refused = fs::write(snapshot.join("file"), "three").err().and_then(|error| error.raw_os_error());
        assert_eq!(refused, Some(rustix::io::Errno::ROFS.raw_os_error()));
        env.agent.stop()?;
        unmount(&snapshot, UnmountFlags::DETACH).ok();
        env.agent.launch()?;
    }
    nomad(env.agent, &["volume", "delete", "-type", "host", &copy])?;
    assert!(!snapshot.exists(), "{} is left", snapshot.display());
    Ok(())
}

/// A task fills its writable layer, and mounts a directory of another image beside it.
fn is_an_image_beside_a_full_layer(env: &Env) -> Outcome {
    let image = env.registry.make("counter")?;
    let config = format!(
        "storage_opt = {{ size = \"16m\" }}\nmount {{\n  type = \"image\"\n  source = \"{image}\"\n  \
         target = \"/site\"\n  sub_path = \"www\"\n}}"
    );
    let job = script(env, "trap 'exit 0' TERM; while :; do sleep 0.1; done").config(&config);
    let alloc = env.agent.run(&job)?;
    alloc.wait_running()?;
    let look = "ls /site; cmp /www/index.html /site/index.html && echo same; \
                { echo x >/site/index.html; } 2>&1 | grep -o 'Read-only'; \
                df -Pk / | awk 'NR == 2 && $2 < 20480 { print \"limited\" }'; \
                dd if=/dev/zero of=/big bs=64k 2>&1 | grep -o 'No space left'; \
                test $(stat -c %s /big) -ge 16777216 && echo room; echo x >/alloc/data/file && echo beside";
    let expected = "cgi-bin\nindex.html\nsame\nRead-only\nlimited\nNo space left\nroom\nbeside\n";
    assert_eq!(sh(&alloc, look)?, expected);
    alloc.wait("the event", |alloc| (full_layer_events(alloc) > 0).then_some(()))?;

    // The operator sees the task among the users of the mounted image.
    let known = line_with(&json(env, &["image", "ls"])?, "reference", &image)?["used_by"].clone();
    assert!(known.to_string().contains(&alloc.id), "{known}");
    let used = json(env, &["df"])?;
    assert_eq!(line_with(&used["images"], "reference", &image)?["used_by"], known);
    let mut layers = used["writable_layers"].as_array().into_iter().flatten();
    let layer = layers.find(|layer| layer["task"].to_string().contains(&alloc.id[..8]));
    assert!(layer.is_some_and(|layer| layer["bytes"].as_u64() > Some(8 << 20)), "{used}");
    let refused = env.agent.operator(&["rmi", &image]).output()?;
    assert_eq!(refused.status.code(), Some(5), "a task uses it: {refused:?}");

    // A later measurement of the full layer is no second event.
    let path = format!("/v1/client/allocation/{}/stats", alloc.id);
    let measured = || Ok::<_, Failure>(env.agent.api().get(&path)?["Timestamp"].as_u64());
    let before = measured()?;
    patiently(|| match measured()? {
        later if later > before => Ok(String::new()),
        _ => Err(Failure("no later measurement".to_owned())),
    })?;
    alloc.stop()?;
    assert_eq!(full_layer_events(&alloc.get()?), 1, "{:?}", alloc.events()?);
    patiently(|| Ok(json(env, &["rmi", &image])?.to_string())).map(drop)
}

/// The number of events of the only task that tell of a full writable layer.
fn full_layer_events(alloc: &Value) -> usize {
    let events = alloc["TaskStates"]["batch"]["Events"].as_array();
    let texts = events.into_iter().flatten().filter_map(|event| event["DisplayMessage"].as_str());
    texts.filter(|text| text.contains("writable layer is full")).count()
}
