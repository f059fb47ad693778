//! The report that explains why a case failed.

use crate::{Agent, Alloc};

/// The number of allocations in a report; the newest ones.
const ALLOCS: usize = 3;
/// The number of bytes of each log in a report; the last ones.
const LOG_BYTES: usize = 1000;
/// The number of lines of the agent's log in a report; the last ones.
const LOG_LINES: usize = 40;

impl Agent {
    /// Events and output of the newest allocations, and the agent's log since the last call of [`Agent::mark_log`].
    #[must_use]
    pub fn diagnose(&self) -> String {
        let mut text = String::new();
        for id in self.allocs().iter().rev().take(ALLOCS) {
            // Nomad has collected the allocations of earlier cases.
            let Ok(tasks) = Alloc::new(self, id.clone(), String::new()).tasks() else { continue };
            for task in tasks {
                let events = task.events().unwrap_or_default();
                text.push_str(&format!("--- allocation {id}, {}\n    {}\n", task.name(), events.join("\n    ")));
                for stream in ["stdout", "stderr"] {
                    let log = task.log(stream).unwrap_or_default();
                    let log = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES)..]).into_owned();
                    text.push_str(&format!("    {stream}: {log:?}\n"));
                }
            }
        }
        text + "--- the agent's log (driver's lines, warnings and errors)\n" + &self.log_tail(LOG_LINES)
    }
}
