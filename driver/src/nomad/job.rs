//! The parts of a job, and the variables that are known before it is on a node.

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// Whether a document is a job.
pub fn is_job(json: &Json) -> bool {
    json["TaskGroups"].is_array() && json["ID"].is_string()
}

/// The job's namespace.
pub fn namespace(job: &Json) -> &str {
    Some(text(job, "Namespace")).filter(|name| !name.is_empty()).unwrap_or("default")
}

/// The tasks of a job, each with its group.
pub fn tasks(job: &Json) -> impl Iterator<Item = (&Json, &Json)> {
    items(job, "TaskGroups").flat_map(|group| items(group, "Tasks").map(move |task| (group, task)))
}

/// Nomad's variables, the metadata and the task's `env`, as far as they do not depend on the node.
pub fn variables(job: &Json, group: &Json, task: &Json) -> BTreeMap<String, String> {
    let mut known: BTreeMap<String, String> = [
        ("NOMAD_TASK_NAME", text(task, "Name")),
        ("NOMAD_GROUP_NAME", text(group, "Name")),
        ("NOMAD_JOB_ID", text(job, "ID")),
        ("NOMAD_JOB_NAME", text(job, "Name")),
        ("NOMAD_NAMESPACE", namespace(job)),
        ("NOMAD_REGION", Some(text(job, "Region")).filter(|region| !region.is_empty()).unwrap_or("global")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    for meta in [&job["Meta"], &group["Meta"], &task["Meta"]] {
        for (name, value) in pairs(meta) {
            known.insert(format!("NOMAD_META_{}", name.to_uppercase()), value.clone());
            known.insert(format!("NOMAD_META_{name}"), value);
        }
    }
    known.extend(pairs(&task["Env"]));
    // A value that has variables itself is known to the client only.
    known.retain(|_, value| !value.contains("${"));
    known
}

/// The fields of a map whose values are texts.
pub fn pairs(json: &Json) -> BTreeMap<String, String> {
    let fields = json.as_object().into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// The text of a field; empty without one.
pub fn text<'a>(json: &'a Json, field: &str) -> &'a str {
    json[field].as_str().unwrap_or_default()
}

/// The items of a field's list; none without one.
pub fn items<'a>(json: &'a Json, field: &str) -> impl Iterator<Item = &'a Json> {
    json[field].as_array().into_iter().flatten()
}
