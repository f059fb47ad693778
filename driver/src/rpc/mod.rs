//! Nomad's calls, translated. No other module of the driver knows Nomad's wire types, gRPC or tonic.
//!
//! Every call that changes something runs detached from its request: tonic drops a handler when its client goes away,
//! and half of the change would be left behind. Streams that Nomad expects to stay open never end by themselves.
//!
//! | module | contents |
//! |---|---|
//! | `server` | serves all services on the plugin's socket |
//! | `go_plugin` | go-plugin's own services |
//! | `base` | the plugin's name, version and configuration |
//! | `driver` | the task driver service: each call to its function |
//! | `tasks` | StartTask, RecoverTask, StopTask, DestroyTask |
//! | `exec`, `conversation` | commands in a task, and the messages of an interactive client |
//! | `fingerprints`, `stats`, `task_events` | the streams that the driver sends |
//! | `convert` | the driver's values in their wire form |
//! | `schema` | the schemas of the two `config` blocks |
//! | `task_config` | Nomad's message about a task |
//! | `device` | the services of the device plugin |
//! | `status` | errors in their wire form |
//! | `state` | the state that the services share |

mod base;
mod conversation;
mod convert;
mod device;
mod driver;
mod exec;
mod fingerprints;
mod go_plugin;
mod group_networks;
mod measure;
mod schema;
mod server;
mod state;
mod stats;
mod status;
mod task_config;
mod task_events;
mod tasks;

pub use self::server::{serve, serve_devices};
