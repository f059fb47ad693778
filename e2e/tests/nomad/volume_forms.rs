//! Host volumes of our plugin in all combinations of their parameters, on each file system that a node may have.

use std::{
    fmt::Write as _,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e::{Agent, Failure, Job, Outcome, leaks, process::succeed};
use rustix::{
    fs::statvfs,
    mount::{UnmountFlags, unmount},
};
use serde_json::json;

use crate::{Case, Env, Needs::OwnAgent, volumes::create_by};

pub const CASES: &[Case] = &[("volume_in_every_form", OwnAgent, in_every_form)];

const LIMIT: Duration = Duration::from_secs(60);

/// The capacity in MiB and the parameter `fs` of a volume. A volume without them is a directory.
const FORMS: [Option<(u64, &str)>; 3] = [None, Some((32, "ext4")), Some((320, "xfs"))];

/// What a volume is filled with. The test image has the directory `/www`.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    Nothing,
    Image,
    Path,
    /// A copy of the writable volume with [`Content::Path`] and the same form, to which this case has added a file.
    Volume,
}

/// `report VOLUME DIRECTORY NAMES` prints a line with the capacity in KiB, mode, owner, group and names of a volume,
/// whether the files of these names are those of the image's directory, and the result of a write.
const REPORT: &str = r#"
    files() {
        (cd $1 && find $2 | sort | xargs stat -c '%n %F %a %u %g %Y' && find $2 -type f | sort | xargs md5sum) | md5sum
    }
    report() {
        files=none
        [ -z "$3" ] || { [ "$(files $1 "$3")" = "$(files $2 "$3")" ] && files=same; } || files=others
        names=$(ls -A $1 | xargs)
        [ "$names" ] || names=empty
        df=$(df -Pk $1 | awk 'NR == 2 { print $2 }')
        write=$({ echo x >$1/new && echo written; } 2>&1 | grep -o -e written -e 'Read-only file system')
        echo "$1: $df KiB, $(stat -c '%a %u %g' $1), $names, $files, $write"
    }
    cd /volumes
"#;

/// The arguments of a report on a volume with the image's directory `/www`.
const LOOK_AT_WWW: &str = "/www 'cgi-bin index.html'";

/// A loop file system in the place of the client's directory of host volumes.
struct Disk {
    kind: &'static str,
    point: PathBuf,
}

impl Disk {
    fn mount(agent: &Agent, kind: &'static str) -> Outcome<Self> {
        let (file, point) = (agent.path().join(kind), agent.path().join("client/host_volumes"));
        File::create(&file)?.set_len(2 << 30)?;
        fs::create_dir_all(&point)?;
        succeed(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&file))?;
        succeed(Command::new("mount").args(["-o", "loop"]).args([&file, &point]))?;
        let disk = Self { kind, point };
        // A directory with the files of an image must be closed to users of the node.
        fs::set_permissions(&disk.point, Permissions::from_mode(0o700))?;
        // Only ext4 has it. So the directory has nothing but volumes.
        fs::remove_dir(disk.point.join("lost+found")).ok();
        Ok(disk)
    }

    /// The capacity in KiB that `df` shows.
    fn kibibytes(&self) -> Outcome<u64> {
        let disk = statvfs(&self.point)?;
        Ok(disk.f_blocks * disk.f_frsize / 1024)
    }

    /// Checks that nothing of a volume is left, and unmounts. The latter fails while a loop device uses one of its
    /// files.
    fn close(self) -> Outcome {
        assert_eq!(names(&self.point)?, [".oci-rs"], "{}", self.kind);
        assert_eq!(names(&self.point.join(".oci-rs"))?, [""; 0], "{}", self.kind);
        let unmounted = || unmount(&self.point, UnmountFlags::empty()).err().map(|error| error.to_string());
        let trouble = leaks::settle(|| unmounted().into_iter().collect());
        if trouble.is_empty() { Ok(()) } else { Err(Failure(format!("{}: {trouble:?}", self.kind))) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mount in leaks::mounts(&self.point).iter().map(Path::new).chain([self.point.as_path()]) {
            // An error means that the mount is gone already.
            unmount(mount, UnmountFlags::DETACH).ok();
        }
    }
}

