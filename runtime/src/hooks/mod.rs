//! Hooks: programs of the node that a plan runs while its container is made, started and removed.
//!
//! They run as in the OCI runtime specification, one after the other, in the order of the plan. All hooks of the node
//! and those of the container's namespaces run in a process of our binary, the *hook runner* (`runner`), so that a
//! runner that is killed ends with its hooks' parents and no thread of ours changes its namespaces. The hooks of the
//! stage `startContainer` run in the container's first process itself, with the rights of the command.
//!
//! | stage | in | when | a failure |
//! |---|---|---|---|
//! | `prestart`, `createRuntime` | the node's namespaces | the root is mounted, and not yet entered | fails the start |
//! | `createContainer` | the container's namespaces, with the node's files | after that | fails the start |
//! | `startContainer` | the container | just before the command | fails the start |
//! | `poststart` | the node's namespaces | after the command began | ends the container |
//! | `poststop` | the node's namespaces | after the container's end | is logged |
//!
//! Each hook gets the container's state on standard input, and has a deadline.

mod run;
mod runner;
mod state;

pub(crate) use run::run_all;
pub(crate) use runner::{failure, main, run_here};
pub(crate) use state::{HookPlan, HookState};

use crate::plan::{Hook, HookStage};

/// The hooks of these stages, in their order: stage by stage, each as in the plan.
pub(crate) fn of_stages<'a>(hooks: &'a [Hook], stages: &'a [HookStage]) -> impl Iterator<Item = &'a Hook> {
    stages.iter().flat_map(move |stage| hooks.iter().filter(move |hook| hook.stage == *stage))
}
