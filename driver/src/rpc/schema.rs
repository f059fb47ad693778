//! The schemas of the `config` blocks as hclspec messages, which Nomad validates the blocks with.
//!
//! Each schema is made from a table of options of [`crate::config`] and adds nothing to it.

use std::collections::HashMap;

use proto::hclspec::{
    Attr, Block, BlockAttrs, BlockList, BlockMap, Default as DefaultSpec, Literal, Object, Spec, spec::Block as Form,
};

use crate::config::{DEVICE_PLUGIN_OPTIONS, DefaultValue, OptionSpec, OptionType, PLUGIN_OPTIONS, TASK_OPTIONS};

/// The schema of the `config` block in `plugin "oci-rs"`.
pub fn plugin_schema() -> Spec {
    object(PLUGIN_OPTIONS)
}

/// The schema of the `config` block in `plugin "oci-rs-cdi"`.
pub fn device_plugin_schema() -> Spec {
    object(DEVICE_PLUGIN_OPTIONS)
}

/// The schema of a task's `config` block.
pub fn task_schema() -> Spec {
    object(TASK_OPTIONS)
}

fn object(options: &[OptionSpec]) -> Spec {
    let attributes: HashMap<_, _> =
        options.iter().map(|option| (option.name.to_owned(), option_spec(option))).collect();
    spec(Form::Object(Object { attributes }))
}

/// The spec of one option. Names are always written out, because Nomad cannot imply a name inside a default.
fn option_spec(option: &OptionSpec) -> Spec {
    let primary = spec(form(option));
    match option.default {
        DefaultValue::Required | DefaultValue::Words(_) => primary,
        DefaultValue::Literal(value) => spec(Form::Default(Box::new(DefaultSpec {
            primary: Some(Box::new(primary)),
            default: Some(Box::new(spec(Form::Literal(Literal { value: value.to_owned() })))),
        }))),
    }
}

