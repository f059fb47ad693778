//! A process that serves is killed, and another one takes its place. This process holds the group meanwhile, as a
//! monitor would, and reads.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    ops::{ControlFlow, Range},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use layer::Limits;
use lazy::{
    Description, Lazy, LazyEvent, Observer, PartialLayer, Predecessor, ServiceLock, Settings, Source, SourceError,
    Sources,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open},
};

use crate::common::{Bench, Mounted, Native, mixed, noise, single};

const SCENE: &str = "LAZY_SCENE";
/// The process that holds the group, and the number of its descriptor.
const HOLDER: &str = "LAZY_HOLDER";
/// The pause of the source before each piece in microseconds, `hang`, or `keeps`: without a pause, and reads of the
/// complete layer stay announced. `over`: the predecessor has completed the layer.
const PAUSE: &str = "LAZY_PAUSE";
/// What a child says begins with this.
const MARK: &str = "lazy child: ";

/// A process that serves the layer in a directory.
struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// What it said while something else was waited for: its threads speak in any order.
    said: Vec<String>,
}

impl Server {
    fn start(scene: &Path, holder: Option<&OwnedFd>, pause: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "takeover::play", "--nocapture", "--test-threads=1"]);
        command.env(SCENE, scene).env(PAUSE, pause).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(group) = holder {
            command.env(HOLDER, format!("{} {}", std::process::id(), group.as_raw_fd()));
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, said: Vec::new() }
    }

    /// Waits until the child says something that begins with a word. Returns the rest.
    fn says(&mut self, word: &str) -> String {
        loop {
            if let Some(at) = self.said.iter().position(|said| said.starts_with(word)) {
                return self.said.remove(at)[word.len()..].trim().to_owned();
            }
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the child ended before it said {word:?}");
            // The test harness writes its own words to the same line.
            self.said.extend(line.split_once(MARK).map(|(_, said)| said.trim().to_owned()));
        }
    }

    /// The child's group, as a monitor would get it. It stays open until this process ends: without a holder, reads see
    /// zeros, and the failure of a reader would hide that of the test.
    fn group(&mut self) -> OwnedFd {
        let number = self.says("serves").parse().unwrap();
        let group = descriptor_of(self.child.id(), number);
        std::mem::forget(group.try_clone().unwrap());
        group
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn descriptor_of(process: u32, number: i32) -> OwnedFd {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()).unwrap()
}

fn scene(bench: &Bench, native: &Native) -> PathBuf {
    let scene = bench.directory.path().to_owned();
    fs::write(scene.join("image"), &native.image).unwrap();
    fs::write(scene.join("description"), serde_json::to_vec(&native.description).unwrap()).unwrap();
    scene
}

/// The image in a file.
struct InFile {
    image: File,
    pause: Option<Duration>,
    /// Whether it says when it is asked.
    says: bool,
}

impl Source for InFile {
    fn name(&self) -> &str {
        "file"
    }

    fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), SourceError> {
        if self.says {
            say(&format!("asked {}", range.start));
        }
        for start in range.clone().step_by(16 << 10) {
            match self.pause {
                Some(pause) => thread::sleep(pause),
                None => loop {
                    thread::park();
                },
            }
            let mut piece = vec![0; (range.end - start).min(16 << 10) as usize];
            self.image.read_exact_at(&mut piece, start).map_err(|error| SourceError(error.to_string()))?;
            if sink(&piece).is_break() {
                break;
            }
        }
        Ok(())
    }
}

struct Teller;

