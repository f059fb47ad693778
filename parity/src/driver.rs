//! The two drivers that are compared.

/// One of the two drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// Nomad's built-in driver.
    Docker,
    /// The driver under test.
    Ours,
}

impl Driver {
    /// The name in a job.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Ours => "oci-rs",
        }
    }
}
