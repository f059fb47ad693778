//! The end of a layer: whiteouts and opaque marks, once no entry can contradict them any more.

use std::rc::Rc;

use super::{
    applier::{Applied, Applier},
    store::{LayerStore, LookupError, Place},
};
use crate::{error::UnpackError, path};

impl<S: LayerStore> Applier<S> {
    /// Makes whiteouts and opaque marks, and gives the store back.
    pub(crate) fn finish(mut self) -> Result<(S, Applied), UnpackError> {
        for (parent, name) in std::mem::take(&mut self.whiteouts) {
            self.whiteout(&parent, &name).map_err(|error| error.within(&path::join(&parent, &name)))?;
        }
        let opaque_root = self.opaque.remove(&b""[..]);
        for path in std::mem::take(&mut self.opaque) {
            self.mark_opaque(&path).map_err(|error| error.within(&path))?;
        }
        let implied_directories = self.lookup.implied().iter().cloned().collect();
        let (entries, skipped) = (self.entries, self.skipped);
        Ok((self.store, Applied { entries, implied_directories, opaque_root, skipped }))
    }

    fn whiteout(&mut self, parent: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        const ACTION: &str = "making its whiteout";
        let failed = |error| UnpackError::disk(ACTION, error);
        // A later entry may have replaced the directory, perhaps by a link to another one.
        let Some(parent) = self.real_dir(parent, ACTION)? else { return Ok(()) };
        match self.store.find(&parent, name).map_err(failed)? {
            Some(existing) if existing.is_dir() => {
                // Removed and made again: the new directory inherits nothing.
                let path = path::join(&parent.path, name);
                self.lookup.described(&path);
                self.opaque.insert(path);
                Ok(())
            }
            Some(_) => Ok(()),
            None => self.store.create_whiteout(&parent, name).map_err(failed),
        }
    }

    fn mark_opaque(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        // A later entry may have replaced the directory, which hides the lower layers' content as well.
        match self.real_dir(path, "opening it")? {
            Some(dir) => self.store.mark_opaque(&dir),
            None => Ok(()),
        }
    }

    /// The directory at a canonical path. `None`: there is none any more, or links lead to another one.
    fn real_dir(&mut self, path: &[u8], action: &'static str) -> Result<Option<Rc<Place<S::Dir>>>, UnpackError> {
        match self.lookup.find(&mut self.store, path) {
            Ok(place) => Ok((place.path == path).then_some(place)),
            Err(LookupError::Missing | LookupError::NotADir | LookupError::TooDeep) => Ok(None),
            Err(LookupError::Io(error)) => Err(UnpackError::disk(action, error)),
        }
    }
}
