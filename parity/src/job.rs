//! The job of a case, for one driver.

use e2e::{Context, Outcome};
use serde_json::{Value, json};

use crate::{case::Case, driver::Driver, mark::FINISH, node::Node};

/// The id of the case's job for this driver. Each attempt has its own.
#[must_use]
pub fn id(case: &Case, driver: Driver, attempt: usize) -> String {
    format!("{}-{}-{attempt}", case.name.replace('_', "-"), driver.name())
}

/// The job as Nomad's API takes it.
///
/// # Errors
/// When the HCL of the case is not valid.
pub fn build(case: &Case, driver: Driver, id: &str, node: &Node) -> Outcome<Value> {
    let text = node.fill_in(&hcl(case, driver, node)).replace("@JOB@", id);
    let request = json!({ "JobHCL": text, "Canonicalize": true });
    let mut job = node.agent.api().put("/v1/jobs/parse", &request).context(&text)?;
    job["ID"] = Value::from(id);
    job["Name"] = Value::from(id);
    if let Some(script) = case.script {
        let marked = format!("{FINISH}trap 'code=$?; finish; exit $code' EXIT\n{script}");
        let tasks = job["TaskGroups"][0]["Tasks"].as_array_mut();
        for task in tasks.into_iter().flatten().filter(|task| task["Name"] == "main") {
            task["Config"]["command"] = json!("/bin/sh");
            task["Config"]["args"] = json!(["-c", marked]);
        }
    }
    Ok(job)
}

/// The job without its script. Blocks of the case replace the defaults.
fn hcl(case: &Case, driver: Driver, node: &Node) -> String {
    let Case { config, task, group, .. } = case;
    let unless = |text: &str, word: &str, default: &'static str| if text.contains(word) { "" } else { default };
    let restart = unless(group, "restart {", "restart {\nattempts = 0\nmode = \"fail\"\n}");
    let resources = unless(task, "resources {", "resources {\ncpu = 50\nmemory = 40\n}");
    let image = unless(config, "image =", "image = \"@IMAGE@\"").replace("@IMAGE@", &node.images.reference(case.image));
    let kind = if case.service { "service" } else { "batch" };
    let driver = driver.name();
    format!(
        "job \"parity\" {{\ntype = \"{kind}\"\ngroup \"group\" {{\n{restart}\n\
         reschedule {{\nattempts = 0\nunlimited = false\n}}\n{group}\n\
         task \"main\" {{\ndriver = \"{driver}\"\nconfig {{\n{image}\n{config}\n}}\n{resources}\n{task}\n}}\n\
         }}\n}}\n"
    )
    .replace("@DRIVER@", driver)
}
