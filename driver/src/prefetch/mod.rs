//! Pulls the images of jobs before their tasks are on this node, if the configuration names an agent.
//!
//! The jobs are learned from the agent's event stream. Each image that a job of this node's datacenter and pool names
//! is pulled with the node's own credentials, after all pulls that a task waits for. As long as such a job names the
//! image, garbage collection treats it as used a moment ago. All state is in memory: a new process lists the jobs once.
//!
//! | module | contents |
//! |---|---|
//! | `filter` | which jobs count, and which of their images are wanted: pure |
//! | `wishes` | the wanted images of all jobs, and those that wait for their pull: pure |
//! | `follow` | the connection to the agent |
//! | `pulls` | the pulls, and the last use of the images |

mod filter;
mod follow;
mod pulls;
mod wishes;

use std::sync::Arc;

use self::pulls::Queue;
use crate::node::Node;

/// Starts to prefetch images, if that is configured.
pub fn start(node: &Arc<Node>) {
    let Some(options) = node.config.prefetch.clone() else { return };
    let queue = Arc::new(Queue::default());
    for _ in 0..options.parallel {
        tokio::spawn(pulls::work(node.clone(), queue.clone()));
    }
    tokio::spawn(pulls::keep(node.clone(), queue.clone()));
    tokio::spawn(follow::run(node.clone(), options, queue));
}
