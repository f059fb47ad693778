//! The figures of one start.

use std::time::Duration;

use crate::pull::link::Traffic;

/// One start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// The time until the first correct answer.
    pub ready: Duration,
    /// The time until the whole image is on the node.
    pub whole: Duration,
    /// The processor time of the program that pulls.
    pub cpu: Duration,
    /// What went through the link before the answer.
    pub before: Traffic,
}
