//! The metrics of this process: their names and meanings, the events that were counted, and their text.
//!
//! A process without `metrics` in its configuration has no [`Recorder`] and counts nothing. The values of tasks are not
//! kept here: they are read at a scrape (`exporter`).
//!
//! | module | contents |
//! |---|---|
//! | `spec` | the description of one metric |
//! | `labels` | the labels of a task, and bounded labels |
//! | `task` | the metrics of each task |
//! | `node` | the metrics of the node that are read at a scrape |
//! | `recorder` | the metrics of the node that count events |
//! | `pull` | the observation of one pull |
//! | `text` | the text of a scrape, in two formats |

mod labels;
mod node;
mod pull;
mod recorder;
#[cfg(test)]
mod reference;
mod spec;
mod task;
mod text;

pub use self::{
    labels::TaskLabels,
    node::{NodeSample, ProcessSample},
    pull::ObservedPull,
    recorder::{Recorder, StartOutcome, StartPhase},
    task::{LayerSample, TaskSample},
    text::{classic, openmetrics},
};
