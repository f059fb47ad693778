//! `oci-rs network ls`: the networks of tasks.

use network::{Connection, NetworkView};
use runtime::plan::Network;
use serde_json::{Value, json};

use super::{
    arguments::{NetworkArguments, NetworkCommand},
    failure::Failure,
    output::{Output, note},
    tasks::{Place, Task},
};

/// The network of a task.
struct Attached {
    task: String,
    kind: &'static str,
    /// The name of the network, or the namespace's file.
    name: String,
    addresses: Vec<String>,
    container: String,
}

/// Runs the command.
pub fn run(arguments: &NetworkArguments) -> Result<(), Failure> {
    let NetworkArguments { command: NetworkCommand::Ls, node } = arguments;
    let tasks = Task::all(node)?;
    let mut all: Vec<Attached> = tasks.iter().map(of_task).collect();
    for place in Place::all(node)? {
        // A network without a container is a leftover of a killed process.
        let recorded = network::networks(&place.settings.config.state_dir).map_err(Failure::of)?;
        let missing = recorded.into_iter().filter(|network| {
            place.includes(&network.container) && all.iter().all(|known| known.container != network.container)
        });
        all.extend(missing.map(leftover).collect::<Vec<_>>());
    }
    let output = Output { json: node.json };
    if output.json {
        return Ok(output.value(&all.iter().map(json_of).collect())?);
    }
    let mut rows = vec![["TASK", "KIND", "NETWORK", "ADDRESSES"].map(str::to_owned).to_vec()];
    rows.extend(
        all.into_iter().map(|attached| {
            vec![attached.task, attached.kind.to_owned(), attached.name, attached.addresses.join(", ")]
        }),
    );
    Ok(output.fitted(&rows, &[2])?)
}

/// The network of a task: its own, that of its group, the host's, or none.
fn of_task(task: &Task) -> Attached {
    let (task_name, container) = (task.name(), task.view.id.to_string());
    let attached = |kind, name: String, addresses| Attached {
        task: task_name.clone(),
        kind,
        name,
        addresses,
        container: container.clone(),
    };
    if let Some(connection) = task.connection() {
        return connected(task_name.clone(), container.clone(), connection);
    }
    match task.view.plan.as_ref().map(|plan| &plan.namespaces.network) {
        Some(Network::Host) => attached("host", "host".to_owned(), Vec::new()),
        Some(Network::Private) => attached("none", "none".to_owned(), Vec::new()),
        Some(Network::Path(path)) => attached("group", path.display().to_string(), Vec::new()),
        None => attached("unknown", String::new(), Vec::new()),
    }
}

fn connected(task: String, container: String, connection: Connection) -> Attached {
    Attached {
        task,
        kind: if connection.is_cni { "cni" } else { "bridge" },
        name: connection.network,
        addresses: connection.addresses.iter().map(ToString::to_string).collect(),
        container,
    }
}

fn leftover(network: NetworkView) -> Attached {
    network.problem.iter().for_each(note);
    let task = format!("- ({})", network.container);
    match network.connection {
        Some(connection) => connected(task, network.container, connection),
        None => {
            Attached { task, kind: "unknown", name: String::new(), addresses: Vec::new(), container: network.container }
        }
    }
}

fn json_of(attached: &Attached) -> Value {
    let Attached { task, kind, name, addresses, container } = attached;
    json!({ "task": task, "container": container, "kind": kind, "network": name, "addresses": addresses })
}
