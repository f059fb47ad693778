//! Running a role.

use std::{ffi::OsString, process::ExitCode};

use crate::{exec, hooks, monitor, relay, role::Role, volumes};

/// Runs the role that the command line `args` (without the program) names, to its end; `None` if it names no role. Must
/// be called before the process has another thread.
pub fn run_role(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    Some(match Role::parse(args)? {
        Ok(Role::Monitor(args)) => monitor::main(args),
        Ok(Role::Exec(args)) => exec::main(args),
        Ok(Role::Relay(args)) => relay::main(&args),
        Ok(Role::Hooks(args)) => hooks::main(&args),
        Ok(Role::Mounter) => volumes::main(),
        Err(_) => ExitCode::from(2),
    })
}