fn names(directory: &Path) -> Outcome<Vec<String>> {
    Ok(fs::read_dir(directory)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// A volume, and what its report must say.
struct Volume {
    id: String,
    name: String,
    path: PathBuf,
    /// The arguments of the report.
    look: String,
    expected: String,
}

impl Volume {
    /// Makes the volume with this number. `source` is the id of the one that [`Content::Volume`] copies.
    fn make(
        env: &Env,
        disk: &Disk,
        number: usize,
        (form, content, read_only): (Option<(u64, &str)>, Content, bool),
        source: &str,
    ) -> Outcome<Self> {
        let (uid, gid, mode) = (1000 + number, 2000 + number, ["750", "711"][number % 2]);
        let name = format!("{}-{number}", disk.kind);
        let mut text = String::from("plugin_id = \"oci-rs-volume\"\ncapability {\n");
        text.push_str("  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n");
        let mut parameters = format!("uid = {uid}\ngid = {gid}\nmode = \"{mode}\"\nread_only = \"{read_only}\"\n");
        if let Some((capacity, kind)) = form {
            writeln!(text, "capacity_max = \"{capacity}MiB\"")?;
            writeln!(parameters, "fs = \"{kind}\"")?;
        }
        let image = format!("image = \"{}\"\n", env.registry.image());
        let (own, look, has) = match content {
            Content::Nothing => (String::new(), "", "empty, none"),
            Content::Image => (image, "/ 'bin data home www'", "bin data etc home root tmp www, same"),
            Content::Path => (format!("{image}path = \"/www\"\n"), LOOK_AT_WWW, "cgi-bin index.html, same"),
            Content::Volume => (format!("from = \"{source}\"\n"), LOOK_AT_WWW, "added cgi-bin index.html, same"),
        };
        parameters.push_str(&own);
        text.push_str(&format!("parameters {{\n{parameters}}}\n"));
        let (id, volume) = create_by(env.agent, &["volume", "create", "-detach"], &name, &text)?;
        let capacity = volume["CapacityBytes"].as_u64().unwrap_or_default();
        let most = form.map_or(0, |(mebibytes, _)| mebibytes << 20);
        assert!(capacity <= most && (capacity > 0) == (most > 0), "{parameters}: {volume}");
        let seen = if capacity > 0 { capacity / 1024 } else { disk.kibibytes()? };
        let write = if read_only { "Read-only file system" } else { "written" };
        let expected = format!("{name}: {seen} KiB, {mode} {uid} {gid}, {has}, {write}");
        let path = PathBuf::from(volume["HostPath"].as_str().unwrap_or_default());
        Ok(Self { look: format!("{name} {look}"), id, name, path, expected })
    }
}

/// A job that mounts these volumes below `/volumes`.
fn job(agent: &Agent, volumes: &[Volume]) -> Outcome<Job> {
    let (mut blocks, mut mounts) = (String::new(), String::new());
    for Volume { name, .. } in volumes {
        writeln!(blocks, "volume \"{name}\" {{\ntype = \"host\"\nsource = \"{name}\"")?;
        writeln!(blocks, "access_mode = \"single-node-writer\"\nattachment_mode = \"file-system\"\n}}")?;
        writeln!(mounts, "volume_mount {{\nvolume = \"{name}\"\ndestination = \"/volumes/{name}\"\n}}")?;
    }
    let file = agent.path().join("forms.nomad.hcl");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs/batch.nomad.hcl"))?;
    let text = text.replacen("    restart {", &format!("{blocks}    restart {{"), 1);
    fs::write(&file, text.replacen("      template {", &format!("{mounts}      template {{"), 1))?;
    Ok(Job::at(&file))
}

/// Makes the volumes, lets a task look at all of them, and deletes them.
fn on_a_disk(env: &Env, kind: &'static str) -> Outcome {
    let disk = Disk::mount(env.agent, kind)?;
    let mut volumes = Vec::new();
    for form in FORMS {
        let mut source = String::new();
        for content in [Content::Nothing, Content::Image, Content::Path, Content::Volume] {
            for read_only in [false, true] {
                let mut volume = Volume::make(env, &disk, volumes.len(), (form, content, read_only), &source)?;
                if content == Content::Path && !read_only {
                    fs::write(volume.path.join("added"), "")?;
                    volume.expected = volume.expected.replace("cgi-bin", "added cgi-bin");
                    source.clone_from(&volume.id);
                }
                volumes.push(volume);
            }
        }
    }
    // The client reports new volumes to the server every five seconds. So this waits once, for all of them.
    env.agent.api().wait("/v1/volumes?type=host", "the volumes", LIMIT, |volumes| {
        volumes.as_array()?.iter().all(|volume| volume["State"] == "ready").then_some(())
    })?;
    let script: String = volumes.iter().map(|volume| format!("report {}\n", volume.look)).collect();
    let expected: String = volumes.iter().map(|volume| format!("{}\n", volume.expected)).collect();
    let job = job(env.agent, &volumes)?.var("image", &env.registry.image());
    let alloc = env.agent.run(&job.list("args", &["-c", &format!("{REPORT}{script}")]))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    let log = alloc.wait_log("stdout", |log| log.iter().filter(|byte| **byte == b'\n').count() == volumes.len())?;
    assert_eq!(String::from_utf8_lossy(&log), expected);
    for volume in volumes {
        env.agent.api().delete(&format!("/v1/volume/host/{}/delete", volume.id))?;
        assert!(!volume.path.exists(), "{} is left", volume.path.display());
    }
    assert_eq!(env.agent.api().get("/v1/volumes?type=host")?, json!([]));
    disk.close()
}

fn in_every_form(env: &Env) -> Outcome {
    ["ext4", "xfs", "btrfs"].into_iter().try_for_each(|kind| on_a_disk(env, kind))
}
