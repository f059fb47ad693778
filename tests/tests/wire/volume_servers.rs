//! Volumes of real file servers: those of the kernel for NFS and SMB.
//!
//! They change the state of the machine, so these tests run in the virtual machine of `make test-v2` alone.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{calls::recoverable, node::Node, plugin::Plugin, task::Task};
use serde_json::{Value as Json, json};

use crate::volume_options::{IDLE, mounted, volume};

#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn has_servers() -> bool {
    let has = std::env::var_os("OCI_RS_FILE_SERVERS").is_some();
    if !has {
        println!("skipped: this machine has no file servers of its own (OCI_RS_FILE_SERVERS)");
    }
    has
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().must(program);
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A process of a server, which ends with this value.
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, args: &[&str]) -> Self {
        Self(Command::new(program).args(args).stdin(Stdio::null()).spawn().must(program))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Makes a directory that every user of a client may write to.
fn shared_directory(node: &Node) -> PathBuf {
    let directory = node.root().join("export");
    fs::create_dir(&directory).must("a directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).must("its mode");
    fs::write(directory.join("of-server"), "served").must("a file");
    directory
}

/// The kernel's NFS server, version 4.
struct Nfs {
    _mountd: Daemon,
}

impl Nfs {
    fn start(directory: &Path) -> Self {
        run("modprobe", &["nfsd"]);
        run("mount", &["-t", "nfsd", "nfsd", "/proc/fs/nfsd"]);
        fs::create_dir_all("/var/lib/nfs/v4recovery").must("the server's directory");
        for file in ["etab", "rmtab"] {
            fs::write(Path::new("/var/lib/nfs").join(file), "").must("the server's tables");
        }
        let mountd = Daemon::start("rpc.mountd", &["--foreground", "-N", "2", "-N", "3"]);
        let server = Self { _mountd: mountd };
        server.serve();
        let export = format!("127.0.0.1:{}", directory.display());
        run("exportfs", &["-i", "-o", "rw,fsid=1,no_root_squash,insecure", &export]);
        server
    }

    fn serve(&self) {
        run("rpc.nfsd", &["-N", "3", "1"]);
        // No client of an earlier life may come back, so that the server need not wait for them.
        fs::write("/proc/fs/nfsd/v4_end_grace", "Y").must("end the grace period");
    }

    fn stop(&self) {
        run("rpc.nfsd", &["0"]);
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        for (program, args) in [("exportfs", &["-ua"][..]), ("rpc.nfsd", &["0"]), ("umount", &["/proc/fs/nfsd"])] {
            Command::new(program).args(args).status().ok();
        }
    }
}

/// The kernel's SMB server.
struct Smb {
    _mountd: Daemon,
}

impl Smb {
    fn start(node: &Node, directory: &Path) -> Self {
        run("modprobe", &["ksmbd"]);
        fs::create_dir_all("/etc/ksmbd").must("the server's directory");
        let (config, users) = (node.root().join("smb.conf"), node.root().join("users.db"));
        let text = format!("[share]\n\tpath = {}\n\tread only = no\n", directory.display());
        fs::write(&config, format!("[global]\n\tserver string = test\n{text}")).must("the configuration");
        let [config, users] = [&config, &users].map(|path| path.to_str().must("text"));
        run("ksmbd.adduser", &["-a", "app", "-p", "secret", "-c", config, "-i", users]);
        Self { _mountd: Daemon::start("ksmbd.mountd", &["-n", "-c", config, "-u", users]) }
    }
}

impl Drop for Smb {
    fn drop(&mut self) {
        Command::new("ksmbd.control").arg("-s").status().ok();
    }
}

fn nfs(device: &Path, more: &str) -> Json {
    let o = format!("addr=localhost,nfsvers=4.2{more}");
    json!({ "type": "nfs", "device": format!(":{}", device.display()), "o": o })
}

fn cifs(share: &str, password: &str, more: &str) -> Json {
    let o = format!("username=app,password={password},vers=3.1.1{more}");
    json!({ "type": "cifs", "device": format!("//localhost/{share}"), "o": o })
}

async fn launch(node: &Node, mount_timeout: &str) -> Plugin {
    node.launch_with(json!({ "volumes": { "enabled": true, "mount_timeout": mount_timeout } })).await
}

async fn task(node: &Node, plugin: &mut Plugin, image: &str, name: &str, options: Json) -> Task {
    node.task(image).sh(IDLE).option("mount", volume(name, options)).build(plugin).await
}

/// The error of a start with this volume, and whether it may work later.
async fn refusal(node: &Node, plugin: &mut Plugin, image: &str, name: &str, options: Json) -> (String, bool) {
    let task = node.task(image).sh(IDLE).option("mount", volume(name, options)).without_logs().build(plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    (status.message().to_owned(), recoverable(&status))
}

/// Two tasks use the volume of a server, one after the other reads what the first wrote, and the last one unmounts it.
async fn is_shared(node: &Node, image: &str, options: &Json, kind: &str, export: &Path) {
    let mut plugin = launch(node, "60s").await;
    let first = task(node, &mut plugin, image, "media", options.clone()).await;
    let second = task(node, &mut plugin, image, "media", options.clone()).await;
    plugin.started(&first).await;
    plugin.started(&second).await;
    assert_eq!(
        plugin.sh(&first, "cat /data/of-server; grep ' /data ' /proc/mounts | cut -d ' ' -f 3").await,
        format!("served{kind}")
    );
    plugin.sh(&first, "echo from the first >/data/of-task").await;
    assert_eq!((plugin.sh(&second, "cat /data/of-task").await.as_str(), mounted(node)), ("from the first", 1));
    assert_eq!(fs::read_to_string(export.join("of-task")).must("the server's file"), "from the first\n");
    plugin.end(&first).await;
    plugin.sh(&second, "rm /data/of-task").await;
    assert!(!export.join("of-task").exists());
    plugin.end(&second).await;
    assert_eq!(mounted(node), 0);
    plugin.process.kill().await;
}

#[tokio::test]
async fn a_volume_of_an_nfs_server_is_shared_and_unmounted() {
    if !has_servers() {
        return;
    }
    let node = Node::new();
    let images = Images::start().await;
    let image = images.busybox();
    let export = shared_directory(&node);
    let server = Nfs::start(&export);
    is_shared(&node, &image, &nfs(&export, ""), "nfs4", &export).await;

    let mut plugin = launch(&node, "15s").await;
    let (error, _) = refusal(&node, &mut plugin, &image, "wrong", nfs(&node.root().join("other"), "")).await;
    assert!(error.contains("the server has no directory") && error.contains("or does not export it"), "{error}");
    // It takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").must("a socket");
    let port = format!(",port={}", silent.local_addr().must("its address").port());
    let (error, later) = refusal(&node, &mut plugin, &image, "silent", nfs(&export, &port)).await;
    assert!(later && error.contains("mounting nfs") && error.contains("took longer than 15 seconds"), "{error}");
    assert_eq!(mounted(&node), 0);

    // The server goes while a task uses the volume.
    let user = task(&node, &mut plugin, &image, "media", nfs(&export, "")).await;
    plugin.started(&user).await;
    server.stop();
    let (error, later) = refusal(&node, &mut plugin, &image, "media", nfs(&export, "")).await;
    assert!(later && error.contains("volume \"media\": asking nfs"), "{error}");
    server.serve();
    let served = || fs::metadata(node.state_dir().join("volumes/media/mount/of-server")).is_ok();
    assert!(eventually(seconds(30), served).await, "the server does not answer");
    assert_eq!(plugin.sh(&user, "cat /data/of-server").await, "served");
    plugin.end(&user).await;
    assert_eq!(mounted(&node), 0);
    node.finish(plugin).await;
}

/// Not on Linux 6.1: its client asks for the share `IPC$`, which its own server does not find with Debian 12's tools.
#[tokio::test]
async fn a_volume_of_an_smb_server_is_shared_and_unmounted() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").must("the kernel's release");
    if !has_servers() || release.starts_with("6.1.") {
        return;
    }
    let node = Node::new();
    let images = Images::start().await;
    let image = images.busybox();
    let export = shared_directory(&node);
    let server = Smb::start(&node, &export);
    let listens = || std::net::TcpStream::connect("127.0.0.1:445").is_ok();
    assert!(eventually(seconds(10), listens).await, "the server does not listen");
    is_shared(&node, &image, &cifs("share", "secret", ""), "cifs", &export).await;

    let mut plugin = launch(&node, "15s").await;
    for (options, expected) in [
        (cifs("share", "wrong", ""), "the server refuses the user: see `username`, `password`"),
        (cifs("other", "secret", ""), "the server has no directory \"//localhost/other\""),
    ] {
        let (error, _) = refusal(&node, &mut plugin, &image, "wrong", options).await;
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
    let silent = TcpListener::bind("127.0.0.1:0").must("a socket");
    let port = format!(",port={}", silent.local_addr().must("its address").port());
    let (error, later) = refusal(&node, &mut plugin, &image, "silent", cifs("share", "secret", &port)).await;
    assert!(later && error.contains("took longer than 15 seconds"), "{error}");
    drop(server);
    let (error, later) = refusal(&node, &mut plugin, &image, "gone", cifs("share", "secret", "")).await;
    assert!(later && error.contains("the server does not answer"), "{error}");
    assert_eq!(mounted(&node), 0);
    node.finish(plugin).await;
}
