//! Lanes: cases run one after the other in a lane, and the lanes run side by side.
//!
//! A lane has its own network namespaces, registry and agents, so everything that is left there is a leak of its case.
//! A lane's parts outlive a case. The first case that needs a part starts it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock},
};

use e2e::{Agent, Consul, Failure, Outcome, Registry, Tools, network, network::Namespace};

/// The environment of a case.
pub struct Env<'a> {
    pub agent: &'a Agent,
    pub registry: &'a Registry,
    /// The network namespace of an outside client. It has a route only to the node.
    pub outside: &'a Namespace,
    consul: Option<&'a Consul>,
}

impl Env<'_> {
    /// The Consul of an agent that has one.
    pub fn consul(&self) -> Outcome<&Consul> {
        self.consul.ok_or_else(|| Failure("the case needs an agent with Consul".to_owned()))
    }
}

/// A case: its name, whether it needs an agent of its own, and what it does.
pub type Case = (&'static str, Needs, fn(&Env) -> Outcome);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    SharedAgent,
    OwnAgent,
    /// An own agent, and no other case at the same time: it changes something that all agents of a machine share.
    Alone,
    /// An own agent with access control, whose driver prefetches images.
    Prefetching,
    /// A second shared agent, with Consul. Only one lane has it.
    WithConsul,
}

/// All lanes of a run. A trial takes a free one.
pub struct Lanes {
    tools: Tools,
    all: Mutex<Vec<Entry>>,
    freed: Condvar,
    /// Read by a case that can run beside others, written by one that cannot.
    alone: RwLock<()>,
}

/// A lane, whether a trial uses it, and whether it is the one with Consul.
struct Entry {
    lane: Arc<Lane>,
    busy: bool,
    consul: bool,
}

/// A lane that a trial uses. It is free again when this value is dropped.
struct Taken<'a>(&'a Lanes, Arc<Lane>);

struct Lane {
    tools: Tools,
    node: Namespace,
    outside: Namespace,
    registry: Mutex<Option<Arc<Registry>>>,
    agent: Mutex<Option<Arc<Agent>>>,
    consul: Mutex<Option<Arc<Consul>>>,
    consul_agent: Mutex<Option<Arc<Agent>>>,
    /// The running case's own agent.
    own_agent: Mutex<Option<Arc<Agent>>>,
}

impl Lanes {
    pub const fn new(tools: Tools) -> Self {
        Self { tools, all: Mutex::new(Vec::new()), freed: Condvar::new(), alone: RwLock::new(()) }
    }

    /// Runs a case in a free lane.
    pub fn run(&self, needs: Needs, case: fn(&Env) -> Outcome) -> Outcome {
        let alone = (needs == Needs::Alone).then(|| self.alone.write().unwrap_or_else(PoisonError::into_inner));
        let beside = alone.is_none().then(|| self.alone.read().unwrap_or_else(PoisonError::into_inner));
        let taken = self.take(needs == Needs::WithConsul)?;
        taken.1.node.join()?;
        let outcome = taken.1.run(needs, case);
        drop((alone, beside));
        outcome
    }

    /// Takes a free lane, or makes one. There are therefore as many lanes as trials that run at the same time.
    fn take(&self, consul: bool) -> Outcome<Taken<'_>> {
        let mut all = lock(&self.all);
        loop {
            let known = all.iter().any(|entry| entry.consul);
            let fits = |entry: &&mut Entry| !entry.busy && (!consul || entry.consul || !known);
            // A case without Consul leaves the lane with Consul to others.
            if let Some(entry) = all.iter_mut().filter(fits).min_by_key(|entry| entry.consul) {
                entry.busy = true;
                entry.consul |= consul;
                return Ok(Taken(self, Arc::clone(&entry.lane)));
            }
            if !(consul && known) {
                let lane = Arc::new(Lane::new(&self.tools)?);
                all.push(Entry { lane: Arc::clone(&lane), busy: true, consul });
                return Ok(Taken(self, lane));
            }
            all = self.freed.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes all lanes. Returns the leaks.
    pub fn close(&self) -> Outcome {
        let lanes = std::mem::take(&mut *lock(&self.all));
        // Every lane is closed, also when the first one fails.
        let closed: Vec<Outcome> = lanes.iter().map(|entry| entry.lane.close()).collect();
        closed.into_iter().collect()
    }

    /// Ends agents, tasks and registries after Ctrl-C. They have their own process groups.
    pub fn take_down(&self) -> Outcome {
        let lanes: Vec<Arc<Lane>> = lock(&self.all).iter().map(|entry| Arc::clone(&entry.lane)).collect();
        lanes.iter().try_for_each(|lane| lane.take_down())
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for entry in lock(&self.0.all).iter_mut().filter(|entry| Arc::ptr_eq(&entry.lane, &self.1)) {
            entry.busy = false;
        }
        self.0.freed.notify_all();
    }
}

impl Lane {
    fn new(tools: &Tools) -> Outcome<Self> {
        let (node, outside) = network::make()?;
        Ok(Self {
            tools: tools.clone(),
            node,
            outside,
            registry: Mutex::default(),
            agent: Mutex::default(),
            consul: Mutex::default(),
            consul_agent: Mutex::default(),
            own_agent: Mutex::default(),
        })
    }

