//! The operator's commands for images on a node with a real agent. Each case removes the layers that no other case has.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use e2e::{
    Failure, Job, Outcome,
    pty::{MODES_RESTORED, PtyClient},
    watch,
};
use serde_json::Value;

use crate::{
    Case, Env,
    Needs::SharedAgent,
    batch::expect_event,
    commands::{json, oci_rs},
    lifecycle::LIMIT,
    service::{PAGE, page, patiently, web},
};

pub const CASES: &[Case] = &[
    ("images_converted_with_a_profile_and_pushed", SharedAgent, converted_with_a_profile_and_pushed),
    ("images_fsck_finds_a_flipped_bit", SharedAgent, fsck_finds_a_flipped_bit),
    ("images_prefetched_for_a_job_file", SharedAgent, prefetched_for_a_job_file),
    ("images_pull_at_a_terminal_is_given_up", SharedAgent, pull_at_a_terminal_is_given_up),
];

/// The only image with this name, as `image inspect` shows it.
fn inspected(env: &Env, name: &str) -> Outcome<Value> {
    let found = json(env, &["image", "inspect", name])?;
    found.get(0).cloned().ok_or_else(|| Failure(format!("no image {name}")))
}

/// Runs a command of the image, with the name of the driver that records reads (`docker.hcl.in`).
fn run_for_reads(env: &Env, image: &str) -> Outcome {
    let job = Job::new("batch").driver("docker").var("image", image).list("args", &["-c", "cat /www/index.html"]);
    // Without an init, a node with AppArmor or SELinux has the whole image before the start.
    let alloc = env.agent.run(&job.config("init = true"))?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    alloc.wait_log("stdout", |log| log == PAGE.as_bytes()).map(drop)
}

/// A registry's image becomes a native one in a layout and is pushed. A task's reads of it become the profile of the
/// next conversion.
fn converted_with_a_profile_and_pushed(env: &Env) -> Outcome {
    let (directory, original) = (env.agent.path().join("convert"), format!("docker://{}", env.registry.image()));
    fs::create_dir(&directory)?;
    let [layout, profile] = ["native", "profile.json"].map(|name| directory.join(name).display().to_string());
    let [first, second, third] =
        ["test/native:1", "test/native:2", "test/native:3"].map(|name| env.registry.reference(name));
    let converted = json(env, &["image", "convert", &original, &layout])?;
    let pushed = json(env, &["image", "push", &layout, &first])?;
    assert_eq!((&pushed["digest"], &pushed["reference"]), (&converted["index"], &first.as_str().into()));
    let again = json(env, &["image", "push", &layout, &first])?;
    assert_eq!((&again["digest"], &again["uploaded_bytes"]), (&converted["index"], &0.into()), "{again}");
    run_for_reads(env, &first)?;

    let layer = inspected(env, &first)?["layers"][0].clone();
    let profiled = ["image", "profile", &first];
    let mut names = vec![first.as_str()];
    if layer["native"].is_null() {
        // A node without EROFS layers has run the original, which the index names too.
        let refused = env.agent.operator(&profiled).output()?;
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains("no reads of"), "{said}");
    } else {
        // The layer is an ordinary one when its reads have been recorded.
        let layers = env.agent.path().join("data/images/layers");
        let noted = || json(env, &profiled).ok();
        let reads = watch::until(&layers, "the noted reads", LIMIT, noted)?;
        let files = reads["layers"].as_object().and_then(|layers| layers.values().next()?.as_array().cloned());
        let page = |file: &Value| file["path"] == "www/index.html" && file["parts"] == "0";
        assert!(files.is_some_and(|files| files.iter().any(page)), "the page was read: {reads}");
        fs::write(&profile, reads.to_string())?;
        let digest = layer["diff_id"].as_str().unwrap_or_default();
        for (name, order) in [(&second, None), (&third, Some("--reorder"))] {
            let target = format!("docker://{name}");
            let mut convert = vec!["image", "convert", "--profile", &profile, &original, &target];
            convert.extend(order);
            let converted = json(env, &convert)?;
            assert_ne!(converted["index"], pushed["digest"], "the profile is part of it");
            run_for_reads(env, name)?;
            let native = inspected(env, name)?["layers"][0].clone();
            let first_chunk = &native["native"]["first"][0]["start"];
            assert!(if order.is_some() { *first_chunk == 0 } else { first_chunk.is_u64() }, "{native}");
            assert_eq!(native["diff_id"] == digest, order.is_none(), "only an order makes another layer: {native}");
            names.push(name);
        }
    }
    fs::remove_dir_all(&directory)?;
    patiently(|| Ok(json(env, &[&["rmi"], names.as_slice()].concat())?.to_string())).map(drop)
}

