//! Making containers' networks, taking them down, and sweeping up after those who were killed.

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
    admin,
    conflist::Conflist,
    error::NetworkError,
    gate::{Gate, Turn},
    namespace,
    plugin::{Call, Verb, find, find_in_system},
    record::{Directory, NAMESPACE, Record},
    result::Attachment,
    settings::Settings,
    wish::{Choice, Wish},
};

/// The networks of one state directory.
#[derive(Debug)]
pub struct Networks {
    settings: Settings,
    root: PathBuf,
    leases: PathBuf,
    gate: Gate,
    /// What containers share has been made by this process, or found.
    shared_is_there: AtomicBool,
}

/// The directory of all networks in a state directory.
fn root_in(state_dir: &Path) -> PathBuf {
    state_dir.join("networks")
}

/// Where the namespace of a container is, or will be, pinned.
pub fn namespace_of(state_dir: &Path, container: &str) -> PathBuf {
    root_in(state_dir).join(container).join(NAMESPACE)
}

impl Networks {
    /// Nothing is made or looked at. `state_dir` must be an absolute path.
    pub fn new(settings: Settings, state_dir: &Path) -> Self {
        let width = available_parallelism().map_or(2, usize::from).clamp(2, 8);
        Self {
            settings,
            root: root_in(state_dir),
            leases: state_dir.join("addresses"),
            gate: Gate::new(width),
            shared_is_there: AtomicBool::new(false),
        }
    }

    /// The programs that our own bridge needs and that are not installed.
    pub fn missing(settings: &Settings) -> Vec<String> {
        missing(settings, &Conflist::of_bridge(settings, Path::new(""), true), true)
    }

    /// Makes a container's network. Blocks for as long as the plugins take. What an earlier start of the same container left is
    /// taken down first; on an error nothing is left.
    pub fn attach(&self, container: &str, wish: &Wish) -> Result<Attachment, NetworkError> {
        let network = self.network(wish)?;
        let programs = missing(&self.settings, &network, wish.network == Choice::Bridge);
        if !programs.is_empty() {
            return Err(NetworkError::Missing {
                programs,
                directories: Settings::search_path(&self.settings.cni_path),
            });
        }
        let path = self.root.join(container);
        let directory = Directory::make(&path).context(|| format!("making {}", path.display()))?;
        self.take_down(&directory)?;
        let record = Record::new(cni_id(container), network, wish.capabilities(), self.settings.cni_path.clone());
        let bridge = wish.network == Choice::Bridge;
        let made = self.set_up(&directory, record.clone(), bridge, false);
        let made = match made {
            Err(error @ NetworkError::Plugin { .. }) => {
                // Plugins that work at the same time get into each other's way now and then: once more, alone.
                tracing::warn!(container, %error, "network not made, trying again");
                self.take_down(&directory).and_then(|()| self.set_up(&directory, record, bridge, true))
            }
            made => made,
        };
        match made {
            Ok(attachment) => {
                self.shared_is_there.store(true, Ordering::Release);
                Ok(attachment)
            }
            Err(error) => {
                let cleaned = self.take_down(&directory).and_then(|()| remove(directory, &path));
                if let Err(left) = cleaned {
                    tracing::warn!(container, error = %left, "a network that could not be made was not removed either");
                }
                Err(error)
            }
        }
    }

    /// Takes a container's network down, whatever there is of it. The container's processes should be gone.
    pub fn release(&self, container: &str) -> Result<(), NetworkError> {
        let path = self.root.join(container);
        match Directory::take(&path).context(|| format!("locking {}", path.display()))? {
            Some(directory) => self.take_down(&directory).and_then(|()| remove(directory, &path)),
            None => Ok(()),
        }
    }

