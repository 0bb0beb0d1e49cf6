//! Names of the owners of a snapshot's entries.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeMap;

use crate::codec::{Decoded, Reader, put_varint};
use crate::io::os_identity;
use crate::io::tree::MetadataChoice;
use crate::snapshot::fields::{field, text};

pub(super) const TAG_USER_NAME: u8 = 144;
pub(super) const TAG_GROUP_NAME: u8 = 145;

/// Most names of users that a snapshot notes, and of groups.
pub const OWNER_NAMES_MAX: usize = 4096;
/// Longest name in bytes.
pub const OWNER_NAME_LEN_MAX: usize = 255;

impl MetadataChoice {
    /// Gives entries to the users and groups that have their owners' names here.
    pub fn by_name(owners: &OwnerNames) -> Self {
        Self { local_ids: os_identity::local_ids(&owners.users, &owners.groups), ..Self::default() }
    }
}

/// Names of users and groups by their numbers, as the host of a backup knows them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OwnerNames {
    /// Users.
    pub users: BTreeMap<u32, String>,
    /// Groups.
    pub groups: BTreeMap<u32, String>,
}

impl OwnerNames {
    /// Looks up the names of users and groups.
    pub(crate) fn look_up(
        users: impl IntoIterator<Item = u32>,
        user_name: impl Fn(u32) -> Option<String>,
        groups: impl IntoIterator<Item = u32>,
        group_name: impl Fn(u32) -> Option<String>,
    ) -> Self {
        let is_short = |name: &String| !name.is_empty() && name.len() <= OWNER_NAME_LEN_MAX;
        Self {
            users: users.into_iter().filter_map(|id| Some((id, user_name(id).filter(is_short)?))).collect(),
            groups: groups.into_iter().filter_map(|id| Some((id, group_name(id).filter(is_short)?))).collect(),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for (tag, names) in [(TAG_USER_NAME, &self.users), (TAG_GROUP_NAME, &self.groups)] {
            for (id, name) in names {
                field(out, tag, |out| {
                    put_varint(out, (*id).into());
                    out.extend_from_slice(name.as_bytes());
                });
            }
        }
    }

    pub(super) fn take(&mut self, tag: u8, value: &mut Reader<'_>) -> Decoded<()> {
        let names = if tag == TAG_USER_NAME { &mut self.users } else { &mut self.groups };
        let (id, name) = (value.varint32()?, text(value)?);
        if name.is_empty() || OWNER_NAME_LEN_MAX < name.len() || name.contains('\0') {
            return Err(value.error("invalid name of an owner"));
        }
        if names.len() == OWNER_NAMES_MAX || names.insert(id, name).is_some() {
            return Err(value.error("too many names of owners"));
        }
        Ok(())
    }
}
