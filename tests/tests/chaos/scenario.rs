//! What happens, as plain data: lives of tasks on one node, each with its steps and its end. A seed makes it, and a failing one
//! is made shorter by leaving parts out.

use std::time::Duration;

use crate::dice::Dice;

/// Lives on one node, some of them at once.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The lives, in the order in which they begin.
    pub lives: Vec<Life>,
    /// How many at once.
    pub width: usize,
    /// Every task has a network of its own instead of the host's.
    pub own_networks: bool,
}

/// One task from its start to nothing.
#[derive(Debug, Clone)]
pub struct Life {
    /// Tells it from the others.
    pub number: usize,
    /// What it runs.
    pub image: Image,
    /// How it behaves.
    pub nature: Nature,
    /// When a start gets no answer: the agent died too, and starts the task under a new id.
    pub agent_dies: bool,
    /// What happens while it runs: one group after another, the steps of a group at once.
    pub steps: Vec<Vec<Step>>,
    /// How it ends.
    pub ending: Ending,
}

/// What a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// What most run.
    Common,
    /// One of its own, pulled whole.
    Own,
    /// One of its own, and its first downloads are cut after so many bytes.
    Cut(usize),
    /// One of its own, from a registry that is overloaded at first.
    Busy,
}

/// How a task behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// Ends with 7 when it is told to terminate.
    Obedient,
    /// Ignores what can be ignored.
    Deaf,
    /// Obedient, with children that are deaf and in sessions of their own.
    Litter,
    /// Ends at once with this code.
    Brief(i32),
}

/// Something that happens to a running task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A signal that it survives.
    Signal,
    /// A signal that does not exist.
    BadSignal,
    /// A command in it.
    Exec,
    /// A command in it that takes a moment.
    LongExec,
    Inspect,
    Stats,
    /// RecoverTask of a task that is known.
    Recover,
    /// A caller of WaitTask that goes away.
    Wait,
    /// DestroyTask without force, which is refused.
    Destroy,
    /// `kill -9` of the plugin, and a new one.
    KillPlugin,
    /// `kill -9` of its monitor.
    KillMonitor,
    /// `kill -9` of an exec helper of anybody's.
    KillHelper,
    /// `kill -9` of who reads its log, and a new reader.
    KillReader,
    /// So many milliseconds.
    Pause(u64),
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// StopTask with this patience.
    Stop(Duration),
    /// StopTask so many milliseconds after StartTask began.
    Interrupt(u64),
    /// By itself, with this code.
    Itself(i32),
    /// Somebody kills its first process.
    Killed,
    /// DestroyTask with force while it runs.
    Destroy,
    /// StopTask twice, SignalTask, ExecTask, DestroyTask, all at once.
    Everything(Duration),
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64, lives: usize) -> Self {
        let mut dice = Dice::new(seed);
        let lives = (0..lives).map(|number| Life::new(number, &mut dice)).collect();
        Self { lives, width: 3 + dice.below(4), own_networks: false }
    }

    /// Scenarios with less in them, the shortest first.
    pub fn shorter(&self) -> Vec<Self> {
        let with = |lives: Vec<Life>| Self { lives, ..*self };
        let mut all = Vec::new();
        let count = self.lives.len();
        let mut part = count / 2;
        while part > 0 {
            for from in (0..count).step_by(part) {
                let (head, tail) = (&self.lives[..from], &self.lives[(from + part).min(count)..]);
                if !(head.is_empty() && tail.is_empty()) {
                    all.push(with([head, tail].concat()));
                }
            }
            part /= 2;
        }
        for (index, life) in self.lives.iter().enumerate() {
            for group in 0..life.steps.len() {
                let mut lives = self.lives.clone();
                lives[index].steps.remove(group);
                all.push(with(lives));
            }
        }
        all
    }
}

impl Life {
    fn new(number: usize, dice: &mut Dice) -> Self {
        let image = match dice.below(100) {
            0..80 => Image::Common,
            80..87 => Image::Own,
            87..95 => Image::Cut(1 + dice.below(900_000)),
            _ => Image::Busy,
        };
        let nature = match dice.below(100) {
            0..50 => Nature::Obedient,
            50..70 => Nature::Deaf,
            70..85 => Nature::Litter,
            _ => Nature::Brief(dice.pick(&[0, 0, 1, 42, 255])),
        };
        let steps = (0..dice.below(5)).map(|_| (0..1 + dice.below(3)).map(|_| Step::new(dice)).collect()).collect();
        Self { number, image, nature, agent_dies: dice.percent(30), steps, ending: Ending::new(nature, dice) }
    }
}

impl Step {
    fn new(dice: &mut Dice) -> Self {
        match dice.below(100) {
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
            _ => Self::Pause(dice.below(60) as u64),
        }
    }
}

impl Ending {
    fn new(nature: Nature, dice: &mut Dice) -> Self {
        let mut patience = vec![Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(40)];
        if matches!(nature, Nature::Obedient | Nature::Litter) {
            patience.push(Duration::from_secs(10));
            patience.push(Duration::from_secs(i64::MAX.unsigned_abs()));
        }
        let patience = dice.pick(&patience);
        match dice.below(100) {
            0..35 => Self::Stop(patience),
            35..45 => Self::Interrupt(dice.below(120) as u64),
            45..65 => Self::Itself(dice.pick(&[0, 0, 3, 127, 255])),
            65..75 => Self::Killed,
            75..87 => Self::Destroy,
            _ => Self::Everything(patience),
        }
    }
}