/// The directory of an image's only layer.
fn layer_of(env: &Env, image: &str) -> Outcome<PathBuf> {
    let image = inspected(env, image)?;
    let digest = image["layers"][0]["diff_id"].as_str().unwrap_or_default().trim_start_matches("sha256:");
    Ok(env.agent.path().join("data/images/layers").join(digest))
}

/// Flips one bit of a layer: in the name of a file, or in the file's mode.
fn flip_a_bit(layer: &Path) -> Outcome {
    let (passwd, image) = (layer.join("fs/etc/passwd"), layer.join("fs.erofs"));
    if passwd.exists() {
        let mode = fs::metadata(&passwd)?.permissions().mode();
        return Ok(fs::set_permissions(&passwd, PermissionsExt::from_mode(mode ^ 1))?);
    }
    let mut bytes = fs::read(&image)?;
    // The last occurrence is the directory entry, after the contents of all files.
    let at = bytes.windows(6).rposition(|part| part == b"passwd").ok_or("no passwd in the image")?;
    bytes[at + 5] ^= 1;
    Ok(fs::write(&image, bytes)?)
}

/// Runs `image fsck`. Returns its answer and its exit code.
fn fsck(env: &Env, more: &[&str]) -> Outcome<(Value, Option<i32>)> {
    let output = env.agent.operator(&[&["image", "fsck", "--json"], more].concat()).output()?;
    Ok((serde_json::from_slice(&output.stdout)?, output.status.code()))
}

fn fsck_finds_a_flipped_bit(env: &Env) -> Outcome {
    let alloc = web(env)?;
    // The state with which a layer is compared is recorded a second after its pull.
    patiently(|| match fsck(env, &[])? {
        (report, Some(0)) if report["layers_not_compared"] == 0 => Ok(String::new()),
        (report, code) => Err(Failure(format!("{code:?}: {report}"))),
    })?;
    let image = env.registry.image();
    flip_a_bit(&layer_of(env, &image)?)?;
    for more in [&[][..], &["--repair"]] {
        let (report, code) = fsck(env, more)?;
        assert_eq!((code, &report["sound"]), (Some(3), &false.into()), "{report}");
        let findings = report["findings"].as_array().cloned().unwrap_or_default();
        let found = findings.iter().find(|finding| finding["kind"] == "layer-changed");
        let found = found.ok_or_else(|| Failure(report.to_string()))?;
        assert_eq!(found["severity"], "damage", "{found}");
        assert!(found["images"].to_string().contains(&image), "{found}");
        assert!(found["held_by"].to_string().contains(&alloc.id), "{found}");
        assert!(found["outcome"]["mended"].is_null(), "a task uses it: {found}");
    }
    assert_eq!(page(&alloc)?, PAGE);
    alloc.stop()?;
    // Nomad destroys the ended task a little later.
    patiently(|| match fsck(env, &["--repair"])? {
        (_, Some(0)) => Ok(String::new()),
        (report, code) => Err(Failure(format!("{code:?}: {report}"))),
    })?;
    let text = String::from_utf8_lossy(&oci_rs(env, &["image", "fsck"])?.stdout).into_owned();
    assert!(text.contains(" 0 damaged"), "{text}");
    assert_eq!(page(&web(env)?)?, PAGE, "the layer is pulled again");
    Ok(())
}

