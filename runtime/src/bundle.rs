//! OCI bundles: the commands of OCI runtimes (create, start, state, kill, delete), for conformance tests.
//!
//! The driver does not contain this module: it needs the feature `bundle`. Containers are made by the same engine, and
//! their commands are executed with the same last steps, as the containers of plans. What differs: the spec comes from
//! the bundle instead of a plan, libcontainer's builder makes the first process and keeps its state on disk, and
//! libcontainer also sets the limits of cgroups v1.

use std::{
    fs, io,
    io::Write,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::fs::symlink,
    },
    path::{Path, PathBuf},
};

use oci_spec::runtime::{Capabilities, LinuxNamespaceType, Spec};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, waitpid};

pub use crate::engine::StoredContainer;
use crate::{
    capability::{CapabilityMask, HeldCapabilities},
    command::{
        ConfinedCommand, OwnLabels, apply_apparmor, apply_oom_score, held_capabilities, kernel_version, rlimit_resource,
    },
    engine::{ORIGIN, StoredRequest},
    error::{Context, StartError},
    plan::ContainerId,
    spec,
    sys::{self, Fork},
    user,
};

/// The arguments of `create`.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// The directory of all containers' states.
    pub root: PathBuf,
    /// The container's id.
    pub id: String,
    /// The directory with `config.json`.
    pub bundle: PathBuf,
    /// A file that gets the pid of the container's first process.
    pub pid_file: Option<PathBuf>,
    /// The socket to which the terminal is sent.
    pub console_socket: Option<PathBuf>,
}

/// Creates a container. Its first process waits for [`StoredContainer::start`]. The caller must have one thread.
pub fn create(request: &CreateRequest) -> Result<(), StartError> {
    let internal = |error: io::Error| StartError::internal(error.to_string());
    match sys::fork().map_err(internal)? {
        Fork::Child => {
            let outcome = create_and_end(request);
            if let Err(error) = &outcome {
                // The exit status tells the failure if standard error cannot.
                drop(writeln!(io::stderr(), "{error}"));
            }
            sys::exit_now(i32::from(outcome.is_err()))
        }
        Fork::Parent(creator) => wait_for(creator),
    }
}

/// Waits for the creator, which has printed its error.
fn wait_for(creator: Pid) -> Result<(), StartError> {
    let ended =
        waitpid(Some(creator), WaitOptions::empty()).map_err(|error| StartError::internal(error.to_string()))?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(StartError::internal("the container was not created")),
    }
}

/// The creator, which ends as soon as the container's first process waits.
fn create_and_end(request: &CreateRequest) -> Result<(), StartError> {
    let bundle = fs::canonicalize(&request.bundle).context(|| format!("bundle {}", request.bundle.display()))?;
    let path = bundle.join("config.json");
    let text = fs::read(&path).context(|| format!("reading {}", path.display()))?;
    let mut spec: Spec =
        serde_json::from_slice(&text).map_err(|error| StartError::invalid(format!("{}: {error}", path.display())))?;
    if namespaces(&spec, LinuxNamespaceType::Mount).next().is_none() {
        // The engine would mount the bundle's file systems in this process's mount namespace.
        return Err(StartError::invalid("the bundle has no mount namespace of its own"));
    }
    let mut command = command(&spec, io::stderr().as_raw_fd())?;
    if !command.env.iter().any(|(name, _)| name == "HOME") {
        command.env.push(("HOME".to_owned(), home(&spec, &bundle)?));
    }
    let process = spec.process().as_ref();
    apply_oom_score(process.and_then(|process| process.oom_score_adj()).unwrap_or(0))?;
    sys::join_new_session_keyring().context(|| "making a session keyring".to_owned())?;
    if let Some(profile) = process.and_then(|process| process.apparmor_profile().as_deref()) {
        apply_apparmor(profile)?;
    }
    spec::leave_last_steps(&mut spec, "/");
    let root_path = spec.root().as_ref().map_or(bundle.clone(), |root| bundle.join(root.path()));
    if let Some(root) = spec.root_mut() {
        root.set_path(root_path);
    }
    let engine_bundle = engine_bundle(&request.root, &request.id, &bundle)
        .context(|| "making the engine's bundle directory".to_owned())?;
    let stdio = stdio().context(|| "standard streams".to_owned())?;
    let id: ContainerId = request.id.parse().map_err(|error| StartError::invalid(format!("id: {error}")))?;
    let console_socket = request.console_socket.clone();
    let root = &request.root;
    let (id, bundle, spec) = (id.as_str(), &engine_bundle, &spec);
    let pid = StoredContainer::create(StoredRequest { id, state: root, bundle, spec, stdio, console_socket, command })?;
    match &request.pid_file {
        Some(file) => Ok(fs::write(file, pid.to_string()).context(|| format!("writing {}", file.display()))?),
        None => Ok(()),
    }
}

