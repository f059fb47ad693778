//! The lists of options in `docs/configuration.md` and `docs/devices.md`. They are generated from the schemas, so that
//! both always agree.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites the lists.

use image_store::InternalRedirects;

use fixtures::documents::{check, wrapped};

use super::{
    DEVICE_PLUGIN_OPTIONS, PLUGIN_OPTIONS, PluginConfig, Policy, TASK_OPTIONS, UserNamespaceMode, decode_plugin,
    option::{DefaultValue, OptionSpec, OptionType, Support},
    plugin::Rules,
};
use crate::name::DriverName;

/// One list item per option, in the order of their names. The options of a block follow it.
fn list(path: &str, options: &[OptionSpec]) -> String {
    let mut options: Vec<&OptionSpec> = options.iter().collect();
    options.sort_by_key(|option| option.name);
    options.into_iter().map(|option| item(path, option)).collect()
}

fn item(path: &str, option: &OptionSpec) -> String {
    let name = format!("{path}{}", option.name);
    let (kind, nested) = kind(option.kind);
    let default = match option.default {
        DefaultValue::Required => " Must be set.".to_owned(),
        DefaultValue::Words("") => String::new(),
        // With spaces, so that a long list can be wrapped.
        DefaultValue::Literal(literal) => format!(" Default: `{}`.", literal.replace("\",\"", "\", \"")),
        DefaultValue::Words(words) => format!(" Default: {words}."),
    };
    let (support, remedy) = match option.support {
        Support::Honoured => ("works", String::new()),
        Support::Partial => ("works in part", String::new()),
        Support::Ignored => ("no effect", String::new()),
        Support::Refused(remedy) => ("**error**", format!(" Instead: {remedy}.")),
    };
    let help = sentence(option.help);
    let text = format!("- **`{name}`** ({kind}, {support}). {help}{remedy}{default}");
    // The options of `mounts` are those of `mount`, which has been listed before.
    let nested = if name == "mounts" { String::new() } else { list(&format!("{name}."), nested) };
    wrapped("  ", &text) + &nested
}

/// The text with a capital letter at its start and a full stop at its end.
fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", rest.as_str())
}

fn kind(kind: OptionType) -> (&'static str, &'static [OptionSpec]) {
    match kind {
        OptionType::String => ("string", &[]),
        OptionType::Bool => ("bool", &[]),
        OptionType::Number => ("number", &[]),
        OptionType::Strings => ("list(string)", &[]),
        OptionType::StringMaps => ("map of strings", &[]),
        OptionType::NumberMaps => ("map of numbers", &[]),
        OptionType::StringAttrs => ("block of strings", &[]),
        OptionType::Block(options) => ("block", options),
        OptionType::Blocks(options) => ("repeated block", options),
        OptionType::Labelled(_, options) => ("repeated block with a label", options),
    }
}

