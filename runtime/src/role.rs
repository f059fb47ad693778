//! The roles in which our binary is executed again, and their command lines.
//!
//! A role and its arguments are encoded and parsed here only. Plugin and role are the same build, because the plugin
//! executes a copy of itself.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use crate::address::{DescriptorAddress, LayerMounts, NamespaceAddress};

const MONITOR: &str = "monitor";
/// Not `exec`, which is a command of operators.
const EXEC: &str = "exec-helper";
const RELAY: &str = "relay";
/// The second argument of a relay that is not the container's first one.
const AGAIN: &str = "again";
const MOUNTER: &str = "mounter";
const HOOKS: &str = "hooks";

/// A role with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Creates one container and sees it to its end.
    Monitor(MonitorArgs),
    /// Runs one command in a running container.
    Exec(ExecArgs),
    /// Delivers the output of one container to a log server.
    Relay(RelayArgs),
    /// Runs the hooks of one moment of a container.
    Hooks(HooksArgs),
    /// Mounts or unmounts one volume. It is told on standard input: mount options may have a password.
    Mounter,
}

/// The arguments of the monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorArgs {
    /// The task's directory. It contains the plan.
    pub(crate) task: PathBuf,
    /// The data directory.
    pub(crate) data_dir: PathBuf,
    /// The plugin's empty mount namespace.
    pub(crate) empty_mounts: NamespaceAddress,
    /// The plugin's mounts of the layers, if a layer is an image.
    pub(crate) layer_mounts: Option<LayerMounts>,
    /// The plugin's group that announces reads of incomplete layers, if the container has such layers.
    pub(crate) layer_group: Option<DescriptorAddress>,
}

/// The arguments of the exec helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecArgs {
    /// The task's directory.
    pub(crate) task: PathBuf,
}

/// The arguments of the log relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayArgs {
    /// The task's directory.
    pub(crate) task: PathBuf,
    /// An earlier relay of this container has ended.
    pub(crate) again: bool,
}

/// The arguments of the hook runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HooksArgs {
    /// The task's directory.
    pub(crate) task: PathBuf,
    pub(crate) moment: HookMoment,
}

/// When the hooks of a runner run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HookMoment {
    /// The root is mounted, and not yet entered.
    Create,
    /// The command has begun.
    Started,
    /// The container has ended, and its processes are gone.
    Removed,
}

impl HookMoment {
    const ALL: [(Self, &str); 3] = [(Self::Create, "create"), (Self::Started, "started"), (Self::Removed, "removed")];

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(moment, _)| *moment == self).map_or("", |(_, name)| name)
    }
}

/// A command line that names a role and has wrong arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("wrong arguments for the role {0}")]
pub(crate) struct InvalidRole(&'static str);

impl Role {
    /// The arguments of a command line, without the program. A path that is not UTF-8 is an error.
    pub fn to_args(&self) -> io::Result<Vec<String>> {
        match self {
            Self::Monitor(MonitorArgs { task, data_dir, empty_mounts, layer_mounts, layer_group }) => {
                let mut args = vec![MONITOR.to_owned(), text(task)?, text(data_dir)?, empty_mounts.to_string()];
                args.extend(layer_mounts.as_ref().map(LayerMounts::to_string));
                args.extend(layer_group.as_ref().map(DescriptorAddress::to_string));
                Ok(args)
            }
            Self::Exec(ExecArgs { task }) => Ok(vec![EXEC.to_owned(), text(task)?]),
            Self::Relay(RelayArgs { task, again }) => {
                let mut args = vec![RELAY.to_owned(), text(task)?];
                args.extend(again.then(|| AGAIN.to_owned()));
                Ok(args)
            }
            Self::Hooks(HooksArgs { task, moment }) => {
                Ok(vec![HOOKS.to_owned(), text(task)?, moment.name().to_owned()])
            }
            Self::Mounter => Ok(vec![MOUNTER.to_owned()]),
        }
    }

    /// The role of a command line without the program; `None` if it names no role.
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Result<Self, InvalidRole>> {
        let mut args = args.into_iter();
        match args.next()?.to_str()? {
            MONITOR => Some(MonitorArgs::parse(args).map(Self::Monitor).ok_or(InvalidRole(MONITOR))),
            EXEC => Some(ExecArgs::parse(args).map(Self::Exec).ok_or(InvalidRole(EXEC))),
            RELAY => Some(RelayArgs::parse(args).map(Self::Relay).ok_or(InvalidRole(RELAY))),
            HOOKS => Some(HooksArgs::parse(args).map(Self::Hooks).ok_or(InvalidRole(HOOKS))),
            MOUNTER => Some(Ok(Self::Mounter)),
            _ => None,
        }
    }
}

impl MonitorArgs {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let (task, data_dir) = (args.next()?.into(), args.next()?.into());
        let empty_mounts = args.next()?.to_str()?.parse().ok()?;
        let (mut layer_mounts, mut layer_group) = (None, None);
        for text in args {
            match text.to_str()?.parse() {
                Ok(group) => layer_group = Some(group),
                Err(_) => layer_mounts = Some(text.to_str()?.parse().ok()?),
            }
        }
        Some(Self { task, data_dir, empty_mounts, layer_mounts, layer_group })
    }
}

