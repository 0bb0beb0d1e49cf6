//! The key slots of a repository: listing, opening, adding, removing.

use std::collections::BTreeMap;

use crate::crypto::MasterKey;
use crate::crypto::slot::{PasswordCost, Slot, SlotLabel, hex};
use crate::error::{Error, Result};
use crate::io::Host;
use crate::object::names::{ObjectCopy, ObjectName, Prefix};
use crate::object::slot::{SLOT_LEN_MAX, decode_slot, encode_slot};
use crate::object::store::{Created, Detail, ObjectStore};
use crate::store::read_whole;
use crate::types::{RepositoryId, SessionId, Timestamp};

/// The slots found in a repository.
#[derive(Debug, Default)]
pub struct Slots {
    /// Slots of which at least one copy can be read.
    pub slots: Vec<Slot>,
    /// Damage of the others, and of single copies.
    pub findings: Vec<String>,
    /// The first copy that claims to be of a later version of the format, which damage can do too.
    newer: Option<Error>,
}

/// Reads all key slots of a repository.
pub fn read_slots(objects: &dyn ObjectStore, repository: RepositoryId) -> Result<Slots> {
    let mut found = Slots::default();
    let mut copies: BTreeMap<[u8; 16], Vec<ObjectCopy>> = BTreeMap::new();
    objects.list(Prefix::Keys, Detail::Names, &mut |page| {
        for listed in page {
            match listed.name {
                Ok(ObjectName::Slot(id, copy)) => copies.entry(id).or_default().push(copy),
                Ok(other) => found.findings.push(format!("{other}: not a key slot")),
                Err(unknown) => found.findings.push(format!("{unknown}: not a key slot")),
            }
        }
        Ok(())
    })?;
    for (id, copies) in copies {
        let mut slot = None;
        let mut foreign = 0;
        for copy in ObjectCopy::BOTH {
            let name = ObjectName::Slot(id, copy);
            let object = objects.display(&name.to_string());
            if !copies.contains(&copy) {
                found.findings.push(format!("{object}: missing"));
                continue;
            }
            match read_whole(objects, name, SLOT_LEN_MAX).and_then(|bytes| decode_slot(&object, &bytes)) {
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
            found.findings.push(format!("{}/{}: belongs to another repository", Prefix::Keys, SessionId(id)));
        }
        found.slots.extend(slot);
    }
    Ok(found)
}

/// The most slots that a password is tried on, and that are made: whoever can write to a repository can add slots, and each
/// one costs time.
pub(crate) const SLOTS_MAX: usize = 32;
/// The most memory in KiB that a slot may need to be tried, unless the user allows more.
pub(crate) const SLOT_MEMORY_KIB_DEFAULT: u32 = 512 << 10;
/// Passes over the largest memory that is allowed: a slot with less memory may make more of them.
const PASSES_AT_MOST_MEMORY: u64 = 4;

/// Which key slots a password is tried on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotPolicy {
    /// The most memory in KiB that a slot may need.
    pub memory_kib_max: u32,
    /// Beginning of the identifier of a slot that is tried first.
    pub hint: Option<String>,
}

impl Default for SlotPolicy {
    fn default() -> Self {
        Self { memory_kib_max: SLOT_MEMORY_KIB_DEFAULT, hint: None }
    }
}

impl SlotPolicy {
    /// Returns true if a slot of this cost may be tried.
    pub fn allows(&self, cost: PasswordCost) -> bool {
        let work_max = u64::from(self.memory_kib_max) * PASSES_AT_MOST_MEMORY;
        cost.memory_kib <= self.memory_kib_max && work(cost) <= work_max
    }
}

/// KiB that one derivation writes.
fn work(cost: PasswordCost) -> u64 {
    u64::from(cost.memory_kib) * u64::from(cost.passes)
}

/// The slots that a password is tried on, in this order, and how many are not.
#[derive(Debug)]
struct SlotPlan<'a> {
    slots: Vec<&'a Slot>,
    too_costly: Vec<&'a Slot>,
    too_many: usize,
}

/// Chooses the slots: those of the hint first, then the cheapest ones.
fn plan<'a>(slots: &'a [Slot], policy: &SlotPolicy) -> SlotPlan<'a> {
    let (mut slots, too_costly): (Vec<&Slot>, Vec<&Slot>) = slots.iter().partition(|slot| policy.allows(slot.cost));
    let is_hinted = |slot: &Slot| policy.hint.as_ref().is_some_and(|hint| hex(&slot.id).starts_with(hint));
    slots.sort_by_key(|slot| (!is_hinted(slot), work(slot.cost), slot.id));
    let too_many = slots.len().saturating_sub(SLOTS_MAX);
    slots.truncate(SLOTS_MAX);
    SlotPlan { slots, too_costly, too_many }
}