    /// Takes down the networks that nobody wants any more, those that were never finished included; says whose. Waits for
    /// plugins that still run for one.
    pub fn sweep(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, NetworkError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| format!("listing {}", self.root.display()))?,
        };
        let mut swept = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let path = self.root.join(&name);
            let removed = || -> Result<bool, NetworkError> {
                if wanted(&name) {
                    return Ok(false);
                }
                let directory = Directory::take(&path).context(|| format!("locking {}", path.display()))?;
                match directory {
                    // Whoever wants it now has claimed it before coming for the lock.
                    Some(directory) if !wanted(&name) => {
                        self.take_down(&directory).and_then(|()| remove(directory, &path)).map(|()| true)
                    }
                    _ => Ok(false),
                }
            };
            match removed() {
                Ok(true) => swept.push(name),
                Ok(false) => {}
                // The others are swept all the same.
                Err(error) => tracing::warn!(container = name, %error, "leftover of a network not removed"),
            }
        }
        Ok(swept)
    }

    /// The network that a container is to be connected to.
    fn network(&self, wish: &Wish) -> Result<Conflist, NetworkError> {
        let Choice::Named(name) = &wish.network else {
            return Ok(Conflist::of_bridge(&self.settings, &self.leases, !wish.ports.is_empty()));
        };
        let network = find_network(&self.settings.config_dir, name)?;
        for capability in wish.capabilities().keys() {
            if !network.offers(capability) {
                let (what, plugin) = match capability.as_str() {
                    "portMappings" => ("publish ports", "portmap"),
                    "mac" => ("set mac_address", "tuning"),
                    _ => ("choose addresses", "static"),
                };
                return Err(NetworkError::Unfit(format!(
                    "CNI network {name} cannot {what}: none of its plugins declares the capability {capability:?} (the plugin \
                     {plugin} has it; add it to the network's .conflist, or remove the option)"
                )));
            }
        }
        Ok(network)
    }

    /// Makes the namespace and calls every plugin.
    fn set_up(
        &self,
        directory: &Directory,
        mut record: Record,
        bridge: bool,
        alone: bool,
    ) -> Result<Attachment, NetworkError> {
        failpoint::at("start-before-network-record");
        directory.commit(&record)?;
        let namespace = directory.namespace();
        failpoint::at("start-before-namespace");
        namespace::pin(&namespace).context(|| format!("making the network namespace {}", namespace.display()))?;
        let _turn = self.turn(alone);
        if bridge {
            failpoint::at("start-before-bridge-rule");
            admin::accept_forwarded(&self.settings)?;
        }
        for index in 0..record.network.len() {
            record.called = index + 1;
            directory.commit(&record)?;
            failpoint::at("start-before-network-plugin");
            record.result = Some(call(directory, &record, index, Verb::Add)?);
        }
        failpoint::at("start-before-network-result");
        directory.commit(&record)?;
        let result = record.result.unwrap_or_default();
        Attachment::read(namespace, &result).map_err(|problem| NetworkError::Plugin {
            network: record.network.name,
            program: "its last plugin".to_owned(),
            command: Verb::Add.name(),
            problem: format!("its answer {problem}"),
        })
    }

    /// A place beside others, unless this is the first network: what is shared comes with that.
    fn turn(&self, alone: bool) -> Turn<'_> {
        let first = || !self.shared_is_there.load(Ordering::Acquire);
        if !alone && !first() {
            return self.gate.enter();
        }
        let turn = self.gate.enter_alone();
        if alone || first() {
            return turn;
        }
        // Somebody else was first while we waited.
        drop(turn);
        self.gate.enter()
    }

    /// Undoes whatever a record says, and lets the namespace go. Can be repeated until it has succeeded.
    fn take_down(&self, directory: &Directory) -> Result<(), NetworkError> {
        if let Some(record) = directory.read()? {
            for index in (0..record.called.min(record.network.len())).rev() {
                failpoint::at("destroy-before-network-plugin");
                let turn = self.gate.enter();
                if let Err(error) = call(directory, &record, index, Verb::Del) {
                    drop(turn);
                    tracing::warn!(container = record.container, %error, "network not taken down, trying again");
                    let _alone = self.gate.enter_alone();
                    call(directory, &record, index, Verb::Del)?;
                }
            }
        }
        failpoint::at("destroy-before-namespace");
        let namespace = directory.namespace();
        namespace::unpin(&namespace).context(|| format!("removing the network namespace {}", namespace.display()))?;
        Ok(())
    }
}

