//! Checks what opens a repository: both copies of its config and of each key slot.

use std::collections::BTreeMap;
use std::path::Path;

use crate::check::findings::Findings;
use crate::check::objects::list;
use crate::error::{Error, Result};
use crate::object::Config;
use crate::object::names::{self, CONFIG, CONFIG_COPY, KEYS, SlotCopy};
use crate::object::slot::{SLOT_LEN_MAX, decode_slot};
use crate::store::Store;

/// Longer than any config.
const CONFIG_LEN_MAX: usize = 64 << 10;

/// Checks both copies of the config.
pub(super) fn check_config(store: &Store, findings: &mut Findings) {
    let copies = [CONFIG, CONFIG_COPY].map(|name| (name, read_config(store, name)));
    let [(_, first), (_, second)] = &copies;
    let restore = |from: &str, to: &str| {
        let (from, to) = (store.display(Path::new(from)), store.display(Path::new(to)));
        format!("restore it from its other copy: cp {from} {to}")
    };
    match (first, second) {
        (Ok(first), Ok(second)) if first == second => {}
        (Ok(_), Ok(_)) => {
            let object = store.display(Path::new(CONFIG_COPY));
            findings.add(object, "is not the same as the other copy", restore(CONFIG, CONFIG_COPY));
        }
        (Err(error), Ok(_)) => {
            findings.add_error(store.display(Path::new(CONFIG)), error, restore(CONFIG_COPY, CONFIG));
        }
        (Ok(_), Err(error)) => {
            findings.add_error(store.display(Path::new(CONFIG_COPY)), error, restore(CONFIG, CONFIG_COPY));
        }
        (Err(_), Err(_)) => {
            for (name, copy) in &copies {
                if let Err(error) = copy {
                    let advice = "both copies are lost: restore one from a copy of the repository";
                    findings.add_error(store.display(Path::new(name)), error, advice);
                }
            }
        }
    }
}

fn read_config(store: &Store, name: &str) -> Result<Vec<u8>> {
    let path = Path::new(name);
    let object = store.display(path);
    let bytes = store.read(path, CONFIG_LEN_MAX)?;
    Config::decode(&object, &bytes)?;
    Config::authenticate(&object, &bytes, &store.keys)?;
    Ok(bytes)
}

/// Checks both copies of every key slot.
pub(super) fn check_slots(store: &Store, findings: &mut Findings) {
    let mut slots: BTreeMap<[u8; 16], Vec<SlotCopy>> = BTreeMap::new();
    for entry in list(store, Path::new(KEYS), findings) {
        match names::parse_slot(&entry.name) {
            Some((id, copy)) => slots.entry(id).or_default().push(copy),
            None => {
                findings.unknown_file(store.display(&Path::new(KEYS).join(&entry.name)), "is no key slot");
            }
        }
    }
    let mut opens = 0;
    for id in slots.keys() {
        if check_slot(store, id, findings) {
            opens += 1;
        }
    }
    let is_encrypted = store.config.clear_key.is_none();
    if is_encrypted && opens == 0 {
        let object = store.display(Path::new(KEYS));
        findings.add(
            object,
            "no key slot can be read: whoever does not have the repository open cannot open it any more",
            "restore a key slot from a copy of the repository",
        );
    }
}

/// Checks one slot; says whether a copy of it can be read.
fn check_slot(store: &Store, id: &[u8; 16], findings: &mut Findings) -> bool {
    let path = |copy| names::slot(id, copy);
    let first = read_slot(store, id, SlotCopy::First);
    let second = read_slot(store, id, SlotCopy::Second);
    let restore = |from: SlotCopy, to: SlotCopy| {
        let (from, to) = (store.display(&path(from)), store.display(&path(to)));
        format!("restore it from its other copy: cp {from} {to}")
    };
    match (first, second) {
        (Ok(first), Ok(second)) if first == second => true,
        (Ok(_), Ok(_)) => {
            let object = store.display(&path(SlotCopy::Second));
            findings.add(object, "is not the same as the other copy", restore(SlotCopy::First, SlotCopy::Second));
            true
        }
        (Err(error), Ok(_)) => {
            let object = store.display(&path(SlotCopy::First));
            findings.add_error(object, &error, restore(SlotCopy::Second, SlotCopy::First));
            true
        }
        (Ok(_), Err(error)) => {
            let object = store.display(&path(SlotCopy::Second));
            findings.add_error(object, &error, restore(SlotCopy::First, SlotCopy::Second));
            true
        }
        (Err(first), Err(second)) => {
            let advice = "its password is lost: remove both copies and add a new key slot with another password";
            findings.add_error(store.display(&path(SlotCopy::First)), &first, advice);
            findings.add_error(store.display(&path(SlotCopy::Second)), &second, advice);
            false
        }
    }
}

fn read_slot(store: &Store, id: &[u8; 16], copy: SlotCopy) -> Result<Vec<u8>> {
    let path = names::slot(id, copy);
    let object = store.display(&path);
    let bytes = store.read(&path, SLOT_LEN_MAX)?;
    let (owner, slot) = decode_slot(&object, &bytes)?;
    if owner != store.config.repository {
        return Err(Error::damaged(object, "belongs to another repository"));
    }
    if slot.id != *id {
        return Err(Error::damaged(object, "stands under a wrong name"));
    }
    Ok(bytes)
}
