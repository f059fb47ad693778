//! Removes the rules of a bridge that no container uses any more.

use crate::{
    accept,
    error::Error,
    firewall::{Firewall, all_accepted},
    netlink::Connection,
    nft::{create_table, delete_table},
    table,
};

impl Firewall {
    /// Removes the table of the bridge and the bridge's rules in iptables' filter, with their chain if it is empty
    /// then. What does not exist is no error. A watcher would make the rules again.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], or [`Error::Program`] for rules of iptables-legacy.
    pub fn remove_all(&self) -> Result<(), Error> {
        let name = table::name(&self.bridge().name);
        let connection = Connection::open(&[]).map_err(Error::kernel("remove rules"))?;
        for (family, _) in self.bridge().subnets() {
            // Creating the table first makes its deletion succeed in any case.
            let refused = connection.transact(&[create_table(family, &name), delete_table(family, &name)]);
            refused.and_then(all_accepted).map_err(Error::kernel(format!("remove the table {name}")))?;
        }
        let removed = accept::remove(&connection, self.bridge());
        removed.map_err(Error::kernel("remove the rules in iptables' chain FORWARD"))?;
        accept::remove_legacy(self.bridge(), &accept::seen(self.bridge()))
    }
}