/// The home of the user in the root file system.
fn home(spec: &Spec, bundle: &Path) -> Result<String, StartError> {
    let root = spec.root().as_ref().map_or(bundle.to_owned(), |root| bundle.join(root.path()));
    // A root file system without users is usual.
    let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let uid = spec.process().as_ref().map_or(0, |process| process.user().uid());
    Ok(user::resolve(&uid.to_string(), &[], &passwd, "")?.home)
}

/// The directory to which the engine's spec is written. The bundle stays unchanged; `origin` leads to it.
fn engine_bundle(root: &Path, id: &str, bundle: &Path) -> io::Result<PathBuf> {
    let directory = root.join("bundles").join(id);
    fs::create_dir_all(&directory)?;
    match symlink(bundle, directory.join(ORIGIN)) {
        // The id exists: the engine refuses it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(directory),
        made => made.map(|()| directory),
    }
}

fn stdio() -> io::Result<[OwnedFd; 3]> {
    let copy = |descriptor: &dyn AsFd| descriptor.as_fd().try_clone_to_owned();
    Ok([copy(&io::stdin())?, copy(&io::stdout())?, copy(&io::stderr())?])
}

/// The command of a bundle with its restrictions. A failure is written to `report`.
fn command(spec: &Spec, report: RawFd) -> Result<ConfinedCommand, StartError> {
    let process = spec.process().as_ref().ok_or_else(|| StartError::invalid("the bundle has no process"))?;
    let held = held_capabilities();
    let capabilities = process.capabilities().as_ref();
    let mask = |set: Option<&Option<Capabilities>>| -> Result<CapabilityMask, StartError> {
        let set = set.and_then(Option::as_ref).into_iter().flatten();
        let names: Vec<String> = set.map(|capability| format!("CAP_{capability}")).collect();
        let mask = CapabilityMask::from_names(&names).map_err(|error| StartError::invalid(error.to_string()))?;
        Ok(mask.and(held))
    };
    let bounding = mask(capabilities.map(|all| all.bounding()))?;
    let permitted = mask(capabilities.map(|all| all.permitted()))?;
    let inheritable = mask(capabilities.map(|all| all.inheritable()))?;
    // The specification: a capability that cannot be granted is no error. The kernel grants an ambient capability only
    // if it is permitted and inheritable.
    let explicit = HeldCapabilities {
        effective: mask(capabilities.map(|all| all.effective()))?.and(permitted),
        permitted,
        inheritable,
        ambient: mask(capabilities.map(|all| all.ambient()))?.and(permitted).and(inheritable),
    };
    let env = process.env().iter().flatten().filter_map(|entry| entry.split_once('='));
    Ok(ConfinedCommand {
        args: process.args().clone().unwrap_or_default(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        uid: process.user().uid(),
        terminal: process.terminal().unwrap_or(false),
        trees: Vec::new(),
        peers: Vec::new(),
        start_hooks: None,
        loopback: namespaces(spec, LinuxNamespaceType::Network).any(|path| path.is_none()),
        init: false,
        init_profile: None,
        own_labels: OwnLabels::default(),
        ends_with_monitor: false,
        rlimits: rlimits(spec)?,
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        filter: filter(spec, bounding)?,
        bounding,
        explicit: Some(explicit),
        report,
        build_root: None,
    })
}

/// The bundle's namespaces of a kind, each with its path if it exists already.
fn namespaces(spec: &Spec, kind: LinuxNamespaceType) -> impl Iterator<Item = Option<&PathBuf>> {
    let all = spec.linux().iter().filter_map(|linux| linux.namespaces().as_ref()).flatten();
    all.filter(move |namespace| namespace.typ() == kind).map(|namespace| namespace.path().as_ref())
}

fn rlimits(spec: &Spec) -> Result<Vec<(String, Resource, Rlimit)>, StartError> {
    let limits = spec.process().iter().filter_map(|process| process.rlimits().as_ref()).flatten();
    limits
        .map(|limit| {
            let name = limit.typ().to_string().trim_start_matches("RLIMIT_").to_ascii_lowercase();
            let resource = rlimit_resource(&name)
                .ok_or_else(|| StartError::invalid(format!("rlimit {name}: there is no such limit")))?;
            let finite = |value: u64| (value != u64::MAX).then_some(value);
            Ok((name, resource, Rlimit { current: finite(limit.soft()), maximum: finite(limit.hard()) }))
        })
        .collect()
}

/// The compiled filter of a bundle: its format is docker's without conditions.
fn filter(spec: &Spec, bounding: CapabilityMask) -> Result<Option<Vec<u8>>, StartError> {
    let Some(profile) = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref()) else { return Ok(None) };
    let invalid = |error: &dyn std::fmt::Display| StartError::invalid(format!("seccomp: {error}"));
    let profile = serde_json::to_value(profile).and_then(serde_json::from_value).map_err(|error| invalid(&error))?;
    let names: Vec<String> = bounding.names().map(str::to_owned).collect();
    seccomp::custom_program(&profile, &names, kernel_version()).map(Some).map_err(|error| invalid(&error))
}
