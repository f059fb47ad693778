//! The driver's own directories, plugins and registries.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::join_all;
use image_store::{RegistryAnswer, Store, StoreConfig};
use runtime::{ContainerState, ContainerView, Observer, Runtime, RuntimeError, plan::ContainerId};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::{
    apparmor, cleanup,
    cli::{
        doctor::checks::{
            forgotten,
            plugin::{Left, Leftovers, Plugin},
            storage::{Directory, Found},
        },
        failure::Failure,
        plugins,
        settings::Settings,
        tasks::short_name,
    },
    config::{PluginConfig, RootChoice, UserNamespaceMode},
    error::TaskError,
    health::NodeFindings,
    plan::TaskNotes,
    plugin,
    pointer::Pointer,
    selinux,
};

/// How long a registry may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a plugin may be silent.
const PLUGIN_SILENCE: Duration = Duration::from_secs(5);
/// The time for the answers of all registries.
const LIMIT: Duration = Duration::from_secs(20);

/// The directories of a plugin.
pub fn directories(config: &PluginConfig) -> Vec<Directory> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    [("state_dir", &config.state_dir), ("data_dir", &config.data_dir)]
        .into_iter()
        .map(|(option, path)| Directory { option, path: path.clone(), found: found(path, &mounts) })
        .collect()
}

fn found(path: &Path, mounts: &str) -> Option<Found> {
    let (metadata, space) = (fs::metadata(path).ok()?, statvfs(path).ok()?);
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    // As df counts: without the reserve of root.
    let used = space.f_blocks.saturating_sub(space.f_bfree);
    Some(Found {
        file_system: file_system(&fs::canonicalize(path).ok()?, mounts).to_owned(),
        read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
        others_write: metadata.uid() != 0 || metadata.mode() & 0o022 != 0,
        bytes: (bytes(used.saturating_add(space.f_bavail)), bytes(space.f_bavail)),
        inodes: (space.f_files, space.f_favail),
    })
}

/// The type of the file system of a path, by the text of `/proc/self/mounts`: that of the longest mount point above it.
fn file_system<'a>(path: &Path, mounts: &'a str) -> &'a str {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        // A space in a path is written as \040.
        Some((fields.next()?.replace("\\040", " "), fields.next()?))
    });
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    // Of two mounts on one point, the later one covers the other.
    above.max_by_key(|(point, _)| point.len()).map_or("unknown", |(_, kind)| kind)
}

/// What the plugin finds when it opens the node. Both directories must exist; the rest is made as the plugin makes it.
pub fn opened(config: &PluginConfig) -> Result<NodeFindings, String> {
    let runtime = Runtime::open(&config.state_dir, &config.data_dir).map_err(|error| format!("runtime: {error}"))?;
    // A full disk, say, keeps the plugin from finding out too. It then has a finding of its own.
    let known = |tried: Result<Option<String>, RuntimeError>| tried.unwrap_or_default();
    let overlay_problem =
        if config.policy.rootfs == RootChoice::Copy { None } else { known(runtime.overlay_problem()) };
    let userns_problem = match config.policy.userns.mode {
        UserNamespaceMode::Off => None,
        _ => known(runtime.user_namespace_problem()),
    };
    let store = Store::open(config.store()).map_err(|error| format!("image store: {error}"))?;
    Ok(NodeFindings {
        overlay_problem,
        userns_problem,
        space_problem: store.space_problem().unwrap_or_else(|error| Some(error.to_string())),
        apparmor: apparmor::look(&config.policy.apparmor),
        selinux: selinux::find(config.policy.selinux_enabled),
    })
}

