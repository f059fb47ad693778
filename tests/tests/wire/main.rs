//! Nomad's wire, case by case, against the built binary: what an agent does to a plugin, and what it relies on.

mod bad_input;
mod base;
mod credentials;
mod ends;
mod exec;
mod exec_streaming;
mod handshake;
mod lifecycle;
mod limits;
mod load;
mod mounts;
mod names;
mod network;
mod operator;
mod output;
mod pull;
mod races;
mod recovery;
mod retention;
mod roots;
mod security;
mod stats;
mod stop;
mod unread;
mod upgrade;
mod users;
