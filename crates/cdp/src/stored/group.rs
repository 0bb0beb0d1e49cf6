//! Consistency groups, and their checkpoints.

use std::collections::BTreeSet;

use onefold_engine::error::{Error, Result};
use onefold_engine::snapshot::JournalNote;
use onefold_engine::store::Store;
use onefold_engine::types::{Fingerprint, SessionId, Timestamp};

use crate::history::BLOCK_BYTES;
use crate::journal::{GroupId, Lsn};
use crate::stored::{HISTORY, IMAGE};

/// Begin of the tag of a group's checkpoints; the name of the group follows.
const TAG: &str = "cdp:";
/// Tag of the checkpoints whose history was thinned.
pub(crate) const THINNED_TAG: &str = "cdp-thinned";
/// Tag of an initial checkpoint whose images are holes, since the volumes are on another machine.
pub const EMPTY_TAG: &str = "cdp-empty";
/// Tag of a checkpoint that ends inside a gap: its images lack changes that were made until then.
pub const INCOMPLETE_TAG: &str = "cdp-incomplete";
/// Most volumes of a group.
const VOLUMES_MAX: usize = 1024;
/// Most bytes of the volumes of a group: 1 PiB.
const BYTES_MAX: u64 = 1 << 50;
/// Longest name of a volume in bytes: that of a file.
const NAME_BYTES_MAX: usize = 255;

/// A volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeSpec {
    /// Name of its directory in checkpoints.
    pub name: String,
    /// Bytes: a multiple of [`BLOCK_BYTES`].
    pub size: u64,
}

/// A consistency group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSpec {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: GroupId,
    /// Its volumes, in the order of their numbers.
    pub volumes: Vec<VolumeSpec>,
}

impl GroupSpec {
    /// Refuses a group that no checkpoint can hold.
    pub fn validate(&self) -> Result<()> {
        if self.name.is_empty() || self.volumes.is_empty() || VOLUMES_MAX < self.volumes.len() {
            return Err(Error::invalid(format!("a group has a name, and 1 to {VOLUMES_MAX} volumes")));
        }
        let bytes = self.volumes.iter().fold(0, |all: u64, volume| all.saturating_add(volume.size));
        if BYTES_MAX < bytes {
            return Err(Error::invalid(format!("the volumes have {bytes} bytes, and a group has at most {BYTES_MAX}")));
        }
        let mut names = BTreeSet::new();
        for VolumeSpec { name, size } in &self.volumes {
            let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(['/', '\0']);
            if !is_name || [".", "..", HISTORY].contains(&name.as_str()) {
                return Err(Error::invalid(format!("`{name}` cannot be the name of a volume")));
            }
            if !names.insert(name) {
                return Err(Error::invalid(format!("two volumes have the name `{name}`")));
            }
            if *size == 0 || !size.is_multiple_of(BLOCK_BYTES) {
                return Err(Error::invalid(format!(
                    "volume `{name}` has {size} bytes: only multiples of {BLOCK_BYTES} can be protected"
                )));
            }
        }
        Ok(())
    }

    /// Returns the names of its volumes, in the order of their numbers.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.volumes.iter().map(|volume| &*volume.name)
    }

    /// Returns the tag of its checkpoints.
    pub fn tag(&self) -> String {
        format!("{TAG}{}", self.name)
    }

    /// Returns what its snapshots name as backed up: the images, in the order of the volumes' numbers.
    pub(crate) fn paths(&self) -> Vec<Vec<u8>> {
        self.volumes.iter().map(|volume| format!("/{}/{IMAGE}", volume.name).into_bytes()).collect()
    }
}

/// A checkpoint of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Its snapshot.
    pub snapshot: SessionId,
    /// Root of its tree.
    pub tree: Fingerprint,
    /// Wall clock of its last record, or of the initial images.
    pub time: Timestamp,
    /// True if nothing is known of the volumes yet: its images are holes.
    pub is_empty: bool,
    /// Its records and marks.
    pub note: JournalNote,
    /// Names of the volumes, in the order of their numbers.
    pub volumes: Vec<String>,
    /// Tags that users have given.
    pub tags: Vec<String>,
    /// True if it has the tag of those whose history was thinned.
    pub is_thinned: bool,
    /// The snapshot that this one was derived from, if it was.
    pub original: Option<SessionId>,
}

impl Checkpoint {
    /// Returns the first record that it contains.
    pub fn first(&self) -> Lsn {
        Lsn(self.note.first_lsn)
    }

    /// Returns the last record that it contains. Its images are the state after it.
    pub fn last(&self) -> Lsn {
        Lsn(self.note.last_lsn)
    }

    /// Returns true if it contains records, and not only images.
    pub fn has_history(&self) -> bool {
        self.note.first_lsn <= self.note.last_lsn
    }

    /// Returns its time in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub fn nanoseconds(&self) -> u64 {
        let seconds = u64::try_from(self.time.seconds).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(self.time.nanoseconds.into())
    }
}

/// The checkpoints of a group, by their last records.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// Name of the group.
    pub name: String,
    /// The checkpoints, ascending. There is one for each last record.
    pub list: Vec<Checkpoint>,
    /// Others with the last record of one in the list: derived snapshots whose originals are there, too.
    pub others: Vec<Checkpoint>,
}

