//! Which jobs count for this node, and which of their images are wanted. Pure.
//!
//! Constraints of jobs are not evaluated: a job counts by its datacenters and its node pool.

use std::collections::BTreeMap;

use image_store::Reference;
use serde_json::Value as Json;

use crate::{
    config::{PrefetchOptions, any_matches, matches},
    name::DriverName,
    nomad::{
        TaskImage,
        job::{self, items, text},
        task_images,
    },
};

/// The pool of a job or node that names none.
const DEFAULT_POOL: &str = "default";
/// The pool of jobs that may be placed in every pool.
const EVERY_POOL: &str = "all";
/// The priority of a job that names none.
const DEFAULT_PRIORITY: u64 = 50;

/// The place of this node in its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The datacenter.
    pub datacenter: String,
    /// The node pool.
    pub node_pool: String,
}

impl Place {
    /// The place that the operator names. What is missing is that of the agent, as `/v1/agent/self` shows it.
    pub fn of(options: &PrefetchOptions, agent: &Json) -> Result<Self, String> {
        let config = &agent["config"];
        let of_agent = |value: Option<&str>, option| match value {
            Some(name) if config["Client"]["Enabled"] == true => Ok(name.to_owned()),
            _ => Err(format!("the agent is not that of a client node: set prefetch.{option}")),
        };
        let datacenter = || of_agent(config["Datacenter"].as_str(), "datacenter");
        let datacenter = options.datacenter.clone().map_or_else(datacenter, Ok)?;
        // Agents before Nomad 1.6 have no pools.
        let pool = config["Client"].get("NodePool").map_or(Some(""), Json::as_str);
        let node_pool = options.node_pool.clone().map_or_else(|| of_agent(pool, "node_pool"), Ok)?;
        Ok(Self { datacenter, node_pool: or_default(&node_pool).to_owned() })
    }
}

fn or_default(pool: &str) -> &str {
    if pool.is_empty() { DEFAULT_POOL } else { pool }
}

/// The images of a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The wanted images, each with whether a task asks the registry at each start.
    pub wanted: BTreeMap<Reference, bool>,
    /// The images that are left to the start of their tasks, with the reason in one word.
    pub skipped: Vec<(&'static str, TaskImage)>,
}

/// Decides about jobs.
pub struct Filter<'a> {
    /// The operator's options.
    pub options: &'a PrefetchOptions,
    /// The name of this plugin.
    pub driver: DriverName,
    /// The place of this node.
    pub place: &'a Place,
}

