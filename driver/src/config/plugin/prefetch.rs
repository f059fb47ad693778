//! The plugin block's options for images that are pulled before their tasks are here.

use std::path::PathBuf;

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

/// The types of jobs.
const TYPES: [&str; 4] = ["service", "batch", "system", "sysbatch"];
/// The maximum of `parallel`.
const MAX_PARALLEL: usize = 100;

/// The options of `prefetch`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "address",
        OptionType::String,
        Words("no images are prefetched"),
        "address of the agent whose jobs are followed, as in `http://127.0.0.1:4646`, `https://…` or `unix:///path`",
    ),
    OptionSpec::honoured(
        "token_file",
        OptionType::String,
        Words("anonymous"),
        "file with the ACL token. It is read at each connection",
    ),
    OptionSpec::honoured(
        "ca_file",
        OptionType::String,
        Words("the system's authorities"),
        "file with the certificate authorities (PEM) of the agent",
    ),
    OptionSpec::honoured("cert_file", OptionType::String, Words("none"), "file with the client certificate (PEM)"),
    OptionSpec::honoured("key_file", OptionType::String, Words("none"), "file with the key (PEM) of `cert_file`"),
    OptionSpec::honoured(
        "tls_server_name",
        OptionType::String,
        Words("the address"),
        "name in the agent's certificate, as in `client.global.nomad`",
    ),
    OptionSpec::honoured(
        "datacenter",
        OptionType::String,
        Words("that of the agent at `address`"),
        "datacenter of this node. Jobs of other datacenters are left out",
    ),
    OptionSpec::honoured(
        "node_pool",
        OptionType::String,
        Words("that of the agent at `address`"),
        "node pool of this node. Jobs of other pools are left out, except for those of the pool `all`",
    ),
    OptionSpec::honoured(
        "namespaces",
        OptionType::Strings,
        Literal(r#"["*"]"#),
        "namespaces whose jobs count. `*` matches any characters",
    ),
    OptionSpec::honoured(
        "jobs",
        OptionType::Strings,
        Literal(r#"["*"]"#),
        "ids of the jobs that count. `*` matches any characters",
    ),
    OptionSpec::honoured(
        "types",
        OptionType::Strings,
        Literal(r#"["service","batch","system","sysbatch"]"#),
        "types of the jobs that count",
    ),
    OptionSpec::honoured("min_priority", OptionType::Number, Literal("0"), "lowest priority of the jobs that count"),
    OptionSpec::honoured(
        "images",
        OptionType::Strings,
        Literal(r#"["*"]"#),
        "images that may be prefetched, with their registry, as in `docker.io/library/redis:7`. `*` matches any \
         characters, including `/`",
    ),
    OptionSpec::honoured(
        "drivers",
        OptionType::Strings,
        Words("this plugin's name"),
        "names of the drivers whose tasks count: `oci-rs` and `docker`",
    ),
    OptionSpec::honoured("parallel", OptionType::Number, Literal("2"), "images that are prefetched at the same time"),
];

/// Which images are pulled before their tasks are here, and how the jobs are learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefetchOptions {
    /// The address of the agent.
    pub address: String,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
    /// The file with the certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// The file with the client's certificate.
    pub cert_file: Option<PathBuf>,
    /// The file with its key.
    pub key_file: Option<PathBuf>,
    /// The name in the agent's certificate.
    pub server_name: Option<String>,
    /// This node's datacenter; `None` is that of the agent.
    pub datacenter: Option<String>,
    /// This node's pool; `None` is that of the agent.
    pub node_pool: Option<String>,
    /// Patterns of namespaces.
    pub namespaces: Vec<String>,
    /// Patterns of ids of jobs.
    pub jobs: Vec<String>,
    /// Types of jobs.
    pub types: Vec<String>,
    /// The lowest priority.
    pub min_priority: u64,
    /// Patterns of images.
    pub images: Vec<String>,
    /// The drivers of tasks; `None` is this plugin's own name.
    pub drivers: Option<Vec<String>>,
    /// Images that are pulled at the same time.
    pub parallel: usize,
}

/// Reads the block. `None`: no images are prefetched.
pub fn read(block: &ConfigBlock) -> Option<PrefetchOptions> {
    let patterns = |option| block.strings_if_set(option).unwrap_or_else(|| vec!["*".to_owned()]);
    let options = PrefetchOptions {
        address: block.string("address").unwrap_or_default(),
        token_file: block.absolute_path("token_file"),
        ca_file: block.absolute_path("ca_file"),
        cert_file: block.absolute_path("cert_file"),
        key_file: block.absolute_path("key_file"),
        server_name: block.string("tls_server_name"),
        datacenter: block.string("datacenter"),
        node_pool: block.string("node_pool"),
        namespaces: patterns("namespaces"),
        jobs: patterns("jobs"),
        types: block.strings_if_set("types").unwrap_or_else(|| TYPES.map(str::to_owned).to_vec()),
        min_priority: block.non_negative("min_priority").unwrap_or(0),
        images: patterns("images"),
        drivers: block.strings_if_set("drivers").filter(|names| !names.is_empty()),
        parallel: block.positive("parallel").map_or(2, |number| usize::try_from(number).unwrap_or(MAX_PARALLEL)),
    };
    if options.address.is_empty() {
        if let Some(option) = OPTIONS.iter().find(|option| is_set_without_default(block, option)) {
            block.error(option.name, "has no effect without address", "set address, or remove the block");
        }
        return None;
    }
    if !is_address(&options.address) {
        let problem = format!("{:?} is not the address of an agent", options.address);
        block.error("address", problem, "write it as in \"http://127.0.0.1:4646\" or \"unix:///path\"");
    }
    if block.has("cert_file") != block.has("key_file") {
        block.error("cert_file", "needs key_file beside it, and the other way round", "set both, or neither");
    }
    for name in options.types.iter().filter(|name| !TYPES.contains(&name.as_str())) {
        block.error("types", format!("{name:?} is not a type of jobs"), format!("write some of {}", TYPES.join(", ")));
    }
    let drivers = options.drivers.iter().flatten();
    for name in drivers.filter(|name| !["oci-rs", "docker"].contains(&name.as_str())) {
        block.error("drivers", format!("{name:?} is not a name of this driver"), "write oci-rs, docker or both");
    }
    if options.parallel > MAX_PARALLEL {
        block.error("parallel", format!("is more than {MAX_PARALLEL}"), format!("write {MAX_PARALLEL} at most"));
    }
    Some(options)
}

fn is_address(text: &str) -> bool {
    if let Some(path) = text.strip_prefix("unix://") {
        return path.starts_with('/');
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|host| !host.is_empty() && !host.starts_with('/') && !host.contains(['@', ' ', '?', '#']))
}

/// Whether the operator set an option. Nomad fills in defaults that are literals.
fn is_set_without_default(block: &ConfigBlock, option: &OptionSpec) -> bool {
    matches!(option.default, Words(_)) && block.has(option.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::PrefetchOptions;
    use crate::{
        config::{decode_plugin, from_json},
        name::DriverName,
    };

    fn read(block: Json) -> Result<Option<PrefetchOptions>, String> {
        let decoded = decode_plugin(&from_json(&json!({ "prefetch": block })), DriverName::OciRs);
        decoded.map(|config| config.prefetch).map_err(|errors| errors.to_string())
    }

    #[test]
    fn nothing_is_prefetched_without_an_address() {
        assert_eq!(read(json!({})), Ok(None));
        assert!(decode_plugin(&from_json(&json!({})), DriverName::OciRs).unwrap().prefetch.is_none());
        assert!(read(json!({ "token_file": "/t" })).unwrap_err().contains("token_file: has no effect without address"));
    }

    #[test]
    fn the_defaults_let_every_job_of_the_node_count() {
        let options = read(json!({ "address": "https://127.0.0.1:4646" })).unwrap().unwrap();
        assert_eq!((&options.jobs, &options.images, options.parallel), (&vec!["*".into()], &vec!["*".into()], 2));
        assert_eq!((options.types.len(), options.min_priority, options.drivers), (4, 0, None));
    }

    #[test]
    fn wrong_values_are_named() {
        for (option, value, part) in [
            ("address", json!("127.0.0.1:4646"), "is not the address of an agent"),
            ("address", json!("unix://run/x.sock"), "is not the address of an agent"),
            ("token_file", json!("token"), "is not an absolute path"),
            ("cert_file", json!("/c"), "needs key_file"),
            ("types", json!(["cron"]), "\"cron\" is not a type"),
            ("drivers", json!(["exec"]), "\"exec\" is not a name"),
            ("parallel", json!(1000), "is more than 100"),
            ("min_priority", json!(-1), "cannot be negative"),
        ] {
            let mut block = json!({ "address": "http://127.0.0.1:4646" });
            block[option] = value;
            let errors = read(block).unwrap_err();
            assert!(errors.contains(&format!("prefetch.{option}")) && errors.contains(part), "{errors}");
        }
    }
}
