//! What a build knows of its commit: `driver/build.rs`, compiled and run in repositories of its own.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::must::Must;
use tempfile::TempDir;

use crate::sources::root;

/// A workspace with a file of sources, in which the build script runs.
struct Workspace {
    directory: TempDir,
    script: PathBuf,
}

impl Workspace {
    fn new() -> Self {
        let directory = TempDir::new().must("a directory");
        let script = directory.path().join("build-script");
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let source = root().join("driver/build.rs");
        let compiled =
            Command::new(rustc).args(["--edition", "2024", "-o"]).arg(&script).arg(&source).status().must("run rustc");
        assert!(compiled.success(), "{} does not compile", source.display());
        let workspace = Self { directory, script };
        fs::create_dir_all(workspace.path("driver/src")).must("a directory of sources");
        for file in ["Cargo.toml", "Cargo.lock", "driver/Cargo.toml", "driver/src/main.rs", "notes.md"] {
            fs::write(workspace.path(file), "1").must("write a file");
        }
        workspace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("tree").join(name)
    }

    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "safe.directory=*", "-c", "user.name=x", "-c", "user.email=x"])
            .args(args)
            .env("GIT_COMMITTER_DATE", "1700000000 +0000")
            .current_dir(self.path(""))
            .output();
        let output = output.must("run git");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).must("text").trim().to_owned()
    }

    /// Runs the script; the variables that it sets, and the paths that it watches.
    fn build(&self, profile: &str, environment: &[(&str, &str)]) -> (BTreeMap<String, String>, Vec<String>) {
        let mut command = Command::new(&self.script);
        command.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default()).env("PROFILE", profile);
        // A repository around the directory of temporary files is not that of the workspace.
        command.env("GIT_CEILING_DIRECTORIES", self.directory.path()).current_dir(self.path("driver"));
        let output = command.envs(environment.iter().copied()).output().must("run the build script");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).must("text");
        let set = text.lines().filter_map(|line| line.strip_prefix("cargo::rustc-env=")?.split_once('='));
        let watched = text.lines().filter_map(|line| line.strip_prefix("cargo::rerun-if-changed="));
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (set, watched.map(str::to_owned).collect())
    }
}

fn set(values: &[(&str, &str)]) -> BTreeMap<String, String> {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn exists(workspace: &Workspace, watched: &[String]) -> bool {
    watched.iter().all(|path| workspace.path("driver").join(Path::new(path)).exists())
}

#[test]
fn a_release_build_knows_its_commit_and_other_builds_are_not_repeated_for_one() {
    let workspace = Workspace::new();
    let epoch = [("SOURCE_DATE_EPOCH", "1600000000")];
    // A tarball has no repository.
    let (known, watched) = workspace.build("release", &epoch);
    assert_eq!(known, BTreeMap::new());
    assert!(exists(&workspace, &watched), "a path that does not exist repeats each build: {watched:?}");
    let named = [("OCI_RS_COMMIT", "abc"), ("OCI_RS_COMMIT_TIME", "5")];
    let expected = set(&[("OCI_RS_COMMIT", "abc"), ("OCI_RS_COMMIT_TIME", "5"), ("OCI_RS_BUILD_TIME", "5")]);
    assert_eq!(workspace.build("debug", &named).0, expected, "the environment names it");

    workspace.git(&["init", "--quiet"]);
    workspace.git(&["add", "."]);
    workspace.git(&["commit", "--quiet", "-m", "one"]);
    let commit = workspace.git(&["rev-parse", "HEAD"]);
    let (known, watched) = workspace.build("release", &[]);
    let at = "1700000000";
    let expected = set(&[("OCI_RS_COMMIT", &commit), ("OCI_RS_COMMIT_TIME", at), ("OCI_RS_BUILD_TIME", at)]);
    assert_eq!(known, expected);
    assert!(watched.iter().any(|path| path.ends_with("logs/HEAD")) && exists(&workspace, &watched), "{watched:?}");
    assert_eq!(workspace.build("release", &epoch).0["OCI_RS_BUILD_TIME"], "1600000000");
    assert_eq!(workspace.build("debug", &[]), (BTreeMap::new(), Vec::new()));

    // A build of other sources does not claim to be the commit. Notes are not built.
    fs::write(workspace.path("notes.md"), "2").must("change a note");
    assert_eq!(workspace.build("release", &[]).0["OCI_RS_COMMIT"], commit);
    fs::write(workspace.path("driver/src/main.rs"), "2").must("change a source");
    assert_eq!(workspace.build("release", &[]).0["OCI_RS_COMMIT"], format!("{commit}-changed"));
}
