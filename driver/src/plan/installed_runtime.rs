//! The OCI runtime that makes the container.

use runtime::plan::{InstalledRuntime, Propagation};

use super::{context::TaskContext, mounts::MountPlan};
use crate::config::ErrorCollector;

/// The runtime of the node that the task asks for. `None` is the built-in one.
pub fn decide(context: &TaskContext, mounts: &MountPlan, errors: &ErrorCollector) -> Option<InstalledRuntime> {
    let TaskContext { spec, node, .. } = *context;
    let request = spec.runtime.as_ref()?;
    let name = &request.name;
    let Some(path) = node.runtime.clone() else {
        let program = request.program.display();
        errors.add(
            "runtime",
            format!("{name:?} is not installed on this node: there is no executable {program}"),
            format!(
                "install it, have the operator set `path` in the plugin's block `runtime {name:?}`, or constrain the \
                 job to nodes whose attribute `driver.{}.runtimes` has it",
                node.driver
            ),
        );
        return None;
    };
    let refuse = |option: &str, what: &str, remedy: &str| {
        errors.add(option, format!("{what} needs the built-in runtime, and the task has runtime {name:?}"), remedy);
    };
    if spec.init {
        refuse("init", "the init process", "remove `init` or `runtime`, or use an image with an init");
    }
    let of_host = mounts.mounts.iter().find(|mount| mount.propagation != Propagation::Private);
    if let Some(mount) = of_host {
        let what = format!("the propagation of the mount {}", mount.destination);
        refuse("mount", &what, "make the propagation private, or remove `runtime`");
    }
    Some(InstalledRuntime { name: name.clone(), path, args: request.args.clone() })
}
