//! Creating and removing the networks of containers, and removing those that killed processes left behind.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread::available_parallelism,
};

use host::Context;
use serde_json::Value;

use crate::{
    conflist::Conflist,
    error::NetworkError,
    firewall,
    lookup::{conflist_of, missing_programs},
    namespace,
    plugin::{Operation, PluginCall},
    record::{NAMESPACE, NetworkDirectory, NetworkRecord},
    request::{AttachRequest, NetworkChoice},
    result::Attachment,
    semaphore::{Permit, Semaphore},
    settings::Settings,
};

/// The networks of one state directory.
#[derive(Debug)]
pub struct Networks {
    settings: Settings,
    root: PathBuf,
    /// The directory in which the IPAM plugin records addresses.
    leases: PathBuf,
    semaphore: Semaphore,
    /// Whether this process has attached a container before. Then everything that containers share exists.
    attached_before: AtomicBool,
}

/// The directory of all networks in a state directory.
fn root_in(state_dir: &Path) -> PathBuf {
    state_dir.join("networks")
}

/// The file to which the network namespace of a container is, or will be, pinned.
pub fn namespace_of(state_dir: &Path, container: &str) -> PathBuf {
    root_in(state_dir).join(container).join(NAMESPACE)
}

impl Networks {
    /// Creates and reads nothing on disk. `state_dir` must be an absolute path.
    pub fn new(settings: Settings, state_dir: &Path) -> Self {
        let permits = available_parallelism().map_or(2, usize::from).clamp(2, 8);
        Self {
            settings,
            root: root_in(state_dir),
            leases: state_dir.join("addresses"),
            semaphore: Semaphore::new(permits),
            attached_before: AtomicBool::new(false),
        }
    }

    /// The programs that our own bridge needs and that are not installed.
    pub fn missing_programs(settings: &Settings) -> Vec<String> {
        missing_programs(settings, &Conflist::of_bridge(settings, Path::new(""), true), true)
    }

    /// Creates a container's network. Blocks until the plugins have ended. Leftovers of an earlier attempt for the same
    /// container are removed first. After an error nothing is left.
    pub fn attach(&self, container: &str, request: &AttachRequest) -> Result<Attachment, NetworkError> {
        let network = conflist_of(&self.settings, &self.leases, request)?;
        let bridge = request.network == NetworkChoice::Bridge;
        let programs = missing_programs(&self.settings, &network, bridge);
        if !programs.is_empty() {
            let directories = Settings::search_path(&self.settings.cni_path);
            return Err(NetworkError::MissingPrograms { programs, directories });
        }
        let path = self.root.join(container);
        let directory = NetworkDirectory::create(&path).context(|| format!("making {}", path.display()))?;
        self.tear_down(&directory)?;
        let arguments = request.capability_arguments();
        let record = NetworkRecord::new(cni_id(container), network, arguments, self.settings.cni_path.clone());
        match self.set_up_with_retry(container, &directory, record, bridge) {
            Ok(attachment) => {
                self.attached_before.store(true, Ordering::Release);
                Ok(attachment)
            }
            Err(error) => {
                let cleaned = self.tear_down(&directory).and_then(|()| remove(directory, &path));
                if let Err(leftover) = cleaned {
                    tracing::warn!(container, error = %leftover, "the leftovers of a failed network were not removed");
                }
                Err(error)
            }
        }
    }

    /// Removes everything of a container's network. The container's processes should have ended.
    pub fn release(&self, container: &str) -> Result<(), NetworkError> {
        let path = self.root.join(container);
        match NetworkDirectory::open(&path).context(|| format!("locking {}", path.display()))? {
            Some(directory) => self.tear_down(&directory).and_then(|()| remove(directory, &path)),
            None => Ok(()),
        }
    }

