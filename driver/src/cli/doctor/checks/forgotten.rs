//! Ended tasks that no agent will ask for again.
//!
//! An agent removes an allocation's directory after the tasks of the allocation. An agent with `-dev` keeps its state
//! in memory, and its allocations in a temporary directory: the next agent knows nothing of them.

use std::path::Path;

use runtime::ContainerState;

/// How an agent with `-dev` names its temporary directory; a number follows.
const DEV_DIRECTORY: &str = "NomadClient";

/// Whether a container in this state has ended. A container that runs is never a leftover.
pub fn has_ended(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Exited(_) | ContainerState::Lost)
}

/// Whether no agent will ask for the tasks of the allocation in this directory. `is_there` tells whether a path exists,
/// if that can be found out.
///
/// If the directory of all allocations is gone too, its file system may not be mounted, and the agent may ask.
pub fn is_forgotten(allocation: &Path, is_there: impl Fn(&Path) -> Option<bool>, dev_agent_runs: bool) -> bool {
    let Some(all) = allocation.parent() else { return false };
    let removed = is_there(all) == Some(true) && is_there(allocation) == Some(false);
    removed || is_of_dev_agent(all) && !dev_agent_runs
}

fn is_of_dev_agent(all: &Path) -> bool {
    let name = all.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.strip_prefix(DEV_DIRECTORY).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tasks_whose_agent_cannot_ask_are_forgotten() {
        let there =
            |paths: &'static [&str]| move |path: &Path| Some(paths.iter().any(|known| path == Path::new(known)));
        for (allocation, paths, dev_agent_runs, expected) in [
            ("/nomad/alloc/a", &["/nomad/alloc", "/nomad/alloc/a"] as &[_], false, false),
            ("/nomad/alloc/a", &["/nomad/alloc"], false, true),
            ("/nomad/alloc/a", &["/nomad/alloc"], true, true),
            // The disk may not be mounted.
            ("/nomad/alloc/a", &[], false, false),
            ("/tmp/NomadClient123/a", &["/tmp/NomadClient123", "/tmp/NomadClient123/a"], false, true),
            ("/tmp/NomadClient123/a", &[], false, true),
            ("/tmp/NomadClient123/a", &["/tmp/NomadClient123", "/tmp/NomadClient123/a"], true, false),
            ("/tmp/NomadClient123/a", &["/tmp/NomadClient123"], true, true),
            ("/tmp/NomadClient/a", &["/tmp/NomadClient", "/tmp/NomadClient/a"], false, false),
            ("/tmp/NomadClients1/a", &["/tmp/NomadClients1", "/tmp/NomadClients1/a"], false, false),
            ("/", &["/"], false, false),
            ("", &[], false, false),
        ] {
            let found = is_forgotten(Path::new(allocation), there(paths), dev_agent_runs);
            assert_eq!(found, expected, "{allocation} {paths:?} {dev_agent_runs}");
        }
        assert!(!is_forgotten(Path::new("/nomad/alloc/a"), |_| None, false), "an error of the disk");
    }
}