impl Observer for Teller {
    fn report(&self, event: LazyEvent) {
        match event {
            LazyEvent::Complete { .. } => say("complete"),
            event => say(&format!("{event:?}")),
        }
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{MARK}{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// The child's work. Without the variable it is no test.
#[test]
fn play() {
    let Some(scene) = std::env::var_os(SCENE).map(PathBuf::from) else { return };
    let mode = std::env::var(PAUSE).unwrap();
    let keeps = mode == "keeps";
    let pause = if keeps { Some(Duration::ZERO) } else { mode.parse().ok().map(Duration::from_micros) };
    let settings = Settings { profile: keeps.then_some(Duration::from_secs(600)), ..Settings::default() };
    let source = |pause, says| -> Sources {
        let image = File::open(scene.join("image")).unwrap();
        let source: Arc<dyn Source> = Arc::new(InFile { image, pause, says });
        [source].into_iter().collect()
    };
    let directory = scene.join("layer");
    let events = scene.join("events");
    // The memory of a killed process ends after the process, and keeps the lock until then.
    let lock = ServiceLock::wait(&events).unwrap();
    let before = PartialLayer::open(&directory, &Limits::default()).unwrap();
    let served = match std::env::var(HOLDER) {
        Ok(holder) => {
            let (process, number) = holder.split_once(' ').unwrap();
            let group = descriptor_of(process.parse().unwrap(), number.parse().unwrap());
            let file = File::open(directory.join(lazy::IMAGE)).unwrap().metadata().unwrap();
            let (layers, complete) = match mode.as_str() {
                "over" => (Vec::new(), vec![(file.dev(), file.ino())]),
                _ => (vec![(before.unwrap(), source(pause, true))], Vec::new()),
            };
            let predecessor = Predecessor { group, layers, complete };
            Lazy::take_over(lock, predecessor, settings, Arc::new(Teller)).unwrap()
        }
        Err(_) => {
            let description: Description =
                serde_json::from_slice(&fs::read(scene.join("description")).unwrap()).unwrap();
            let front = source(Some(Duration::ZERO), false);
            let (layer, _) = PartialLayer::create(&directory, description, &front, &Limits::default()).unwrap();
            let lazy = Lazy::start(lock, settings, Arc::new(Teller)).unwrap();
            lazy.serve(layer, source(pause, true)).unwrap();
            lazy
        }
    };
    say(&format!("serves {}", served.group().as_raw_fd()));
    loop {
        thread::park();
    }
}

/// A thread that reads a part of a file and compares.
fn reader(mounted: &Arc<Mounted>, native: &'static Native, file: usize, range: Range<u64>) -> thread::JoinHandle<()> {
    let mounted = Arc::clone(mounted);
    thread::spawn(move || {
        let (name, expected) = &native.files[file];
        let read = mounted.read(name, range.clone()).unwrap();
        assert!(read == expected[range.start as usize..range.end as usize], "{name} {range:?}");
    })
}

#[test]
fn reads_that_a_killed_process_had_taken_are_served_by_later_ones() {
    let Some(bench) = Bench::new() else { return };
    let native = single();
    let scene = scene(&bench, native);
    let mut first = Server::start(&scene, None, "hang");
    let group = first.group();
    let mounted = Arc::new(Mounted::of(&bench.layer().join("fs.erofs")));
    // Each generation reads events that it never answers. Their numbers are mostly the same.
    let mut readers = Vec::new();
    let chunk = lazy::CHUNK;
    let mut first = Some(first);
    for generation in 0..3 {
        let mut server = first.take().unwrap_or_else(|| Server::start(&scene, Some(&group), "hang"));
        for number in 0..3 {
            let at = (generation * 4 + number) * chunk;
            readers.push(reader(&mounted, native, 0, at..at + 4096));
        }
        // The streaming and the reads.
        server.says("asked");
        server.says("asked");
        server.kill();
    }
    let mut last = Server::start(&scene, Some(&group), "0");
    last.says("complete");
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    last.kill();
    assert!(bench.bytes() == native.image);
}

#[test]
fn a_read_whose_file_the_killed_process_had_not_noted_is_served() {
    let Some(bench) = Bench::new() else { return };
    let native = single();
    let scene = scene(&bench, native);
    let mut first = Server::start(&scene, None, "hang");
    let group = first.group();
    let mounted = Arc::new(Mounted::of(&bench.layer().join("fs.erofs")));
    // The streaming asks first: it does not begin while a read is fetched.
    first.says("asked");
    let waiting = reader(&mounted, native, 0, 5 * lazy::CHUNK..5 * lazy::CHUNK + 4096);
    first.says("asked");
    first.kill();
    // The process could have been killed before it noted the file.
    let events = File::options().read(true).write(true).open(bench.events()).unwrap();
    let mut slots = vec![0; events.metadata().unwrap().len() as usize];
    events.read_exact_at(&mut slots, 0).unwrap();
    let used: Vec<usize> = (0..slots.len()).step_by(64).filter(|at| slots[*at] != 0).collect();
    assert!(!used.is_empty(), "an event is on disk as soon as it was read");
    for at in used {
        assert_ne!(slots[at + 56..at + 64], [0; 8], "its file was noted");
        events.write_all_at(&[0; 16], at as u64 + 48).unwrap();
    }
    let mut second = Server::start(&scene, Some(&group), "0");
    waiting.join().unwrap();
    second.says("complete");
    second.kill();
}

/// The next process finds nothing to fetch: it checks the layer and removes its mark while it begins to serve.
#[test]
fn a_layer_is_taken_over_that_became_complete_before_the_kill() {
    for _ in 0..6 {
        let Some(bench) = Bench::new() else { return };
        let native = mixed();
        let scene = scene(&bench, native);
        let mut first = Server::start(&scene, None, "keeps");
        let group = first.group();
        let mounted = Arc::new(Mounted::of(&bench.layer().join("fs.erofs")));
        // These reads are announced too, so all of it is here then.
        assert!(bench.bytes() == native.image);
        first.kill();
        let done = Arc::new(AtomicBool::new(false));
        let (readers, _) = read_on(&mounted, native, &done);
        let mut second = Server::start(&scene, Some(&group), "0");
        second.says("serves");
        second.says("complete");
        done.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(bench.bytes() == native.image);
        second.kill();
    }
}

/// The killed process had taken one of two reads, and not the other.
#[test]
fn reads_of_a_layer_pass_that_the_killed_process_had_completed() {
    let Some(bench) = Bench::new() else { return };
    let native = mixed();
    let scene = scene(&bench, native);
    let mut first = Server::start(&scene, None, "keeps");
    let group = first.group();
    assert!(bench.bytes() == native.image, "the layer is complete");
    // It takes no read any more.
    kill_process(Pid::from_child(&first.child), Signal::STOP).unwrap();
    let read_whole = || {
        let path = bench.layer().join(lazy::IMAGE);
        thread::spawn(move || fs::read(path).unwrap())
    };
    let waits = |group: &OwnedFd| poll(&mut [PollFd::new(group, PollFlags::IN)], None).unwrap();
    let mut readers = vec![read_whole()];
    waits(&group);
    let mut event = [0; 48];
    assert_eq!(rustix::io::read(&group, &mut event).unwrap(), event.len());
    let file = File::open(bench.layer().join(lazy::IMAGE)).unwrap().metadata().unwrap();
    let noted: Vec<u8> = [event.as_slice(), &file.dev().to_ne_bytes(), &file.ino().to_ne_bytes()].concat();
    File::options().write(true).open(bench.events()).unwrap().write_all_at(&noted, 0).unwrap();
    readers.push(read_whole());
    waits(&group);
    first.kill();
    let mut second = Server::start(&scene, Some(&group), "over");
    second.says("serves");
    readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() == native.image));
    second.kill();
}

/// The readers of the kill test.
const READERS: usize = 4;

/// The finished reads of each reader.
#[derive(Default)]
struct Finished {
    reads: Mutex<[u64; READERS]>,
    changed: Condvar,
}

impl Finished {
    fn add(&self, reader: usize) {
        self.reads.lock().unwrap()[reader] += 1;
        self.changed.notify_all();
    }

