//! Creating and removing the networks of containers, and removing those that killed processes left behind.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use host::Context;

use crate::{
    attachment::Attachment,
    bridge::connect::DriverBridge,
    cni::connect::{CniPlugins, plan},
    error::NetworkError,
    interfaces::{self, LendRequest, LendTarget},
    namespace,
    record::{NAMESPACE, NetworkDirectory, NetworkRecord},
    request::{AttachRequest, NetworkChoice},
    settings::Settings,
};

/// The networks of one state directory.
#[derive(Debug)]
pub struct Networks {
    settings: Settings,
    root: PathBuf,
    bridge: DriverBridge,
    plugins: CniPlugins,
}

/// The claim on the network of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// A container of this driver needs it.
    Own,
    /// It belongs to a driver with another name and the same directories, which looks after it.
    Foreign,
    /// No container needs it.
    Unclaimed,
}

/// What the sweep found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The network of a container that does not exist. It is removed.
    Leftover,
    /// A network on the driver's bridge. Its ports are published.
    OnBridge,
    /// A network that is worked on, that CNI plugins made, or that belongs to another driver.
    Other,
}

/// The directory of all networks in a state directory.
pub(crate) fn root_in(state_dir: &Path) -> PathBuf {
    state_dir.join("networks")
}

/// The file to which the network namespace of a container is, or will be, pinned.
pub fn namespace_of(state_dir: &Path, container: &str) -> PathBuf {
    root_in(state_dir).join(container).join(NAMESPACE)
}

impl Networks {
    /// Creates and reads nothing on disk. `state_dir` must be an absolute path.
    pub fn new(settings: Settings, state_dir: &Path) -> Self {
        let root = root_in(state_dir);
        let bridge = DriverBridge::new(&settings, root.clone(), state_dir.join("addresses"));
        Self { settings, root, bridge, plugins: CniPlugins::new() }
    }

    /// Creates a container's network. Leftovers of an earlier attempt for the same container are removed first. After
    /// an error nothing is left.
    pub fn attach(&self, container: &str, request: &AttachRequest) -> Result<Attachment, NetworkError> {
        let planned = match &request.network {
            NetworkChoice::Bridge => None,
            NetworkChoice::Named(name) => Some(plan(&self.settings, container, name, request)?),
        };
        let path = self.root.join(container);
        let directory = NetworkDirectory::create(&path).context(|| format!("making {}", path.display()))?;
        self.tear_down(container, &directory)?;
        let connected = match planned {
            None => self.bridge.connect(container, &directory, request),
            Some(record) => self.plugins.connect(&directory, record),
        };
        if connected.is_err() {
            let cleaned = self.tear_down(container, &directory).and_then(|()| remove(directory, &path));
            if let Err(leftover) = cleaned {
                tracing::warn!(container, error = %leftover, "the leftovers of a failed network were not removed");
            }
        }
        connected
    }

    /// Moves interfaces of the node to a container's network namespace, until the container's network is released.
    /// After an error the caller must release it.
    pub fn lend(&self, container: &str, request: &LendRequest) -> Result<(), NetworkError> {
        let path = self.root.join(container);
        let directory = NetworkDirectory::create(&path).context(|| format!("making {}", path.display()))?;
        let file = match &request.target {
            LendTarget::Attached => directory.namespace(),
            LendTarget::Unconnected => {
                self.tear_down(container, &directory)?;
                let file = directory.namespace();
                failpoint::at("start-before-interface-namespace");
                namespace::pin(&file, || Ok(()))
                    .context(|| format!("making the network namespace {}", file.display()))?;
                file
            }
            LendTarget::Group(file) => {
                interfaces::give_back(&directory)?;
                file.clone()
            }
        };
        interfaces::lend(&directory, &file, &request.interfaces).map_err(|error| match error {
            NetworkError::NoInterface { name } => match self.holder(&name) {
                Some(holder) => NetworkError::InterfaceLent { name, holder },
                None => NetworkError::NoInterface { name },
            },
            error => error,
        })
    }

    /// The container to which an interface of the node is lent.
    fn holder(&self, interface: &str) -> Option<String> {
        let mut names =
            fs::read_dir(&self.root).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let has = |name: &String| {
            NetworkDirectory::interfaces_of(&self.root.join(name)).is_some_and(|lent| lent.has(interface))
        };
        names.find(has)
    }

