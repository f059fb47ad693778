//! The container's id.

use host::hash::fnv1a;
use runtime::plan::ContainerId;

use crate::name::DriverName;

/// The container id of a task. It is safe as a file name, and two different task ids get two different container ids.
///
/// Nomad's ids are `<alloc>/<task>/<random>` and become `<alloc>.<task>.<random>`. If that replaces a character of the
/// task's name, or the id is too long, a hash of the whole task id is appended. The driver's name adds its suffix: an
/// id tells to which driver the container belongs.
pub fn container_id(task_id: &str, driver: DriverName) -> ContainerId {
    /// The hash must fit into a container id beside these characters.
    const MAX_LEN: usize = 180;
    let suffix = driver.container_suffix();
    let length = MAX_LEN - suffix.len();
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_+-".contains(c);
    let is_regular = task_id.len() <= length
        && task_id.starts_with(|c: char| c.is_ascii_alphanumeric())
        // Such an id would end as the ids of the other driver do.
        && DriverName::OciRs.owns(&task_id.replace('/', "."))
        && task_id.chars().all(|c| is_safe(c) || c == '/');
    let mut name: String = task_id
        .chars()
        .take(length)
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
    name.push_str(suffix);
    name.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

/// The prefix of all container ids of an allocation. `None` if the allocation id does not have Nomad's form.
pub fn alloc_prefix(alloc_id: &str) -> Option<String> {
    let plain = !alloc_id.is_empty() && alloc_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    plain.then(|| format!("{alloc_id}."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::alloc_prefix;
    use crate::name::DriverName::{self, Docker, OciRs};

    fn container_id(task_id: &str) -> super::ContainerId {
        super::container_id(task_id, OciRs)
    }

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

    #[test]
    fn the_id_tells_the_driver() {
        let id = "9f7b0c1e-1111-2222-3333-444455556666/web/01234567";
        assert_eq!(super::container_id(id, Docker).as_str(), format!("{}.docker", container_id(id)));
        assert_eq!(
            alloc_prefix("a").map(|prefix| super::container_id("a/b/c", Docker).as_str().starts_with(&prefix)),
            Some(true)
        );
    }

    proptest! {
        #[test]
        fn a_container_belongs_to_the_driver_that_made_its_id(text in "[a./]{0,3}(/docker|[.]docker)?[a/]{0,1}") {
            for driver in [OciRs, Docker] {
                let id = super::container_id(&text, driver);
                let owns = |name: DriverName| name.owns(id.as_str());
                prop_assert!([OciRs, Docker].into_iter().all(|name| owns(name) == (name == driver)));
            }
        }

        #[test]
        fn different_task_ids_get_different_container_ids(a in "[a-c./_ é-]{0,6}", b in "[a-c./_ é-]{0,6}") {
            prop_assert_eq!(a == b, container_id(&a) == container_id(&b));
        }

        #[test]
        fn any_text_becomes_a_valid_container_id(text in any::<String>()) {
            container_id(&text);
            super::container_id(&text.repeat(40), Docker);
        }
    }
}
