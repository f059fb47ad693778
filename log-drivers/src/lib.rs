//! Docker's log drivers that send a container's output over a socket.
//!
//! [`LogOptions`] are the checked options of a task. With what is known of the container ([`ContainerFacts`]) they
//! become a [`Delivery`], which is plain data. A process that has the container's output splits it with [`Lines`] into
//! messages, as docker does, and sends them with a [`Sink`].
//!
//! Options, templates and formats are functions of values. Only `connection` and `sink` use sockets, and they block.

mod address;
mod attributes;
mod connection;
mod delivery;
mod error;
mod fluentd;
mod gelf;
mod journald;
mod json;
mod lines;
mod local_time;
mod message;
mod options;
mod sink;
mod sys;
mod syslog;
mod template;
mod values;

pub use delivery::{ContainerFacts, Delivery, Destination, Mode, container_id};
pub use error::OptionError;
pub use lines::Lines;
pub use message::{Message, Partial, Source};
pub use options::{DRIVERS, LogOptions, NodeFile};
pub use sink::Sink;
pub use values::size;
