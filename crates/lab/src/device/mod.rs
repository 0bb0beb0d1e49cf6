//! Devices for an index: the real one, or a model.
//!
//! [`model`] has the numbers, [`clock`] the time that passes by them, [`disk`] the engine's disk that charges it.

pub mod clock;
pub mod disk;
pub mod model;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};

use crate::device::clock::Clock;
use crate::device::disk::{ModelDisk, ModelHost};
use crate::device::model::Model;
use crate::files::text_of_path;
use crate::point::dimension::unknown;

/// The name of the device under the scratch directory.
pub const REAL: &str = "real";

/// A device.
#[derive(Clone, PartialEq, Debug)]
pub enum Device {
    /// The device under the scratch directory, without the page cache.
    Real,
    /// A model.
    Modeled {
        /// Name.
        name: String,
        /// Model.
        model: Model,
    },
}

/// A device that can be used.
#[derive(Debug)]
pub struct SetUp {
    /// Its disk.
    pub disk: Arc<dyn Disk>,
    /// The host whose time is that of the device.
    pub host: Arc<dyn Host>,
    /// The clock, if it is modeled.
    pub clock: Option<Arc<Clock>>,
}

impl Device {
    /// Returns the device of this name, or if it has a slash or ends in `.toml`, the one in that file.
    pub fn named(name: &str) -> Result<Self> {
        if name == REAL {
            return Ok(Self::Real);
        }
        let model = match text_of_path(name) {
            Some(text) => text.and_then(|text| Model::parse(&text)).with_context(|| name.to_owned())?,
            None => model::known(name).ok_or_else(|| unknown("device", name, model::names().chain([REAL])))??,
        };
        Ok(Self::Modeled { name: name.to_owned(), model })
    }

    /// Returns what it is called.
    pub fn name(&self) -> &str {
        match self {
            Self::Real => REAL,
            Self::Modeled { name, .. } => name,
        }
    }

    /// Makes a disk of the device, with its bytes in a directory.
    pub fn set_up(&self, dir: &Path) -> SetUp {
        match self {
            Self::Real => {
                SetUp { disk: Arc::new(OsDisk::new(dir.to_path_buf())), host: Arc::new(OsHost::new()), clock: None }
            }
            Self::Modeled { model, .. } => {
                let clock = Arc::new(Clock::default());
                let disk = Arc::new(ModelDisk::new(dir, model.clone(), Arc::clone(&clock)));
                SetUp { disk, host: Arc::new(ModelHost::new(Arc::clone(&clock))), clock: Some(clock) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_name_and_by_file() {
        assert_eq!(Device::named("real").unwrap(), Device::Real);
        assert_eq!(Device::named("hdd").unwrap().name(), "hdd");
        let error = Device::named("nmve").unwrap_err().to_string();
        assert_eq!(error, "there is no device \"nmve\"; did you mean \"nvme\"?");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, include_str!("../../../../devices/ssd.toml").replace("32", "0")).unwrap();
        let error = format!("{:#}", Device::named(path.to_str().unwrap()).unwrap_err());
        assert!(error.contains("mine.toml: queue-depth: 1 to 65536, not 0"), "{error}");
        assert!(Device::named("./none.toml").is_err());
    }
}