impl Filter<'_> {
    /// Whether a job may have tasks on this node. An entry of the list of jobs has everything that is needed.
    /// Children of periodic and dispatched jobs do not count: their parents have the same images.
    pub fn counts(&self, job: &Json) -> bool {
        let Self { options, place, .. } = self;
        // A service without allocations is dead as well.
        let is_done = text(job, "Status") == "dead" && matches!(text(job, "Type"), "batch" | "sysbatch");
        let over = job["Stop"] == true || is_done || !text(job, "ParentID").is_empty();
        let mut datacenters = items(job, "Datacenters").filter_map(Json::as_str).peekable();
        let pool = or_default(text(job, "NodePool"));
        !over
            && (datacenters.peek().is_none() || datacenters.any(|name| matches(name, &place.datacenter)))
            && (pool == EVERY_POOL || pool == place.node_pool)
            && any_matches(&options.namespaces, job::namespace(job))
            && any_matches(&options.jobs, text(job, "ID"))
            && options.types.iter().any(|name| name == text(job, "Type"))
            && job["Priority"].as_u64().unwrap_or(DEFAULT_PRIORITY) >= options.min_priority
    }

    /// The images of a job that counts.
    pub fn images(&self, job: &Json) -> Found {
        let own = [self.driver.to_string()];
        let drivers: Vec<&str> = self.options.drivers.as_deref().unwrap_or(&own).iter().map(String::as_str).collect();
        let mut found = Found::default();
        for image in task_images(job, &drivers) {
            match &image.image {
                Ok(name) if any_matches(&self.options.images, &name.to_string()) => {
                    *found.wanted.entry(name.clone()).or_default() |= image.force;
                }
                Ok(_) => found.skipped.push(("images", image)),
                Err(reason) => found.skipped.push((reason.label(), image)),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::config::{decode_plugin, from_json};

    fn options(more: Json) -> PrefetchOptions {
        let mut block = json!({ "address": "http://127.0.0.1:4646" });
        block.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = json!({ "prefetch": block });
        decode_plugin(&from_json(&config), DriverName::OciRs).unwrap().prefetch.unwrap()
    }

    fn place() -> Place {
        Place { datacenter: "eu-1".to_owned(), node_pool: "gpu".to_owned() }
    }

    fn job(fields: Json) -> Json {
        let mut job = json!({
            "ID": "shop", "Namespace": "team", "Type": "service", "Priority": 50, "Status": "running", "Stop": false,
            "Datacenters": ["eu-*"], "NodePool": "gpu", "TaskGroups": [{ "Name": "web", "Count": 0, "Tasks": [
                { "Name": "a", "Driver": "oci-rs", "Config": { "image": "r.example/a:1" } },
                { "Name": "b", "Driver": "docker", "Config": { "image": "r.example/b:1" } },
                { "Name": "c", "Driver": "oci-rs", "Config": { "image": "r.example/${attr.cpu.arch}:1" } },
                { "Name": "d", "Driver": "oci-rs", "Config": { "image": "d:1", "force_pull": true } },
            ] }],
        });
        job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        job
    }

    #[test]
    fn jobs_count_by_place_name_type_and_priority() {
        for (fields, block, expected) in [
            (json!({}), json!({}), true),
            (json!({ "Datacenters": ["us-1", "eu-1"] }), json!({}), true),
            (json!({ "Datacenters": ["*"] }), json!({}), true),
            (json!({ "Datacenters": null }), json!({}), true),
            (json!({ "Datacenters": ["us-*"] }), json!({}), false),
            (json!({ "NodePool": "all" }), json!({}), true),
            (json!({ "NodePool": "default" }), json!({}), false),
            (json!({ "NodePool": null }), json!({}), false),
            (json!({ "Stop": true }), json!({}), false),
            (json!({ "Status": "dead" }), json!({}), true),
            (json!({ "Status": "dead", "Type": "batch" }), json!({}), false),
            (json!({ "Status": "running", "Type": "batch" }), json!({}), true),
            (json!({ "Status": "pending" }), json!({}), true),
            (json!({ "ParentID": "shop", "ID": "shop/periodic-1" }), json!({}), false),
            (json!({}), json!({ "namespaces": ["te*"] }), true),
            (json!({}), json!({ "namespaces": ["default"] }), false),
            (json!({ "Namespace": null }), json!({ "namespaces": ["default"] }), true),
            (json!({}), json!({ "jobs": ["web", "sh*"] }), true),
            (json!({}), json!({ "jobs": [] }), false),
            (json!({}), json!({ "types": ["batch"] }), false),
            (json!({ "Type": "system" }), json!({}), true),
            (json!({}), json!({ "min_priority": 50 }), true),
            (json!({}), json!({ "min_priority": 51 }), false),
        ] {
            let (options, place) = (options(block.clone()), place());
            let filter = Filter { options: &options, driver: DriverName::OciRs, place: &place };
            assert_eq!(filter.counts(&job(fields.clone())), expected, "{fields} {block}");
        }
    }

    #[test]
    fn images_are_those_of_the_drivers_that_the_operator_lets_in() {
        let a = "r.example/a:1";
        for (block, wanted, skipped) in [
            (json!({}), vec![("docker.io/library/d:1", true), (a, false)], vec!["variables"]),
            (json!({ "images": ["r.example/*"] }), vec![(a, false)], vec!["variables", "images"]),
            (json!({ "drivers": ["docker"] }), vec![("r.example/b:1", false)], vec![]),
        ] {
            let (options, place) = (options(block.clone()), place());
            let filter = Filter { options: &options, driver: DriverName::OciRs, place: &place };
            let found = filter.images(&job(json!({})));
            let names: Vec<(String, bool)> =
                found.wanted.iter().map(|(name, force)| (name.to_string(), *force)).collect();
            let expected: Vec<(String, bool)> =
                wanted.iter().map(|(name, force)| ((*name).to_owned(), *force)).collect();
            assert_eq!(names, expected, "{block}");
            assert_eq!(found.skipped.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), skipped, "{block}");
        }
    }

    #[test]
    fn the_place_is_that_of_the_agent_unless_the_operator_names_it() {
        let client =
            |enabled| json!({ "config": { "Datacenter": "dc1", "Client": { "Enabled": enabled, "NodePool": "" } } });
        let place = |datacenter: &str, node_pool: &str| {
            Ok(Place { datacenter: datacenter.to_owned(), node_pool: node_pool.to_owned() })
        };
        assert_eq!(Place::of(&options(json!({})), &client(true)), place("dc1", "default"));
        assert_eq!(Place::of(&options(json!({ "node_pool": "gpu" })), &client(true)), place("dc1", "gpu"));
        let both = options(json!({ "datacenter": "dc2", "node_pool": "gpu" }));
        assert_eq!(Place::of(&both, &Json::Null), place("dc2", "gpu"));
        let error = Place::of(&options(json!({ "datacenter": "dc2" })), &client(false)).unwrap_err();
        assert!(error.contains("set prefetch.node_pool"), "{error}");
        let old = json!({ "config": { "Datacenter": "dc1", "Client": { "Enabled": true } } });
        assert_eq!(Place::of(&options(json!({})), &old), place("dc1", "default"));
    }
}
