//! Many tasks on one node: the time of one more start, and the plugin's processor time while the tasks are idle.
//!
//! A machine may become slower during the measurement. The starts are therefore measured again while tasks are removed:
//! an effect of the number of tasks is gone then, an effect of the machine is not. Many machines change within a
//! minute, so that few and many tasks are also compared in turns of some seconds.

use std::{
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use fixtures::must::Must;
use kit::task::Task;

use crate::{
    images,
    ours::{Contenders, Ours},
    process::ticks,
    report::{median, milliseconds, note, range, say},
    workdir::WorkDirectory,
};

const IDLE: [&str; 2] = ["sleep", "100000"];
const MANY: usize = 1000;
/// The number of starts in one row of the table.
const STEP: usize = 100;
/// The number of idle tasks while the plugin's processor time is measured.
const WATCHED: usize = 200;
/// The number of starts between two measurements of the lower bound.
const SPARSE: usize = 5;
/// On the way back, `GO` tasks are removed and `COME` tasks are started, in turns.
const GO: usize = 25;
const COME: usize = 5;
/// Few and many tasks are compared in this many turns, with this many starts in each half of a turn.
const TURNS: usize = 6;
const COMPARED: usize = 25;
/// The kernel continues to clean up for a moment after tasks have ended.
const SETTLE: Duration = Duration::from_millis(500);
const WATCH: Duration = Duration::from_secs(10);
/// The clock ticks per second in `/proc/<pid>/stat` (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Measures all tables, only for oci-rs.
pub async fn measure(workdir: &WorkDirectory, contenders: &Contenders) {
    let data = workdir.fresh("scale");
    let Some((_registry, image)) = images::small() else { return };
    for mut ours in contenders.launch(&data).await {
        note(&format!("{MANY} tasks of {}", ours.name));
        let (mut tasks, mut watched) = (Vec::new(), Vec::new());
        let mut steps: Vec<Step> = (0..MANY / STEP).map(|_| Step::default()).collect();
        let mut floor = Floor::begin();
        while tasks.len() < MANY {
            let step = &mut steps[tasks.len() / STEP];
            let (task, took) = start(&mut ours, &image).await;
            tasks.push(task);
            step.starts.push(took);
            step.floors.extend(tasks.len().is_multiple_of(SPARSE).then(|| floor.measure()));
            if tasks.len() == WATCHED {
                watched = watch(&ours, &tasks).await;
            }
        }
        while tasks.len() >= GO {
            for task in tasks.split_off(tasks.len() - GO) {
                ours.remove(&task).await;
            }
            tokio::time::sleep(SETTLE).await;
            for _ in 0..COME {
                let step = &mut steps[tasks.len() / STEP];
                let (task, took) = start(&mut ours, &image).await;
                tasks.push(task);
                step.starts_back.push(took);
                step.floors.push(floor.measure());
            }
        }
        floor.end();
        let compared = turns(&mut ours, &image, &mut tasks).await;
        for task in &tasks {
            ours.remove(task).await;
        }
        table(&ours, &steps);
        compare(&ours, &compared);
        say(&format!(
            "\n### {}, the plugin with {WATCHED} idle tasks\n\n| | % of one processor |\n|---|---:|",
            ours.name
        ));
        watched.iter().for_each(|(what, share)| say(&format!("| {what} | {share:.1} |")));
        ours.finish().await;
    }
}

/// The measurements of one row.
#[derive(Default)]
struct Step {
    starts: Vec<Duration>,
    /// On the way back.
    starts_back: Vec<Duration>,
    floors: Vec<Duration>,
}

async fn start(ours: &mut Ours, image: &str) -> (Task, Duration) {
    let task = ours.task(image, &IDLE).await;
    let begun = Instant::now();
    ours.plugin.started(&task).await;
    (task, begun.elapsed())
}

/// The starts with few and with many tasks, in turns.
#[derive(Default)]
struct Turns {
    few: Vec<Duration>,
    many: Vec<Duration>,
}

async fn turns(ours: &mut Ours, image: &str, tasks: &mut Vec<Task>) -> Turns {
    let mut turns = Turns::default();
    for _ in 0..TURNS {
        for (number, times) in [(STEP, &mut turns.few), (MANY, &mut turns.many)] {
            for task in tasks.split_off(tasks.len().min(number - COMPARED)) {
                ours.remove(&task).await;
            }
            while tasks.len() < number - COMPARED {
                tasks.push(start(ours, image).await.0);
            }
            tokio::time::sleep(SETTLE).await;
            for _ in 0..COMPARED {
                let (task, took) = start(ours, image).await;
                tasks.push(task);
                times.push(took);
            }
        }
    }
    turns
}

/// The lower bound: the kernel's time for a process in new namespaces, which does not depend on the number of tasks. A
/// separate shell makes the process, because a fork of the benchmark becomes slower with each task.
struct Floor {
    shell: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Floor {
    fn begin() -> Self {
        let script = "while read -r order; do unshare --pid --ipc --uts --fork true && echo made; done";
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().must("a shell");
        let orders = shell.stdin.take().must("its input");
        let answers = BufReader::new(shell.stdout.take().must("its output")).lines();
        Self { shell, orders, answers }
    }

    fn measure(&mut self) -> Duration {
        let begun = Instant::now();
        writeln!(self.orders, "make").must("an order");
        self.answers.next().must("an answer").must("made");
        begun.elapsed()
    }

    fn end(self) {
        let Self { mut shell, orders, .. } = self;
        drop(orders);
        shell.wait().must("the shell's end");
    }
}

fn compare(ours: &Ours, turns: &Turns) {
    let [few, many] = [&turns.few, &turns.many].map(|times| middle(times));
    say(&format!(
        "\n### {}, StartTask beside few and many tasks in {TURNS} turns, ms\n\n| {} to {STEP} | {} to {MANY} | more \
         |\n|---:|---:|---:|\n| {few:.1} | {many:.1} | {:.0} % |",
        ours.name,
        STEP - COMPARED + 1,
        MANY - COMPARED + 1,
        100.0 * (many / few - 1.0)
    ));
}

fn middle(times: &[Duration]) -> f64 {
    median(&times.iter().map(milliseconds).collect::<Vec<_>>()).unwrap_or_default()
}

fn table(ours: &Ours, steps: &[Step]) {
    let title = "StartTask of one more task, ms; beside it unshare --pid --ipc --uts --fork true";
    let head = "| tasks | median | lowest | highest | on the way back: median | unshare: median \
                |\n|---|---:|---:|---:|---:|---:|";
    say(&format!("\n### {}, {title}\n\n{head}", ours.name));
    for (number, step) in steps.iter().enumerate() {
        let (low, high) = range(step.starts.iter().map(milliseconds));
        say(&format!(
            "| {} to {} | {:.1} | {low:.1} | {high:.1} | {:.1} | {:.1} |",
            number * STEP + 1,
            (number + 1) * STEP,
            middle(&step.starts),
            middle(&step.starts_back),
            middle(&step.floors)
        ));
    }
}

/// The plugin's processor time without and with a stats stream for each task, one sample per second as for an agent.
async fn watch(ours: &Ours, tasks: &[Task]) -> Vec<(&'static str, f64)> {
    let alone = computed(ours).await;
    let mut streams = Vec::new();
    for task in tasks {
        let mut stream = ours.plugin.stats(task.id(), Duration::from_secs(1)).await.must("TaskStats");
        streams.push(tokio::spawn(async move { while let Ok(Some(_)) = stream.message().await {} }));
    }
    let streaming = computed(ours).await;
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    vec![("no stats streams", alone), ("one stats stream per task, one sample a second", streaming)]
}

async fn computed(ours: &Ours) -> f64 {
    let pid = ours.plugin.process.pid();
    let before = ticks(pid);
    tokio::time::sleep(WATCH).await;
    100.0 * (ticks(pid) - before) / TICKS / WATCH.as_secs_f64()
}
