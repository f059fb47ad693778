//! The checks of `oci-rs doctor`: facts in, findings out. Those that decide the node's health are in `health`.
//!
//! | module | facts about |
//! |---|---|
//! | `agent` | the Nomad agent and its unit |
//! | `forgotten` | ended tasks and their allocations |
//! | `kernel` | the kernel, cgroups, the clock |
//! | `network` | CNI plugins and packet filters |
//! | `plugin` | the plugin, its tasks' records, leftovers |
//! | `registry` | registries and mirrors |
//! | `storage` | directories and their file systems |

pub mod agent;
pub mod forgotten;
pub mod kernel;
pub mod network;
pub mod plugin;
pub mod registry;
pub mod storage;

#[cfg(test)]
mod tests {
    use crate::health::{Finding, Level};

    /// Exactly the check of this name has this level and this text; the others are well.
    #[track_caller]
    pub fn expect(findings: &[Finding], check: &str, level: Level, part: &str) {
        let wanted = |finding: &&Finding| finding.check == check && finding.level == level;
        let found = findings.iter().find(wanted);
        assert!(found.is_some_and(|finding| finding.text().contains(part)), "{check}, {part}: {findings:?}");
        assert!(findings.iter().all(|finding| finding.check == check || finding.level == Level::Ok), "{findings:?}");
        assert!(
            findings.iter().all(|finding| (finding.level == Level::Ok) == finding.remedy.is_none()),
            "{findings:?}"
        );
    }
}
