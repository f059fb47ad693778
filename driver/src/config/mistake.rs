//! Mistakes in a configuration, collected so that its author sees all of them at once.

use std::{cell::RefCell, fmt};

/// One thing that is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The option, with its block: `mount[1].target`.
    pub option: String,
    /// What is wrong with it; never holds a secret.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.problem)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, " ({})", self.remedy) }
    }
}

/// All mistakes of one block; at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// Which block, as its author calls it.
    pub block: &'static str,
    /// In the order in which they were found.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mistakes.as_slice() {
            [only] => write!(f, "invalid {}: {only}", self.block),
            all => {
                write!(f, "invalid {}, {} mistakes:", self.block, all.len())?;
                for (index, mistake) in all.iter().enumerate() {
                    write!(f, " [{}] {mistake}", index + 1)?;
                }
                Ok(())
            }
        }
    }
}

/// Collects mistakes while a block is read. Shared by everything that reads a part of the block.
#[derive(Debug, Default)]
pub struct Mistakes(RefCell<Vec<Mistake>>);

impl Mistakes {
    /// Notes a mistake; one that is known already stays one, because an option may be read more than once.
    pub fn add(&self, option: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) {
        let mistake = Mistake { option: option.into(), problem: problem.into(), remedy: remedy.into() };
        let mut known = self.0.borrow_mut();
        if !known.contains(&mistake) {
            known.push(mistake);
        }
    }

    /// Everything noted.
    pub fn into_inner(self) -> Vec<Mistake> {
        self.0.into_inner()
    }

    /// The value, if nothing was wrong.
    pub fn result<T>(self, block: &'static str, value: T) -> Result<T, ConfigErrors> {
        let mistakes = self.into_inner();
        if mistakes.is_empty() { Ok(value) } else { Err(ConfigErrors { block, mistakes }) }
    }
}
