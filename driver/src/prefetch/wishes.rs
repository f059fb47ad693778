//! The wanted images of all jobs, and those that wait for their pull. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use image_store::Reference;

/// The number of different images that are wanted at once. Further images are left to the starts of their tasks.
const MOST_IMAGES: usize = 1000;

/// A job: its namespace and its id.
pub type JobKey = (String, String);

/// The wanted images.
#[derive(Debug, Default)]
pub struct Wishes {
    /// Each job with its version and its images, and with whether a task asks the registry at each start.
    jobs: BTreeMap<JobKey, (u64, BTreeMap<Reference, bool>)>,
    /// The number of jobs that want an image.
    users: BTreeMap<Reference, usize>,
    queue: VecDeque<Reference>,
    /// Images that wait until the disk has room.
    postponed: BTreeSet<Reference>,
}

impl Wishes {
    /// Whether this version of a job is known: the index at which its definition changed, or 0 if that is unknown.
    pub fn has(&self, job: &JobKey, version: u64) -> bool {
        version != 0 && self.jobs.get(job).is_some_and(|(known, _)| *known == version)
    }

    /// Replaces the images of a job, and queues all of them: also those that it had, because their names may mean
    /// something new. Returns the number of images that are too many.
    pub fn set(&mut self, job: JobKey, version: u64, mut images: BTreeMap<Reference, bool>) -> usize {
        self.remove(&job);
        let all = images.len();
        images.retain(|name, _| {
            let fits = self.users.len() < MOST_IMAGES || self.users.contains_key(name);
            if fits {
                *self.users.entry(name.clone()).or_default() += 1;
                self.push(name);
            }
            fits
        });
        let too_many = all - images.len();
        self.jobs.insert(job, (version, images));
        too_many
    }

    /// Removes a job.
    pub fn remove(&mut self, job: &JobKey) {
        let Some((_, images)) = self.jobs.remove(job) else { return };
        for name in images.into_keys() {
            if let Some(users) = self.users.get_mut(&name) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&name);
                    self.postponed.remove(&name);
                }
            }
        }
    }

    /// Removes all other jobs.
    pub fn retain(&mut self, jobs: &BTreeSet<JobKey>) {
        let gone: Vec<JobKey> = self.jobs.keys().filter(|job| !jobs.contains(*job)).cloned().collect();
        gone.iter().for_each(|job| self.remove(job));
    }

    fn push(&mut self, name: &Reference) {
        if !self.queue.contains(name) {
            self.queue.push_back(name.clone());
        }
    }

    /// The next image to pull, with whether its registry has to be asked.
    pub fn next(&mut self) -> Option<(Reference, bool)> {
        while let Some(name) = self.queue.pop_front() {
            if self.users.contains_key(&name) {
                let force = self.jobs.values().any(|(_, images)| images.get(&name) == Some(&true));
                return Some((name, force));
            }
        }
        None
    }

    /// The disk has no room for an image.
    pub fn postpone(&mut self, name: Reference) {
        if self.users.contains_key(&name) {
            self.postponed.insert(name);
        }
    }

    /// Queues the images for which the disk had no room. Returns their number.
    pub fn resume(&mut self) -> usize {
        let postponed = std::mem::take(&mut self.postponed);
        postponed.iter().for_each(|name| self.push(name));
        postponed.len()
    }

    /// Whether images wait until the disk has room.
    pub fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// All wanted images.
    pub fn all(&self) -> Vec<Reference> {
        self.users.keys().cloned().collect()
    }

    /// The number of images that wait for their pull.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image(name: &str) -> Reference {
        format!("r.example/{name}:1").parse().unwrap()
    }

    fn images(names: &[&str]) -> BTreeMap<Reference, bool> {
        names.iter().map(|name| (image(name), false)).collect()
    }

    fn job(id: &str) -> JobKey {
        ("default".to_owned(), id.to_owned())
    }

    fn pulled(wishes: &mut Wishes) -> Vec<Reference> {
        std::iter::from_fn(|| wishes.next()).map(|(name, _)| name).collect()
    }

    #[test]
    fn an_image_waits_once_and_not_longer_than_a_job_wants_it() {
        let mut wishes = Wishes::default();
        wishes.set(job("a"), 1, images(&["x", "y"]));
        wishes.set(job("b"), 1, images(&["y", "z"]));
        assert_eq!(wishes.waiting(), 3);
        wishes.set(job("a"), 1, images(&["x2"]));
        wishes.remove(&job("b"));
        assert_eq!(pulled(&mut wishes), [image("x2")], "x is replaced, and b is gone with y and z");
        assert_eq!(wishes.all(), [image("x2")]);
        wishes.retain(&BTreeSet::from([job("c")]));
        assert!(wishes.all().is_empty() && wishes.jobs.is_empty());
    }

    #[test]
    fn a_changed_job_is_looked_at_again() {
        let mut wishes = Wishes::default();
        wishes.set(job("a"), 1, images(&["x"]));
        assert_eq!(pulled(&mut wishes).len(), 1);
        assert!(wishes.has(&job("a"), 1) && !wishes.has(&job("a"), 2) && !wishes.has(&job("b"), 1));
        wishes.set(job("a"), 2, BTreeMap::from([(image("x"), true)]));
        assert_eq!(wishes.next(), Some((image("x"), true)));
    }

    #[test]
    fn images_without_room_wait_until_there_is_some() {
        let mut wishes = Wishes::default();
        wishes.set(job("a"), 1, images(&["x", "y"]));
        assert_eq!(pulled(&mut wishes).len(), 2);
        wishes.postpone(image("x"));
        wishes.postpone(image("of-no-job"));
        assert!(wishes.next().is_none() && wishes.has_postponed());
        assert_eq!((wishes.resume(), pulled(&mut wishes)), (1, vec![image("x")]));
        wishes.postpone(image("x"));
        wishes.remove(&job("a"));
        assert!(!wishes.has_postponed());
    }

    #[test]
    fn the_number_of_images_is_bounded() {
        let mut wishes = Wishes::default();
        let names: Vec<String> = (0..MOST_IMAGES + 5).map(|number| format!("i{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(wishes.set(job("a"), 1, images(&names)), 5);
        assert_eq!(wishes.set(job("b"), 1, images(&["other"])), 1);
        assert_eq!(wishes.all().len(), MOST_IMAGES);
    }

    proptest! {
        #[test]
        fn the_wanted_images_are_those_of_the_jobs(
            changes in prop::collection::vec((0..3_u8, prop::collection::btree_set(0..5_u8, 0..4)), 0..20),
        ) {
            let (mut wishes, mut model) = (Wishes::default(), BTreeMap::new());
            for (id, names) in changes {
                let names: Vec<String> = names.iter().map(|name| format!("i{name}")).collect();
                let names = images(&names.iter().map(String::as_str).collect::<Vec<_>>());
                wishes.set(job(&id.to_string()), 1, names.clone());
                model.insert(id, names);
                let all: BTreeSet<Reference> = model.values().flat_map(|names| names.keys().cloned()).collect();
                prop_assert_eq!(wishes.all(), all.into_iter().collect::<Vec<_>>());
            }
        }
    }
}
