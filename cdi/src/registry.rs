//! The devices of all documents.
//!
//! A document has the priority of its directory. If several documents name one device, that of the highest priority
//! counts. If two of one priority name it, none counts: which one is meant is unknown. That is also so if a document of
//! a higher priority names the device, as in the reference implementation.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::{
    document::{ContainerEdits, Device, Spec},
    name::{Kind, QualifiedName},
};

/// A document as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The priority of its directory. A higher one wins.
    pub priority: usize,
    /// The document, or why it cannot be used.
    pub spec: Result<Spec, String>,
}

/// A device of the registry.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The file of the document.
    pub path: &'a Path,
    /// The document.
    pub spec: &'a Spec,
    /// The device.
    pub device: &'a Device,
}

/// The devices of all documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    sources: Vec<(PathBuf, Spec)>,
    /// The indices of document and device.
    devices: BTreeMap<QualifiedName, (usize, usize)>,
    conflicts: BTreeMap<QualifiedName, BTreeSet<PathBuf>>,
    problems: BTreeMap<PathBuf, String>,
}

/// A device that cannot be given to a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No document has the kind.
    #[error("no spec has devices of the kind {kind}{}", unusable(.problems))]
    NoKind {
        /// The kind.
        kind: Kind,
        /// Documents that cannot be used.
        problems: Vec<String>,
    },
    /// No document has the device.
    #[error("no spec has the device {name}; {} has {}{}", .name.kind(), .known.join(", "), unusable(.problems))]
    NoDevice {
        /// The device.
        name: QualifiedName,
        /// The devices of its kind.
        known: Vec<String>,
        /// Documents that cannot be used.
        problems: Vec<String>,
    },
    /// Several documents have the device.
    #[error("several specs of one directory have the device {name}: {}", paths(.specs))]
    Conflict {
        /// The device.
        name: QualifiedName,
        /// The documents.
        specs: Vec<PathBuf>,
    },
}

fn unusable(problems: &[String]) -> String {
    if problems.is_empty() { String::new() } else { format!("; specs that cannot be used: {}", problems.join("; ")) }
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Registry {
    /// The registry of these documents, which are in the order of their priorities.
    pub fn new(found: impl IntoIterator<Item = Source>) -> Self {
        let mut registry = Self::default();
        let mut priorities = Vec::new();
        for Source { path, priority, spec } in found {
            let checked = spec.and_then(|spec| match spec.parsed_kind() {
                Ok(kind) => Ok((spec, kind)),
                Err(error) => Err(error.to_string()),
            });
            match checked {
                Ok((spec, kind)) => {
                    priorities.push(priority);
                    registry.add(path, spec, &kind, &priorities);
                }
                Err(problem) => drop(registry.problems.insert(path, problem)),
            }
        }
        for conflict in registry.conflicts.keys() {
            registry.devices.remove(conflict);
        }
        registry
    }

    fn add(&mut self, path: PathBuf, spec: Spec, kind: &Kind, priorities: &[usize]) {
        let own = self.sources.len();
        for (index, device) in spec.devices.iter().enumerate() {
            // A document that was checked has valid names only.
            let Ok(name) = kind.device(&device.name) else { continue };
            if let Some((other, _)) = self.devices.get(&name)
                && priorities[own] <= priorities[*other]
            {
                if priorities[own] == priorities[*other] {
                    let specs = self.conflicts.entry(name).or_default();
                    specs.extend([self.sources[*other].0.clone(), path.clone()]);
                }
                continue;
            }
            self.devices.insert(name, (own, index));
        }
        self.sources.push((path, spec));
    }

    /// The devices, in the order of their names.
    pub fn devices(&self) -> impl Iterator<Item = (&QualifiedName, Entry<'_>)> {
        self.devices.iter().map(|(name, place)| (name, self.entry(*place)))
    }

    fn entry(&self, (source, index): (usize, usize)) -> Entry<'_> {
        let (path, spec) = &self.sources[source];
        Entry { path, spec, device: &spec.devices[index] }
    }

    /// A device.
    pub fn get(&self, name: &QualifiedName) -> Result<Entry<'_>, ResolveError> {
        if let Some(place) = self.devices.get(name) {
            return Ok(self.entry(*place));
        }
        if let Some(specs) = self.conflicts.get(name) {
            return Err(ResolveError::Conflict { name: name.clone(), specs: specs.iter().cloned().collect() });
        }
        let known: Vec<String> = self
            .devices
            .keys()
            .filter(|other| other.kind() == name.kind())
            .map(|other| other.device().to_owned())
            .collect();
        let problems = self.problems().collect();
        Err(match known.is_empty() {
            true => ResolveError::NoKind { kind: name.kind().clone(), problems },
            false => ResolveError::NoDevice { name: name.clone(), known, problems },
        })
    }

    /// The edits for a container with these devices: those of the devices in their order, each after the edits of its
    /// document. A device or document that comes again adds nothing.
    pub fn edits(&self, names: &[QualifiedName]) -> Result<ContainerEdits, ResolveError> {
        let mut edits = ContainerEdits::default();
        let (mut documents, mut devices) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            let entry = self.get(name)?;
            if documents.insert(entry.path) {
                edits.append(&entry.spec.container_edits);
            }
            if devices.insert(name) {
                edits.append(&entry.device.container_edits);
            }
        }
        Ok(edits)
    }

    /// The documents that cannot be used, each with the reason, and the devices that several documents have.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let unusable = self.problems.iter().map(|(path, problem)| format!("{}: {problem}", path.display()));
        let conflicts = self.conflicts.iter().map(|(name, specs)| {
            ResolveError::Conflict { name: name.clone(), specs: specs.iter().cloned().collect() }.to_string()
        });
        unusable.chain(conflicts)
    }
}

#[cfg(test)]
mod tests;
