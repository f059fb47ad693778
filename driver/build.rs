//! Tells a release build its commit. Other builds do not know it: each commit would compile them again.
//!
//! Always holds:
//!
//! - A release build runs this again only when the commit or a source of the workspace has changed. Then the driver
//!   is compiled anyway.
//! - The time of a build is `SOURCE_DATE_EPOCH`, or else that of the commit: two builds of one commit are equal.
//! - Without a repository (a tarball) nothing is known, unless `OCI_RS_COMMIT` and `OCI_RS_COMMIT_TIME` (seconds since
//!   1970) name the commit.

use std::{env, fs, path::Path, process::Command};

/// What else of the workspace decides what is built.
const FILES: [&str; 3] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];

fn main() {
    let names = ["OCI_RS_COMMIT", "OCI_RS_COMMIT_TIME", "SOURCE_DATE_EPOCH"];
    names.iter().for_each(|name| println!("cargo::rerun-if-env-changed={name}"));
    let [mut commit, mut time, epoch] = names.map(|name| env::var(name).ok().filter(|value| !value.is_empty()));
    if commit.is_none() && env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        let sources = sources();
        sources.iter().for_each(|path| println!("cargo::rerun-if-changed=../{path}"));
        // Each commit, checkout and reset changes one of them.
        for file in ["HEAD", "logs/HEAD"] {
            let path = git(&["rev-parse", "--git-path", file]);
            path.filter(|path| Path::new(path).exists())
                .iter()
                .for_each(|path| println!("cargo::rerun-if-changed={path}"));
        }
        commit = git(&["rev-parse", "HEAD"]).map(|hash| if is_changed(&sources) { hash + "-changed" } else { hash });
        time = git(&["log", "-1", "--format=%ct"]);
    }
    let Some(commit) = commit else { return };
    println!("cargo::rustc-env=OCI_RS_COMMIT={commit}");
    if let Some(time) = &time {
        println!("cargo::rustc-env=OCI_RS_COMMIT_TIME={time}");
    }
    if let Some(time) = epoch.or(time) {
        println!("cargo::rustc-env=OCI_RS_BUILD_TIME={time}");
    }
}

/// The sources of the workspace, as paths below its directory.
fn sources() -> Vec<String> {
    let crates = fs::read_dir("..").into_iter().flatten().flatten().map(|entry| entry.path());
    let crates = crates.filter(|path| path.join("Cargo.toml").exists() && path.join("src").is_dir());
    let names = crates.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let files = FILES.into_iter().filter(|file| Path::new("..").join(file).exists()).map(str::to_owned);
    let mut sources: Vec<String> =
        names.flat_map(|name| [format!("{name}/src"), format!("{name}/Cargo.toml")]).chain(files).collect();
    sources.sort();
    sources
}

/// Whether these sources differ from the commit.
fn is_changed(sources: &[String]) -> bool {
    let paths = sources.iter().map(|path| format!(":(top){path}")).collect::<Vec<_>>();
    let question: Vec<&str> =
        ["status", "--porcelain", "--"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    git(&question).is_none_or(|changes| !changes.is_empty())
}

/// The output of a question to git; `None` without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(["-c", "safe.directory=*"]).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