    /// Waits until each reader has finished another read. Returns the time.
    fn all_go_on(&self) -> Duration {
        let (begun, reads) = (Instant::now(), self.reads.lock().unwrap());
        let before = *reads;
        let waits = |now: &mut [u64; READERS]| now.iter().zip(before).any(|(now, before)| *now == before);
        let (_reads, waited) = self.changed.wait_timeout_while(reads, Duration::from_secs(60), waits).unwrap();
        assert!(!waited.timed_out(), "a reader does not go on");
        begun.elapsed()
    }
}

/// Kills at random times. `OCI_RS_LAZY_KILLS` sets their number. Prints how long readers wait for the next process.
#[test]
#[allow(clippy::print_stdout, reason = "a measurement")]
fn kills_at_any_time_never_show_a_wrong_byte_and_reads_go_on() {
    let kills: usize = std::env::var("OCI_RS_LAZY_KILLS").map_or(40, |kills| kills.parse().unwrap());
    let random = noise(u64::from(std::process::id()), kills);
    let (mut killed, native, mut waits) = (0, mixed(), Vec::new());
    while killed < kills {
        let Some(bench) = Bench::new() else { return };
        let scene = scene(&bench, native);
        let mut server = Server::start(&scene, None, "2000");
        let group = server.group();
        let mounted = Arc::new(Mounted::of(&bench.layer().join("fs.erofs")));
        let done = Arc::new(AtomicBool::new(false));
        let (readers, finished) = read_on(&mounted, native, &done);
        let mut of_this_layer = 0;
        // Without kills, some of the layer's life is left for its completion.
        while killed < kills && of_this_layer < 8 {
            thread::sleep(Duration::from_millis(2 + u64::from(random[killed]) / 8));
            server.kill();
            (killed, of_this_layer) = (killed + 1, of_this_layer + 1);
            server = Server::start(&scene, Some(&group), "2000");
            server.says("serves");
            // The others are killed at once.
            if killed % 4 == 0 {
                waits.push(finished.all_go_on());
            }
        }
        server.says("complete");
        done.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        server.kill();
        assert!(bench.bytes() == native.image, "after {killed} kills");
    }
    waits.sort_unstable();
    let (middle, longest) = (waits.get(waits.len() / 2), waits.last());
    println!("all readers went on: median {middle:?}, longest {longest:?} of {} times", waits.len());
}

/// Threads that read random parts and compare, until they are done.
fn read_on(
    mounted: &Arc<Mounted>,
    native: &'static Native,
    done: &Arc<AtomicBool>,
) -> (Vec<thread::JoinHandle<()>>, Arc<Finished>) {
    let finished = Arc::new(Finished::default());
    let reader = |number| {
        let (mounted, done, finished) = (Arc::clone(mounted), Arc::clone(done), Arc::clone(&finished));
        let random = noise(number as u64 + 7, 4 << 10);
        thread::spawn(move || {
            for word in random.chunks_exact(8).cycle() {
                let word = usize::from_le_bytes(word.try_into().unwrap());
                let (name, expected) = &native.files[word % native.files.len()];
                let start = word / 1000 % (expected.len() + 1);
                let end = (start + word / 7 % 50_000).min(expected.len());
                let read = mounted.read(name, start as u64..end as u64).unwrap();
                assert!(read == expected[start..end], "{name} {start}..{end}");
                finished.add(number);
                if done.load(Ordering::SeqCst) {
                    return;
                }
            }
        })
    };
    ((0..READERS).map(reader).collect(), finished)
}
