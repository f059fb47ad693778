//! The task block's options for the image.

use image_store::{Credentials, Reference, Secret};

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Required, Words},
        OptionSpec, OptionType,
    },
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "image",
        OptionType::String,
        Required,
        "the image, as in `nginx:1.27` or `registry.example/app@sha256:…`",
    ),
    OptionSpec::honoured(
        "auth",
        OptionType::Block(AUTH),
        Words("the plugin's `auth`, its `registry` block, or anonymous access"),
        "credentials for the registry",
    ),
    OptionSpec::honoured(
        "auth_soft_fail",
        OptionType::Bool,
        Words("false"),
        "if the plugin's `auth.config` or `auth.helper` fails, continue as if it had no credentials",
    ),
    OptionSpec::honoured(
        "force_pull",
        OptionType::Bool,
        Words("false"),
        "ask the registry even if the image is present",
    ),
    OptionSpec::honoured(
        "image_pull_timeout",
        OptionType::String,
        Words("the plugin's, `5m`"),
        "total timeout of the pull",
    ),
    OptionSpec::honoured(
        "lazy",
        OptionType::Bool,
        Words("true"),
        "start before the image is complete if it is a native one, see [lazy images](lazy-images.md). `false` pulls it \
         whole first. Docker's driver has no such option",
    ),
    OptionSpec::honoured(
        "load",
        OptionType::String,
        Words("the image is pulled"),
        "archive that holds the image, relative to the task's `local` directory: from `docker save` or an OCI layout, \
         compressed or not. `image` is the image's name in the archive",
    ),
];

const AUTH: &[OptionSpec] = &[
    OptionSpec::honoured("username", OptionType::String, Words("none"), "user name"),
    OptionSpec::honoured("password", OptionType::String, Words("none"), "password or token"),
    OptionSpec::ignored("email", OptionType::String, "", "not used by registries"),
    OptionSpec::ignored("server_address", OptionType::String, "", "the registry follows from `image`"),
];

/// Reads `image` and checks its form.
pub fn reference(block: &ConfigBlock) -> String {
    let image = block.string("image").unwrap_or_default();
    if !block.has("image") {
        block.error("image", "is missing", "name an image, as in \"nginx:1.27\"");
    } else if !image.is_empty()
        && let Err(error) = image.parse::<Reference>()
    {
        block.error("image", error.to_string(), "write it as in \"nginx:1.27\" or \"registry.example/team/app:1\"");
    }
    image
}

/// Reads `load`: a path below the task's local directory.
pub fn load(block: &ConfigBlock) -> Option<String> {
    let path = block.string("load").filter(|path| !path.is_empty())?;
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        block.error(
            "load",
            format!("{path:?} is not a path below the task's local directory"),
            "write it relative to that directory, as in \"image.tar\"",
        );
    }
    Some(path)
}

/// Reads the `auth` block.
pub fn auth(block: &ConfigBlock) -> Option<Credentials> {
    match (block.string("username"), block.string("password")) {
        (Some(username), Some(password)) => Some(Credentials { username, password: Secret::new(password) }),
        (None, None) => None,
        (username, _) => {
            let (missing, given) = if username.is_some() { ("password", "username") } else { ("username", "password") };
            if !block.has(missing) {
                block.error(missing, format!("is missing beside {given}"), "set both, or remove the block");
            }
            None
        }
    }
}
