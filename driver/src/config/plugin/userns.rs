//! The plugin block's options for tasks' own user namespaces.

use runtime::plan::{IDS_PER_CONTAINER, IdPool};

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

/// The ids of the pool that the operator need not name. No system's tools assign them by default.
const DEFAULT_POOL: IdPool = IdPool { first: 0x7000_0000, count: 0x0ffe_0000 };

/// The options of `userns`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "mode",
        OptionType::String,
        Words("`\"auto\"`, or `\"off\"` with docker's rules"),
        "`off`: tasks run in the node's user namespace. `auto`: each task gets a user namespace of its own. A task \
         that cannot have one runs in the node's, and an event names the reason. `require`: such a task fails",
    ),
    OptionSpec::honoured(
        "first_id",
        OptionType::Number,
        Literal("1879048192"),
        "first of the node's ids for tasks, which count as user ids and as group ids. No user of the node and no other \
         program may have them",
    ),
    OptionSpec::honoured(
        "ids",
        OptionType::Number,
        Literal("268304384"),
        "number of these ids. Each task gets 65536 of them while it runs",
    ),
    OptionSpec::honoured(
        "subid_user",
        OptionType::String,
        Words("none"),
        "in place of `first_id` and `ids`: a user of the node. Tasks get the ids of this user's first range in \
         `/etc/subuid`, which must be in `/etc/subgid` too",
    ),
];

/// Whether tasks get user namespaces of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserNamespaceMode {
    /// No task gets one.
    Off,
    /// Each task that can have one.
    Auto,
    /// Each task. A task that cannot have one fails.
    Require,
}

/// The source of the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdSource {
    /// These ids.
    Pool(IdPool),
    /// The subordinate ids of this user.
    User(String),
}

/// The operator's settings for tasks' own user namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserNamespaces {
    /// Which tasks get one.
    pub mode: UserNamespaceMode,
    /// Where their ids come from.
    pub ids: IdSource,
}

impl Default for UserNamespaces {
    fn default() -> Self {
        Self { mode: UserNamespaceMode::Auto, ids: IdSource::Pool(DEFAULT_POOL) }
    }
}

/// Reads the block.
pub fn read(block: &ConfigBlock, default: UserNamespaceMode) -> UserNamespaces {
    let mode = match block.string("mode").as_deref() {
        None => default,
        Some("off") => UserNamespaceMode::Off,
        Some("auto") => UserNamespaceMode::Auto,
        Some("require") => UserNamespaceMode::Require,
        Some(other) => {
            block.error("mode", format!("{other:?} is no mode"), "write off, auto or require");
            default
        }
    };
    let pool = pool(block);
    let ids = match block.string("subid_user") {
        Some(_) if block.has("first_id") || block.has("ids") => {
            block.error("subid_user", "replaces `first_id` and `ids`, which are set too", "remove one of them");
            IdSource::Pool(pool)
        }
        Some(user) => IdSource::User(user),
        None => IdSource::Pool(pool),
    };
    UserNamespaces { mode, ids }
}

fn pool(block: &ConfigBlock) -> IdPool {
    let number = |option: &str, default: u32| match block.positive(option).map(u32::try_from) {
        None => default,
        Some(Ok(number)) => number,
        Some(Err(_)) => {
            block.error(option, "is more than the ids of a node, 4294967295", "write a smaller number");
            default
        }
    };
    let pool = IdPool { first: number("first_id", DEFAULT_POOL.first), count: number("ids", DEFAULT_POOL.count) };
    if pool.first < IDS_PER_CONTAINER {
        let remedy = format!("write {IDS_PER_CONTAINER} or more");
        block.error("first_id", "overlaps the ids of the node's own users", remedy);
    }
    if pool.ranges().next().is_none() {
        block.error("ids", "is less than one task needs", format!("write a multiple of {IDS_PER_CONTAINER}"));
    }
    pool
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        config::{decode_plugin, from_json},
        name::DriverName,
    };

    fn decode(block: &serde_json::Value, driver: DriverName) -> Result<UserNamespaces, String> {
        let config = decode_plugin(&from_json(&json!({ "userns": block })), driver);
        config.map(|config| config.policy.userns).map_err(|errors| errors.to_string())
    }

    #[test]
    fn tasks_have_user_namespaces_except_with_dockers_rules() {
        let strict = json!({ "strict": true });
        let config = decode_plugin(&from_json(&strict), DriverName::Docker).expect("valid");
        assert_eq!(config.policy.userns, UserNamespaces::default(), "the rules are those of oci-rs");
        for (driver, mode) in
            [(DriverName::OciRs, UserNamespaceMode::Auto), (DriverName::Docker, UserNamespaceMode::Off)]
        {
            let default = decode(&json!({}), driver).expect("valid");
            assert_eq!(default, UserNamespaces { mode, ..UserNamespaces::default() });
            let block = json!({ "mode": "require", "first_id": 1_000_000, "ids": 131_072 });
            let pool = IdPool { first: 1_000_000, count: 131_072 };
            let expected = UserNamespaces { mode: UserNamespaceMode::Require, ids: IdSource::Pool(pool) };
            assert_eq!(decode(&block, driver), Ok(expected));
        }
        let user = decode(&json!({ "mode": "auto", "subid_user": "nomad" }), DriverName::OciRs).expect("valid");
        assert_eq!(user.ids, IdSource::User("nomad".to_owned()));
        assert_eq!(DEFAULT_POOL.ranges().count(), 4094);
    }

    #[test]
    fn wrong_ids_and_modes_are_refused() {
        for (block, expected) in [
            (json!({ "mode": "on" }), "userns.mode: \"on\" is no mode"),
            (json!({ "first_id": 1000 }), "userns.first_id: overlaps the ids of the node's own users"),
            (json!({ "ids": 65535 }), "userns.ids: is less than one task needs"),
            (json!({ "first_id": 4_294_950_000_u64 }), "userns.ids: is less than one task needs"),
            (json!({ "first_id": 1_u64 << 32 }), "userns.first_id: is more than the ids of a node"),
            (json!({ "subid_user": "nomad", "ids": 65536 }), "userns.subid_user: replaces `first_id` and `ids`"),
        ] {
            let error = decode(&block, DriverName::OciRs).expect_err("refused");
            assert!(error.contains(expected), "{block}: {error}");
        }
    }
}
