//! The container's id.

use runtime::plan::ContainerId;

/// The container id of a task. It is safe as a file name, and two different task ids get two different container ids.
///
/// Nomad's ids are `<alloc>/<task>/<random>` and become `<alloc>.<task>.<random>`. If that replaces a character of the
/// task's name, or the id is too long, a hash of the whole task id is appended.
pub fn container_id(task_id: &str) -> ContainerId {
    /// The hash must fit into a container id beside these characters.
    const MAX_LEN: usize = 180;
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_+-".contains(c);
    let is_regular = task_id.len() <= MAX_LEN
        && task_id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && task_id.chars().all(|c| is_safe(c) || c == '/');
    let mut name: String = task_id
        .chars()
        .take(MAX_LEN)
        .map(|c| match c {
            '/' | '.' => '.',
            c if is_safe(c) => c,
            _ => '_',
        })
        .collect();
    if !is_regular {
        name = format!("{}.{:016x}", name.trim_start_matches(['.', '-']), fnv1a(task_id.as_bytes()));
        name = name.trim_start_matches('.').to_owned();
    }
    name.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

/// The prefix of all container ids of an allocation. `None` if the allocation id does not have Nomad's form.
pub fn alloc_prefix(alloc_id: &str) -> Option<String> {
    let plain = !alloc_id.is_empty() && alloc_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    plain.then(|| format!("{alloc_id}."))
}

/// The FNV-1a hash. Unlike the standard library's hash it is the same in every build.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{alloc_prefix, container_id};

    #[test]
    fn container_ids_begin_with_the_allocations_prefix() {
        let prefix = alloc_prefix("9f7b0c1e-1111-2222-3333-444455556666").unwrap();
        for name in ["web", "a.b/c", "ü"] {
            let id = container_id(&format!("9f7b0c1e-1111-2222-3333-444455556666/{name}/01234567"));
            assert!(id.as_str().starts_with(&prefix), "{id}");
        }
        assert!(!container_id("9f7b0c1e-1111-2222-3333-4444555566661/web/1").as_str().starts_with(&prefix));
        assert_eq!((alloc_prefix(""), alloc_prefix("a/b")), (None, None));
    }

    #[test]
    fn a_regular_task_id_stays_readable() {
        let id = "9f7b0c1e-1111-2222-3333-444455556666/web/01234567";
        assert_eq!(container_id(id).as_str(), "9f7b0c1e-1111-2222-3333-444455556666.web.01234567");
        assert_eq!(
            container_id("9f7b0c1e-1111-2222-3333-444455556666").as_str(),
            "9f7b0c1e-1111-2222-3333-444455556666"
        );
    }

    proptest! {
        #[test]
        fn different_task_ids_get_different_container_ids(a in "[a-c./_ é-]{0,6}", b in "[a-c./_ é-]{0,6}") {
            prop_assert_eq!(a == b, container_id(&a) == container_id(&b));
        }

        #[test]
        fn any_text_becomes_a_valid_container_id(text in any::<String>()) {
            container_id(&text);
        }
    }
}
