//! The key slots of a repository: listing, opening, adding, removing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::crypto::MasterKey;
use crate::crypto::slot::{PasswordCost, Slot, SlotLabel};
use crate::error::{Error, Result};
use crate::io::{Disk, Host, Linked};
use crate::object::names::{self, KEYS, SlotCopy};
use crate::object::slot::{SLOT_LEN_MAX, decode_slot, encode_slot};
use crate::store::{ObjectWriter, read_object};
use crate::types::{RepositoryId, SessionId, Timestamp};

/// The slots found in a repository.
#[derive(Debug, Default)]
pub struct Slots {
    /// Slots of which at least one copy can be read.
    pub slots: Vec<Slot>,
    /// What is wrong with the others, and with single copies.
    pub findings: Vec<String>,
    /// The first copy that claims to be of a later version of the format, which damage can do too.
    newer: Option<Error>,
}

/// Reads all key slots of a repository.
pub fn read_slots(disk: &dyn Disk, repository: RepositoryId) -> Result<Slots> {
    let mut found = Slots::default();
    let mut copies: BTreeMap<[u8; 16], Vec<SlotCopy>> = BTreeMap::new();
    for entry in disk.list(Path::new(KEYS))? {
        match names::parse_slot(&entry.name) {
            Some((id, copy)) => copies.entry(id).or_default().push(copy),
            None => found.findings.push(format!("{KEYS}/{}: not a key slot", entry.name)),
        }
    }
    for (id, copies) in copies {
        let mut slot = None;
        let mut foreign = 0;
        for copy in [SlotCopy::First, SlotCopy::Second] {
            let path = names::slot(&id, copy);
            let object = disk.display(&path);
            if !copies.contains(&copy) {
                found.findings.push(format!("{object}: missing"));
                continue;
            }
            match read_object(disk, &path, SLOT_LEN_MAX).and_then(|bytes| decode_slot(&object, &bytes)) {
                Ok((owner, _)) if owner != repository => foreign += 1,
                Ok((_, read)) if read.id == id => slot = slot.or(Some(read)),
                Ok(_) => found.findings.push(format!("{object}: damaged: stands under a wrong name")),
                Err(error) => {
                    found.findings.push(error.to_string());
                    if let Error::NewerFormat { .. } = error {
                        found.newer = found.newer.or(Some(error));
                    }
                }
            }
        }
        if foreign > 0 {
            found.findings.push(format!("{KEYS}/{}: belongs to another repository", SessionId(id)));
        }
        found.slots.extend(slot);
    }
    Ok(found)
}

/// Finds the slot that the password opens.
pub fn unlock(disk: &dyn Disk, repository: RepositoryId, password: &[u8]) -> Result<(MasterKey, Slot, SlotLabel)> {
    let found = read_slots(disk, repository)?;
    let mut damage = None;
    for slot in &found.slots {
        match slot.unwrap(repository, password) {
            Ok(Some((key, label))) => return Ok((key, slot.clone(), label)),
            Ok(None) => {}
            Err(error) => damage = Some(error),
        }
    }
    match (damage.or(found.newer), found.findings.into_iter().next()) {
        (Some(error), _) => Err(error),
        (None, Some(finding)) if found.slots.is_empty() => Err(Error::damaged("key slots", finding)),
        (None, _) => Err(Error::WrongPassword),
    }
}

/// Who may open a new slot, and at what cost.
#[derive(Clone, Copy, Debug)]
pub struct NewSlot<'a> {
    /// The password.
    pub password: &'a [u8],
    /// Cost of trying one.
    pub cost: PasswordCost,
    /// What is written into the slot.
    pub label: &'a SlotLabel,
}

/// Adds a slot, both copies durable when this returns.
pub fn add_slot(
    disk: &Arc<dyn Disk>,
    host: &dyn Host,
    repository: RepositoryId,
    key: &MasterKey,
    new: NewSlot<'_>,
) -> Result<Slot> {
    let (mut id, mut salt) = ([0; 16], [0; 32]);
    host.random(&mut id)?;
    host.random(&mut salt)?;
    let created = Timestamp { nanoseconds: 0, ..host.now() };
    let unsealed = Slot { id, created, cost: new.cost, salt, commitment: [0; 32], key_epoch: 0, sealed: Vec::new() };
    let slot = Slot::wrap(unsealed, repository, new.password, key, new.label)?;
    let bytes = encode_slot(repository, &slot);
    let writer = ObjectWriter::new(Arc::clone(disk), SessionId(id));
    for copy in [SlotCopy::First, SlotCopy::Second] {
        let path = names::slot(&id, copy);
        if writer.create(&path, &bytes)? == Linked::Existed {
            return Err(Error::damaged(disk.display(&path), "stands already under a name just drawn"));
        }
    }
    writer.sync_dir(Path::new(KEYS))?;
    Ok(slot)
}

/// Removes a slot. The caller has made sure that another one is left.
pub fn remove_slot(disk: &dyn Disk, slot: &Slot) -> Result<()> {
    for copy in [SlotCopy::First, SlotCopy::Second] {
        let path = names::slot(&slot.id, copy);
        if disk.exists(&path)? {
            disk.remove(&path)?;
        }
    }
    disk.sync_dir(Path::new(KEYS))
}
