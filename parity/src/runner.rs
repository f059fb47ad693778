//! Runs a case with both drivers, and compares what was observed.

use std::{fs, time::Duration};

use e2e::{Alloc, Context, Failure, Outcome, watch};
use serde_json::{Value, json};

use crate::{
    case::Case,
    differences::{self, ALL, Difference},
    driver::Driver,
    job,
    log_servers::PLACEHOLDER,
    mark::END,
    node::Node,
    normal::normal,
    observed::{Differs, Observed},
    seen::Seen,
};

/// The time limit of a change in Nomad. Many cases run side by side.
const LIMIT: Duration = Duration::from_secs(120);
/// How often a job runs at most, see [`repeated`].
const ATTEMPTS: usize = 4;
const NO_MARK: &str = "\n(no end mark)\n";
/// The last events of a task that are compared.
const EVENTS: usize = 6;
const OUTPUT: Duration = Duration::from_secs(5);

/// Runs the case and compares. `Ok` has the number of observed values.
///
/// # Errors
/// With each difference that is not on the list, and each entry of the list that does not differ.
pub fn run(case: &Case, node: &Node) -> Outcome<usize> {
    let mut docker = repeated(case, Driver::Docker, node).context("with docker")?;
    let ours = repeated(case, Driver::Ours, node).context("with oci-rs")?;
    for attempt in ATTEMPTS..2 * ATTEMPTS {
        // A command of exec has no end mark. Values that docker still lacks after the last attempt are a difference.
        if case.look.is_none() || !docker_has_less(case.name, &Observed::compare(&docker, &ours), differences::LIST) {
            break;
        }
        docker = observe(case, Driver::Docker, attempt, node).context("with docker")?;
    }
    if std::env::var_os("OCI_RS_PARITY_SHOW").is_some() {
        show(case, &docker);
    }
    let complaints = judge(case.name, &Observed::compare(&docker, &ours), differences::LIST);
    if complaints.is_empty() { Ok(docker.len()) } else { Err(Failure(complaints.concat())) }
}

#[allow(clippy::print_stderr)]
fn show(case: &Case, observed: &Observed) {
    eprintln!("--- {}\n{}", case.name, observed.text());
}

/// The keys of a case on the list.
fn listed(case: &str, list: &[Difference]) -> Vec<&'static str> {
    let seen = list.iter().flat_map(|difference| difference.seen);
    seen.filter(|(name, _)| *name == case).map(|(_, key)| *key).collect()
}

/// Whether an entry of the list stands for a key.
fn is(listed: &str, key: &str) -> bool {
    listed == key || listed == ALL
}

/// Whether docker has fewer values than oci-rs of a key that is not on the list.
fn docker_has_less(case: &str, differs: &[Differs], list: &[Difference]) -> bool {
    let listed = listed(case, list);
    let unlisted = |differs: &&Differs| !listed.iter().any(|listed| is(listed, &differs.key));
    differs.iter().filter(unlisted).any(|differs| differs.docker.len() < differs.ours.len())
}

/// Compares the differences of a case with the list.
fn judge(case: &str, differs: &[Differs], list: &[Difference]) -> Vec<String> {
    let listed = listed(case, list);
    let unlisted = differs.iter().filter(|differs| !listed.iter().any(|listed| is(listed, &differs.key)));
    let stale = listed.iter().filter(|listed| !differs.iter().any(|differs| is(listed, &differs.key)));
    unlisted
        .map(|differs| format!("a difference that is not on the list:\n{}", differs.text()))
        .chain(stale.map(|key| format!("on the list, but no longer different: {key}\n")))
        .collect()
}

