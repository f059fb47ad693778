//! Other processes that work on a store: this test executable again, controlled by its environment.

use std::{
    ffi::OsStr,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use image_store::{LoadRequest, Retention, Silent, Store};

use crate::{
    common::{config, request},
    partial,
};

const SCENE: &str = "IMAGE_STORE_SCENE";
const ROOT: &str = "IMAGE_STORE_ROOT";
/// The file to which the process writes its peak memory.
pub const PEAK: &str = "IMAGE_STORE_PEAK";

/// The work of a process before it ends.
#[derive(Debug, Clone)]
pub enum Scene {
    /// Pulls an image for the lease `task`.
    Pull(String),
    /// Loads an archive for the lease `task`.
    Load(PathBuf, String),
    /// Ends all leases and removes what is not used any more, then sweeps.
    Leave,
    /// Forgets one image.
    Remove(String),
    /// Sweeps.
    Sweep,
    /// Serves an image for the lease `task` before it is complete, until the process is killed.
    Serve(String),
}

impl Scene {
    fn words(&self) -> Vec<&OsStr> {
        let word = OsStr::new;
        match self {
            Scene::Pull(reference) => vec![word("pull"), word(reference)],
            Scene::Load(archive, reference) => vec![word("load"), archive.as_os_str(), word(reference)],
            Scene::Leave => vec![word("leave")],
            Scene::Remove(reference) => vec![word("remove"), word(reference)],
            Scene::Sweep => vec![word("sweep")],
            Scene::Serve(reference) => vec![word("serve"), word(reference)],
        }
    }

    /// A process that runs the scene on the store at `root`.
    pub fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::play", "--nocapture", "--test-threads=1"]);
        command.env(SCENE, self.words().join(OsStr::new("\n"))).env(ROOT, root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs it to the end with an additional environment variable.
    pub fn run(&self, root: &Path, variable: &str, value: impl AsRef<OsStr>) -> ExitStatus {
        self.command(root).env(variable, value).status().unwrap()
    }

    pub fn start(&self, root: &Path) -> Process {
        Process(self.command(root).spawn().unwrap())
    }
}

/// A process that does not outlive its test.
pub struct Process(Child);

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        assert!(was_killed(self.0.wait().unwrap()));
    }

    pub async fn succeeds(mut self) {
        let status = tokio::task::spawn_blocking(move || self.0.wait().unwrap()).await.unwrap();
        assert!(status.success(), "{status}");
    }

    /// Waits until the process waits for a lock that another process holds.
    pub async fn waits_for_a_lock(&self) {
        let pid = self.pid().to_string();
        let waits = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                words.get(1) == Some(&"->") && words.contains(&pid.as_str())
            })
        };
        assert!(fixtures::wait::eventually(Duration::from_secs(30), waits).await, "process {pid} does not wait");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An ended process is fine.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

pub fn open(root: &Path) -> Store {
    Store::open(config(root)).unwrap()
}

/// Not a test: the other process runs this.
#[tokio::test(flavor = "multi_thread")]
async fn play() {
    let Ok(scene) = std::env::var(SCENE) else { return };
    let root = std::env::var_os(ROOT).map(PathBuf::from).unwrap();
    let store = open(&root);
    match scene.split('\n').collect::<Vec<_>>()[..] {
        ["pull", reference] => drop(store.acquire(request(reference), "task", Arc::new(Silent)).await.unwrap()),
        ["load", archive, reference] => {
            let source = std::fs::File::open(archive).unwrap().into();
            let name = "image.tar".to_owned();
            let request =
                LoadRequest { source, name, reference: reference.parse().unwrap(), pin: false, timeout: None };
            drop(store.load(request, "task").await.unwrap());
        }
        ["leave"] => {
            for lease in store.leases().unwrap() {
                store.release(&lease).unwrap();
            }
            store.retain(&Retention { delay: Duration::ZERO, high: 101, low: 100 }).unwrap();
            store.sweep().unwrap();
        }
        ["remove", reference] => drop(store.remove(&reference.parse().unwrap()).unwrap()),
        ["sweep"] => drop(store.sweep().unwrap()),
        ["serve", reference] => {
            let store = partial::open(&root, |config| config, |partial| partial);
            let _image = partial::acquire(&store, reference, "task").await.unwrap();
            std::future::pending::<()>().await;
        }
        ref other => panic!("no such scene: {other:?}"),
    }
    if let Some(file) = std::env::var_os(PEAK) {
        let own = std::process::id().cast_signed();
        std::fs::write(file, fixtures::process::status_field(own, "VmHWM").unwrap()).unwrap();
    }
}
