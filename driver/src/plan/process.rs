//! The command, its environment, where it starts and where its output goes.

use std::path::PathBuf;

use image_store::ImageConfig;
use runtime::plan::Output;

use super::NomadTask;
use crate::config::{Mistakes, TaskSpec};

/// Docker's rules: an entrypoint of the task's own leaves the image's CMD unused; `command` and `args` replace the CMD only.
pub fn args(spec: &TaskSpec, image: &ImageConfig, mistakes: &Mistakes) -> Vec<String> {
    let own: Vec<String> = spec.command.iter().chain(&spec.args).cloned().collect();
    // An empty entrypoint removes the image's and keeps its CMD.
    let overridden = spec.entrypoint.as_ref().is_some_and(|entrypoint| !entrypoint.is_empty());
    let cmd = if own.is_empty() && !overridden { image.cmd.clone().unwrap_or_default() } else { own };
    let mut entrypoint = spec.entrypoint.clone().or_else(|| image.entrypoint.clone()).unwrap_or_default();
    // What `docker run --entrypoint ""` becomes.
    if entrypoint == [""] {
        entrypoint.clear();
    }
    entrypoint.extend(cmd);
    if entrypoint.first().is_none_or(String::is_empty) {
        mistakes.add(
            "command",
            "is missing: the image names no command of its own, or the task's entrypoint leaves it unused",
            "set `command`, or `entrypoint`",
        );
    }
    entrypoint
}

/// What docker sets, then the image's environment, then the task's with the ports that the driver mapped; the last one wins and a
/// name occurs once.
///
/// `HOME` is left to the runtime, which knows the user's.
pub fn env(
    spec: &TaskSpec,
    image: &ImageConfig,
    task: &NomadTask,
    hostname: &str,
    ports: &[(String, String)],
    mistakes: &Mistakes,
) -> Vec<(String, String)> {
    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env: Vec<(String, String)> = Vec::with_capacity(3 + image.env.len() + task.env.len());
    let mut index = std::collections::HashMap::new();
    let mut set = |name: &str, value: &str| {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            mistakes.add("env", format!("{name:?} is not a variable that a process can have"), "");
            return;
        }
        let at = *index.entry(name.to_owned()).or_insert(env.len());
        match env.get_mut(at) {
            Some(entry) => value.clone_into(&mut entry.1),
            None => env.push((name.to_owned(), value.to_owned())),
        }
    };
    set("PATH", PATH);
    set("HOSTNAME", hostname);
    if spec.tty {
        set("TERM", "xterm");
    }
    for (name, value) in &image.env {
        set(name, value);
    }
    for (name, value) in &task.env {
        set(name, value);
    }
    for (name, value) in ports {
        set(name, value);
    }
    env
}

/// The working directory; an image's relative one is taken from the root.
pub fn cwd(spec: &TaskSpec, image: &ImageConfig) -> String {
    super::path::normalize_container_path(spec.work_dir.as_deref().unwrap_or(&image.working_dir))
}

/// The image's STOPSIGNAL, or SIGTERM when it has none or one that does not exist.
pub fn stop_signal(image: &ImageConfig) -> i32 {
    let named = image.stop_signal.as_deref().and_then(|name| crate::signal::parse(name).ok());
    named.filter(|signal| *signal != 0).unwrap_or(libc::SIGTERM)
}

/// Nomad's FIFOs, or nowhere.
pub fn output(spec: &TaskSpec, task: &NomadTask) -> Output {
    let path = |path: &PathBuf| {
        let nowhere = spec.discard_output || path.as_os_str().is_empty();
        if nowhere { PathBuf::from("/dev/null") } else { path.clone() }
    };
    Output { stdout: path(&task.stdout_path), stderr: path(&task.stderr_path) }
}