/// A rule for tasks: its option, and its default with oci-rs's rules and with docker's.
type Rule = (&'static str, String, String);

/// The rules with defaults that depend on the driver's name, then those in which both drivers agree.
fn rules() -> Vec<Rule> {
    let config = |driver| decode_plugin(b"", driver).unwrap();
    let (own, docker) = (config(DriverName::OciRs), config(DriverName::Docker));
    let list = |list: &[String]| if list.is_empty() { "none".to_owned() } else { format!("`{list:?}`") };
    let row = |name, value: &dyn Fn(&PluginConfig) -> String| (name, value(&own), value(&docker));
    let caps = |config: &PluginConfig| {
        let names = config.policy.allow_caps.names.len();
        format!(
            "{names}, {} `NET_RAW`",
            if config.policy.allow_caps.names.contains("CAP_NET_RAW") { "with" } else { "without" }
        )
    };
    vec![
        row("alloc_nosuid", &|config| format!("`{}`", config.policy.alloc_nosuid)),
        row("allow_devices", &|config| list(&config.policy.allow_devices)),
        row("allow_log_paths", &|config| match &config.policy.allow_log_paths {
            None => "all in docker's options".to_owned(),
            Some(allowed) => list(allowed),
        }),
        row("allow_security_opts", &|config| list(&config.policy.allow_security_opts)),
        row("allowed_modes.ipc", &|config| list(&config.policy.allowed_modes.ipc)),
        row("allowed_modes.pid", &|config| list(&config.policy.allowed_modes.pid)),
        row("allowed_modes.userns", &|config| list(&config.policy.allowed_modes.userns)),
        row("allowed_modes.uts", &|config| list(&config.policy.allowed_modes.uts)),
        row("exec.max_commands", &|config| config.exec.max_commands.to_string()),
        row("min_oom_score_adj", &|config| config.policy.min_oom_score_adj.to_string()),
        row("no_new_privileges", &|config| format!("`{}`", config.policy.no_new_privileges)),
        row("pids_limit", &|config| {
            let limit = config.policy.pids_limit.or(config.policy.default_pids_limit);
            limit.map_or("none".to_owned(), |limit| format!("{limit}, no maximum"))
        }),
        row("registry.internal_redirects", &|config| match config.internal_redirects {
            InternalRedirects::OfRegistry => "`false`".to_owned(),
            InternalRedirects::ExceptLinkLocal => "`true`, without link-local addresses".to_owned(),
            InternalRedirects::All => "`true`".to_owned(),
        }),
        row("userns.mode", &|config| match config.policy.userns.mode {
            UserNamespaceMode::Off => "`off`".to_owned(),
            UserNamespaceMode::Auto => "`auto`".to_owned(),
            UserNamespaceMode::Require => "`require`".to_owned(),
        }),
        row("selinux_enabled", &|config| format!("`{}`", config.policy.selinux_enabled)),
        row("verify_access", &|config| format!("`{}`", config.verify_access)),
        row("volumes.allow_shared", &|config| format!("`{}`", config.policy.allow_shared)),
        row("volumes.allow_types", &|config| list(&config.policy.volume_types)),
        row("allow_caps", &caps),
        row("allow_log_drivers", &|config| list(&config.policy.allow_log_drivers)),
        row("allow_privileged", &|config| format!("`{}`", config.policy.allow_privileged)),
        row("allow_runtimes", &|config| list(&config.policy.allow_runtimes)),
        row("allowed_modes.cgroupns", &|config| list(&config.policy.allowed_modes.cgroupns)),
        row("volumes.enabled", &|config| format!("`{}`", config.policy.volumes_enabled)),
    ]
}

fn table() -> String {
    let rows = rules().into_iter().map(|(name, own, docker)| format!("| `{name}` | {own} | {docker} |\n"));
    "| option | `oci-rs`, or `strict = true` | `docker` |\n|---|---|---|\n".to_owned() + &rows.collect::<String>()
}

/// The table names every rule in which the two sets differ.
#[test]
fn no_other_rule_depends_on_the_name() {
    let own = Policy::default();
    let docker = Policy::of(Rules::Docker);
    let same = Policy {
        allow_security_opts: docker.allow_security_opts.clone(),
        allowed_modes: docker.allowed_modes.clone(),
        no_new_privileges: false,
        alloc_nosuid: false,
        allow_devices: docker.allow_devices.clone(),
        allow_log_paths: None,
        allow_shared: true,
        min_oom_score_adj: docker.min_oom_score_adj,
        default_pids_limit: None,
        userns: docker.userns.clone(),
        volume_types: docker.volume_types.clone(),
        selinux_enabled: false,
        ..own
    };
    assert_eq!(same, docker);
    let differing = rules().into_iter().take_while(|(_, own, docker)| own != docker).count();
    assert!(differing == 18 && rules().iter().skip(differing).all(|(_, own, docker)| own == docker));
}

#[test]
fn the_document_lists_the_options_of_the_schema() {
    let parts =
        [("plugin options", list("", PLUGIN_OPTIONS)), ("task options", list("", TASK_OPTIONS)), ("rules", table())];
    check("configuration.md", &parts);
    check("devices.md", &[("device plugin options", list("", DEVICE_PLUGIN_OPTIONS))]);
}

#[test]
fn every_option_is_described() {
    fn check(options: &[OptionSpec]) {
        for option in options {
            assert!(!option.help.is_empty() && !option.help.contains(['\n', '|']), "{}", option.name);
            assert!(
                options.iter().filter(|other| other.name == option.name).count() == 1,
                "{} occurs twice",
                option.name
            );
            check(kind(option.kind).1);
        }
    }
    check(PLUGIN_OPTIONS);
    check(TASK_OPTIONS);
    check(DEVICE_PLUGIN_OPTIONS);
}
