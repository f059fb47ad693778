//! Devices of the Container Device Interface: `devices { cdi = … }`, with real device nodes.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use fixtures::{busybox::Images, must::Must};
use kit::{node::Node, plugin::Plugin};
use serde_json::{Value as Json, json};

use crate::user_namespaces;

pub const IDLE: &str = "while :; do sleep 1000; done";

/// A directory of specs of a node.
pub struct Specs(PathBuf);

impl Specs {
    pub fn of(node: &Node) -> Self {
        let directory = node.root().join("cdi");
        fs::create_dir_all(&directory).must("a directory for specs");
        Self(directory)
    }

    /// Writes a spec whose devices have these edits.
    pub fn write(&self, file: &str, kind: &str, devices: &Json, general: &Json) {
        let devices = devices.as_object().must("devices by their names").iter();
        let devices: Vec<Json> = devices.map(|(name, edits)| json!({"name": name, "containerEdits": edits})).collect();
        let spec = json!({"cdiVersion": "1.1.0", "kind": kind, "devices": devices, "containerEdits": general});
        self.write_text(file, &spec.to_string());
    }

    /// Writes the file of a spec.
    fn write_text(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::write(&path, text).must("a spec");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).must("its mode");
    }

    /// The options of a plugin that uses these specs and allows devices of `vendor.test`.
    pub fn options(&self) -> Json {
        json!({"cdi_spec_dirs": [self.0], "allow_devices": ["vendor.test/*"]})
    }

    /// The same, with user namespaces of this mode.
    pub fn options_with_userns(&self, mode: &str) -> Json {
        let mut options = self.options();
        let userns = json!({"mode": mode, "first_id": 1 << 30, "ids": 16 * 65536});
        options.as_object_mut().must("options").insert("userns".to_owned(), userns);
        options
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }
}

/// The text with which a start is refused.
pub async fn refusal(node: &Node, plugin: &mut Plugin, images: &Images, devices: Json) -> String {
    let task = node.task(&images.busybox()).sh(IDLE).option("devices", devices).build(plugin).await;
    plugin.start(&task).await.err().must("a refusal").message().to_owned()
}