/// The plugin of these settings.
pub fn plugin(settings: &Settings, pointers: &[Pointer]) -> Plugin {
    let config = &settings.config;
    let left = pointers.iter().find(|left| left.driver == config.driver.as_str() && left.data_dir == config.data_dir);
    let observer = Observer::new(&config.state_dir, &config.data_dir);
    let (views, unlisted) = match observer.containers() {
        Ok(views) => (views, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let own = || views.iter().filter(|view| config.driver.owns(view.id.as_str()));
    let lost = own().filter(|view| view.state == ContainerState::Lost);
    Plugin {
        driver: config.driver,
        left: left.map(|left| Left {
            build: left.build.clone(),
            pid: left.pid.cast_signed(),
            replaced: is_replaced(left.pid),
            deaf: plugin::is_deaf(&left.socket, PLUGIN_SILENCE),
            unknown_config: settings.unknown_config.clone(),
        }),
        running: running(config),
        unreadable: own().flat_map(|view| view.problems.clone()).chain(unlisted).collect(),
        lost: lost.map(|view| short_name(&TaskNotes::of_container(view.id.as_str(), view.plan.as_ref()))).collect(),
    }
}

/// Whether the file of a process was replaced or removed since it was executed.
fn is_replaced(pid: u32) -> bool {
    let file = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    file.to_string_lossy().ends_with(" (deleted)")
}

/// The plugins that use the directories.
fn running(config: &PluginConfig) -> Vec<i32> {
    let directories = [&config.state_dir, &config.data_dir].map(fs::canonicalize);
    let directories: Vec<PathBuf> = directories.into_iter().flatten().collect();
    let directories: Vec<&Path> = directories.iter().map(PathBuf::as_path).collect();
    plugins::running(Path::new("/proc"), None, &directories).unwrap_or_default()
}

/// What earlier processes of this name left; `None` while a plugin runs. Takes no lock and removes nothing.
pub fn leftovers(config: &PluginConfig, dev_agent_runs: bool) -> Result<Option<Leftovers>, String> {
    if !running(config).is_empty() {
        return Ok(None);
    }
    let observer = Observer::new(&config.state_dir, &config.data_dir);
    let views = observer.containers().map_err(|error| error.to_string())?;
    let owns = |name: &str| config.driver.owns(name);
    let interrupted =
        views.iter().filter(|view| matches!(view.state, ContainerState::Starting | ContainerState::Removing));
    let containers = interrupted.map(|view| view.id.to_string()).filter(|name| owns(name)).collect();
    let forgotten = views.iter().filter(|view| owns(view.id.as_str()) && may_go(view, dev_agent_runs));
    let forgotten = forgotten.map(|view| view.id.to_string()).collect();
    let networks = match network::networks(&config.state_dir) {
        Ok(networks) => networks.into_iter().map(|network| network.container),
        Err(error) => return Err(error.to_string()),
    };
    let networks = networks.filter(|name| owns(name) && views.iter().all(|view| view.id.as_str() != name)).collect();
    let layers = if config.data_dir.join("containers").exists() {
        observer.orphaned_layers().map_err(|error| error.to_string())?.into_iter().filter(|name| owns(name)).collect()
    } else {
        Vec::new()
    };
    let (leases, pulls) = match fs::symlink_metadata(config.store().root) {
        Err(error) if error.kind() == ErrorKind::NotFound => (Vec::new(), Vec::new()),
        _ => leases_and_pulls(config).map_err(|error| error.to_string())?,
    };
    Ok(Some(Leftovers { containers, forgotten, leases, pulls, layers, networks }))
}

/// Whether a container has ended and no agent will ask for it again.
pub fn is_forgotten(config: &PluginConfig, container: &ContainerId, dev_agent_runs: bool) -> bool {
    let view = Observer::new(&config.state_dir, &config.data_dir).container(container);
    running(config).is_empty() && view.is_some_and(|view| may_go(&view, dev_agent_runs))
}

fn may_go(view: &ContainerView, dev_agent_runs: bool) -> bool {
    let allocation = view.plan.as_ref().and_then(|plan| plan.confined.as_ref()).map(|confined| &confined.directory);
    let is_there = |path: &Path| match fs::symlink_metadata(path) {
        Ok(_) => Some(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(false),
        Err(_) => None,
    };
    forgotten::has_ended(&view.state)
        && allocation.is_some_and(|allocation| forgotten::is_forgotten(allocation, is_there, dev_agent_runs))
}

/// The leases of tasks that are gone, and the directories of pulls that were killed.
fn leases_and_pulls(config: &PluginConfig) -> Result<(Vec<String>, Vec<String>), TaskError> {
    let store = Store::open(config.store()).map_err(TaskError::internal)?;
    let leases = cleanup::orphaned_leases(&store, config)?.iter().map(ToString::to_string).collect();
    let pulls = store.interrupted_pulls().map_err(TaskError::internal)?;
    Ok((leases, pulls.iter().map(|path| path.display().to_string()).collect()))
}

/// The answers of all registries and mirrors of each plugin block. All are asked at the same time.
pub fn registries(settings: &[Settings]) -> Result<Vec<Vec<RegistryAnswer>>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::of)?;
    let answers = runtime.block_on(join_all(settings.iter().map(|settings| answers(&settings.config))));
    // The look-up of a name cannot be interrupted, and may take longer than the limit.
    runtime.shutdown_background();
    Ok(answers)
}

/// The answers of all registries and mirrors of one plugin block.
async fn answers(config: &PluginConfig) -> Vec<RegistryAnswer> {
    let store = config.store();
    let answers = join_all(config.registries.iter().map(|registry| ask(&store, &registry.host))).await;
    answers.into_iter().flatten().collect()
}

async fn ask(store: &StoreConfig, host: &str) -> Vec<RegistryAnswer> {
    let answers = store.ask_registry(host, SILENCE, LIMIT).await;
    answers.unwrap_or_else(|error| {
        vec![RegistryAnswer { host: host.to_owned(), mirror_of: None, with_credentials: true, answer: Err(error) }]
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::file_system;

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount() {
        let mounts = "/dev/sda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/sdb /srv/my\\040disk xfs rw 0 0\n";
        for (path, expected) in
            [("/var/lib/oci-rs", "ext4"), ("/run/oci-rs", "tmpfs"), ("/runner", "ext4"), ("/srv/my disk/x", "xfs")]
        {
            assert_eq!(file_system(Path::new(path), mounts), expected, "{path}");
        }
        assert_eq!(file_system(Path::new("/x"), ""), "unknown");
    }
}