    /// Removes everything of a container's network. The container's processes should have ended.
    pub fn release(&self, container: &str) -> Result<(), NetworkError> {
        let path = self.root.join(container);
        match NetworkDirectory::open(&path).context(|| format!("locking {}", path.display()))? {
            Some(directory) => self.tear_down(container, &directory).and_then(|()| remove(directory, &path)),
            None => Ok(()),
        }
    }

    /// Removes the networks that are unclaimed, including unfinished ones. Waits for plugins that still run for such a
    /// network. Returns the containers of the removed networks.
    ///
    /// The ports of this driver's networks are published again, in case that the rules were deleted while no plugin
    /// ran.
    pub fn sweep(&self, claim: impl Fn(&str) -> Claim) -> Result<Vec<String>, NetworkError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| format!("listing {}", self.root.display()))?,
        };
        let (mut swept, mut only_on_bridge) = (Vec::new(), true);
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            match self.sweep_one(&name, &claim) {
                Ok(Found::Leftover) => swept.push(name),
                Ok(found) => only_on_bridge &= found == Found::OnBridge,
                // One network that cannot be removed does not keep the others.
                Err(error) => {
                    only_on_bridge = false;
                    tracing::warn!(container = name, %error, "a leftover network was not removed");
                }
            }
        }
        // The rules of CNI plugins publish ports too, of which the firewall does not know.
        if only_on_bridge && let Err(error) = self.bridge.forget_stale_connections() {
            tracing::warn!(%error, "tracked connections to removed containers may be left");
        }
        Ok(swept)
    }

    /// Removes the driver's bridge and its rules, if no container has a network; whether it did. The next container
    /// gets a new bridge.
    pub fn remove_bridge(&self) -> Result<bool, NetworkError> {
        self.bridge.remove_unless(|| match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            entries => Ok(entries.context(|| format!("listing {}", self.root.display()))?.next().is_some()),
        })
    }

    /// Removes one container's network if it is unclaimed.
    fn sweep_one(&self, name: &str, claim: &impl Fn(&str) -> Claim) -> Result<Found, NetworkError> {
        let path = self.root.join(name);
        let failed = || format!("locking {}", path.display());
        let claimed = claim(name);
        if claimed == Claim::Own {
            // A network that is being created publishes its ports itself.
            if let Some(directory) = NetworkDirectory::open_unless_busy(&path).context(failed)?
                && let Some(NetworkRecord::Bridge(record)) = directory.read()?
            {
                self.bridge.publish_again(&record)?;
                return Ok(Found::OnBridge);
            }
        }
        if claimed != Claim::Unclaimed {
            return Ok(Found::Other);
        }
        match NetworkDirectory::open(&path).context(failed)? {
            // A task claims its network before it waits for the lock, so this second look sees the claim.
            Some(directory) if claim(name) == Claim::Unclaimed => {
                self.tear_down(name, &directory).and_then(|()| remove(directory, &path)).map(|()| Found::Leftover)
            }
            _ => Ok(Found::Other),
        }
    }

    /// Removes a network, and then its record. It can be repeated until it succeeds.
    fn tear_down(&self, container: &str, directory: &NetworkDirectory) -> Result<(), NetworkError> {
        interfaces::give_back(directory)?;
        let record = directory.read()?;
        match &record {
            None => return directory.remove_namespace(),
            Some(NetworkRecord::Bridge(record)) => self.bridge.disconnect(directory, record)?,
            Some(NetworkRecord::Cni(record)) => self.plugins.disconnect(directory, record)?,
        }
        failpoint::at("destroy-before-network-record");
        directory.remove_record().context(|| format!("removing the record of {container}'s network"))?;
        if let Some(NetworkRecord::Bridge(record)) = record {
            self.bridge.forget(container, &record);
        }
        Ok(())
    }
}

fn remove(directory: NetworkDirectory, path: &Path) -> Result<(), NetworkError> {
    failpoint::at("destroy-before-network-directory");
    directory.remove().context(|| format!("removing {}", path.display()))?;
    Ok(())
}