    fn run(&self, needs: Needs, case: fn(&Env) -> Outcome) -> Outcome {
        let registry = get_or(&self.registry, || Registry::start(&self.tools))?;
        if matches!(needs, Needs::OwnAgent | Needs::Alone | Needs::Prefetching) {
            let start = if needs == Needs::Prefetching { Agent::start_prefetching } else { Agent::start };
            let agent = get_or(&self.own_agent, || start(&self.tools))?;
            let outcome = self.run_on(&agent, &registry, None, case);
            drop(agent);
            let agent = lock(&self.own_agent).take();
            outcome?;
            return close(agent);
        }
        let consul = match needs {
            Needs::WithConsul => Some(get_or(&self.consul, || Consul::start(&self.tools))?),
            _ => None,
        };
        let slot = if consul.is_some() { &self.consul_agent } else { &self.agent };
        let agent = get_or(slot, || Agent::start_with(&self.tools, consul.as_deref()))?;
        agent.mark_log();
        let outcome = self.run_on(&agent, &registry, consul.as_deref(), case);
        if outcome.is_err() {
            // The next case gets a new agent.
            drop(agent);
            drop(lock(slot).take());
        }
        outcome
    }

    fn run_on(
        &self,
        agent: &Agent,
        registry: &Registry,
        consul: Option<&Consul>,
        case: fn(&Env) -> Outcome,
    ) -> Outcome {
        let outside = &self.outside;
        let outcome = catch_unwind(AssertUnwindSafe(|| case(&Env { agent, registry, outside, consul })));
        let outcome = outcome.unwrap_or_else(|panic| Err(Failure(panic_text(&*panic))));
        let after = agent.purge().and_then(|()| none_left(agent.leaks()));
        let logged = agent.driver_errors().and_then(no_errors);
        let outcomes = [outcome, after, logged];
        let troubles: Vec<String> = outcomes.into_iter().filter_map(|outcome| Some(outcome.err()?.0)).collect();
        if troubles.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("{}\n{}", troubles.join("\n"), agent.diagnose())))
    }

    fn close(&self) -> Outcome {
        self.node.join()?;
        drop(lock(&self.registry).take());
        // Both agents are closed, also when the first one fails.
        let closed = [&self.agent, &self.consul_agent].map(|slot| close(lock(slot).take()));
        drop(lock(&self.consul).take());
        closed.into_iter().collect()
    }

    fn take_down(&self) -> Outcome {
        self.node.join()?;
        for slot in [&self.own_agent, &self.agent, &self.consul_agent] {
            let agent = lock(slot).clone();
            if let Some(agent) = agent {
                agent.take_down();
            }
        }
        if let Some(consul) = &*lock(&self.consul) {
            consul.take_down();
        }
        let registry = lock(&self.registry).clone();
        if let Some(registry) = registry {
            registry.take_down();
        }
        Ok(())
    }
}

fn close(agent: Option<Arc<Agent>>) -> Outcome {
    agent.and_then(Arc::into_inner).map_or(Ok(()), |agent| none_left(agent.close()?))
}

fn none_left(left: Vec<String>) -> Outcome {
    if left.is_empty() { Ok(()) } else { Err(Failure(format!("left behind:\n  {}", left.join("\n  ")))) }
}

/// A node without a fault logs no error, also while jobs are wrong and processes are killed. A network that a job names
/// and the node lacks is a fault of the node.
fn no_errors(mut lines: Vec<String>) -> Outcome {
    lines.retain(|line| !line.contains("there is no CNI network"));
    if lines.is_empty() { Ok(()) } else { Err(Failure(format!("the driver logged errors:\n  {}", lines.join("\n  ")))) }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

fn get_or<T>(slot: &Mutex<Option<Arc<T>>>, start: impl FnOnce() -> Outcome<T>) -> Outcome<Arc<T>> {
    let mut slot = lock(slot);
    match &*slot {
        Some(there) => Ok(Arc::clone(there)),
        None => {
            let new = Arc::new(start()?);
            *slot = Some(Arc::clone(&new));
            Ok(new)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
