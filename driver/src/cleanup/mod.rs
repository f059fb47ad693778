//! Removes what is no longer used. Runs beside all other work.
//!
//! | module | removes | when |
//! |---|---|---|
//! | `leftovers` | the remains of crashes and reboots | once at the plugin's start |
//! | `dangling` | containers of this node that the agent does not know | periodically |
//! | `groups` | networks of groups that Nomad no longer uses | periodically |
//! | `retention` | images without a user | when their time has come |

mod dangling;
mod groups;
mod leftovers;
mod retention;

use std::sync::Arc;

pub use self::leftovers::{orphaned_leases, remove as remove_leftovers};

use crate::{blocking::blocking, node::Node, task::Tasks};

/// Removes leftovers, then starts the periodic work. `tasks` are the tasks of this process, a starting one included.
///
/// Each call removes leftovers; only the first one starts the periodic work, which ends with the plugin.
pub async fn run(node: Arc<Node>, tasks: Tasks) {
    let (worker, known) = (node.clone(), tasks.clone());
    if let Err(error) = blocking(move || leftovers::remove(&worker, &known)).await {
        tracing::warn!(%error, "leftovers not swept");
    }
    if !node.start_cleanup_once() {
        return;
    }
    if let Some(policy) = node.config.dangling.filter(|policy| node.config.group_networks && !policy.dry_run) {
        tokio::spawn(groups::remove_unused(node.clone(), policy));
    }
    if let Some(policy) = node.config.dangling {
        tokio::spawn(dangling::remove_periodically(node.clone(), tasks, policy));
    }
    if let Some(policy) = node.config.retention {
        retention::remove_unused_images(node, policy).await;
    }
}
