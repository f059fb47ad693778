//! The subordinate ids of a user (subuid(5), subgid(5)).

use std::fs;

use runtime::plan::{IDS_PER_CONTAINER, IdPool};

/// The user's first range of `/etc/subuid` that is in `/etc/subgid` too and holds the ids of a container. Blocks.
pub fn read(user: &str) -> Option<IdPool> {
    let [users, groups] = ["/etc/subuid", "/etc/subgid"].map(|file| fs::read_to_string(file).unwrap_or_default());
    find(user, &users, &groups)
}

fn find(user: &str, users: &str, groups: &str) -> Option<IdPool> {
    let ranges = |text: &str| -> Vec<IdPool> { text.lines().filter_map(|line| parse(user, line)).collect() };
    let groups = ranges(groups);
    ranges(users).into_iter().find(|range| groups.contains(range))
}

/// The range of a line `user:first:count`, if it is the user's and of use. Lower ids can be those of the node's own
/// users.
fn parse(user: &str, line: &str) -> Option<IdPool> {
    let mut fields = line.trim().split(':');
    let own = fields.next() == Some(user);
    let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (own && first >= IDS_PER_CONTAINER && count >= IDS_PER_CONTAINER).then_some(IdPool { first, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_that_both_files_have_is_taken() {
        let users = "root:1:5\nnomad:x:1\nnomad:0:65536\nnomad:1000:65536\nnomad:100000:65536\n\
                     nomad:200000:9\nnomad:300000:131072\nother:500000:65536\n";
        let groups = "nomad:300000:131072\nnomad:100000:65535\nnomad:1000:65536\nnomad:200000:9\nother:500000:65536\n";
        assert_eq!(find("nomad", users, groups), Some(IdPool { first: 300_000, count: 131_072 }));
        assert_eq!(find("nomad", users, ""), None);
        assert_eq!(find("nobody", users, groups), None);
    }
}