impl Checkpoints {
    /// Finds the checkpoints of a group: those with its name, or, if its identity is given, those with that identity.
    ///
    /// Fails with [`Error::Invalid`] if checkpoints of two groups have the name.
    pub fn read(store: &Store, name: &str, id: Option<GroupId>) -> Result<Self> {
        let tag = format!("{TAG}{name}");
        let commits = store.read_commits()?;
        let mut found = Vec::new();
        for (session, snapshot) in commits.snapshots() {
            let Some(note) = &snapshot.journal else { continue };
            if !id.map_or_else(|| snapshot.tags.contains(&tag), |id| note.volume == id.0) {
                continue;
            }
            let names = snapshot.paths.iter().filter_map(|path| name_of(path));
            let checkpoint = Checkpoint {
                snapshot: session,
                tree: snapshot.tree,
                time: snapshot.time,
                is_empty: snapshot.tags.iter().any(|tag| tag == EMPTY_TAG),
                note: note.clone(),
                volumes: names.collect(),
                tags: snapshot
                    .tags
                    .iter()
                    .filter(|tag| {
                        !tag.starts_with(TAG) && ![THINNED_TAG, EMPTY_TAG, INCOMPLETE_TAG].contains(&tag.as_str())
                    })
                    .cloned()
                    .collect(),
                is_thinned: snapshot.tags.iter().any(|tag| tag == THINNED_TAG),
                original: snapshot.original,
            };
            found.push(checkpoint);
        }
        // Of several with the same images, one has all moments of the others: that which is not thinned, then the original.
        found.sort_by_key(|found| {
            (found.last(), found.is_thinned, found.original.is_some(), found.first(), found.snapshot)
        });
        let (mut list, mut others): (Vec<Checkpoint>, Vec<Checkpoint>) = (Vec::new(), Vec::new());
        for checkpoint in found {
            let is_other = list.last().is_some_and(|before| before.last() == checkpoint.last());
            if is_other { others.push(checkpoint) } else { list.push(checkpoint) }
        }
        if list.iter().any(|checkpoint| Some(checkpoint.note.volume) != list.first().map(|first| first.note.volume)) {
            return Err(Error::invalid(format!("checkpoints of two groups have the name `{name}`")));
        }
        Ok(Self { name: name.to_owned(), list, others })
    }

    /// Returns the names of all groups that have checkpoints in a repository, and their identities.
    pub fn groups(store: &Store) -> Result<BTreeSet<(String, [u8; 16])>> {
        let commits = store.read_commits()?;
        let mut groups = BTreeSet::new();
        for (_, snapshot) in commits.snapshots() {
            let Some(note) = &snapshot.journal else { continue };
            groups
                .extend(snapshot.tags.iter().filter_map(|tag| Some((tag.strip_prefix(TAG)?.to_owned(), note.volume))));
        }
        Ok(groups)
    }

    /// Returns the identity of the group; `None` if there is no checkpoint.
    pub fn id(&self) -> Option<GroupId> {
        self.list.first().map(|checkpoint| GroupId(checkpoint.note.volume))
    }

    /// Returns the newest checkpoint.
    pub fn newest(&self) -> Option<&Checkpoint> {
        self.list.last()
    }

    /// Returns the newest checkpoint whose state is not after a record.
    pub fn at(&self, lsn: Lsn) -> Option<&Checkpoint> {
        self.list.iter().rfind(|checkpoint| checkpoint.last() <= lsn)
    }

    /// Returns the checkpoint that contains a record and the fewest after it.
    pub fn containing(&self, lsn: Lsn) -> Option<&Checkpoint> {
        self.list.iter().find(|checkpoint| checkpoint.first() <= lsn && lsn <= checkpoint.last())
    }
}

/// Returns the name of the volume whose image has a path.
fn name_of(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    path.strip_prefix('/')?.strip_suffix(IMAGE)?.strip_suffix('/').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_that_no_checkpoint_can_hold_are_refused() {
        let group = |volumes: &[(&str, u64)]| GroupSpec {
            name: "web".into(),
            id: GroupId([1; 16]),
            volumes: volumes.iter().map(|(name, size)| VolumeSpec { name: (*name).into(), size: *size }).collect(),
        };
        let sound = group(&[("root", 4096), ("var log", 8192)]);
        sound.validate().unwrap();
        let names: Vec<_> = sound.paths().iter().filter_map(|path| name_of(path)).collect();
        assert_eq!((names, sound.tag()), (vec!["root".to_owned(), "var log".into()], "cdp:web".into()));
        let long = "n".repeat(256);
        let wrong: [&[(&str, u64)]; 11] = [
            &[("a", BYTES_MAX + 4096)],
            &[("a", 1 << 63), ("b", 1 << 63)],
            &[],
            &[("", 4096)],
            &[("a/b", 4096)],
            &[(HISTORY, 4096)],
            &[("..", 4096)],
            &[("a", 4095)],
            &[("a", 0)],
            &[("a", 4096), ("a", 4096)],
            &[(&long, 4096)],
        ];
        for volumes in wrong {
            assert!(group(volumes).validate().is_err(), "{volumes:?}");
        }
    }
}
