//! Which images, links and services the case measures.

use std::{path::PathBuf, str::FromStr};

use super::services::Service;
use crate::pull::link::Line;

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Sizes of the images, in MiB of gzip.
    pub sizes: Vec<u64>,
    /// The links to the registry.
    pub lines: Vec<Line>,
    /// The services.
    pub services: Vec<Service>,
    /// Where Debian roots and other layers are kept.
    pub roots: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let lines = vec![Line::GIGABIT];
        Self { sizes: vec![150, 1024], lines, services: Service::ALL.into(), roots: None }
    }
}

/// Parses values that are separated by commas.
pub fn list<T: FromStr>(text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(|value| value.parse().map_err(|_| format!("{value} is not known"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed() {
        assert_eq!(list::<u64>("150,1024"), Ok(vec![150, 1024]));
        assert_eq!(list::<Service>("jvm,static"), Ok(vec![Service::Jvm, Service::Static]));
        assert_eq!(list::<Service>("jvm,perl"), Err("perl is not known".to_owned()));
        assert!(list::<Line>("1000,,100").is_err());
    }
}
