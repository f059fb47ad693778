//! Docker's log drivers, as a task or the operator names them.

/// The target of a task's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogDriver {
    /// Nomad collects it. With docker these drivers keep the output on the node, where Nomad reads it.
    #[default]
    Nomad,
    /// It is discarded.
    Discard,
}

impl LogDriver {
    /// The driver with this name; `None` if it is not supported.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "json-file" | "local" => Some(Self::Nomad),
            "none" => Some(Self::Discard),
            _ => None,
        }
    }
}
