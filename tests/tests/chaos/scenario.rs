//! Scenarios as plain data: the lifecycles of tasks on one node, each with its steps and its end.
//!
//! A seed generates a scenario. A failing scenario is reduced: parts of it are left out while it still fails.

use std::time::Duration;

use crate::rng::Rng;

/// Lifecycles on one node, some of them concurrent.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The lifecycles, in the order of their start.
    pub lifecycles: Vec<Lifecycle>,
    /// The number of concurrent lifecycles.
    pub concurrency: usize,
    /// Whether each task has its own network instead of the host's.
    pub own_networks: bool,
}

/// One task from its start to its removal.
#[derive(Debug, Clone)]
pub struct Lifecycle {
    /// The number in the scenario.
    pub number: usize,
    /// The image of the task.
    pub image: Image,
    /// The behavior of the task's command.
    pub behavior: Behavior,
    /// Whether a start without an answer means that the agent died too. It then starts the task under a new id.
    pub agent_dies: bool,
    /// The steps while the task runs: the groups run one after another, the steps of a group concurrently.
    pub steps: Vec<Vec<Step>>,
    /// The end of the task.
    pub ending: Ending,
}

/// The image of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// The image that most tasks share.
    Common,
    /// An image of this task alone.
    Own,
    /// An image of this task alone. Its first downloads are cut after this number of bytes.
    Cut(usize),
    /// An image of this task alone. The registry is overloaded at first.
    Overloaded,
}

/// The behavior of a task's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    /// Exits with 7 on SIGTERM.
    HandlesTerm,
    /// Ignores SIGTERM and SIGHUP.
    IgnoresTerm,
    /// Like `HandlesTerm`, with children that ignore signals and have their own sessions.
    LeavesChildren,
    /// Exits at once with this code.
    ExitsAtOnce(i32),
}

/// An event during the run of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// SignalTask with a signal that the task survives.
    Signal,
    /// SignalTask with a signal that does not exist.
    BadSignal,
    /// ExecTask.
    Exec,
    /// ExecTask with a command that takes a moment.
    LongExec,
    /// InspectTask.
    Inspect,
    /// TaskStats.
    Stats,
    /// RecoverTask of a known task.
    Recover,
    /// WaitTask whose caller disconnects.
    Wait,
    /// DestroyTask without force, which the driver refuses.
    Destroy,
    /// SIGKILL for the plugin, and a new plugin.
    KillPlugin,
    /// SIGKILL for the task's monitor.
    KillMonitor,
    /// SIGKILL for an exec helper of any task.
    KillHelper,
    /// SIGKILL for the reader of the task's log, and a new reader.
    KillReader,
    /// A pause in milliseconds.
    Pause(u64),
}

/// The end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// StopTask with this timeout.
    Stop(Duration),
    /// StopTask this number of milliseconds after the begin of StartTask.
    Interrupt(u64),
    /// The command exits with this code.
    Exit(i32),
    /// SIGKILL for the task's first process.
    Killed,
    /// DestroyTask with force while the task runs.
    Destroy,
    /// StopTask twice, SignalTask, ExecTask and DestroyTask, all concurrently.
    Concurrent(Duration),
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64, count: usize) -> Self {
        let mut rng = Rng::new(seed);
        let lifecycles = (0..count).map(|number| Lifecycle::new(number, &mut rng)).collect();
        Self { lifecycles, concurrency: 3 + rng.below(4), own_networks: false }
    }

    /// Scenarios with fewer parts, the shortest first.
    pub fn shorter(&self) -> Vec<Self> {
        let with = |lifecycles: Vec<Lifecycle>| Self { lifecycles, ..*self };
        let mut all = Vec::new();
        let count = self.lifecycles.len();
        let mut part = count / 2;
        while part > 0 {
            for from in (0..count).step_by(part) {
                let (head, tail) = (&self.lifecycles[..from], &self.lifecycles[(from + part).min(count)..]);
                if !(head.is_empty() && tail.is_empty()) {
                    all.push(with([head, tail].concat()));
                }
            }
            part /= 2;
        }
        for (index, lifecycle) in self.lifecycles.iter().enumerate() {
            for group in 0..lifecycle.steps.len() {
                let mut lifecycles = self.lifecycles.clone();
                lifecycles[index].steps.remove(group);
                all.push(with(lifecycles));
            }
        }
        all
    }
}

impl Lifecycle {
    fn new(number: usize, rng: &mut Rng) -> Self {
        let image = match rng.below(100) {
            0..80 => Image::Common,
            80..87 => Image::Own,
            87..95 => Image::Cut(1 + rng.below(900_000)),
            _ => Image::Overloaded,
        };
        let behavior = match rng.below(100) {
            0..50 => Behavior::HandlesTerm,
            50..70 => Behavior::IgnoresTerm,
            70..85 => Behavior::LeavesChildren,
            _ => Behavior::ExitsAtOnce(rng.pick(&[0, 0, 1, 42, 255])),
        };
        let steps = (0..rng.below(5)).map(|_| (0..1 + rng.below(3)).map(|_| Step::new(rng)).collect()).collect();
        Self { number, image, behavior, agent_dies: rng.percent(30), steps, ending: Ending::new(behavior, rng) }
    }
}

impl Step {
    fn new(rng: &mut Rng) -> Self {
        match rng.below(100) {
            0..12 => Self::Signal,
            12..16 => Self::BadSignal,
            16..30 => Self::Exec,
            30..40 => Self::LongExec,
            40..48 => Self::Inspect,
            48..56 => Self::Stats,
            56..62 => Self::Recover,
            62..68 => Self::Wait,
            68..72 => Self::Destroy,
            72..80 => Self::KillPlugin,
            80..85 => Self::KillMonitor,
            85..90 => Self::KillHelper,
            90..94 => Self::KillReader,
            _ => Self::Pause(rng.below(60) as u64),
        }
    }
}

impl Ending {
    fn new(behavior: Behavior, rng: &mut Rng) -> Self {
        let mut timeouts = vec![Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(40)];
        if matches!(behavior, Behavior::HandlesTerm | Behavior::LeavesChildren) {
            timeouts.push(Duration::from_secs(10));
            timeouts.push(Duration::from_secs(i64::MAX.unsigned_abs()));
        }
        let timeout = rng.pick(&timeouts);
        match rng.below(100) {
            0..35 => Self::Stop(timeout),
            35..45 => Self::Interrupt(rng.below(120) as u64),
            45..65 => Self::Exit(rng.pick(&[0, 0, 3, 127, 255])),
            65..75 => Self::Killed,
            75..87 => Self::Destroy,
            _ => Self::Concurrent(timeout),
        }
    }
}
