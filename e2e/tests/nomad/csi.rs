//! A CSI volume: the plugin is a task of the driver, and another task uses the volume.

use std::{fs, path::PathBuf, time::Duration};

use e2e::{Failure, Job, Outcome};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

use crate::{Case, Env, Needs::OwnAgent};

pub const CASES: &[Case] = &[("csi_volume_of_a_plugin_task", OwnAgent, |env| of_a_plugin_task(env, "oci-rs"))];

const LIMIT: Duration = Duration::from_secs(60);

/// The client's directory for CSI as a shared mount, as `/` is on a host with systemd. The plugin's mounts appear
/// there.
struct Shared(PathBuf);

impl Shared {
    fn new(directory: PathBuf) -> Outcome<Self> {
        fs::create_dir_all(&directory)?;
        mount_bind(&directory, &directory)?;
        let shared = Self(directory);
        mount_change(&shared.0, MountPropagationFlags::SHARED)?;
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // An error means that the mount is gone already.
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// Runs both jobs with a driver of this name.
pub fn of_a_plugin_task(env: &Env, driver: &str) -> Outcome {
    let image = env.registry.make("csi")?;
    env.agent.stop()?;
    let file = env.agent.path().join("client.hcl");
    let config = fs::read_to_string(&file)?;
    let config = config.replace("allow_privileged = false", "allow_privileged = true");
    let block = "plugin \"oci-rs\" {\n  config {";
    fs::write(&file, config.replacen(block, &format!("{block}\n    allow_privileged = true"), 1))?;
    let shared = Shared::new(env.agent.path().join("client/client/csi"))?;
    env.agent.launch()?;

    let plugin = env.agent.run(&Job::new("csi_plugin").driver(driver).var("image", &image))?;
    plugin.wait_running()?;
    env.agent.api().wait("/v1/plugin/csi/directories", "the plugin", LIMIT, |plugin| {
        (plugin["ControllersHealthy"] == 1 && plugin["NodesHealthy"] == 1).then_some(())
    })?;
    let volume = env.agent.path().join("words.volume.hcl");
    let capability = "capability {\n  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n";
    let text = format!("id = \"words\"\nname = \"words\"\ntype = \"csi\"\nplugin_id = \"directories\"\n{capability}");
    fs::write(&volume, text)?;
    nomad(env, &["volume", "create", &volume.to_string_lossy()])?;

    // The volume outlives the first job.
    for expected in ["a word\n", "a word\na word\n"] {
        let job = Job::new("csi_volume").driver(driver).var("image", &env.registry.image());
        let alloc = env.agent.run(&job)?;
        assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
        alloc.wait_log("stdout", |log| log == expected.as_bytes())?;
        released(env)?;
    }
    nomad(env, &["volume", "delete", "words"])?;
    plugin.stop()?;
    drop(shared);
    Ok(())
}

/// Waits until no allocation uses the volume.
fn released(env: &Env) -> Outcome {
    env.agent.api().wait("/v1/volume/csi/words", "the volume's release", LIMIT, |volume| {
        let claims =
            ["ReadAllocs", "WriteAllocs"].map(|kind| volume[kind].as_object().map_or(0, |claims| claims.len()));
        (claims == [0, 0]).then_some(())
    })
}

/// Runs `nomad` with these arguments. It must succeed.
fn nomad(env: &Env, words: &[&str]) -> Outcome {
    let output = env.agent.nomad(words)?;
    if output.status.success() { Ok(()) } else { Err(Failure(format!("nomad {words:?}: {output:?}"))) }
}
