//! The device plugin's services: the base service of all plugins, and the one of device plugins.
//!
//! Nothing here changes the node, so a call that is dropped leaves nothing behind.

mod base;
mod convert;
mod service;

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::DevicePluginConfig;

/// The plugin as its services see it: its configuration.
#[derive(Clone, Default)]
pub struct Devices(Arc<Mutex<DevicePluginConfig>>);

impl Devices {
    fn configure(&self, config: DevicePluginConfig) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn config(&self) -> DevicePluginConfig {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