    /// Removes the networks of containers that are not `wanted`, including unfinished ones. Waits for plugins that
    /// still run for such a network. Returns the containers of the removed networks.
    pub fn sweep(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, NetworkError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| format!("listing {}", self.root.display()))?,
        };
        let mut swept = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            match self.sweep_one(&name, &wanted) {
                Ok(true) => swept.push(name),
                Ok(false) => {}
                // One network that cannot be removed does not keep the others.
                Err(error) => tracing::warn!(container = name, %error, "a leftover network was not removed"),
            }
        }
        Ok(swept)
    }

    /// Removes one container's network unless it is wanted. Returns whether it was removed.
    fn sweep_one(&self, name: &str, wanted: &impl Fn(&str) -> bool) -> Result<bool, NetworkError> {
        if wanted(name) {
            return Ok(false);
        }
        let path = self.root.join(name);
        match NetworkDirectory::open(&path).context(|| format!("locking {}", path.display()))? {
            // A task claims its network before it waits for the lock, so this second look sees the claim.
            Some(directory) if !wanted(name) => {
                self.tear_down(&directory).and_then(|()| remove(directory, &path)).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Sets a network up. After a failed plugin it tries once more while no other network is worked on, because plugins
    /// that run at the same time sometimes disturb each other.
    fn set_up_with_retry(
        &self,
        container: &str,
        directory: &NetworkDirectory,
        record: NetworkRecord,
        bridge: bool,
    ) -> Result<Attachment, NetworkError> {
        match self.set_up(directory, record.clone(), bridge, false) {
            Err(error @ NetworkError::ProgramFailed { .. }) => {
                tracing::warn!(container, %error, "creating the network failed, trying again");
                self.tear_down(directory)?;
                self.set_up(directory, record, bridge, true)
            }
            result => result,
        }
    }

    /// Creates the namespace and calls every plugin.
    fn set_up(
        &self,
        directory: &NetworkDirectory,
        mut record: NetworkRecord,
        bridge: bool,
        exclusive: bool,
    ) -> Result<Attachment, NetworkError> {
        failpoint::at("start-before-network-record");
        directory.commit(&record)?;
        let namespace = directory.namespace();
        failpoint::at("start-before-namespace");
        namespace::pin(&namespace).context(|| format!("making the network namespace {}", namespace.display()))?;
        let _permit = self.permit(exclusive);
        if bridge {
            failpoint::at("start-before-bridge-rule");
            firewall::accept_forwarded(&self.settings)?;
        }
        for index in 0..record.network.len() {
            record.plugins_called = index + 1;
            directory.commit(&record)?;
            failpoint::at("start-before-network-plugin");
            record.result = Some(call_plugin(directory, &record, index, Operation::Add)?);
        }
        failpoint::at("start-before-network-result");
        directory.commit(&record)?;
        let result = record.result.unwrap_or_default();
        Attachment::parse(namespace, &result).map_err(|problem| NetworkError::ProgramFailed {
            network: record.network.name,
            program: "its last plugin".to_owned(),
            command: Operation::Add.name(),
            problem: format!("its answer {problem}"),
        })
    }

    /// A permit beside others. The first network gets an exclusive one, because its plugins create what containers
    /// share.
    fn permit(&self, exclusive: bool) -> Permit<'_> {
        let is_first = || !self.attached_before.load(Ordering::Acquire);
        if !exclusive && !is_first() {
            return self.semaphore.acquire();
        }
        let permit = self.semaphore.acquire_exclusive();
        if exclusive || is_first() {
            return permit;
        }
        // Another thread was the first while this one waited.
        drop(permit);
        self.semaphore.acquire()
    }

    /// Calls the recorded plugins with DEL in reverse order, and removes the namespace. It can be repeated until it
    /// succeeds.
    fn tear_down(&self, directory: &NetworkDirectory) -> Result<(), NetworkError> {
        if let Some(record) = directory.read()? {
            for index in (0..record.plugins_called.min(record.network.len())).rev() {
                failpoint::at("destroy-before-network-plugin");
                let permit = self.semaphore.acquire();
                if let Err(error) = call_plugin(directory, &record, index, Operation::Del) {
                    drop(permit);
                    let container = &record.container_id;
                    tracing::warn!(container, %error, "removing the network failed, trying again");
                    let _exclusive = self.semaphore.acquire_exclusive();
                    call_plugin(directory, &record, index, Operation::Del)?;
                }
            }
        }
        failpoint::at("destroy-before-namespace");
        let namespace = directory.namespace();
        namespace::unpin(&namespace).context(|| format!("removing the network namespace {}", namespace.display()))?;
        Ok(())
    }
}

fn remove(directory: NetworkDirectory, path: &Path) -> Result<(), NetworkError> {
    failpoint::at("destroy-before-network-record");
    directory.remove().context(|| format!("removing {}", path.display()))?;
    Ok(())
}

fn call_plugin(
    directory: &NetworkDirectory,
    record: &NetworkRecord,
    index: usize,
    operation: Operation,
) -> Result<Value, NetworkError> {
    let namespace = directory.namespace();
    let program = record.network.program(index);
    let call = PluginCall {
        program,
        operation,
        container_id: &record.container_id,
        namespace: namespace::is_pinned(&namespace).then_some(&*namespace),
        interface: &record.interface,
        directories: &record.plugin_directories,
        request: record.network.request(index, &record.capability_arguments, record.result.as_ref()),
        log: directory.log(),
    };
    call.run().map_err(|problem| {
        let network = record.network.name.clone();
        // The words of the IPAM plugin host-local.
        if problem.contains("no IP addresses available") {
            return NetworkError::NoFreeAddress { network, detail: problem };
        }
        NetworkError::ProgramFailed { network, program: program.to_owned(), command: operation.name(), problem }
    })
}

/// The container id for plugins. The specification (1.0, section 2) allows letters, digits, `_`, `.` and `-`.
fn cni_id(container: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if container.chars().all(allowed) {
        return container.to_owned();
    }
    let mut hash = DefaultHasher::new();
    container.hash(&mut hash);
    let kept: String = container.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    format!("{kept}.{:016x}", hash.finish())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::cni_id;

    proptest! {
        #[test]
        fn different_containers_have_different_valid_ids(a in "[a-b+_.]{1,4}", b in "[a-b+_.]{1,4}") {
            let (left, right) = (cni_id(&a), cni_id(&b));
            prop_assert!(left.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)));
            prop_assert_eq!(a == b, left == right);
        }
    }
}
