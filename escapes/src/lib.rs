//! Attempts to leave a container, or to learn about the node from inside. The program `attempts` makes them in a
//! container of docker and in ours; `results.tsv` has the result of each, and `docs/escapes.md` is generated from it.
//!
//! An attempt must fail with oci-rs, or say why its success is harmless. No attempt harms a node on which it succeeds.

pub mod attempt;
pub mod attempts;
pub mod document;
pub mod results;
pub mod sys;
pub mod watch;
