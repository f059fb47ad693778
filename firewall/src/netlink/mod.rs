//! Messages of netlink's netfilter protocol, and the socket that carries them.

mod attributes;
mod connection;
mod message;

pub(crate) use attributes::{Attributes, fields, find, find_number, find_text};
pub(crate) use connection::{Connection, Refusal};
pub(crate) use message::{APPEND, CREATE, Message, Reply};
