//! The images that the tasks of a job need.
//!
//! They are read from the job alone: without a node, without an allocation, and without credentials of the job.

use std::{collections::BTreeMap, fmt};

use image_store::Reference;
use serde_json::Value as Json;

use super::{
    interpolation::interpolate,
    job::{self, items, text},
};

/// An image of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskImage {
    /// The task, as `job/group/task`.
    pub task: String,
    /// The image as the job writes it.
    pub name: String,
    /// The reference, or why there is none.
    pub image: Result<Reference, SkipReason>,
    /// The task asks the registry at each start (`force_pull`).
    pub force: bool,
}

/// Why an image of a task cannot be pulled before the task is on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// Its name has variables that are known on the node only.
    Variables(Vec<String>),
    /// The job brings credentials of its own.
    Credentials,
    /// It is an archive of the allocation (`load`).
    Archive,
    /// Its name is not one of an image.
    Invalid(String),
}

impl SkipReason {
    /// The reason in one word.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Variables(_) => "variables",
            Self::Credentials => "credentials",
            Self::Archive => "archive",
            Self::Invalid(_) => "invalid",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variables(names) => write!(f, "only the node knows {}", names.join(", ")),
            Self::Credentials => f.write_str("the task has credentials of its own (auth), which are only for the task"),
            Self::Archive => f.write_str("the image is an archive in the allocation (load)"),
            Self::Invalid(problem) => f.write_str(problem),
        }
    }
}

/// The images of those tasks of a job that have one of these drivers: each task's own image, and those that it mounts.
pub fn task_images(job: &Json, drivers: &[&str]) -> Vec<TaskImage> {
    let tasks = job::tasks(job).filter(|(_, task)| drivers.contains(&text(task, "Driver")));
    tasks.flat_map(|(group, task)| of_task(job, group, task)).collect()
}

fn of_task(job: &Json, group: &Json, task: &Json) -> Vec<TaskImage> {
    let config = &task["Config"];
    let known = variables(job, group, task);
    let task = format!("{}/{}/{}", text(job, "ID"), text(group, "Name"), text(task, "Name"));
    let force = is_true(&config["force_pull"]);
    let image = |name: &str, image| TaskImage { task: task.clone(), name: name.to_owned(), image, force };
    let own = Some(text(config, "image")).filter(|name| !name.is_empty()).map(|name| {
        if !text(config, "load").is_empty() {
            image(name, Err(SkipReason::Archive))
        } else if is_set(&config["auth"]) {
            image(name, Err(SkipReason::Credentials))
        } else {
            image(name, reference(name, &known))
        }
    });
    let mounted = ["mount", "mounts"].into_iter().flat_map(|option| blocks(&config[option]));
    let mounted = mounted.filter(|mount| text(mount, "type") == "image");
    let mounted = mounted.map(|mount| image(text(mount, "source"), reference(text(mount, "source"), &known)));
    own.into_iter().chain(mounted).collect()
}

/// The variables that are known before a task is on a node. The environment files of templates override `env`.
fn variables(job: &Json, group: &Json, task: &Json) -> BTreeMap<String, String> {
    let mut known = job::variables(job, group, task);
    if items(task, "Templates").any(|template| template["Envvars"] == true) {
        for (name, _) in job::pairs(&task["Env"]) {
            known.remove(&name);
        }
    }
    known
}

fn reference(name: &str, known: &BTreeMap<String, String>) -> Result<Reference, SkipReason> {
    let name = interpolate(name, known).map_err(SkipReason::Variables)?;
    name.parse().map_err(|error: image_store::InvalidReference| SkipReason::Invalid(error.to_string()))
}

/// The blocks of an option: a block that occurs once may be a map.
fn blocks(value: &Json) -> Vec<&Json> {
    match value {
        Json::Array(items) => items.iter().collect(),
        Json::Object(_) => vec![value],
        _ => Vec::new(),
    }
}

