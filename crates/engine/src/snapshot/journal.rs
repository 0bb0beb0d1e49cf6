//! The part of a volume's journal that a snapshot contains, as its commit notes it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{Decoded, Reader, put_string, put_varint};
use crate::error::{Error, Result};

pub(super) const TAG_JOURNAL: u8 = 150;
pub(super) const TAG_MARK: u8 = 151;

/// A note about the writes to a volume that a snapshot contains. Log sequence numbers (LSNs) count the records of the journal.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JournalNote {
    /// Identity of the volume, or of the group of volumes that share a journal.
    pub volume: [u8; 16],
    /// LSN of the first record after those of the snapshot before.
    pub first_lsn: u64,
    /// LSN of the last record. The snapshot is the volume's state after it.
    pub last_lsn: u64,
    /// LSN up to which the volume itself was known to be durable.
    pub synced_lsn: u64,
    /// Named moments between the first and the last record, at most [`MARKS_MAX`].
    pub marks: Vec<Mark>,
}

/// A moment in a volume's history with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// LSN of the last record before it.
    pub lsn: u64,
    /// Its name, at most [`MARK_LEN_MAX`] bytes long.
    pub name: String,
}

/// Most marks of a snapshot.
pub const MARKS_MAX: usize = 4096;
/// Longest name of a mark in bytes.
pub const MARK_LEN_MAX: usize = 255;

impl JournalNote {
    /// Refuses what a snapshot cannot note.
    pub(super) fn validate(&self) -> Result<()> {
        if MARKS_MAX < self.marks.len() || self.marks.iter().any(|mark| MARK_LEN_MAX < mark.name.len()) {
            let reason =
                format!("a snapshot notes {MARKS_MAX} marks at most, with names of up to {MARK_LEN_MAX} bytes");
            return Err(Error::invalid(reason));
        }
        Ok(())
    }

    /// Appends the fields of a commit.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut value = self.volume.to_vec();
        for lsn in [self.first_lsn, self.last_lsn, self.synced_lsn] {
            put_varint(&mut value, lsn);
        }
        out.push(TAG_JOURNAL);
        put_string(out, &value);
        for Mark { lsn, name } in &self.marks {
            value.clear();
            put_varint(&mut value, *lsn);
            value.extend_from_slice(name.as_bytes());
            out.push(TAG_MARK);
            put_string(out, &value);
        }
    }

    /// Takes the value of one of its fields.
    pub(super) fn take(&mut self, tag: u8, value: &mut Reader<'_>) -> Decoded<()> {
        if tag == TAG_JOURNAL {
            self.volume = value.array()?;
            (self.first_lsn, self.last_lsn) = (value.varint()?, value.varint()?);
            self.synced_lsn = value.varint()?;
            return Ok(());
        }
        if self.marks.len() == MARKS_MAX {
            return Err(value.error("too many marks"));
        }
        let lsn = value.varint()?;
        let error = value.error("name of a mark that is too long or not UTF-8");
        let name = value.bytes(value.remaining())?;
        let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= MARK_LEN_MAX);
        self.marks.push(Mark { lsn, name: name.ok_or(error)?.to_owned() });
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::snapshot::{CommitBody, CommitKind, Snapshot, decode_commit};
    use crate::types::{Fingerprint, Timestamp};

    /// A note with every field.
    pub(in crate::snapshot) fn journal_note() -> JournalNote {
        JournalNote {
            volume: [7; 16],
            first_lsn: 300,
            last_lsn: u64::MAX,
            synced_lsn: 299,
            marks: ["before", ""].map(|name| Mark { lsn: 301, name: name.into() }).into(),
        }
    }

    fn commit(journal: Option<JournalNote>) -> CommitBody {
        let snapshot = Snapshot { journal, ..Snapshot::new(Timestamp::default(), Fingerprint([1; 32])) };
        CommitBody { kind: CommitKind::Snapshot, snapshot: Some(snapshot), heads: Vec::new(), manifest: None }
    }

    #[test]
    fn a_snapshot_notes_a_journal_or_none() {
        for journal in [None, Some(journal_note()), Some(JournalNote::default())] {
            let commit = commit(journal);
            assert_eq!(decode_commit(&commit.encode()), Ok(commit));
        }
        let bytes = commit(None).encode();
        for broken in [&[TAG_JOURNAL, 0][..], &[TAG_JOURNAL, 1, 0], &[TAG_MARK, 0], &[TAG_MARK, 2, 5, 0xff]] {
            assert!(decode_commit(&[&bytes[..], broken].concat()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn marks_have_limits_that_readers_check() {
        let mark = |len| Mark { lsn: 0, name: "m".repeat(len) };
        let noted = |marks| JournalNote { marks, ..journal_note() };
        let most = noted(vec![mark(MARK_LEN_MAX); MARKS_MAX]);
        most.validate().unwrap();
        let commit_of = |journal: &JournalNote| commit(Some(journal.clone()));
        assert_eq!(decode_commit(&commit_of(&most).encode()), Ok(commit_of(&most)));
        for beyond in [noted(vec![mark(1); MARKS_MAX + 1]), noted(vec![mark(MARK_LEN_MAX + 1)])] {
            assert!(beyond.validate().is_err());
            assert!(decode_commit(&commit_of(&beyond).encode()).is_err());
        }
    }
}
