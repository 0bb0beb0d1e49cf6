//! Quarantined containers: damaged ones that a collection, or a person, has set aside. No command reads them for a snapshot.

use crate::error::Result;
use crate::object::names::{ContainerName, ObjectName, Prefix};
use crate::object::store::Detail;
use crate::store::Store;

/// A quarantined container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuarantinedContainer {
    /// The name that it had.
    pub name: ContainerName,
    /// Its bytes.
    pub len: u64,
}

impl Store {
    /// Lists the quarantined containers.
    pub fn list_quarantined(&self) -> Result<Vec<QuarantinedContainer>> {
        let mut quarantined = Vec::new();
        self.objects.list(Prefix::Containers, Detail::Lengths, &mut |page| {
            for listed in page {
                if let Ok(ObjectName::Quarantined(name)) = listed.name {
                    quarantined.push(QuarantinedContainer { name, len: listed.len });
                }
            }
            Ok(())
        })?;
        Ok(quarantined)
    }

    /// Removes quarantined containers.
    pub fn remove_quarantined(&self, containers: &[QuarantinedContainer]) -> Result<()> {
        let names: Vec<ObjectName> =
            containers.iter().map(|container| ObjectName::Quarantined(container.name)).collect();
        self.objects.delete(&names)
    }
}
