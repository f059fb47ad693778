//! Finding a program.

use std::path::PathBuf;

/// The directories in which programs are searched after those of the agent's PATH.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Finds a program of this name in the first directory that has one.
pub(crate) fn find(program: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// The agent's PATH, followed by the directories of the system that it lacks.
pub(crate) fn system_path() -> String {
    with_system_directories(&std::env::var("PATH").unwrap_or_default())
}

fn with_system_directories(path: &str) -> String {
    let missing = SYSTEM_DIRECTORIES.into_iter().filter(|directory| !path.split(':').any(|known| known == *directory));
    path.split(':').filter(|directory| !directory.is_empty()).chain(missing).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::{SYSTEM_DIRECTORIES, with_system_directories};

    #[test]
    fn programs_of_the_system_are_found_with_any_path_of_the_agent() {
        let all = SYSTEM_DIRECTORIES.join(":");
        assert_eq!(with_system_directories(""), all);
        assert_eq!(with_system_directories(&all), all);
        let first = with_system_directories("/opt/bin::/usr/bin");
        assert_eq!(first.split(':').take(2).collect::<Vec<_>>(), ["/opt/bin", "/usr/bin"]);
        for path in ["", "/opt/bin::/usr/bin", "/sbin"] {
            let completed = with_system_directories(path);
            for directory in SYSTEM_DIRECTORIES {
                let count = completed.split(':').filter(|known| *known == directory).count();
                assert_eq!(count, 1, "{path}: {completed}");
            }
        }
    }
}
