//! The errors of the crate.

use std::io;

use crate::port::PublishedPort;

/// The rules of a bridge could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused an action.
    #[error("the kernel's packet filter (nf_tables): {action}: {source}{}", remedy(source))]
    Kernel {
        /// What was to be done.
        action: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A port's address and its container's address belong to different protocol families.
    #[error("port {0} cannot be published: its address and the container's address are of different families")]
    Families(PublishedPort),
    /// A program failed.
    #[error("{program}: {problem}")]
    Program {
        /// The program.
        program: String,
        /// The program's own words.
        problem: String,
    },
}

impl Error {
    /// The error for an action.
    pub(crate) fn kernel(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Kernel { action: action.into(), source }
    }
}

/// The remedy for errors that a kernel without a feature returns.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT) => {
            ". The kernel needs nf_tables with NAT: the modules nf_tables, nft_chain_nat, nft_nat, nft_masq, nft_ct \
             and nft_fib_ipv4 (nft_fib_ipv6 for IPv6)"
        }
        Some(libc::EPERM) => ". The plugin needs root (CAP_NET_ADMIN)",
        _ => "",
    }
}
