//! The OCI runtimes that are installed on this node.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::config::{Policy, RuntimeChoice};

/// The directories in which an executable is looked up, the first one first.
const DIRECTORIES: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The executable of a runtime: an absolute path, or a name in the usual directories. `None` if there is none. Blocks.
pub fn find(program: &Path) -> Option<PathBuf> {
    let candidates = if program.is_absolute() {
        vec![program.to_owned()]
    } else {
        DIRECTORIES.iter().map(|directory| Path::new(directory).join(program)).collect()
    };
    let executable =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    candidates.into_iter().find(executable)
}

/// The values of `runtime` that tasks can use on this node: they are allowed, and built in or installed. Blocks.
pub fn usable(policy: &Policy) -> Vec<String> {
    let usable = |name: &&String| match policy.runtimes.choose(name) {
        Some(RuntimeChoice::BuiltIn) => true,
        Some(RuntimeChoice::Installed(request)) => find(&request.program).is_some(),
        None => false,
    };
    policy.allow_runtimes.iter().filter(usable).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_found_by_its_path_or_name() {
        assert_eq!(find(Path::new("/bin/sh")).as_deref(), Some(Path::new("/bin/sh")));
        assert!(find(Path::new("sh")).is_some_and(|path| path.is_absolute()));
        for missing in ["/bin", "/etc/passwd", "/bin/no-such-runtime", "no-such-runtime"] {
            assert_eq!(find(Path::new(missing)), None, "{missing}");
        }
    }

    #[test]
    fn a_runtime_is_usable_if_it_is_allowed_and_here() {
        let allow_runtimes = ["runc", "no-such-runtime", "rm"].map(str::to_owned).to_vec();
        let policy = Policy { allow_runtimes, ..Policy::default() };
        assert_eq!(usable(&policy), ["runc"]);
    }
}
