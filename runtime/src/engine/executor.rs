//! The executor that libcontainer calls as its last step.

use std::collections::HashMap;

use libcontainer::{
    oci_spec::runtime::Spec,
    workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError},
};

use crate::command::ConfinedCommand;

/// Turns the container's first process into a [`ConfinedCommand`].
#[derive(Clone)]
pub(super) struct CommandExecutor {
    command: ConfinedCommand,
}

impl CommandExecutor {
    pub fn new(command: ConfinedCommand) -> Self {
        Self { command }
    }
}

impl Executor for CommandExecutor {
    fn exec(&self, _spec: &Spec) -> Result<(), ExecutorError> {
        self.command.run()
    }

    /// Checks nothing: the command is looked up when it is executed, and libcontainer's own check refuses commands that
    /// work.
    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    /// Does nothing: [`ConfinedCommand`] has the environment, in order.
    fn setup_envs(&self, _envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