/// Runs the job with one driver, again if the machine was too busy: Nomad gives up on its own helper process after some
/// seconds, and the docker driver loses output of a task that ends before its reader is there.
fn repeated(case: &Case, driver: Driver, node: &Node) -> Outcome<Observed> {
    let mut observed = observe(case, driver, 0, node)?;
    for attempt in 1..ATTEMPTS {
        let text = observed.text();
        // dockerd may report the end before it knows that the kernel killed the task at its memory limit.
        let unexplained =
            case.look.is_none() && text.contains("exit code = 137") && !text.contains("killed for memory = true");
        let cut = text.contains(NO_MARK.trim()) || text.contains("complete and in order = false");
        let lost = driver == Driver::Docker && (unexplained || cut);
        if !lost && !text.contains("Setup Failure") {
            break;
        }
        observed = observe(case, driver, attempt, node)?;
    }
    Ok(observed)
}

/// Runs the job with one driver.
fn observe(case: &Case, driver: Driver, attempt: usize, node: &Node) -> Outcome<Observed> {
    let mut observed = Observed::default();
    let id = job::id(case, driver, attempt);
    let job = job::build(case, driver, &id, node)?;
    let alloc = place(&job, &id, node, &mut observed)?;
    let mut literals = vec![
        (node.agent.path().display().to_string(), "<agent>"),
        (node.dockerd.path().display().to_string(), "<dockerd>"),
        (node.images.host(), "<registry>"),
        (id.clone(), "<job>"),
    ];
    if let Some(alloc) = alloc {
        literals.push((alloc.id.clone(), "<alloc>"));
        literals.push((alloc.id.chars().take(8).collect(), "<alloc>"));
        let outcome = watch_alloc(case, driver, node, &alloc, &mut observed);
        if outcome.is_err() {
            alloc.ask_to_stop()?;
        }
        outcome.context(format!("{}; events:\n{}", alloc.id, alloc.events().unwrap_or_default().join("\n")))?;
        if case.config.contains(PLACEHOLDER) {
            node.log_servers.observe(&id, &mut observed)?;
        }
    }
    node.agent.api().delete(&format!("/v1/job/{id}?purge=true"))?;
    observed.normalise(|value| normal(value, &literals));
    Ok(observed)
}

/// Registers the job. `None` when Nomad refuses or cannot place it.
fn place<'a>(job: &Value, id: &str, node: &'a Node, observed: &mut Observed) -> Outcome<Option<Alloc<'a>>> {
    let api = node.agent.api();
    let Ok(answer) = api.put("/v1/jobs", &json!({ "Job": job })) else {
        observed.add("registered", "no");
        return Ok(None);
    };
    let evaluation = answer["EvalID"].as_str().unwrap_or_default();
    let unplaced = api.wait(&format!("/v1/evaluation/{evaluation}"), "the evaluation", LIMIT, |evaluation| {
        (evaluation["Status"] == "complete").then(|| evaluation["FailedTGAllocs"].clone())
    })?;
    if !unplaced.is_null() {
        observed.add("placed", "no");
        return Ok(None);
    }
    Ok(Some(node.agent.placed(id, 1)?.swap_remove(0)))
}

/// Observes the allocation until its end.
fn watch_alloc(case: &Case, driver: Driver, node: &Node, alloc: &Alloc, observed: &mut Observed) -> Outcome {
    if let Some(look) = case.look {
        let task = alloc.task("main");
        match task.wait_running() {
            Ok(()) => look(&Seen { task, driver, node }, observed)?,
            Err(_) => observed.add("ran", "no"),
        }
        alloc.ask_to_stop()?;
    }
    let ended = alloc.wait("the allocation to end", |alloc| {
        (alloc["ClientStatus"] == "complete" || alloc["ClientStatus"] == "failed").then(|| alloc.clone())
    })?;
    observed.add("status", ended["ClientStatus"].as_str().unwrap_or_default());
    for (name, state) in ended["TaskStates"].as_object().into_iter().flatten() {
        let prefix = if name == "main" { String::new() } else { format!("{name}: ") };
        let started = ends(&prefix, state, observed);
        for stream in ["stdout", "stderr"] {
            let wait =
                name == "main" && started && !case.unmarked && !(stream == "stderr" && case.config.contains("tty"));
            let text = output(alloc, name, stream, wait)?;
            observed.add_lines(&format!("{prefix}{stream}"), &text);
        }
    }
    Ok(())
}

