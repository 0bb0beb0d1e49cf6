//! The directory of a host for one repository.

use std::path::PathBuf;
use std::sync::Arc;

use crate::identify::IndexPreset;
use crate::io::Disk;
use crate::repo::preset::remembered_preset;

/// Directory for state that can be rebuilt: the index, and temporary files.
#[derive(Clone, Debug)]
pub struct Cache {
    /// A disk that outlives the operation.
    pub disk: Arc<dyn Disk>,
    /// This repository's directory on it, which exists.
    pub dir: PathBuf,
}

impl Cache {
    /// Returns the preset of the index that this host has chosen last, at first the default.
    pub fn index_preset(&self) -> IndexPreset {
        remembered_preset(&*self.disk, &self.dir)
    }
}