#[tokio::test]
async fn each_edit_of_a_cdi_device_is_seen_in_the_task() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let library = node.root().join("library");
    fs::write(&library, "#!/bin/sh\necho from the node\n").must("a library");
    fs::set_permissions(&library, Permissions::from_mode(0o755)).must("its mode");
    let small = json!(["size=64k", "mode=0711"]);
    let nothing = |path: &str, minor: u8, permissions: &str| {
        let number = json!({"type": "c", "major": 1, "minor": minor, "fileMode": 0o666});
        let mut node = json!({"path": path, "permissions": permissions});
        node.as_object_mut().must("an object").extend(number.as_object().must("an object").clone());
        node
    };
    let kmsg = json!({
        "path": "/dev/cdi/kmsg", "type": "c", "major": 1, "minor": 11, "fileMode": 0o640, "uid": 12, "gid": 34,
    });
    let read_only = json!(["ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"]);
    specs.write(
        "vendor.json",
        "vendor.test/class",
        &json!({
            "zero": {"deviceNodes": [{"path": "/dev/cdi/zero", "hostPath": "/dev/zero", "permissions": "r"}]},
            "kmsg": {
                "env": ["DEVICE=kmsg", "LANG=from-the-spec"],
                "deviceNodes": [
                    kmsg,
                    // Numbers without a device: an open that the cgroup allows fails only there.
                    nothing("/dev/cdi/readable", 14, "r"),
                    nothing("/dev/cdi/forbidden", 15, "none"),
                    {"path": "/dev/cdi/pipe", "type": "p", "fileMode": 0o600},
                ],
                "additionalGids": [44, 0, 109],
            },
        }),
        &json!({
            "env": ["GENERAL=1"],
            "mounts": [
                {"hostPath": library, "containerPath": "/opt/library", "options": read_only},
                {"hostPath": "none", "containerPath": "/opt/memory", "type": "tmpfs", "options": small},
            ],
        }),
    );
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let devices = json!([{"cdi": "vendor.test/class=kmsg"}, {"cdi": "vendor.test/class=zero"}]);
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .user("1000:1001")
        .env("LANG", "from-the-job")
        .option("devices", devices)
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    for (script, expected) in [
        ("echo $DEVICE $LANG $GENERAL", "kmsg from-the-spec 1"),
        ("stat -c '%F %a %u:%g' /dev/cdi/zero", "character special file 666 1000:1001"),
        ("stat -c '%t:%T %a %u:%g' /dev/cdi/kmsg", "1:b 640 12:34"),
        ("stat -c '%F %a %u' /dev/cdi/pipe", "fifo 600 1000"),
        ("head -c 3 /dev/cdi/zero | wc -c", "3"),
        ("cat /dev/cdi/readable 2>&1 | sed 's/.*: //'", "No such device or address"),
        ("(echo > /dev/cdi/readable) 2>&1 | sed 's/.*: //'", "Operation not permitted"),
        ("cat /dev/cdi/forbidden 2>&1 | sed 's/.*: //'", "Operation not permitted"),
        ("id -G | tr ' ' '\\n' | sort -n | xargs", "44 109 1001"),
        ("cat /opt/library | tail -n 1", "echo from the node"),
        ("/opt/library || echo not executable", "not executable"),
        ("echo x >> /opt/library || echo read only", "read only"),
        ("stat -f -c %T /opt/memory; stat -c %a /opt/memory", "tmpfs\n711"),
    ] {
        let got = plugin.sh(&task, &format!("{{ {script}; }} 2> /dev/null")).await;
        assert_eq!(got.trim(), expected, "{script}");
    }
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", plugin.init_pid(&task))).must("its mounts");
    let library = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/opt/library")).must("the library");
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(library.split(' ').nth(5).must("options").split(',').any(|has| has == option), "{option}: {library}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_cdi_device_needs_permission_and_a_usable_spec() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let edits = json!({"deviceNodes": [{"path": "/dev/cdi", "hostPath": "/dev/null"}]});
    let none = json!({});
    specs.write("a.json", "vendor.test/class", &json!({"one": edits, "two": edits}), &none);
    specs.write("b.json", "vendor.test/class", &json!({"two": edits}), &none);
    let gone = json!({"gone": {"deviceNodes": [{"path": "/dev/no-such-device"}]}});
    specs.write("c.json", "vendor.test/gone", &gone, &none);
    specs.write("d.json", "vendor.test/open", &json!({"one": edits}), &none);
    fs::set_permissions(specs.path("d.json"), Permissions::from_mode(0o666)).must("its mode");
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let named = |name: &str| json!([{"cdi": name}]);
    for (devices, expected) in [
        (named("other.test/class=one"), "this node does not allow \"other.test/class=one\""),
        (named("vendor.test/class=three"), "no spec has the device vendor.test/class=three; vendor.test/class has one"),
        (named("vendor.test/none=one"), "no spec has devices of the kind vendor.test/none"),
        (named("vendor.test/class=two"), "several specs of one directory have the device vendor.test/class=two"),
        (named("vendor.test/open=one"), "d.json: can be changed by others than root"),
        (named("vendor.test/gone=gone"), "device /dev/no-such-device: "),
        (named("vendor.test"), "devices[0].cdi: \"vendor.test\" is not of the form vendor.com/class=name"),
        (
            json!([{"cdi": "vendor.test/class=one", "host_path": "/dev/null"}]),
            "devices[0].host_path: cannot be set together with `cdi`",
        ),
    ] {
        let text = refusal(&node, &mut plugin, &images, devices.clone()).await;
        assert!(text.contains(expected), "{devices}: {text}");
    }
    // A spec that appears is used without a restart.
    specs.write("e.json", "vendor.test/later", &json!({"one": edits}), &none);
    let task = node.task(&images.busybox()).sh(IDLE).option("devices", named("vendor.test/later=one"));
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.sh(&task, "test -c /dev/cdi").await;
    plugin.end(&task).await;
    assert!(Path::new("/dev/null").exists());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_class_of_cache_needs_a_kernel_that_has_it() {
    let has = |file: &str| fs::read_to_string(file).must(file).lines().any(|line| line.contains("resctrl"));
    if has("/proc/self/mountinfo") {
        // The kernel has classes. Tests do not change them.
        return;
    }
    let node = Node::new();
    let specs = Specs::of(&node);
    let edits = json!({"intelRdt": {"closID": "fast", "l3CacheSchema": "L3:0=f"}});
    specs.write("a.json", "vendor.test/class", &json!({"one": edits}), &json!({}));
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let text = refusal(&node, &mut plugin, &images, json!([{"cdi": "vendor.test/class=one"}])).await;
    let reason = if has("/proc/filesystems") { "is not mounted on this node" } else { "has no file system resctrl" };
    assert!(text.contains("`intelRdt` of a device's spec: ") && text.contains(reason), "{text}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_cdi_device_works_in_a_user_namespace() {
    if !user_namespaces::are_possible() {
        return;
    }
    let node = Node::new();
    let specs = Specs::of(&node);
    let source = node.root().join("source");
    fs::write(&source, "data").must("a file");
    let edits = json!({
        "env": ["DEVICE=1"],
        "deviceNodes": [{"path": "/dev/cdi", "hostPath": "/dev/zero", "uid": 12, "gid": 34, "fileMode": 0o640}],
        "mounts": [{"hostPath": source, "containerPath": "/opt/data", "options": ["ro", "bind"]}],
        "additionalGids": [44],
    });
    specs.write("a.json", "vendor.test/class", &json!({"one": edits}), &json!({}));
    let mut plugin = node.launch_with(specs.options_with_userns("require")).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("devices", json!([{"cdi": "vendor.test/class=one"}]));
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    let script = "stat -c '%F %a %u:%g' /dev/cdi; head -c 3 /dev/cdi | wc -c; cat /opt/data; echo; id -G; echo $DEVICE";
    let seen = plugin.sh(&task, script).await;
    assert_eq!(seen, "character special file 640 12:34\n3\ndata\n0 44\n1");
    let uids = fs::read_to_string(format!("/proc/{}/uid_map", plugin.init_pid(&task))).must("its ids");
    assert!(uids.split_whitespace().nth(1).is_some_and(|first| first != "0"), "{uids}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A program of the node for hooks. It appends a line to `log` for each run: its argument, the status and whether its
/// mount namespace is that of the test. Then it does `more`, with the state in `$state` and the root in `$root`.
pub fn hook_program(node: &Node, name: &str, more: &str) -> PathBuf {
    let path = node.root().join(name);
    let log = node.root().join("log");
    let own = fs::read_link("/proc/self/ns/mnt").must("our mount namespace");
    let script = format!(
        r#"#!/bin/sh
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
state=$(cat)
field() {{ printf %s "$state" | sed -n "s/.*\"$1\":\"\{{0,1\}}\([^\",}}]*\).*/\1/p"; }}
root=$(sed -n 's/.*"root":{{"path":"\([^"]*\)".*/\1/p' "$(field bundle)/config.json" 2> /dev/null)
[ "$(readlink /proc/self/ns/mnt)" = "{own}" ] && where=node || where=container
echo "$1 $(field status) $where" >> {log}
{more}
"#,
        own = own.display(),
        log = log.display()
    );
    fs::write(&path, script).must("a hook");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).must("its mode");
    path
}

/// The shipped specs, as they are. No machine has the USB device and the serial device of their specs, so these two
/// lead to other nodes: the serial one by a link, as udev makes it.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "a skipped device says why")]
async fn the_example_specs_bring_their_device_nodes_into_a_task() {
    let node = Node::new();
    let specs = Specs::of(&node);
    specs.write_text("fuse.yaml", include_str!("../../../examples/cdi/fuse.yaml"));
    specs.write_text("kvm.yaml", include_str!("../../../examples/cdi/kvm.yaml"));
    let (serial, usb) =
        (include_str!("../../../examples/cdi/serial.yaml"), include_str!("../../../examples/cdi/usb.yaml"));
    let link = node.root().join("meter");
    symlink("/dev/zero", &link).must("a link");
    let named = serial.lines().find_map(|line| line.trim().strip_prefix("hostPath: ")).must("a node of the machine");
    specs.write_text("serial.yaml", &serial.replace(named, link.to_str().must("a path")));
    let usb_node = "- path: /dev/bus/usb/001/004\n";
    assert!(usb.contains(usb_node));
    specs.write_text("usb.yaml", &usb.replace(usb_node, &format!("{usb_node}          hostPath: /dev/null\n")));
    let options = json!({"cdi_spec_dirs": [specs.0], "allow_devices": ["node.local/*"]});
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    let same = |path: &'static str| (path, path);
    for (device, nodes) in [
        ("node.local/fuse=fuse", vec![same("/dev/fuse")]),
        ("node.local/kvm=kvm", vec![same("/dev/kvm")]),
        ("node.local/kvm=kvm-with-network", ["/dev/kvm", "/dev/vhost-net", "/dev/net/tun"].map(same).to_vec()),
        ("node.local/serial=meter", vec![("/dev/ttyUSB0", "/dev/zero")]),
        ("node.local/usb=radio", vec![("/dev/bus/usb/001/004", "/dev/null")]),
    ] {
        if let Some((_, missing)) = nodes.iter().find(|(_, on_node)| !Path::new(on_node).exists()) {
            println!("skipped {device}: this machine has no {missing}");
            continue;
        }
        let task = node.task(&images.busybox()).sh(IDLE).user("1000:1001").option("devices", json!([{"cdi": device}]));
        let task = task.build(&mut plugin).await;
        plugin.started(&task).await;
        for (path, on_node) in nodes {
            let number = fs::metadata(on_node).must(on_node).rdev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            let seen = plugin.sh(&task, &format!("stat -c '%F %t:%T %u:%g' {path}")).await;
            assert_eq!(seen, format!("character special file {major:x}:{minor:x} 1000:1001"), "{device} {path}");
            // The command may read and write, unless the node cannot either: a driver may lack its hardware.
            let opened = plugin.sh(&task, &format!("if (exec 3<> {path}) 2>&1; then echo opened; fi")).await;
            assert!(!opened.contains("not permitted") && !opened.contains("denied"), "{device} {path}: {opened}");
            let by_node = fs::File::options().read(true).write(true).open(on_node);
            assert_eq!(opened == "opened", by_node.is_ok(), "{device} {path}: {opened}, {by_node:?}");
        }
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn nvidias_variable_and_runtime_lead_to_the_devices_of_the_spec() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let mut options = specs.options();
    let allowed = [("allow_devices", json!(["nvidia.com/gpu=*"])), ("allow_runtimes", json!(["nvidia"]))];
    options.as_object_mut().must("options").extend(allowed.map(|(name, value)| (name.to_owned(), value)));
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    let remedy = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";
    let reserved = node.task(&images.busybox()).sh(IDLE).device_env("NVIDIA_VISIBLE_DEVICES", "GPU-1");
    let reserved = reserved.build(&mut plugin).await;
    let text = plugin.start(&reserved).await.err().must("a refusal").message().to_owned();
    assert!(text.contains("no spec has devices of the kind nvidia.com/gpu") && text.contains(remedy), "{text}");
    let runtime = node.task(&images.busybox()).sh(IDLE).env("NVIDIA_VISIBLE_DEVICES", "all");
    let runtime = runtime.option("runtime", json!("nvidia")).build(&mut plugin).await;
    let text = plugin.start(&runtime).await.err().must("a refusal").message().to_owned();
    assert!(text.contains("no spec has devices of the kind nvidia.com/gpu") && text.contains(remedy), "{text}");

    let gpu = |node: &str, number: u8| {
        let path = format!("/dev/nvidia{number}");
        json!({"deviceNodes": [{"path": path, "hostPath": node}], "env": [format!("GPU{number}=1")]})
    };
    let both = json!({"deviceNodes": [
        {"path": "/dev/nvidia0", "hostPath": "/dev/null"}, {"path": "/dev/nvidia1", "hostPath": "/dev/zero"}
    ]});
    let devices = json!({
        "0": gpu("/dev/null", 0), "GPU-1": gpu("/dev/zero", 1), "MIG-2": gpu("/dev/full", 2),
        "0:1": gpu("/dev/urandom", 3), "all": both,
    });
    let general = json!({"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [
        {"path": "/dev/nvidiactl", "hostPath": "/dev/null"}
    ]});
    specs.write("nvidia.json", "nvidia.com/gpu", &devices, &general);
    let seen = |environment: (&'static str, &'static str), runtime: bool| {
        let task = node.task(&images.busybox()).sh(IDLE);
        let task = match environment {
            ("device", value) => task.device_env("NVIDIA_VISIBLE_DEVICES", value),
            (_, value) => task.env("NVIDIA_VISIBLE_DEVICES", value),
        };
        if runtime { task.option("runtime", json!("nvidia")) } else { task }
    };
    let script = "cd /dev; ls -d nvidia* 2> /dev/null | xargs; echo $NVIDIA_VISIBLE_DEVICES";
    for (environment, runtime, expected) in [
        (("device", "GPU-1"), false, "nvidia1 nvidiactl\nvoid"),
        (("device", "GPU-1,MIG-2"), true, "nvidia1 nvidia2 nvidiactl\nvoid"),
        (("job", "0,MIG-2"), true, "nvidia0 nvidia2 nvidiactl\nvoid"),
        // The second MIG device of the first GPU.
        (("job", "0:1"), true, "nvidia3 nvidiactl\nvoid"),
        (("job", "all"), true, "nvidia0 nvidia1 nvidiactl\nvoid"),
        (("job", "none"), true, "\nnone"),
        (("job", "all"), false, "\nall"),
    ] {
        let task = seen(environment, runtime).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.sh(&task, script).await, expected, "{environment:?} {runtime}");
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}
