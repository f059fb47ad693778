//! Serves the metrics, if the configuration names an address, and sends the traces. Reads the values of tasks at each
//! scrape.
//!
//! | module | contents |
//! |---|---|
//! | `listen` | the TCP port or the Unix socket |
//! | `http` | `GET /metrics` |
//! | `scrape` | one scrape: tasks and node, read at most once a second |
//! | `tasks` | reads the tasks, on several threads |
//! | `process` | reads this process |
//! | `sizes` | the sizes of writable layers and of the store, measured in the background |

mod http;
mod listen;
mod process;
mod scrape;
mod sizes;
mod tasks;

use std::{sync::Arc, time::Duration};

use self::{listen::Listener, scrape::Scraper};
use crate::{config::MetricsAddress, node::Node, task::Tasks, traces};

/// The time between two attempts to listen. Another plugin process may have the address until it ends.
const LISTEN_PAUSE: Duration = Duration::from_secs(30);

/// Starts to serve the metrics and to send the traces that are configured.
pub fn start(node: &Arc<Node>, tasks: &Tasks) {
    if let Some(address) = node.config.metrics.clone() {
        tokio::spawn(serve(node.clone(), tasks.clone(), address));
    }
    if node.tracer().is_some() {
        tokio::spawn(send_traces(node.clone()));
    }
}

async fn send_traces(node: Arc<Node>) {
    let Some(tracer) = node.tracer() else { return };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let resource = [
        ("service.name", node.config.driver.to_string()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("host.name", host),
    ];
    traces::deliver(tracer, &resource, node.recorder()).await;
}

/// Serves the metrics for as long as the plugin lives. An address that cannot be used is a line in the log, and is
/// tried again: tasks do not depend on metrics.
async fn serve(node: Arc<Node>, tasks: Tasks, address: MetricsAddress) {
    let mut listener = match Listener::bind(&address) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "metrics are not served yet: cannot listen (option metrics.address)");
            again(&address).await
        }
    };
    tracing::info!(address = %listener.address(), "metrics are served");
    let scraper = Arc::new(Scraper::new(node, tasks));
    http::serve(&mut listener, &scraper).await;
}

async fn again(address: &MetricsAddress) -> Listener {
    loop {
        tokio::time::sleep(LISTEN_PAUSE).await;
        if let Ok(listener) = Listener::bind(address) {
            return listener;
        }
    }
}