/// Whether a block has an option with a value.
fn is_set(block: &Json) -> bool {
    let has_value = |value: &Json| !value.is_null() && value.as_str() != Some("");
    blocks(block).iter().any(|block| block.as_object().is_some_and(|fields| fields.values().any(has_value)))
}

/// Whether an option is true: jobs in JSON may write booleans as texts.
fn is_true(value: &Json) -> bool {
    value.as_bool().unwrap_or(matches!(value.as_str(), Some("true" | "1")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::{SkipReason, task_images};

    fn job(config: Json) -> Json {
        json!({ "ID": "shop", "Name": "Shop", "Meta": { "version": "7" }, "TaskGroups": [{ "Name": "web", "Tasks": [
            { "Name": "t", "Driver": "oci-rs", "Config": config, "Env": { "TAG": "2", "NODE": "${node.unique.id}" } },
            { "Name": "other", "Driver": "exec", "Config": { "image": "other:1" } },
        ] }] })
    }

    /// The references of a task with this block, and the reasons for those that have none.
    fn found(config: Json) -> Vec<Result<String, &'static str>> {
        let images = task_images(&job(config), &["oci-rs", "docker"]);
        images.into_iter().map(|one| one.image.map(|name| name.to_string()).map_err(|why| why.label())).collect()
    }

    #[test]
    fn images_are_found_and_their_variables_replaced() {
        let image = |name: &str| Ok(name.to_owned());
        for (config, expected) in [
            (json!({ "image": "redis:7" }), vec![image("docker.io/library/redis:7")]),
            (json!({ "image": "r.example/app:${NOMAD_META_version}.${TAG}" }), vec![image("r.example/app:7.2")]),
            (json!({ "image": "r.example/app:${attr.cpu.arch}" }), vec![Err("variables")]),
            (json!({ "image": "r.example/app:${NODE}" }), vec![Err("variables")]),
            (json!({ "image": "r.example/app:1", "auth": [{ "username": "u" }] }), vec![Err("credentials")]),
            (json!({ "image": "r.example/app:1", "auth": { "password": "p" } }), vec![Err("credentials")]),
            (json!({ "image": "a:1", "auth": [{ "username": "" }] }), vec![image("docker.io/library/a:1")]),
            (json!({ "image": "r.example/app:1", "load": "app.tar" }), vec![Err("archive")]),
            (json!({ "image": "Not A Name" }), vec![Err("invalid")]),
            (json!({}), vec![]),
            (
                json!({ "image": "r.example/a:1", "mount": [
                    { "type": "image", "source": "r.example/models:${TAG}", "target": "/m" },
                    { "type": "bind", "source": "local", "target": "/l" },
                ] }),
                vec![image("r.example/a:1"), image("r.example/models:2")],
            ),
        ] {
            assert_eq!(found(config.clone()), expected, "{config}");
        }
    }

    #[test]
    fn other_drivers_are_left_out_and_tasks_are_named() {
        let mut all = task_images(&job(json!({ "image": "a:1", "force_pull": "true" })), &["exec", "oci-rs"]);
        assert_eq!(all.len(), 2);
        let image = all.swap_remove(0);
        assert_eq!((image.task.as_str(), image.name.as_str(), image.force), ("shop/web/t", "a:1", true));
        assert!(task_images(&job(json!({ "image": "a:1" })), &["docker"]).is_empty());
    }

    /// A template with `env = true` may set the variable to something else.
    #[test]
    fn variables_that_a_template_may_override_are_unknown() {
        let mut job = job(json!({ "image": "a:${TAG}" }));
        job["TaskGroups"][0]["Tasks"][0]["Templates"] = json!([{ "Envvars": true }]);
        let why = task_images(&job, &["oci-rs"]).swap_remove(0).image.unwrap_err();
        assert_eq!(why, SkipReason::Variables(vec!["${TAG}".to_owned()]));
    }
}
