//! Connects a container to a network by CNI plugins, and disconnects it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    thread::available_parallelism,
};

use host::Context;
use serde_json::Value;

use super::{
    lookup::{find_network, missing_programs},
    plugin::{Operation, PluginCall},
    record::CniRecord,
    result,
    semaphore::{Permit, Semaphore},
};
use crate::{
    attachment::Attachment,
    error::NetworkError,
    namespace,
    record::{NetworkDirectory, NetworkRecord},
    request::AttachRequest,
    settings::Settings,
};

/// The calls of CNI plugins of this process.
#[derive(Debug)]
pub(crate) struct CniPlugins {
    semaphore: Semaphore,
    /// Whether this process has connected a container before. Then everything that containers share exists.
    connected_before: AtomicBool,
}

impl CniPlugins {
    pub fn new() -> Self {
        let permits = available_parallelism().map_or(2, usize::from).clamp(2, 8);
        Self { semaphore: Semaphore::new(permits), connected_before: AtomicBool::new(false) }
    }

    /// Connects the container. Blocks until the plugins have ended. After a failed plugin it tries once more while no
    /// other network is worked on, because plugins that run at the same time sometimes disturb each other. An error
    /// leaves the record, and what it describes.
    pub fn connect(&self, directory: &NetworkDirectory, record: CniRecord) -> Result<Attachment, NetworkError> {
        let attachment = match self.set_up(directory, record.clone(), false) {
            Err(error @ NetworkError::ProgramFailed { .. }) => {
                let container = &record.container_id;
                tracing::warn!(container, %error, "creating the network failed, trying again");
                self.disconnect_recorded(directory)?;
                self.set_up(directory, record, true)
            }
            result => result,
        }?;
        self.connected_before.store(true, Ordering::Release);
        Ok(attachment)
    }

    /// Creates the namespace and calls every plugin.
    fn set_up(
        &self,
        directory: &NetworkDirectory,
        mut record: CniRecord,
        exclusive: bool,
    ) -> Result<Attachment, NetworkError> {
        failpoint::at("start-before-network-record");
        commit(directory, &record)?;
        let namespace = directory.namespace();
        failpoint::at("start-before-namespace");
        namespace::pin(&namespace, || Ok(()))
            .context(|| format!("making the network namespace {}", namespace.display()))?;
        let _permit = self.permit(exclusive);
        for index in 0..record.network.len() {
            record.plugins_called = index + 1;
            commit(directory, &record)?;
            failpoint::at("start-before-network-plugin");
            record.result = Some(call_plugin(directory, &record, index, Operation::Add)?);
        }
        failpoint::at("start-before-network-result");
        commit(directory, &record)?;
        let answer = record.result.unwrap_or_default();
        result::parse(namespace, &answer).map_err(|problem| NetworkError::ProgramFailed {
            network: record.network.name,
            program: "its last plugin".to_owned(),
            command: Operation::Add.name(),
            problem: format!("its answer {problem}"),
        })
    }

    /// A permit beside others. The first network gets an exclusive one, because its plugins create what containers
    /// share.
    fn permit(&self, exclusive: bool) -> Permit<'_> {
        let is_first = || !self.connected_before.load(Ordering::Acquire);
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

    fn disconnect_recorded(&self, directory: &NetworkDirectory) -> Result<(), NetworkError> {
        match directory.read()? {
            Some(NetworkRecord::Cni(record)) => self.disconnect(directory, &record),
            _ => Ok(()),
        }
    }

    /// Calls the recorded plugins with DEL in reverse order, and removes the namespace. It can be repeated until it
    /// succeeds.
    pub fn disconnect(&self, directory: &NetworkDirectory, record: &CniRecord) -> Result<(), NetworkError> {
        for index in (0..record.plugins_called.min(record.network.len())).rev() {
            failpoint::at("destroy-before-network-plugin");
            let permit = self.semaphore.acquire();
            if let Err(error) = call_plugin(directory, record, index, Operation::Del) {
                drop(permit);
                let container = &record.container_id;
                tracing::warn!(container, %error, "removing the network failed, trying again");
                let _exclusive = self.semaphore.acquire_exclusive();
                call_plugin(directory, record, index, Operation::Del)?;
            }
        }
        failpoint::at("destroy-before-namespace");
        directory.remove_namespace()
    }
}

/// The record of a container that is to be connected to the operator's network of this name. Nothing is made yet.
///
/// # Errors
///
/// The network does not exist, its programs are not installed, or its plugins lack a capability that the request needs.
pub(crate) fn plan(
    settings: &Settings,
    container: &str,
    name: &str,
    request: &AttachRequest,
) -> Result<CniRecord, NetworkError> {
    let network = find_network(settings, name, request)?;
    let programs = missing_programs(settings, &network);
    if !programs.is_empty() {
        let directories = Settings::search_path(&settings.cni_path);
        return Err(NetworkError::MissingPrograms { network: name.to_owned(), programs, directories });
    }
    Ok(CniRecord::new(cni_id(container), network, request.capability_arguments(), settings.cni_path.clone()))
}

fn commit(directory: &NetworkDirectory, record: &CniRecord) -> Result<(), NetworkError> {
    directory.commit(&NetworkRecord::Cni(record.clone()))
}

fn call_plugin(
    directory: &NetworkDirectory,
    record: &CniRecord,
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
        arguments: "",
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
