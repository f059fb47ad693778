//! The command: arguments, environment, working directory, stop signal and output.

use std::path::PathBuf;

use image_store::ImageConfig;
use runtime::plan::Output;

use super::{context::TaskContext, nomad_task::NomadTask, path::normalize_container_path};
use crate::config::{ErrorCollector, TaskSpec};

/// The command line, by docker's rules: the task's `entrypoint` replaces the image's entrypoint and CMD; `command` and
/// `args` replace the CMD only.
pub fn args(spec: &TaskSpec, image: &ImageConfig, errors: &ErrorCollector) -> Vec<String> {
    let from_task: Vec<String> = spec.command.iter().chain(&spec.args).cloned().collect();
    // An empty list removes the image's entrypoint and keeps its CMD.
    let overridden = spec.entrypoint.as_ref().is_some_and(|entrypoint| !entrypoint.is_empty());
    let cmd = if from_task.is_empty() && !overridden { image.cmd.clone().unwrap_or_default() } else { from_task };
    let mut entrypoint = spec.entrypoint.clone().or_else(|| image.entrypoint.clone()).unwrap_or_default();
    // The form of `docker run --entrypoint ""`.
    if entrypoint == [""] {
        entrypoint.clear();
    }
    entrypoint.extend(cmd);
    if entrypoint.first().is_none_or(String::is_empty) {
        errors.add(
            "command",
            "is missing: the image names no command of its own, or the task's entrypoint leaves it unused",
            "set `command`, or `entrypoint`",
        );
    }
    entrypoint
}

/// The environment. Later sources override earlier ones, and each name occurs once: docker's defaults, the image, the
/// task, the ports that the driver maps, and the variables of devices' specs.
///
/// `HOME` is left to the runtime, which knows the user's home directory.
pub fn env(
    context: &TaskContext,
    hostname: &str,
    ports: &[(String, String)],
    devices: &[(String, String)],
    errors: &ErrorCollector,
) -> Vec<(String, String)> {
    let (spec, image, task) = (context.spec, &context.image.config, context.task);
    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env: Vec<(String, String)> = Vec::with_capacity(3 + image.env.len() + task.env.len());
    let mut index = std::collections::HashMap::new();
    let mut set = |name: &str, value: &str| {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            errors.add("env", format!("{name:?} is not a variable that a process can have"), "rename or remove it");
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
    for (name, value) in ports.iter().chain(devices) {
        set(name, value);
    }
    env
}

/// The working directory. A relative one of an image is relative to the root.
pub fn cwd(spec: &TaskSpec, image: &ImageConfig) -> String {
    normalize_container_path(spec.work_dir.as_deref().unwrap_or(&image.working_dir))
}

/// The image's STOPSIGNAL, or SIGTERM if the image has none or an unknown one.
pub fn stop_signal(image: &ImageConfig) -> i32 {
    let named = image.stop_signal.as_deref().and_then(|name| crate::signal::parse(name).ok());
    named.filter(|signal| *signal != 0).unwrap_or(libc::SIGTERM)
}

/// The targets of stdout and stderr: Nomad's FIFOs, or /dev/null.
pub fn output(spec: &TaskSpec, task: &NomadTask) -> Output {
    let path = |path: &PathBuf| {
        let discard = spec.discard_output || path.as_os_str().is_empty();
        if discard { PathBuf::from("/dev/null") } else { path.clone() }
    };
    Output { stdout: path(&task.stdout_path), stderr: path(&task.stderr_path) }
}
