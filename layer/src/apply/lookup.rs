//! Finding and making the directories that entries lie in.
//!
//! A symbolic link of the same layer is resolved with the layer's root as `/`, so no path leads out of the layer. A
//! directory that the archive uses without describing it is made and remembered as implied: its true attributes are
//! those of a lower layer.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    rc::Rc,
};

use super::{
    entry_path::is_whiteout,
    store::{LayerStore, LookupError, Place, Step},
};
use crate::path;

/// Links in one lookup, as many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Directories inside each other: more than real images have, few enough for one descriptor each.
pub(crate) const MAX_DEPTH: usize = 512;
/// The kernel's limit for one path (PATH_MAX with its NUL), applied to the path after links are resolved.
pub(crate) const MAX_PATH: usize = 4095;
/// Components of one lookup, those of links included.
const MAX_STEPS: usize = 4096;
/// Directories in the cache.
const MAX_CACHED: usize = 256;

/// The directories of one layer that were found so far.
pub(crate) struct Lookup<D> {
    /// By the path that was looked up, which may lead through links.
    cache: HashMap<Vec<u8>, Rc<Place<D>>>,
    /// Implied directories, by canonical path.
    implied: BTreeSet<Vec<u8>>,
    /// How many implied directories were ever made.
    made: usize,
}

impl<D: Clone> Lookup<D> {
    /// Nothing is known but the root, which is implied until an entry describes it.
    pub(crate) fn new() -> Self {
        Self { cache: HashMap::new(), implied: BTreeSet::from([Vec::new()]), made: 0 }
    }

    /// The directory at a clean path.
    pub(crate) fn find<S: LayerStore<Dir = D>>(
        &mut self,
        store: &mut S,
        path: &[u8],
    ) -> Result<Rc<Place<D>>, LookupError> {
        self.dir(store, path, false)
    }

    /// The directory at a clean path. Missing directories on the way are made.
    pub(crate) fn find_or_make<S: LayerStore<Dir = D>>(
        &mut self,
        store: &mut S,
        path: &[u8],
    ) -> Result<Rc<Place<D>>, LookupError> {
        self.dir(store, path, true)
    }

    /// An entry describes this directory, so it is not implied.
    pub(crate) fn described(&mut self, path: &[u8]) {
        self.implied.remove(path);
    }

    /// A directory or a link was removed: forgets every path that may lead through it.
    pub(crate) fn removed(&mut self, path: &[u8]) {
        self.cache.clear();
        path::remove_within(&mut self.implied, path);
    }

    /// How many implied directories were made so far.
    pub(crate) fn made(&self) -> usize {
        self.made
    }

    /// Directories that no entry describes.
    pub(crate) fn implied(&self) -> &BTreeSet<Vec<u8>> {
        &self.implied
    }

    fn dir<S: LayerStore<Dir = D>>(
        &mut self,
        store: &mut S,
        path: &[u8],
        make: bool,
    ) -> Result<Rc<Place<D>>, LookupError> {
        if let Some(known) = self.cache.get(path) {
            return Ok(Rc::clone(known));
        }
        let place = match store.open_directly(path)? {
            Some(dir) => {
                check_depth(path)?;
                Place { dir, path: path.to_vec() }
            }
            None => self.walk(store, path, make)?,
        };
        if self.cache.len() >= MAX_CACHED {
            self.cache.clear();
        }
        let place = Rc::new(place);
        self.cache.insert(path.to_vec(), Rc::clone(&place));
        Ok(place)
    }

    /// Goes from the root, component by component.
    fn walk<S: LayerStore<Dir = D>>(
        &mut self,
        store: &mut S,
        path: &[u8],
        make: bool,
    ) -> Result<Place<D>, LookupError> {
        let mut todo: VecDeque<Vec<u8>> = path::components(path).collect();
        // The directories on the way, and the length of each one's parent in `here`.
        let mut stack: Vec<(D, usize)> = Vec::new();
        let mut here = Vec::new();
        let (mut links, mut steps) = (0, 0);
        while let Some(component) = todo.pop_front() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(LookupError::TooDeep);
            }
            if component == b".." {
                // The root is its own parent.
                if let Some((_, length)) = stack.pop() {
                    here.truncate(length);
                }
                continue;
            }
            let parent = stack.last().map_or_else(|| store.root(), |(dir, _)| dir.clone());
            let next = path::join(&here, &component);
            check_depth(&next)?;
            match self.step(store, &parent, &component, &next, make)? {
                Step::Dir(dir) => {
                    stack.push((dir, here.len()));
                    here = next;
                }
                Step::Symlink(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(LookupError::NotADir);
                    }
                    if target.starts_with(b"/") {
                        stack.clear();
                        here.clear();
                    }
                    for part in path::components(&target).rev() {
                        todo.push_front(part);
                    }
                }
                Step::Other => return Err(LookupError::NotADir),
            }
        }
        let dir = stack.pop().map_or_else(|| store.root(), |(dir, _)| dir);
        Ok(Place { dir, path: here })
    }

    /// One component, made if it is missing and `make` says so.
    fn step<S: LayerStore<Dir = D>>(
        &mut self,
        store: &mut S,
        parent: &D,
        name: &[u8],
        path: &[u8],
        make: bool,
    ) -> Result<Step<D>, LookupError> {
        match store.step(parent, name)? {
            Some(found) => Ok(found),
            None if !make => Err(LookupError::Missing),
            // Only a link leads here: entries with such names are refused before.
            None if is_whiteout(name) => Err(LookupError::NotADir),
            None => {
                let dir = store.make_implied(parent, name)?;
                self.implied.insert(path.to_vec());
                self.made += 1;
                Ok(Step::Dir(dir))
            }
        }
    }
}

fn check_depth(path: &[u8]) -> Result<(), LookupError> {
    let depth = path.iter().filter(|byte| **byte == b'/').count() + 1;
    if path.len() > MAX_PATH || depth > MAX_DEPTH { Err(LookupError::TooDeep) } else { Ok(()) }
}
