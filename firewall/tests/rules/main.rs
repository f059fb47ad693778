//! The rules in the kernel, tested with real sockets in network namespaces.

mod filters;
mod node;
mod published;
mod tables;
