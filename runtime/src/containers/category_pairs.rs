//! The pairs of SELinux categories of containers. A pair is chosen at random, because other programs give pairs to
//! their containers too and cannot be asked.

use super::assignments::{Assignments, InUse, Kind, PlannedValues, random};
use crate::{error::StartErrorKind, plan::CategoryPair};

/// The pairs of the containers of one state directory.
pub(super) type CategoryPairs = Assignments<Pairs>;

/// Pairs of categories.
pub(super) struct Pairs;

impl Kind for Pairs {
    type Pool = ();
    type Value = CategoryPair;
    const FILE: &'static str = "selinux-categories";
    const FAILURE: StartErrorKind = StartErrorKind::Internal;

    fn of_plan(plan: PlannedValues) -> Option<CategoryPair> {
        plan.selinux.and_then(|labels| labels.categories)
    }

    fn number(pair: CategoryPair) -> u32 {
        pair.number()
    }

    fn choose(_: (), _: Option<u32>, in_use: &InUse) -> Option<CategoryPair> {
        choose((random() % u64::from(CategoryPair::COUNT)) as u32, in_use)
    }

    fn exhausted(_: ()) -> String {
        format!("containers have all {} pairs of SELinux categories", CategoryPair::COUNT)
    }
}

/// The first free pair from this one on.
fn choose(first: u32, in_use: &InUse) -> Option<CategoryPair> {
    let free = (first..CategoryPair::COUNT).chain(0..first).find(|number| !in_use.contains_key(number));
    free.and_then(CategoryPair::of_number)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use serde_json::json;

    use super::*;
    use crate::{
        error::StartError,
        plan::ContainerId,
        state::{self, PLAN, TaskDir},
    };

    #[test]
    fn a_pair_is_chosen_from_any_place_on() {
        let container = || "a".parse::<ContainerId>().expect("an id");
        let last = CategoryPair::COUNT - 1;
        let in_use: InUse = [(0, container()), (7, container()), (last, container())].into();
        for (first, expected) in [(1, 1), (7, 8), (last, 1), (0, 1)] {
            assert_eq!(choose(first, &in_use).map(CategoryPair::number), Some(expected), "{first}");
        }
    }

    #[test]
    fn a_pair_in_use_is_not_given_again_also_by_another_process() {
        let state = tempfile::tempdir().expect("a directory");
        fs::create_dir(state::tasks(state.path())).expect("a directory");
        let assign = |pairs: &CategoryPairs, name: String| {
            let id: ContainerId = name.parse().expect("an id");
            let task = TaskDir::new(state.path(), &id);
            task.create().expect("a directory");
            let mut assigned = 0;
            let made: Result<(), StartError> = pairs.assign(&id, (), |pair| {
                assigned = pair.number();
                let labels = json!({ "process": "p", "file": "f", "own_categories": true, "categories": pair });
                Ok(task.commit(PLAN, &json!({ "id": id, "selinux": labels }))?)
            });
            made.map(|()| assigned).expect("a pair")
        };
        let (one, other) = (CategoryPairs::new(state.path()), CategoryPairs::new(state.path()));
        let mut seen = BTreeSet::new();
        for index in 0..20 {
            seen.insert(assign(if index % 2 == 0 { &one } else { &other }, format!("t{index}")));
        }
        assert_eq!(seen.len(), 20);
        let in_use: BTreeSet<u32> = CategoryPairs::new(state.path()).known().expect("the pairs").into_keys().collect();
        assert_eq!(in_use, seen, "the plans are the record");
    }
}