fn remove(directory: Directory, path: &Path) -> Result<(), NetworkError> {
    failpoint::at("destroy-before-network-record");
    directory.remove().context(|| format!("removing {}", path.display()))?;
    Ok(())
}

fn call(directory: &Directory, record: &Record, index: usize, verb: Verb) -> Result<Value, NetworkError> {
    let namespace = directory.namespace();
    let program = record.network.program(index);
    let call = Call {
        program,
        verb,
        container: &record.container,
        namespace: namespace::is_pinned(&namespace).then_some(&*namespace),
        interface: &record.interface,
        directories: &record.directories,
        request: record.network.request(index, &record.asked, record.result.as_ref()),
        log: directory.log(),
    };
    call.run().map_err(|problem| {
        let network = record.network.name.clone();
        if problem.contains("no IP addresses available") {
            return NetworkError::Exhausted { network, detail: problem };
        }
        NetworkError::Plugin { network, program: program.to_owned(), command: verb.name(), problem }
    })
}

fn missing(settings: &Settings, network: &Conflist, bridge: bool) -> Vec<String> {
    let plugins = network.programs().into_iter().filter(|program| find(program, &settings.cni_path).is_none());
    let mut missing: Vec<String> = plugins.map(|program| format!("CNI plugin {program}")).collect();
    if bridge {
        let tools = admin::programs(settings).filter(|(program, _)| find_in_system(program).is_none());
        missing.extend(tools.map(|(program, _)| program.to_owned()));
    }
    missing
}

/// The operator's network of a name: the first file, in the order of their names, that holds it.
fn find_network(directory: &Path, name: &str) -> Result<Conflist, NetworkError> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.retain(|file| {
        file.extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["conflist", "conf", "json"].contains(&extension))
    });
    files.sort();
    let mut problems = String::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| error.to_string());
        match text.and_then(|text| Conflist::parse(&text)) {
            Ok(network) if network.name == name => return Ok(network),
            Ok(_) => {}
            Err(problem) => problems += &format!("; {} {problem}", file.display()),
        }
    }
    Err(NetworkError::UnknownNetwork { name: name.to_owned(), directory: directory.to_owned(), problems })
}

/// A container's name as plugins may have it (specification 1.0, section 2): letters, digits, `_`, `.` and `-`.
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
    use std::fs;

    use proptest::prelude::*;

    use super::{cni_id, find_network};

    #[test]
    fn the_operators_networks_are_found_by_their_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).expect("a file");
        write("20-late.conflist", r#"{"name": "lan", "plugins": [{"type": "late"}]}"#);
        write("10-first.conf", r#"{"name": "lan", "type": "first"}"#);
        write("other.json", r#"{"name": "dmz", "type": "other"}"#);
        write("broken.conflist", "{}");
        write("lan.txt", r#"{"name": "hidden", "type": "x"}"#);
        let find = |name: &str| find_network(directory.path(), name);
        assert_eq!(find("lan").expect("a network").program(0), "first");
        assert_eq!(find("dmz").expect("a network").program(0), "other");
        let error = find("hidden").expect_err("no network").to_string();
        assert!(
            error.contains("no CNI network \"hidden\"") && error.contains("broken.conflist has no name"),
            "{error}"
        );
        assert!(find_network(&directory.path().join("none"), "lan").is_err());
    }

    proptest! {
        #[test]
        fn any_two_containers_have_names_of_their_own(a in "[a-b+_.]{1,4}", b in "[a-b+_.]{1,4}") {
            let (left, right) = (cni_id(&a), cni_id(&b));
            prop_assert!(left.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)));
            prop_assert_eq!(a == b, left == right);
        }
    }
}