/// The job file is HCL with a variable, which the installed `nomad` reads. The task needs no registry.
fn prefetched_for_a_job_file(env: &Env) -> Outcome {
    let name = env.registry.reference("test/prefetched:1");
    env.registry.push("test/prefetched:1")?;
    // A pull that finds all layers receives nothing. Leases of earlier cases may end a little later.
    patiently(|| match json(env, &["image", "prune"])? {
        pruned if pruned["kept"].as_array().is_some_and(Vec::is_empty) => Ok(String::new()),
        pruned => Err(Failure(pruned.to_string())),
    })?;
    let directory = env.agent.path().join("prefetch");
    fs::create_dir(&directory)?;
    symlink(env.agent.nomad_program(), directory.join("nomad"))?;
    let (file, value) = (concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/batch.nomad.hcl"), format!("image={name}"));
    let mut command = env.agent.operator(&["image", "prefetch", "--json", "-f", file, "--var", &value]);
    let output = command.env("PATH", &directory).output()?;
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let pulled = &report["images"][0];
    assert_eq!((&pulled["reference"], &pulled["outcome"]), (&name.as_str().into(), &"pulled".into()), "{report}");
    let image = inspected(env, &name)?;
    assert_eq!((&image["digest"], &image["pinned"]), (&pulled["digest"], &false.into()), "{image}");
    fs::remove_dir_all(&directory)?;

    env.registry.down();
    let ran = env.agent.run(&Job::new("batch").var("image", &name).list("args", &["-c", "exit 6"])).and_then(|alloc| {
        let exit = alloc.wait_exit()?;
        expect_event(&alloc, "Image is on this node: sha256:").map(|()| exit)
    });
    env.registry.up()?;
    assert_eq!(ran?.code, 6);
    Ok(())
}

/// The paths in the image store that pulls make.
fn stored(env: &Env) -> Outcome<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for name in ["layers", "partial", "configs", "manifests", "images", "leases", "staging", "trash"] {
        for entry in fs::read_dir(env.agent.path().join("data/images").join(name))? {
            found.insert(entry?.path().display().to_string());
        }
    }
    Ok(found)
}

/// What is on the screen after the last bar was removed.
fn after_the_bars(output: &str) -> &str {
    let last = output.rsplit_once("\u{1b}[").and_then(|(_, rest)| rest.split_once(char::is_alphabetic));
    last.map_or("", |(_, text)| text)
}

/// One bar for each layer. Ctrl-C removes the bars, and leaves neither a part of the image nor a lease.
fn pull_at_a_terminal_is_given_up(env: &Env) -> Outcome {
    const LAYER: u64 = 400_000;
    let layers = env.registry.push_layers("test/layers:1", (2, LAYER))?;
    let stall = env.registry.stall(LAYER / 2)?;
    let before = stored(env)?;
    let new = || Ok::<_, Failure>(stored(env)?.difference(&before).cloned().collect::<Vec<_>>());
    let mut pull = PtyClient::start_operator(env.agent, &["pull", &stall.reference("test/layers:1")], 24, 80)?;
    let mut seen = String::new();
    for layer in &layers {
        let bar = &layer[.."sha256:".len() + 12];
        if !seen.contains(bar) {
            seen.push_str(&pull.wait_for(bar)?);
        }
    }
    pull.wait_for("=> ")?;
    assert!(new()?.iter().any(|path| path.contains("/leases/")), "{:?}", new()?);
    pull.type_text("\x03")?;
    let (rest, status) = pull.wait_end()?;
    let left = after_the_bars(&rest);
    assert_eq!(status.code(), Some(1), "{rest:?}");
    assert!(left.contains("oci-rs: given up") && left.ends_with(MODES_RESTORED) && !left.contains('['), "{rest:?}");
    assert_eq!(new()?, Vec::<String>::new(), "after {rest:?}");

    let name = env.registry.reference("test/layers:1");
    let (rest, status) = PtyClient::start_operator(env.agent, &["pull", &name], 24, 80)?.wait_end()?;
    let left = after_the_bars(&rest);
    assert!(status.success() && left.contains(&format!("{name} is here: sha256:")), "{rest:?}");
    assert!(left.ends_with(MODES_RESTORED) && !left.contains('['), "{rest:?}");
    assert_eq!(inspected(env, &name)?["pinned"], true);
    json(env, &["rmi", &name]).map(drop)
}
