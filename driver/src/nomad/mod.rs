//! Nomad's HTTP API, and jobs in the form that it has there.
//!
//! | module | contents |
//! |---|---|
//! | `api` | requests to an agent |
//! | `events` | the event stream |
//! | `interpolation` | `${…}` in texts of a job |
//! | `job` | the parts of a job, and the variables that are known before it is on a node |
//! | `images` | the images that the tasks of a job need |

mod api;
mod events;
mod images;
mod interpolation;
pub mod job;

pub use self::{
    api::{Api, ApiError, ApiSettings},
    events::{EventStream, Frame},
    images::{TaskImage, task_images},
    interpolation::interpolate,
};
