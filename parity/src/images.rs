//! The images of the cases: one root file system with busybox, and a variant for each instruction of a Dockerfile.

use std::process::Command;

use e2e::{Context, Failure, Outcome};
use fixtures::{
    busybox,
    image::{Built, Compression, Entry, Format, Image, Layer},
    registry::DockerRegistry,
};
use serde_json::{Value, json};

use crate::mark::FINISH;

/// Prints its arguments and what a Dockerfile can set. It is the command of most variants.
const SHOW: &str = "for argument; do echo \"argument = $argument\"; done
echo \"directory = $(pwd)\"
echo \"ids = $(id -u):$(id -g) $(id -G)\"
echo \"greeting = $GREETING\"
finish
";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nstaff:x:50:app\napp:x:1000:\naudio:x:29:app\nnogroup:x:65534:\n";

/// A registry with all variants.
pub struct Images {
    registry: DockerRegistry,
}

impl Images {
    /// Starts the registry and pushes the variants.
    ///
    /// # Errors
    /// When `docker-registry` or busybox is missing.
    pub fn start() -> Outcome<Self> {
        let registry = DockerRegistry::start().ok_or_else(|| Failure("docker-registry is missing".to_owned()))?;
        let base = base()?;
        for (name, built) in variants(&base) {
            registry.push(&format!("test/{name}:1.0"), &built);
        }
        Ok(Self { registry })
    }

    /// `127.0.0.1:port`.
    #[must_use]
    pub fn host(&self) -> String {
        self.registry.host()
    }

    /// The reference of a variant. An unknown name is the name of an image that does not exist.
    #[must_use]
    pub fn reference(&self, variant: &str) -> String {
        format!("{}/test/{variant}:1.0", self.registry.host())
    }
}

fn base() -> Outcome<Layer> {
    let output = Command::new("/bin/busybox").arg("--list").output().context("busybox (Debian: busybox-static)")?;
    let applets = String::from_utf8_lossy(&output.stdout).into_owned();
    let directories = ["bin", "etc", "root", "home", "var", "place", "usr", "usr/bin"];
    let mut entries: Vec<Entry> = directories.map(Entry::dir).into();
    entries.push(Entry::dir("tmp").mode(0o1777));
    entries.push(Entry::dir("home/app").owner(1000, 1000));
    entries.push(Entry::dir("data").owner(1000, 50).mode(0o750));
    entries.push(Entry::file("data/from-image", "from the image\n").owner(1000, 50).mode(0o640));
    entries.push(Entry::file("data/not-executable", "not a program\n"));
    entries.push(Entry::file("bin/busybox", busybox::program()).mode(0o755));
    entries.push(Entry::file("bin/show", format!("#!/bin/sh\n{FINISH}{SHOW}")).mode(0o755));
    let links = applets.lines().filter(|applet| *applet != "busybox");
    entries.extend(links.map(|applet| Entry::symlink(format!("bin/{applet}"), "busybox")));
    entries.push(Entry::file("etc/passwd", PASSWD));
    entries.push(Entry::file("etc/group", GROUP));
    Ok(Layer::of(entries))
}

