//! Docker's log drivers, as a task or the operator names them.

use std::collections::BTreeMap;

use log_drivers::{DRIVERS, LogOptions};

use super::block::ConfigBlock;

/// The target of a task's output.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum LogDriver {
    /// Nomad collects it. With docker these drivers keep the output on the node, where Nomad reads it.
    #[default]
    Nomad,
    /// It is discarded.
    Discard,
    /// Nomad collects it, and it is also delivered to a log server.
    Deliver(Box<LogOptions>),
}

impl LogDriver {
    /// The driver with this name. `options` is the option of the block that has the driver's options. Errors in them
    /// are added to the block. `None` if there is no such driver.
    pub fn read(name: &str, block: &ConfigBlock, options: &str) -> Option<Self> {
        match name {
            "json-file" | "local" => Some(Self::Nomad),
            "none" => Some(Self::Discard),
            name => Self::deliver(name, &block.string_map(options), block, options),
        }
    }

    fn deliver(name: &str, values: &BTreeMap<String, String>, block: &ConfigBlock, options: &str) -> Option<Self> {
        match LogOptions::read(name, values)? {
            Ok(read) => Some(Self::Deliver(Box::new(read))),
            Err(errors) => {
                for error in errors {
                    block.error(&format!("{options}.{}", error.option), error.problem, error.remedy);
                }
                Some(Self::Nomad)
            }
        }
    }

    /// The names of all drivers, for errors.
    pub fn names() -> String {
        format!("json-file, local, none, {}", DRIVERS.join(", "))
    }
}
