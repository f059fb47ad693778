//! A real registry on the loopback address, and the test images in it.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fixtures::{
    image::{Compression, Entry, Image, Layer, archive},
    random::Random,
};
use serde_json::json;
use tempfile::TempDir;

use crate::{Context, Failure, Outcome, Tools, api, ports::free_port, process::succeed, stall::Stall, watch::patient};

/// The registry's process and content.
#[derive(Debug)]
pub struct Registry {
    tools: Tools,
    directory: TempDir,
    port: u16,
    child: Mutex<Option<Child>>,
}

impl Registry {
    /// Starts a registry and pushes the test image as `test/busybox:1.0`.
    ///
    /// # Errors
    /// With the error output of the registry or of skopeo.
    pub fn start(tools: &Tools) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("oci-rs-e2e-registry.").tempdir()?;
        let registry = Self { tools: tools.clone(), port: free_port()?, directory, child: Mutex::default() };
        registry.up()?;
        registry.make("busybox")?;
        Ok(registry)
    }

    /// Makes an image of a kind of `scripts/image.sh` and pushes it as `test/<kind>:1.0`. Returns its reference.
    ///
    /// # Errors
    /// With the error output of the script or of skopeo.
    pub fn make(&self, kind: &str) -> Outcome<String> {
        let script = self.tools.home.join("../scripts/image.sh");
        self.run(Command::new(script).arg(self.layout(kind)).arg(kind))?;
        let name = format!("test/{kind}:1.0");
        self.copy(kind, &name)?;
        Ok(self.reference(&name))
    }

    /// The image that most jobs run.
    #[must_use]
    pub fn image(&self) -> String {
        self.reference("test/busybox:1.0")
    }

    /// `127.0.0.1:port/name`.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// The digest of the test image.
    ///
    /// # Errors
    /// When skopeo fails.
    pub fn digest(&self) -> Outcome<String> {
        let layout = format!("oci:{}:busybox", self.layout("busybox").display());
        let mut command = Command::new("skopeo");
        let output = command.args(["inspect", "--format", "{{.Digest}}", &layout]).output().context("skopeo")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Pushes the test image under another name.
    ///
    /// # Errors
    /// With the error output of skopeo.
    pub fn push(&self, name: &str) -> Outcome {
        self.copy("busybox", name)
    }

    /// Makes and pushes an image of `count` new layers with `bytes` random bytes each. Returns the layers' digests.
    ///
    /// # Errors
    /// With the error output of skopeo.
    pub fn push_layers(&self, name: &str, (count, bytes): (usize, u64)) -> Outcome<Vec<String>> {
        // A node does not download a layer that it has.
        static SEED: AtomicU64 = AtomicU64::new(1);
        let bytes = usize::try_from(bytes)?;
        let random = || Random::new(SEED.fetch_add(1, Ordering::Relaxed)).bytes(bytes);
        let layer = || Layer::of([Entry::file("random", random())]).compression(Compression::Plain);
        let image = (0..count).map(|_| layer()).fold(Image::new(), Image::layer).build();
        let file = self.layout("layers.tar");
        fs::write(&file, archive(image.layout(json!({ "org.opencontainers.image.ref.name": "layers" }))))?;
        self.copy_from(&format!("oci-archive:{}:layers", file.display()), name)?;
        Ok(image.diff_ids)
    }

    /// Another address of this registry. Each connection to it stops after `bytes` of answers.
    ///
    /// # Errors
    /// When no port is free.
    pub fn stall(&self, bytes: u64) -> Outcome<Stall> {
        Stall::start(self.port, bytes)
    }

    /// Writes the test image to a file as `docker save` does, under a name of any registry.
    ///
    /// # Errors
    /// With the error output of skopeo.
    pub fn save(&self, file: &Path, name: &str) -> Outcome {
        let source = format!("oci:{}:busybox", self.layout("busybox").display());
        let target = format!("docker-archive:{}:{name}", file.display());
        self.run(Command::new("skopeo").args(["--insecure-policy", "copy", "--quiet"]).args([source, target]))
    }

    fn copy(&self, kind: &str, name: &str) -> Outcome {
        self.copy_from(&format!("oci:{}:{kind}", self.layout(kind).display()), name)
    }

    fn copy_from(&self, source: &str, name: &str) -> Outcome {
        let target = format!("docker://{}", self.reference(name));
        let options = ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"];
        self.run(Command::new("skopeo").args(options).args([source, &target]))
    }

    /// Starts the process on the same port with the same content.
    ///
    /// # Errors
    /// When it does not answer in time.
    pub fn up(&self) -> Outcome {
        let config = self.directory.path().join("config.yml");
        let log = self.directory.path().join("registry.log");
        fs::write(
            &config,
            format!(
                "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
                 storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"127.0.0.1:{}\"}}\n",
                self.directory.path().join("blobs").display(),
                self.port
            ),
        )?;
        let log_file = fs::File::create(&log)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).env("OTEL_TRACES_EXPORTER", "none").stdin(Stdio::null());
        command.stdout(log_file.try_clone()?).stderr(log_file);
        let child = command.spawn().context("docker-registry")?;
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        let deadline = Instant::now() + patient(Duration::from_secs(20));
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if Instant::now() > deadline {
                return Err(Failure(format!("the registry did not start: {}", fs::read_to_string(&log)?)));
            }
            // There is no notification when the registry listens, so this polls.
            thread::sleep(Duration::from_millis(20));
        }
        api::fetch(&format!("http://127.0.0.1:{}/v2/", self.port)).map(drop)
    }

    /// Ends the process. The content stays.
    pub fn down(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Ends the process and removes the content, for interrupted runs.
    pub fn take_down(&self) {
        self.down();
        fs::remove_dir_all(self.directory.path()).ok();
    }

    fn layout(&self, kind: &str) -> PathBuf {
        self.directory.path().join(kind)
    }

    fn run(&self, command: &mut Command) -> Outcome {
        succeed(command.current_dir(&self.tools.home))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.down();
    }
}
