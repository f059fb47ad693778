//! The plugin block's options for registries and credentials.

use image_store::{CredentialSources, InternalRedirects, RegistryConfig, Secret};

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Required, Words},
        OptionSpec, OptionType,
    },
};

const HOST_REMEDY: &str = "write only the host and its port, as in \"registry.example:5000\"";

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "registry",
        OptionType::Labelled("host", REGISTRY),
        Words("none"),
        "how to reach one registry. The label is its host, with its port if it has one",
    ),
    OptionSpec::honoured(
        "verify_access",
        OptionType::Bool,
        Words("true, or false with docker's rules"),
        "a task gets an image that was pulled with credentials only if the registry accepts the task's own \
         credentials, or anonymous access, for that image",
    ),
    OptionSpec::honoured(
        "auth",
        OptionType::Block(AUTH),
        Words("none"),
        "sources of credentials for tasks without `auth`",
    ),
];

const REGISTRY: &[OptionSpec] = &[
    OptionSpec::honoured(
        "plain_http",
        OptionType::Bool,
        Words("false"),
        "use HTTP without TLS. Loopback addresses need no such permission",
    ),
    OptionSpec::honoured(
        "ca_file",
        OptionType::String,
        Words("the system's authorities"),
        "file with the certificate authorities (PEM) of this registry, or with its own self-signed certificate",
    ),
    OptionSpec::honoured(
        "cert_file",
        OptionType::String,
        Words("none"),
        "file with the client certificate (PEM) for this registry. It is read again when it changes, like `ca_file` \
         and `key_file`",
    ),
    OptionSpec::honoured("key_file", OptionType::String, Words("none"), "file with the key (PEM) of `cert_file`"),
    OptionSpec::honoured(
        "headers",
        OptionType::StringMaps,
        Words("none"),
        "further headers of requests to this registry. They are sent to no other host",
    ),
    OptionSpec::honoured("insecure_skip_verify", OptionType::Bool, Words("false"), "accept any certificate"),
    OptionSpec::honoured(
        "internal_redirects",
        OptionType::Bool,
        Words("false; with docker's rules true, except for link-local addresses"),
        "redirects of this registry, and its token server, may be on all loopback, link-local and private addresses. \
         Without it they may be on loopback addresses if the registry has one, and on private addresses if the \
         registry has a private or loopback address",
    ),
    OptionSpec::honoured("mirrors", OptionType::Strings, Words("none"), "hosts that are asked first, in this order"),
    OptionSpec::honoured(
        "auth",
        OptionType::Block(REGISTRY_AUTH),
        Words("anonymous"),
        "credentials for tasks without `auth`",
    ),
];

const REGISTRY_AUTH: &[OptionSpec] = &[
    OptionSpec::honoured("username", OptionType::String, Required, "user name"),
    OptionSpec::honoured("password", OptionType::String, Required, "password or token"),
];

const AUTH: &[OptionSpec] = &[
    OptionSpec::honoured(
        "config",
        OptionType::String,
        Words("none"),
        "path of a docker `config.json` (`auths`, `credHelpers`, `credsStore`). It is read at each pull",
    ),
    OptionSpec::honoured(
        "helper",
        OptionType::String,
        Words("none"),
        "credential helper that is asked if the file has no credentials. `x` is the program `docker-credential-x`",
    ),
];

/// Reads one `registry` block. `host` is its label, `internal` the default of `internal_redirects`.
pub fn registry(host: &str, block: &ConfigBlock, internal: InternalRedirects) -> RegistryConfig {
    let mirrors = block.strings("mirrors");
    if !is_host(host) {
        block.errors.add("registry", format!("{host:?} is not a registry's host"), HOST_REMEDY);
    }
    for name in mirrors.iter().filter(|name| !is_host(name)) {
        block.error("mirrors", format!("{name:?} is not a registry's host"), HOST_REMEDY);
    }
    let auth = block.block("auth");
    if auth.has("username") != auth.has("password") {
        block.error("auth", "needs both username and password", "set the missing one, or remove the block");
    }
    if block.has("cert_file") != block.has("key_file") {
        block.error("cert_file", "needs key_file beside it, and the other way round", "set both, or neither");
    }
    let headers = block.string_map("headers").into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    RegistryConfig {
        host: host.to_owned(),
        plain_http: block.bool("plain_http"),
        ca_file: block.absolute_path("ca_file"),
        cert_file: block.absolute_path("cert_file"),
        key_file: block.absolute_path("key_file"),
        headers,
        mirrors,
        insecure_skip_verify: block.bool("insecure_skip_verify"),
        internal_redirects: match [true, false].map(|unset| block.bool_or("internal_redirects", unset)) {
            [true, true] => InternalRedirects::All,
            [false, false] => InternalRedirects::OfRegistry,
            _ => internal,
        },
        username: auth.string("username"),
        password: auth.string("password").map(Secret::new),
    }
}

/// Whether a name is a host with an optional port, and not a URL or an image.
fn is_host(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', ' ', '@', '?', '#'])
}

/// Reads the `auth` block.
pub fn credentials(auth: &ConfigBlock) -> CredentialSources {
    let helper = auth.string("helper");
    if let Some(name) = helper.as_deref().filter(|name| name.contains(['/', ' '])) {
        auth.error(
            "helper",
            format!("{name:?} is no credential helper's name"),
            "leave out the path and docker-credential-, as in \"ecr-login\"",
        );
    }
    CredentialSources { config_file: auth.absolute_path("config"), helper }
}
