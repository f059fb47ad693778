//! Network interfaces of the node that move to a container's network namespace, and come back at its end.
//!
//! Always true:
//!
//! - Before an interface moves, a record in the directory of the container's network describes it. The record is
//!   removed when the interface is back. So the next process brings back what a killed process left.
//! - Until the record has the index of an interface, nothing but this crate has changed the interface, and its name
//!   tells which one it is. From then on the index tells it: a container can change a name, but no index.
//! - What comes back is of the kind that was lent. A container cannot put an interface of another kind in its place.
//!
//! An interface that is not brought back before its namespace ends is in the kernel's hands: a virtual one is
//! destroyed, a physical one returns to the first network namespace of the machine, with its name in the container.

mod give_back;
mod lend;
mod messages;
pub(crate) mod record;

use std::path::PathBuf;

pub(crate) use self::{give_back::give_back, lend::lend};

/// The longest name of an interface (linux/if.h, without the final zero).
const LONGEST_NAME: usize = 15;

/// An interface of the node that moves to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name on the node.
    pub(crate) host_name: String,
    /// Its name in the container.
    pub(crate) name: String,
}

/// The interfaces that move to one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LendRequest {
    /// Where they move.
    pub target: LendTarget,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
}

/// The network namespace of a container that interfaces move to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LendTarget {
    /// That of the network to which the container is attached.
    Attached,
    /// A new one that is connected to nothing.
    Unconnected,
    /// That of the container's group, by the file to which it is pinned.
    Group(PathBuf),
}

impl Interface {
    /// An interface with these names. The error is what is wrong with them.
    pub fn new(host_name: &str, name: &str) -> Result<Self, String> {
        for name in [host_name, name] {
            // The kernel makes a number of %d.
            let wrong = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
            if name.is_empty() || name.len() > LONGEST_NAME || [".", ".."].contains(&name) || name.contains(wrong) {
                return Err(format!("{name:?} is not the name of a network interface"));
            }
        }
        Ok(Self { host_name: host_name.to_owned(), name: name.to_owned() })
    }

    /// Its name on the node.
    pub fn host_name(&self) -> &str {
        &self.host_name
    }

    /// Its name in the container.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::Interface;

    #[test]
    fn names_are_those_that_the_kernel_accepts() {
        assert_eq!(Interface::new("enp3s0.17", "fast-0").expect("names").name(), "fast-0");
        for wrong in ["", ".", "..", "a/b", "a b", "eth%d", "a:1", "sixteen-letters0"] {
            for (host, inside) in [(wrong, "eth0"), ("eth0", wrong)] {
                let problem = Interface::new(host, inside).expect_err(wrong);
                assert_eq!(problem, format!("{wrong:?} is not the name of a network interface"));
            }
        }
    }
}
