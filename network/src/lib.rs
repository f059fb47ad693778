//! Networks of single containers: a namespace that a file pins, connected to the world by CNI plugins.
//!
//! Holds always: before anything of a container's network is made on the host, a record in the state directory says what it is
//! going to be, and the record goes last. Whoever has a lock on the record's directory works on that network alone; a CNI plugin
//! that runs shares the lock, also when the process that started it has been killed. So whatever a killed process left is found
//! and taken down by the next one, and nobody takes down what is still being made.
//!
//! What decides is pure ([`Conflist`], the request to a plugin, the reading of its answer); what acts is around it.

mod admin;
mod conflist;
mod error;
mod gate;
mod namespace;
mod networks;
mod plugin;
mod record;
mod result;
mod settings;
mod sys;
mod wish;

pub use conflist::Conflist;
pub use error::NetworkError;
pub use networks::{Networks, namespace_of};
pub use result::{Attachment, Dns};
pub use settings::Settings;
pub use wish::{Choice, PortMapping, Protocol, Wish};
