//! The figures of one start.

use std::{fmt, time::Duration};

use crate::{pull::link::Traffic, report::milliseconds};

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

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ready, whole, cpu, before: Traffic { requests, bytes } } = self;
        write!(
            f,
            "an answer after {:.0} ms, whole after {:.0} ms, {:.2} s of CPU, {requests} requests and {:.1} MB before",
            milliseconds(ready),
            milliseconds(whole),
            cpu.as_secs_f64(),
            *bytes as f64 / 1e6,
        )
    }
}
