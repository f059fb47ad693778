//! Registries for tests: one of our own that can misbehave on purpose, and the real `docker-registry` where it is installed.
//!
//! [`Registry`] serves from memory on a loopback port, one thread per connection, so that it works under any runtime and under
//! none. It counts and keeps every request. A [`Fault`] changes what happens to the requests that it matches, for as many of them
//! as told.

mod auth;
mod docker;
mod fault;
mod serve;

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

pub use auth::Auth;
pub use docker::DockerRegistry;
pub use fault::{Action, Fault, Request};

use crate::{
    image::{Built, Document},
    must::Must,
};

#[derive(Default)]
struct State {
    blobs: HashMap<String, Vec<u8>>,
    /// By `repository:tag` and `repository@digest`.
    manifests: HashMap<String, Document>,
    auth: Auth,
    token: String,
    tokens: usize,
    faults: Vec<Fault>,
    requests: Vec<Request>,
}

struct Shared {
    state: Mutex<State>,
    stopped: AtomicBool,
    address: SocketAddr,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registry in this process.
pub struct Registry {
    shared: Arc<Shared>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::start()
    }
}

impl Registry {
    /// Starts an empty one on a free loopback port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").must("a loopback port");
        let address = listener.local_addr().must("the registry's address");
        let shared = Arc::new(Shared { state: Mutex::default(), stopped: AtomicBool::new(false), address });
        let server = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming() {
                if server.stopped.load(Ordering::Acquire) {
                    return;
                }
                let (Ok(connection), server) = (connection, Arc::clone(&server)) else {
                    continue;
                };
                thread::spawn(move || serve::serve(&server, connection));
            }
        });
        Self { shared }
    }

    /// `127.0.0.1:<port>`, as it stands in references.
    pub fn host(&self) -> String {
        self.shared.address.to_string()
    }

    /// A reference to a repository and tag of this registry.
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.host())
    }

    /// Takes an image in under `repository:tag`, and returns the full reference.
    pub fn push(&self, name: &str, image: &Built) -> String {
        let (repository, _) = name.split_once(':').must("a name with a tag");
        let mut state = self.shared.state();
        state.blobs.extend(image.blobs.iter().cloned());
        for manifest in &image.manifests {
            state.manifests.insert(format!("{repository}@{}", manifest.digest()), manifest.clone());
        }
        state.manifests.insert(name.to_owned(), image.top().clone());
        drop(state);
        self.reference(name)
    }

    /// Sets who may read. Tokens given out so far lose their worth.
    pub fn auth(&self, auth: Auth) {
        let mut state = self.shared.state();
        state.auth = auth;
        drop(state);
        self.revoke_tokens();
    }

    /// Makes all tokens given out so far worthless.
    pub fn revoke_tokens(&self) {
        let mut state = self.shared.state();
        state.tokens += 1;
        state.token = format!("token-{}", state.tokens);
    }

    /// Adds a disturbance. The first one that matches a request counts.
    pub fn fault(&self, fault: Fault) {
        self.shared.state().faults.push(fault);
    }

    /// Ends all disturbances.
    pub fn heal(&self) {
        self.shared.state().faults.clear();
    }

    /// Everything that was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests.clone()
    }

    /// How many requests had this in their path.
    pub fn count(&self, path: &str) -> usize {
        self.shared.state().requests.iter().filter(|request| request.path.contains(path)).count()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.shared.state().requests.clear();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread; if that fails, it ends with the process.
        drop(TcpStream::connect(self.shared.address));
    }
}