fn form(option: &OptionSpec) -> Form {
    let name = option.name.to_owned();
    let required = matches!(option.default, DefaultValue::Required);
    let nested = |options| Some(Box::new(object(options)));
    match option.kind {
        OptionType::Block(options) => Form::BlockValue(Box::new(Block { name, required, nested: nested(options) })),
        OptionType::Blocks(options) => Form::BlockList(Box::new(BlockList {
            name,
            min_items: u64::from(required),
            max_items: 0,
            nested: nested(options),
        })),
        OptionType::Labelled(label, options) => {
            Form::BlockMap(Box::new(BlockMap { name, labels: vec![label.to_owned()], nested: nested(options) }))
        }
        OptionType::StringAttrs => Form::BlockAttrs(BlockAttrs { name, r#type: "string".to_owned(), required }),
        OptionType::String => attribute(name, "string", required),
        OptionType::Bool => attribute(name, "bool", required),
        OptionType::Number => attribute(name, "number", required),
        OptionType::Strings => attribute(name, "list(string)", required),
        OptionType::StringMaps => attribute(name, "list(map(string))", required),
        OptionType::NumberMaps => attribute(name, "list(map(number))", required),
    }
}

fn attribute(name: String, kind: &str, required: bool) -> Form {
    Form::Attr(Attr { name, r#type: kind.to_owned(), required })
}

fn spec(form: Form) -> Spec {
    Spec { block: Some(form) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::hclspec::{Spec, spec::Block as Form};

    use super::{plugin_schema, task_schema};

    /// The docker driver's task options and their types. This list was written independently of our table.
    const DOCKER: &str = "
        advertise_ipv6_address bool, args list(string), auth block, auth_soft_fail bool, cap_add list(string),
        cap_drop list(string), cgroupns string, command string, container_exists_attempts number, cpu_cfs_period
        number, cpu_hard_limit bool, cpuset_cpus string, devices blocks, dns_options list(string), dns_search_domains
        list(string), dns_servers list(string), entrypoint list(string), extra_hosts list(string), force_pull bool,
        group_add list(string), healthchecks block, hostname string, image string, image_pull_timeout string, init
        bool, interactive bool, ipc_mode string, ipv4_address string, ipv6_address string, isolation string, labels
        list(map(string)), load string, logging block, mac_address string, memory_hard_limit number, mount blocks,
        mounts blocks, network_aliases list(string), network_mode string, oom_score_adj number, pid_mode string,
        pids_limit number, port_map list(map(number)), ports list(string), privileged bool, readonly_rootfs bool,
        runtime string, security_opt list(string), shm_size number, storage_opt attrs(string), sysctl
        list(map(string)), tty bool, ulimit list(map(string)), userns_mode string, uts_mode string, volume_driver
        string, volumes list(string), work_dir string";

    /// The options of a schema with their types. An option in a block has the block's path before its name.
    fn flatten(spec: &Spec, path: &str, into: &mut BTreeMap<String, String>) {
        let Some(Form::Object(object)) = &spec.block else { panic!("{path} is no object") };
        for (key, spec) in &object.attributes {
            let path = format!("{path}{key}");
            let below = format!("{path}.");
            let mut spec = spec;
            if let Some(Form::Default(default)) = &spec.block {
                spec = default.primary.as_deref().unwrap();
            }
            let (name, kind) = match spec.block.as_ref().unwrap() {
                Form::Attr(attr) => (&attr.name, attr.r#type.clone()),
                Form::BlockAttrs(attrs) => (&attrs.name, format!("attrs({})", attrs.r#type)),
                Form::BlockValue(block) => {
                    flatten(block.nested.as_deref().unwrap(), &below, into);
                    (&block.name, "block".to_owned())
                }
                Form::BlockList(blocks) => {
                    flatten(blocks.nested.as_deref().unwrap(), &below, into);
                    (&blocks.name, "blocks".to_owned())
                }
                Form::BlockMap(blocks) => {
                    flatten(blocks.nested.as_deref().unwrap(), &below, into);
                    (&blocks.name, format!("blocks by {}", blocks.labels.join(" ")))
                }
                other => panic!("{path}: {other:?}"),
            };
            assert_eq!(name, key, "the name must be written out");
            into.insert(path, kind);
        }
    }

    fn options(spec: &Spec) -> BTreeMap<String, String> {
        let mut options = BTreeMap::new();
        flatten(spec, "", &mut options);
        options
    }

    #[test]
    fn the_task_schema_has_all_options_of_the_docker_driver_with_their_types() {
        let docker: BTreeMap<String, String> = DOCKER
            .split(',')
            .map(|option| option.trim().split_once(char::is_whitespace).unwrap())
            .map(|(name, kind)| (name.to_owned(), kind.trim().to_owned()))
            .collect();
        assert_eq!(docker.len(), 58);
        let mut ours = options(&task_schema());
        ours.retain(|name, _| !name.contains('.'));
        // The docker driver does not have this one.
        assert_eq!(ours.remove("lazy").as_deref(), Some("bool"));
        assert_eq!(ours, docker);
    }

    #[test]
    fn nested_options_have_the_docker_drivers_types() {
        let ours = options(&task_schema());
        for (name, kind) in [
            ("auth.username", "string"),
            ("auth.password", "string"),
            ("auth.email", "string"),
            ("auth.server_address", "string"),
            ("devices.host_path", "string"),
            ("devices.container_path", "string"),
            ("devices.cgroup_permissions", "string"),
            // The docker driver does not have this one.
            ("devices.cdi", "string"),
            ("healthchecks.disable", "bool"),
            ("logging.type", "string"),
            ("logging.driver", "string"),
            ("logging.config", "list(map(string))"),
            ("mount.type", "string"),
            ("mount.target", "string"),
            ("mount.source", "string"),
            ("mount.readonly", "bool"),
            ("mounts.bind_options.propagation", "string"),
            ("mounts.tmpfs_options.size", "number"),
            ("mount.tmpfs_options.mode", "number"),
            // The docker driver does not have these three.
            ("mount.sub_path", "string"),
            ("mount.tmpfs_options.uid", "number"),
            ("mount.tmpfs_options.gid", "number"),
            ("mount.volume_options.no_copy", "bool"),
            ("mount.volume_options.labels", "list(map(string))"),
            ("mount.volume_options.driver_config.name", "string"),
            ("mount.volume_options.driver_config.options", "list(map(string))"),
        ] {
            assert_eq!(ours.get(name).map(String::as_str), Some(kind), "{name}");
        }
        assert_eq!(ours.len(), 59 + 4 + 4 + 1 + 3 + 2 * (8 + 1 + 4 + 3 + 2));
    }

    #[test]
    fn the_plugin_schema_has_the_plugins_options() {
        let ours = options(&plugin_schema());
        for (name, kind) in [
            ("state_dir", "string"),
            ("allow_caps", "list(string)"),
            ("registry", "blocks by host"),
            ("registry.auth.password", "string"),
            ("registry.mirrors", "list(string)"),
            ("volumes.enabled", "bool"),
            ("pids_limit", "number"),
        ] {
            assert_eq!(ours.get(name).map(String::as_str), Some(kind), "{name}");
        }
    }

    #[test]
    fn only_the_image_is_required() {
        let Some(Form::Object(object)) = task_schema().block else { panic!() };
        let required = |spec: &Spec| matches!(&spec.block, Some(Form::Attr(attr)) if attr.required);
        let names: Vec<&String> =
            object.attributes.iter().filter(|(_, spec)| required(spec)).map(|(name, _)| name).collect();
        assert_eq!(names, ["image"]);
    }
}
