//! Many tasks on one node: what one more start takes, and what the plugin computes while they do nothing.
//!
//! A machine may get slower while so many are started. So the same is measured once more while they are taken away: what comes from the
//! number of tasks is gone then, what comes from the hour is not.

use std::{
    fs,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use fixtures::must::Must;
use kit::task::Task;

use crate::{
    images,
    ours::{Contenders, Ours},
    report::{median, milliseconds, note, range, say},
    workdir::WorkDirectory,
};

const IDLE: [&str; 2] = ["sleep", "100000"];
const MANY: usize = 500;
/// Starts of one line of the table.
const STEP: usize = 100;
/// So many do nothing while the plugin is watched.
const WATCHED: usize = 200;
/// Starts from one look at the floor to the next.
const SPARSE: usize = 5;
/// On the way back, so many tasks go, then come so many.
const GO: usize = 25;
const COME: usize = 5;
/// The kernel is not through with those that go when they are gone.
const SETTLE: Duration = Duration::from_millis(500);
const WATCH: Duration = Duration::from_secs(10);
/// Clock ticks of `/proc/<pid>/stat` in a second, everywhere (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Measures both tables, for ours alone: nobody else is asked for so many.
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
        for task in &tasks {
            ours.remove(task).await;
        }
        floor.end();
        table(&ours, &steps);
        say(&format!(
            "\n### {}, the plugin with {WATCHED} idle tasks\n\n| | % of one processor |\n|---|---:|",
            ours.name
        ));
        watched.iter().for_each(|(what, share)| say(&format!("| {what} | {share:.1} |")));
        ours.finish().await;
    }
}

/// What was measured while there were so many tasks.
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

/// What the kernel alone takes for a process in namespaces of its own: work that does not depend on how many there are. A shell of its own
/// does it each time, because a fork of ours would take longer with every task that we look after.
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

fn table(ours: &Ours, steps: &[Step]) {
    let title = "StartTask of one more task, ms; beside it unshare --pid --ipc --uts --fork true";
    let head = "| tasks | median | lowest | highest | on the way back: median | unshare: median |\n|---|---:|---:|---:|---:|---:|";
    say(&format!("\n### {}, {title}\n\n{head}", ours.name));
    let middle = |times: &[Duration]| median(&times.iter().map(milliseconds).collect::<Vec<_>>()).unwrap_or_default();
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

/// What the plugin computes without and with a stream of stats for each task, one sample a second as an agent asks for.
async fn watch(ours: &Ours, tasks: &[Task]) -> Vec<(&'static str, f64)> {
    let alone = computed(ours).await;
    let mut streams = Vec::new();
    for task in tasks {
        let mut stream = ours.plugin.stats(task.id(), Duration::from_secs(1)).await.must("TaskStats");
        streams.push(tokio::spawn(async move { while let Ok(Some(_)) = stream.message().await {} }));
    }
    let streaming = computed(ours).await;
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    vec![("nobody asks for stats", alone), ("stats of every task, once a second", streaming)]
}

async fn computed(ours: &Ours) -> f64 {
    let pid = ours.plugin.process.pid();
    let before = ticks(pid);
    tokio::time::sleep(WATCH).await;
    100.0 * (ticks(pid) - before) / TICKS / WATCH.as_secs_f64()
}

/// Ticks that a process has computed: fields 14 and 15.
fn ticks(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).must("the plugin's times");
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().skip(11).take(2));
    fields.into_iter().flatten().filter_map(|field| field.parse::<f64>().ok()).sum()
}
