//! Commands in a running task: collected for script checks, or streamed for an interactive client.
//!
//! A command ends when its first process ends. The output of that process is read to its last byte, but background
//! processes that still hold the pipes are not waited for. If the client goes away, its command is ended.
//!
//! | module | contents |
//! |---|---|
//! | `collect` | runs a command to its end and keeps the last output |
//! | `stream` | runs a command for an interactive client |
//! | `process` | starts a command and waits for its end |
//! | `endpoint` | the plugin's ends of pipes and terminals |
//! | `debug_image` | the image that provides additional programs for a command |

mod collect;
pub mod debug_image;
mod endpoint;
mod process;
mod stream;

pub use self::{
    collect::collect,
    stream::{ExecInput, ExecOutput, InteractiveClient, InteractiveCommand, stream},
};
