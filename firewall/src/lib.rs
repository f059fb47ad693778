//! The packet filter rules that a bridge of containers needs: published ports, masquerading, and the rules that let
//! packets through the filters of others. The kernel is asked over nfnetlink; no program is executed for nf_tables.
//!
//! Always true:
//!
//! - The rules of a bridge do not depend on the number of its containers and ports. Ports are elements of maps, so a
//!   packet costs the same whether one port is published or thousands.
//! - The changes for one call are one transaction, up to 128 ports: a packet meets the rules before it or after it.
//! - Only objects of the bridge's own table are replaced. In tables of others, single rules are added.
//!
//! Pure modules decide (`table`, `entry`) and encode (`nft`, `netlink`); [`Firewall`] acts, and [`Watcher`] restores.

mod accept;
mod conntrack;
mod entry;
mod error;
mod firewall;
mod netlink;
mod nft;
mod port;
mod removal;
mod sys;
mod table;
mod watch;

pub use error::Error;
pub use firewall::Firewall;
pub use port::{Bridge, Protocol, PublishedPort};
pub use watch::Watcher;