/// Finds the slot that the password opens.
pub fn unlock(
    objects: &dyn ObjectStore,
    repository: RepositoryId,
    password: &[u8],
    policy: &SlotPolicy,
) -> Result<(MasterKey, Slot)> {
    let found = read_slots(objects, repository)?;
    let plan = plan(&found.slots, policy);
    let mut damage = None;
    for slot in plan.slots {
        match slot.unwrap(repository, password) {
            Ok(Some(key)) => return Ok((key, Slot::clone(slot))),
            Ok(None) => {}
            Err(error) => damage = Some(error),
        }
    }
    match (damage.or(found.newer), found.findings.into_iter().next()) {
        (Some(error), _) => Err(error),
        (None, Some(finding)) if found.slots.is_empty() => Err(Error::damaged("key slots", finding)),
        (None, _) if 0 < plan.too_many || !plan.too_costly.is_empty() => Err(Error::SlotsNotTried {
            too_costly: plan.too_costly.len(),
            memory_mib: plan.too_costly.iter().map(|slot| slot.cost.memory_kib.div_ceil(1024)).min().unwrap_or(0),
            too_many: plan.too_many,
        }),
        (None, _) => Err(Error::WrongPassword),
    }
}

/// Password of a new slot, and its cost.
#[derive(Clone, Copy, Debug)]
pub struct NewSlot<'a> {
    /// The password.
    pub password: &'a [u8],
    /// Cost of trying one.
    pub cost: PasswordCost,
    /// Label of the slot.
    pub label: &'a SlotLabel,
}

/// Adds a slot, both copies durable when this returns. Refused where as many exist as are tried.
pub fn add_slot(
    objects: &dyn ObjectStore,
    host: &dyn Host,
    repository: RepositoryId,
    key: &MasterKey,
    new: NewSlot<'_>,
) -> Result<Slot> {
    let count = read_slots(objects, repository)?.slots.len();
    if SLOTS_MAX <= count {
        return Err(Error::invalid(format!(
            "the repository has {count} key slots, and {SLOTS_MAX} at most are tried: remove one first"
        )));
    }
    create_slot(objects, host, repository, key, new)
}

/// Replaces a slot: the new one is durable before the old one goes.
pub fn replace_slot(
    objects: &dyn ObjectStore,
    host: &dyn Host,
    repository: RepositoryId,
    (key, old): (&MasterKey, &Slot),
    new: NewSlot<'_>,
) -> Result<Slot> {
    let slot = create_slot(objects, host, repository, key, new)?;
    remove_slot(objects, old)?;
    Ok(slot)
}

fn create_slot(
    objects: &dyn ObjectStore,
    host: &dyn Host,
    repository: RepositoryId,
    key: &MasterKey,
    new: NewSlot<'_>,
) -> Result<Slot> {
    let (mut id, mut salt) = ([0; 16], [0; 32]);
    host.random(&mut id)?;
    host.random(&mut salt)?;
    let created = Timestamp { nanoseconds: 0, ..host.now() };
    let unsealed = Slot { id, created, cost: new.cost, salt, ..Slot::default() };
    let slot = Slot::wrap(unsealed, repository, new.password, key, new.label)?;
    let bytes = encode_slot(repository, &slot);
    for copy in ObjectCopy::BOTH {
        let name = ObjectName::Slot(id, copy);
        if objects.create(SessionId(id), name, &bytes)? == Created::Existed {
            return Err(Error::damaged(objects.display(&name.to_string()), "stands already under a name just drawn"));
        }
    }
    Ok(slot)
}

/// Removes a slot. The caller has made sure that another one is left.
pub fn remove_slot(objects: &dyn ObjectStore, slot: &Slot) -> Result<()> {
    objects.delete(&ObjectCopy::BOTH.map(|copy| ObjectName::Slot(slot.id, copy)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(id: u8, memory_mib: u32, passes: u32) -> Slot {
        Slot { id: [id; 16], cost: PasswordCost { memory_kib: memory_mib << 10, passes, lanes: 4 }, ..Slot::default() }
    }

    fn order(slots: &[Slot], policy: &SlotPolicy) -> (Vec<u8>, usize, usize) {
        let plan = plan(slots, policy);
        (plan.slots.iter().map(|slot| slot.id[0]).collect(), plan.too_costly.len(), plan.too_many)
    }

    #[test]
    fn the_cheapest_slots_are_tried_first_and_those_beyond_the_limits_not_at_all() {
        let slots =
            [slot(1, 4096, 3), slot(2, 256, 3), slot(3, 64, 3), slot(4, 64, 32), slot(5, 512, 32), slot(6, 513, 1)];
        assert_eq!(order(&slots, &SlotPolicy::default()), (vec![3, 2, 4], 3, 0));
        let all = SlotPolicy { memory_kib_max: 4 << 20, hint: None };
        assert_eq!(order(&slots, &all), (vec![3, 6, 2, 4, 1, 5], 0, 0));
        let hinted = SlotPolicy { hint: Some("0202".into()), ..SlotPolicy::default() };
        assert_eq!(order(&slots, &hinted), (vec![2, 3, 4], 3, 0));
        let many: Vec<Slot> = (0..40).map(|id| slot(id, 64, 3)).collect();
        let (tried, too_costly, too_many) =
            order(&many, &SlotPolicy { hint: Some("27".into()), ..SlotPolicy::default() });
        assert_eq!((tried.len(), tried[0], too_costly, too_many), (SLOTS_MAX, 0x27, 0, 8));
    }
}