/// Adds events, exits and restarts of a task. Returns whether it ever ran.
fn ends(prefix: &str, state: &Value, observed: &mut Observed) -> bool {
    let mut add = |key: &str, value: String| observed.add(&format!("{prefix}{key}"), value);
    let events = state["Events"].as_array().cloned().unwrap_or_default();
    let kind = |event: &Value| event["Type"].as_str().unwrap_or_default().to_owned();
    // Messages about pulls and the like have this type. Their number depends on timing.
    let kinds: Vec<String> = events.iter().map(kind).filter(|kind| kind != "Driver").collect();
    // The number of earlier ends depends on the number of other events.
    if let Some(end) = events.iter().rfind(|event| event["Type"] == "Terminated") {
        let details = &end["Details"];
        let detail = |name: &str| details[name].as_str().unwrap_or_default().to_owned();
        add("exit code", detail("exit_code"));
        add("exit signal", detail("signal"));
        add("killed for memory", detail("oom_killed"));
    }
    let started = kinds.iter().any(|kind| kind == "Started");
    // Nomad keeps only the last ten events, and the drivers' messages displace the first ones.
    add("events", kinds[kinds.len().saturating_sub(EVENTS)..].join(", "));
    add("failed", state["Failed"].to_string());
    add("restarts", state["Restarts"].to_string());
    started
}

/// The output of a task as Nomad keeps it. `wait`: until the mark of the script is there.
fn output(alloc: &Alloc, task: &str, stream: &str, wait: bool) -> Outcome<String> {
    let directory = alloc.shared_directory().join("logs");
    let file = directory.join(format!("{task}.{stream}.0"));
    let read = || fs::read(&file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let marked = || Some(read()).filter(|text| text.trim_end().ends_with(END));
    let text = if wait {
        let waited = watch::until(&directory, &format!("the end of {stream}"), OUTPUT, marked);
        waited.unwrap_or_else(|_| read() + NO_MARK)
    } else {
        read()
    };
    Ok(text.lines().filter(|line| line.trim_end() != END).map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[Difference] = &[Difference {
        behaviour: "",
        docker: "",
        ours: "",
        why: "",
        remedy: "",
        seen: &[("a_case", "listed"), ("another", "key")],
    }];

    fn differs(key: &str) -> Differs {
        Differs { key: key.to_owned(), docker: vec!["1".to_owned()], ours: vec!["2".to_owned()] }
    }

    #[test]
    fn a_listed_difference_passes() {
        assert!(judge("a_case", &[differs("listed")], LIST).is_empty());
    }

    #[test]
    fn an_unlisted_difference_fails() {
        let complaints = judge("a_case", &[differs("listed"), differs("other")], LIST);
        assert!(complaints.len() == 1 && complaints[0].contains("other"), "{complaints:?}");
        // The entry is for another case.
        assert_eq!(judge("a_case", &[differs("listed"), differs("key")], LIST).len(), 1);
    }

    #[test]
    fn docker_is_observed_again_if_it_has_fewer_values() {
        let differs = |docker: &[&str]| {
            let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<String>>();
            Differs { key: "key".to_owned(), docker: values(docker), ours: values(&["1", "2"]) }
        };
        assert!(docker_has_less("a_case", &[differs(&[])], LIST));
        assert!(docker_has_less("a_case", &[differs(&["1"])], LIST));
        assert!(!docker_has_less("a_case", &[differs(&["2", "1"])], LIST), "another order is a difference");
        assert!(!docker_has_less("another", &[differs(&[])], LIST), "the difference is known");
    }

    #[test]
    fn an_entry_that_no_longer_differs_fails() {
        let complaints = judge("a_case", &[], LIST);
        assert!(complaints.len() == 1 && complaints[0].contains("no longer"), "{complaints:?}");
    }
}