fn variants(base: &Layer) -> Vec<(&'static str, Built)> {
    let on_base = |run: Value| Image::new().layer(base.clone()).run(merged(run));
    let only = |run: Value| Image::new().layer(base.clone()).run(run);
    let top = |entries: Vec<Entry>| Layer::of(entries);
    let show = || json!(["/bin/show"]);
    let mut all = vec![
        ("plain", on_base(json!({}))),
        ("entry", on_base(json!({"Entrypoint": ["/bin/show", "entry"], "Cmd": ["one", "two words", ""]}))),
        ("entry-only", on_base(json!({"Entrypoint": ["/bin/show", "entry"], "Cmd": null}))),
        ("shell-form", on_base(json!({"Cmd": ["/bin/sh", "-c", "/bin/show shell \"form $GREETING\""]}))),
        ("relative", on_base(json!({"Cmd": ["show", "found", "in", "PATH"]}))),
        ("relative-path", on_base(json!({"WorkingDir": "/bin", "Cmd": ["./show"]}))),
        ("nothing", on_base(json!({"Cmd": null}))),
        ("no-environment", only(json!({"Cmd": ["/bin/show"]}))),
        ("environment", on_base(json!({"Env": ["PATH=/bin", "GREETING=a b  c", "EMPTY=", "EQUAL=a=b"]}))),
        ("user", on_base(json!({"User": "app"}))),
        ("user-group", on_base(json!({"User": "app:staff"}))),
        ("user-id", on_base(json!({"User": "1000"}))),
        ("user-ids", on_base(json!({"User": "1000:29"}))),
        ("user-unknown-id", on_base(json!({"User": "4711:4712"}))),
        ("user-unknown-name", on_base(json!({"User": "stranger"}))),
        ("directory", on_base(json!({"WorkingDir": "/data"}))),
        ("directory-missing", on_base(json!({"WorkingDir": "/made/by/start"}))),
        ("directory-user", on_base(json!({"WorkingDir": "/made/by/start", "User": "app"}))),
        ("volumes", on_base(json!({"Volumes": {"/data": {}, "/fresh/one": {}}}))),
        ("volumes-user", on_base(json!({"Volumes": {"/data": {}, "/fresh/one": {}}, "User": "app"}))),
        ("stop-usr1", on_base(json!({"StopSignal": "SIGUSR1"}))),
        ("stop-number", on_base(json!({"StopSignal": "12"}))),
        (
            "health",
            on_base(json!({"Healthcheck": {"Test": ["CMD-SHELL", "touch /tmp/checked"],
            "Interval": 100_000_000, "Timeout": 5_000_000_000_i64, "Retries": 3}})),
        ),
        ("ports", on_base(json!({"ExposedPorts": {"8080/tcp": {}, "5353/udp": {}}, "Labels": {"a.example": "b"}}))),
        ("docker-format", on_base(json!({})).format(Format::Docker)),
        ("pause", on_base(json!({"Entrypoint": ["/bin/sleep", "1000000"], "Cmd": null}))),
        (
            "no-shell",
            Image::new()
                .layer(top(vec![Entry::file("sleep", busybox::program()).mode(0o755)]))
                .run(json!({"Entrypoint": ["/sleep"], "Cmd": ["0"]})),
        ),
        (
            "no-passwd",
            on_base(json!({"User": "1000"}))
                .layer(top(vec![Entry::whiteout("etc/passwd"), Entry::whiteout("etc/group")])),
        ),
        (
            "layers",
            on_base(json!({}))
                .layer(top(vec![
                    Entry::dir("opt"),
                    Entry::dir("opt/lower"),
                    Entry::file("opt/lower/a", "a"),
                    Entry::file("opt/b", "b"),
                    Entry::file("opt/setuid", "x").mode(0o4755),
                    Entry::dir("opt/sticky").mode(0o1770).owner(3, 4),
                    Entry::hard_link("opt/hard", "opt/b"),
                    Entry::symlink("opt/soft", "/opt/b"),
                    Entry::fifo("opt/fifo"),
                    Entry::file("opt/gone", "gone"),
                ]))
                .layer(top(vec![
                    Entry::whiteout("opt/gone"),
                    Entry::opaque("opt/lower"),
                    Entry::file("opt/lower/c", "c"),
                ]))
                .layer(top(vec![Entry::file("opt/b", "new b").mode(0o600)])),
        ),
        (
            "links",
            on_base(json!({"Volumes": {"/link/inside": {}}})).layer(top(vec![
                Entry::dir("real"),
                Entry::symlink("link", "real"),
                Entry::symlink("etc/localtime", "../data/from-image"),
            ])),
        ),
        (
            "own-files",
            on_base(json!({})).layer(top(vec![
                Entry::file("etc/hosts", "192.0.2.1 of-the-image\n"),
                Entry::file("etc/hostname", "of-the-image\n"),
                Entry::file("etc/resolv.conf", "nameserver 192.0.2.2\n"),
            ])),
        ),
        ("zstd", Image::new().layer(base.clone().compression(Compression::Zstd)).run(merged(json!({})))),
        ("cmd-string", on_base(json!({"Cmd": show(), "Shell": ["/bin/ash", "-c"]}))),
    ]
    .into_iter()
    .map(|(name, image)| (name, image.build()))
    .collect::<Vec<_>>();
    let plain = on_base(json!({})).build();
    let foreign = only(json!({})).platform("linux", "riscv64", "").build();
    all.push(("index", Built::index(&[foreign.clone(), plain], false)));
    all.push(("other-platform", foreign));
    all
}

/// The configuration of every variant, with the fields of `run` over it.
fn merged(run: Value) -> Value {
    let mut all = json!({
        "Env": ["PATH=/usr/local/bin:/bin:/usr/bin", "GREETING=hello from the image"],
        "Cmd": ["/bin/show"],
    });
    if let (Some(all), Value::Object(run)) = (all.as_object_mut(), run) {
        all.extend(run);
    }
    all
}
