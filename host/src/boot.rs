//! The id of the running boot.
//!
//! A record that names another boot describes processes that are gone, and files that may be torn if they were not
//! synced.

use std::{fs, io};

/// Where the kernel shows the id (random(4)).
pub const PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The id of the running boot, a UUID.
pub fn id() -> io::Result<String> {
    Ok(fs::read_to_string(PATH)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_id_is_one_uuid_and_stays_the_same() {
        let id = super::id().unwrap();
        assert_eq!(id.len(), 36, "{id}");
        assert_eq!(id, super::id().unwrap());
    }
}
