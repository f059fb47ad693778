//! Errors in a configuration. They are collected, so that the author sees all of them at once.

use std::{cell::RefCell, fmt};

/// One error in a block, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The option with its block, as in `mount[1].target`.
    pub option: String,
    /// The problem. Never holds a secret.
    pub problem: String,
    /// What the author should write instead. May be empty.
    pub remedy: String,
    /// What the operator can allow instead.
    pub permission: Option<Permission>,
}

/// A part of the plugin block that makes a refused value acceptable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The option of the plugin block with its block, as in `volumes.enabled`.
    pub option: &'static str,
    /// The necessary value.
    pub needs: Needs,
}

/// The value that a task needs in the plugin block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// `true`.
    True,
    /// These entries of a list.
    Entries(Vec<String>),
    /// This number or a larger one.
    AtLeast(i64),
    /// This number or a smaller one.
    AtMost(i64),
    /// A value that the operator chooses.
    AnyValue,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.problem)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, " ({})", self.remedy) }
    }
}

/// All errors of one block; at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// The block, as users call it.
    pub block: &'static str,
    /// In the order in which they were found.
    pub errors: Vec<ConfigError>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errors.as_slice() {
            [only] => write!(f, "invalid {}: {only}", self.block),
            all => {
                write!(f, "invalid {}, {} errors:", self.block, all.len())?;
                for (index, error) in all.iter().enumerate() {
                    write!(f, " [{}] {error}", index + 1)?;
                }
                Ok(())
            }
        }
    }
}

/// Collects the errors of one block. All readers of the block's parts share it.
#[derive(Debug, Default)]
pub struct ErrorCollector(RefCell<Vec<ConfigError>>);

impl ErrorCollector {
    /// Adds an error. Adding the same error twice has no effect, because an option may be read more than once.
    pub fn add(&self, option: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) {
        self.push(option.into(), problem.into(), remedy.into(), None);
    }

    /// Adds an error about a value that the operator can allow.
    pub fn forbid(
        &self,
        option: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
        permission: Permission,
    ) {
        self.push(option.into(), problem.into(), remedy.into(), Some(permission));
    }

    fn push(&self, option: String, problem: String, remedy: String, permission: Option<Permission>) {
        let error = ConfigError { option, problem, remedy, permission };
        let mut errors = self.0.borrow_mut();
        if !errors.contains(&error) {
            errors.push(error);
        }
    }

    /// The collected errors.
    pub fn into_inner(self) -> Vec<ConfigError> {
        self.0.into_inner()
    }

    /// The value, if there was no error.
    pub fn result<T>(self, block: &'static str, value: T) -> Result<T, ConfigErrors> {
        let errors = self.into_inner();
        if errors.is_empty() { Ok(value) } else { Err(ConfigErrors { block, errors }) }
    }
}
