//! The use of the store's file system, in bytes and in inodes.

use super::layout::Layout;
use crate::error::StoreError;

/// An amount of disk space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, more: Amount) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.inodes = self.inodes.saturating_add(more.inodes);
    }

    pub(super) fn covers(self, other: Amount) -> bool {
        self.bytes >= other.bytes && self.inodes >= other.inodes
    }
}

/// The use of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskUse {
    pub(crate) bytes: Use,
    pub(crate) inodes: Use,
}

impl DiskUse {
    /// Of the file system that contains the store.
    pub(crate) fn of(layout: &Layout) -> Result<Self, StoreError> {
        let root = layout.root();
        let stat = rustix::fs::statvfs(root).map_err(StoreError::io("examining", root))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Self {
            bytes: Use { used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)), available: bytes(stat.f_bavail) },
            // All zero on file systems that make inodes on demand.
            inodes: Use { used: stat.f_files.saturating_sub(stat.f_ffree), available: stat.f_favail },
        })
    }

    /// The amount to free until at most `percent` are in use.
    pub(super) fn above(self, percent: u8) -> Amount {
        Amount { bytes: self.bytes.above(percent), inodes: self.inodes.above(percent) }
    }
}

/// The use of bytes or of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) used: u64,
    /// Without the reserve of root, as df counts.
    pub(crate) available: u64,
}

impl Use {
    fn total(self) -> u128 {
        u128::from(self.used) + u128::from(self.available)
    }

    /// The percentage in use, rounded up as df does.
    pub(crate) fn percent(self) -> u8 {
        let percent = (u128::from(self.used) * 100).div_ceil(self.total().max(1));
        u8::try_from(percent).unwrap_or(100)
    }

    /// The amount to free until at most `percent` are in use.
    fn above(self, percent: u8) -> u64 {
        let allowed = self.total() * u128::from(percent) / 100;
        u64::try_from(u128::from(self.used).saturating_sub(allowed)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_what_df_says() {
        assert_eq!(Use { used: 0, available: 0 }.percent(), 0);
        assert_eq!(Use { used: 1, available: 999 }.percent(), 1);
        assert_eq!(Use { used: u64::MAX, available: 0 }.percent(), 100);
        assert_eq!(Use { used: 900, available: 100 }.above(85), 50);
    }
}