impl ExecArgs {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        Some(Self { task: args.next()?.into() })
    }
}

impl HooksArgs {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let task = args.next()?.into();
        let word = args.next()?;
        let moment = HookMoment::ALL.into_iter().find(|(_, name)| word == *name).map(|(moment, _)| moment)?;
        Some(Self { task, moment })
    }
}

impl RelayArgs {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let task = args.next()?.into();
        let again = match args.next() {
            Some(word) => (word == AGAIN).then_some(true)?,
            None => false,
        };
        Some(Self { task, again })
    }
}

fn text(path: &Path) -> io::Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;
    use crate::address::HeldFile;

    fn parse(args: &[impl AsRef<OsStr>]) -> Option<Result<Role, InvalidRole>> {
        Role::parse(args.iter().map(|arg| arg.as_ref().to_owned()))
    }

    fn monitor(layer_mounts: Option<LayerMounts>) -> Role {
        let file = HeldFile { descriptor: 5, number: 6 };
        Role::Monitor(MonitorArgs {
            task: "/state/tasks/a b".into(),
            data_dir: "/data".into(),
            empty_mounts: NamespaceAddress { pid: 7, file },
            layer_group: layer_mounts.as_ref().map(|_| DescriptorAddress { pid: 7, descriptor: 9 }),
            layer_mounts,
        })
    }

    #[test]
    fn every_role_survives_its_command_line() {
        let mounts = LayerMounts { pid: 7, mounts: vec![None, Some(HeldFile { descriptor: 8, number: 9 })] };
        let exec = Role::Exec(ExecArgs { task: "/state/tasks/one".into() });
        let relay = |again| Role::Relay(RelayArgs { task: "/state/tasks/one".into(), again });
        let hooks =
            HookMoment::ALL.map(|(moment, _)| Role::Hooks(HooksArgs { task: "/state/tasks/one".into(), moment }));
        let roles = [monitor(None), monitor(Some(mounts)), exec, relay(false), relay(true), Role::Mounter];
        for role in roles.into_iter().chain(hooks) {
            assert_eq!(parse(&role.to_args().expect("text")), Some(Ok(role)));
        }
    }

    #[test]
    fn a_command_line_without_a_role_is_none() {
        for args in [&[][..], &["image", "ls"], &["Monitor"], &["exec", "/task"]] {
            assert_eq!(parse(args), None, "{args:?}");
        }
    }

    #[test]
    fn a_role_with_wrong_arguments_is_an_error() {
        for args in [
            &["exec-helper"][..],
            &["relay"],
            &["hooks", "/task"],
            &["hooks", "/task", "create "],
            &["relay", "/task", "agai"],
            &["monitor"],
            &["monitor", "/task"],
            &["monitor", "/task", "/data"],
            &["monitor", "/task", "/data", "/proc/7/fd/5:6"],
            &["monitor", "/task", "/data", "7 5:6", "8"],
        ] {
            assert!(matches!(parse(args), Some(Err(_))), "{args:?}");
        }
    }

    #[test]
    fn a_path_that_is_not_text_is_refused() {
        let task = OsStr::from_bytes(b"/\xff").into();
        let error = Role::Exec(ExecArgs { task }).to_args().expect_err("no text");
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }
}
