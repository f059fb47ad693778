//! An error in an option of a log driver.

/// An option with a wrong value, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionError {
    /// The name of the option.
    pub option: String,
    /// The problem.
    pub problem: String,
    /// What the author should write instead.
    pub remedy: String,
}

impl OptionError {
    pub(crate) fn new(option: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { option: option.to_owned(), problem: problem.into(), remedy: remedy.into() }
    }
}
