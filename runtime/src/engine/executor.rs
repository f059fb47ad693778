//! Our part of libcontainer's last step.

use std::collections::HashMap;

use libcontainer::{
    oci_spec::runtime::Spec,
    workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError},
};

use super::launch::Launch;

/// Hands the container's first process over to [`Launch`].
#[derive(Clone)]
pub(super) struct LaunchExecutor {
    launch: Launch,
}

impl LaunchExecutor {
    pub fn new(launch: Launch) -> Self {
        Self { launch }
    }
}

impl Executor for LaunchExecutor {
    fn exec(&self, _spec: &Spec) -> Result<(), ExecutorError> {
        self.launch.run()
    }

    /// The command is looked up when it is executed; libcontainer's own check refuses commands that work.
    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    /// The launch brings its own environment, in order. This process has none.
    fn setup_envs(&self, _envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
