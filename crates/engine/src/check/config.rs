//! Checks what opens a repository: both copies of its config and of each key slot.

use std::collections::BTreeSet;

use crate::check::findings::Findings;
use crate::check::objects::list;
use crate::error::{Error, Result};
use crate::object::Config;
use crate::object::names::{ObjectCopy, ObjectName, Prefix};
use crate::object::slot::{SLOT_LEN_MAX, decode_slot};
use crate::store::Store;

/// Longer than any config.
const CONFIG_LEN_MAX: usize = 64 << 10;

/// Checks both copies of the config.
pub(super) fn check_config(store: &Store, findings: &mut Findings) {
    let copies = ObjectCopy::BOTH.map(ObjectName::Config).map(|name| (store.display(name), read_config(store, name)));
    check_copies(copies, "both copies are lost: restore one from a copy of the repository", findings);
}

/// Checks two copies of an object, which `advice` is for if both are lost. Returns true if one of them can be read.
fn check_copies(copies: [(String, Result<Vec<u8>>); 2], advice: &str, findings: &mut Findings) -> bool {
    let [(first, first_read), (second, second_read)] = copies;
    let restore = |from: &str, to: &str| {
        format!("restore it from its other copy with `onefold repair objects`, or: cp {from} {to}")
    };
    match (first_read, second_read) {
        (Ok(first), Ok(second)) if first == second => {}
        (Ok(one), Ok(other)) if version_of(&one) != version_of(&other) => {
            let advice = "an upgrade did not come to its end: run `onefold upgrade` again";
            findings.add(second, "is of another version of the format than the other copy", advice);
        }
        (Ok(_), Ok(_)) => {
            let advice = restore(&first, &second);
            findings.add(second, "is not the same as the other copy", advice);
        }
        (Err(error), Ok(_)) => {
            let advice = restore(&second, &first);
            findings.add_error(first, &error, advice);
        }
        (Ok(_), Err(error)) => {
            let advice = restore(&first, &second);
            findings.add_error(second, &error, advice);
        }
        (Err(first_error), Err(second_error)) => {
            findings.add_error(first, &first_error, advice);
            findings.add_error(second, &second_error, advice);
            return false;
        }
    }
    true
}

/// Returns the bytes that hold the version of an object.
pub(crate) fn version_of(object: &[u8]) -> Option<&[u8]> {
    object.get(4..6)
}

pub(crate) fn read_config(store: &Store, name: ObjectName) -> Result<Vec<u8>> {
    let object = store.display(name);
    let bytes = store.read(name, CONFIG_LEN_MAX)?;
    Config::decode(&object, &bytes)?;
    Config::authenticate(&object, &bytes, &store.keys)?;
    Ok(bytes)
}

/// Checks both copies of every key slot.
pub(super) fn check_slots(store: &Store, findings: &mut Findings) {
    let mut slots = BTreeSet::new();
    for name in list(store, Prefix::Keys, "is no key slot", findings) {
        if let ObjectName::Slot(id, _) = name {
            slots.insert(id);
        }
    }
    let mut opens = 0;
    for id in slots {
        let copies = ObjectCopy::BOTH.map(|copy| {
            let name = ObjectName::Slot(id, copy);
            (store.display(name), read_slot(store, name, id))
        });
        let advice =
            "its password is lost: `onefold repair objects` sets both copies aside; add another with `onefold key add`";
        opens += usize::from(check_copies(copies, advice, findings));
    }
    let is_encrypted = store.config.clear_key.is_none();
    if is_encrypted && opens == 0 {
        let object = store.display(Prefix::Keys);
        findings.add(
            object,
            "no key slot can be read: whoever does not have the repository open cannot open it any more",
            "restore a key slot from a copy of the repository",
        );
    }
}

pub(crate) fn read_slot(store: &Store, name: ObjectName, id: [u8; 16]) -> Result<Vec<u8>> {
    let object = store.display(name);
    let bytes = store.read(name, SLOT_LEN_MAX)?;
    let (owner, slot) = decode_slot(&object, &bytes)?;
    if owner != store.config.repository {
        return Err(Error::damaged(object, "belongs to another repository"));
    }
    if slot.id != id {
        return Err(Error::damaged(object, "stands under a wrong name"));
    }
    Ok(bytes)
}
