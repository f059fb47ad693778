//! The real `docker-registry`, plain, with TLS, and with certificates of clients.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    image::{Built, digest},
    must::Must,
};

/// An authority, and a certificate of it for the loopback address.
const MAKE_CERTIFICATES: &str = "
    new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
    openssl req -x509 $new -keyout ca.key -out ca.pem -days 2 -subj /CN=kit-authority
    openssl req $new -keyout leaf.key -out leaf.csr -subj /CN=kit
    printf 'subjectAltName=IP:127.0.0.1' > leaf.ext
    openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out leaf.pem -days 2 -extfile leaf.ext
";

/// The real `docker-registry`, in a directory of its own.
pub struct DockerRegistry {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl DockerRegistry {
    /// Starts it on a free port; `None` where it is not installed.
    pub fn start() -> Option<Self> {
        Self::start_in(tempfile::TempDir::with_prefix("kit-registry-").must("a directory for the registry"), None)
    }

    /// Starts it with a certificate for `127.0.0.1` from an authority of its own; [`DockerRegistry::ca_file`] says which.
    /// It has no content: pushing is for the plain one.
    pub fn start_tls() -> Option<Self> {
        Self::start_secured(false)
    }

    /// The same, for clients only that show [`DockerRegistry::client_cert_file`].
    pub fn start_tls_for_clients() -> Option<Self> {
        Self::start_secured(true)
    }

    fn start_secured(clients: bool) -> Option<Self> {
        let directory = tempfile::TempDir::with_prefix("kit-registry-").must("a directory for the registry");
        let made = Command::new("sh").arg("-ec").arg(MAKE_CERTIFICATES).current_dir(directory.path()).output().ok()?;
        assert!(made.status.success(), "certificates: {}", String::from_utf8_lossy(&made.stderr));
        let at = |name: &str| directory.path().join(name);
        let mut tls = json!({"certificate": at("leaf.pem"), "key": at("leaf.key")});
        if clients {
            tls["clientcas"] = json!([at("ca.pem")]);
        }
        Self::start_in(directory, Some(tls))
    }

    fn start_in(directory: tempfile::TempDir, tls: Option<serde_json::Value>) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).must("a free port");
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": directory.path().join("data")}},
            "http": {"addr": address.to_string()},
        });
        if let Some(tls) = tls {
            config["http"]["tls"] = tls;
        }
        let file = directory.path().join("config.yml");
        std::fs::write(&file, config.to_string()).must("the registry's configuration");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok()?;
        let started = Self { child, address, directory };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not answer on {address}");
            thread::sleep(Duration::from_millis(10));
        }
        Some(started)
    }

    /// The authority of a registry with TLS.
    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A certificate that it accepts from clients.
    pub fn client_cert_file(&self) -> PathBuf {
        self.directory.path().join("leaf.pem")
    }

    /// The key of that certificate.
    pub fn client_key_file(&self) -> PathBuf {
        self.directory.path().join("leaf.key")
    }

    /// `127.0.0.1:<port>`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Pushes an image as `repository:tag` through the registry's own API, and returns the full reference.
    pub fn push(&self, name: &str, image: &Built) -> String {
        let (repository, tag) = name.split_once(':').must("a name with a tag");
        for (name, blob) in &image.blobs {
            let (status, location) = self.send("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"");
            assert_eq!(status, 202, "starting an upload");
            let location = location.must("an upload has a location");
            let path = location.strip_prefix(&format!("http://{}", self.address)).unwrap_or(&location);
            let separator = if path.contains('?') { '&' } else { '?' };
            let target = format!("{path}{separator}digest={name}");
            let (status, _) = self.send("PUT", &target, "application/octet-stream", blob);
            assert_eq!(status, 201, "uploading blob {}", digest(blob));
        }
        for (at, manifest) in image.manifests.iter().enumerate() {
            let own = manifest.digest();
            let name = if at + 1 == image.manifests.len() { tag } else { &own };
            let path = format!("/v2/{repository}/manifests/{name}");
            let (status, _) = self.send("PUT", &path, &manifest.media_type, &manifest.bytes);
            assert_eq!(status, 201, "uploading manifest {own}");
        }
        format!("{}/{name}", self.host())
    }

    /// One exchange: status and `Location`.
    fn send(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> (u16, Option<String>) {
        let mut connection = TcpStream::connect(self.address).must("connect to the registry");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body)).must("send to the registry");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).must("the registry's answer");
        let status = answer.split_whitespace().nth(1).and_then(|status| status.parse().ok()).must("a status");
        let location = answer.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        (status, location)
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        // It ends on its own terms or not at all; either way nobody waits for more than its exit.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
