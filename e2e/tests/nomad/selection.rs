//! Selections of cases: all, or the quick ones, which depend most on Nomad's own code.

use e2e::{Failure, Outcome};

use crate::Case;

/// The cases that run with every supported version of Nomad in CI.
const QUICK: &[&str] = &[
    "versions_are_documented",
    "batch_exit_3",
    "batch_out_of_memory",
    "batch_restart_then_success",
    "batch_sees_what_nomad_promises",
    "invalid_job_unknown_option",
    "service_on_a_mapped_port",
    "service_stops_as_asked",
    "service_gets_signals",
    "service_has_statistics",
    "node_shows_the_driver",
    "network_of_a_group_is_shared_by_all_hooks",
    "network_ports_lead_to_the_group",
    "own_network_publishes_ports",
    "own_network_is_told_to_services",
    "exec_without_terminal",
    "exec_with_a_prefix",
    "terminal_has_a_name_and_a_size",
    "volume_outlives_task_agent_and_job",
    "recovery_agent_and_plugin_killed",
    "recovery_end_while_agent_and_plugin_were_dead",
    "recovery_plugin_killed",
    "survival_node_drained",
];

/// The selected cases: `OCI_RS_E2E_CASES=quick` selects the quick ones, without it all are selected.
pub fn of(mut cases: Vec<Case>) -> Outcome<Vec<Case>> {
    match std::env::var("OCI_RS_E2E_CASES").as_deref() {
        Err(_) | Ok("" | "all") => Ok(cases),
        Ok("quick") => {
            cases.retain(|(name, ..)| QUICK.contains(name));
            if cases.len() == QUICK.len() {
                return Ok(cases);
            }
            let known: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
            let unknown: Vec<&&str> = QUICK.iter().filter(|name| !known.contains(name)).collect();
            Err(Failure(format!("the quick selection names cases that do not exist: {unknown:?}")))
        }
        Ok(other) => Err(Failure(format!("OCI_RS_E2E_CASES is {other:?}; it can be `quick` or `all`"))),
    }
}
