//! The bodies of commits: fields with a tag each.
//!
//! A field is a tag byte and a byte string with its length in front. Unknown tags from 128 on are passed over, so that
//! later writers can add what this reader may ignore; below, they are an error.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{DecodeError, Decoded, Reader, put_timestamp, put_varint};
pub(super) use crate::snapshot::fields::{field, text};
use crate::snapshot::journal::{JournalNote, TAG_JOURNAL, TAG_MARK};
use crate::snapshot::owners::{OwnerNames, TAG_GROUP_NAME, TAG_USER_NAME};
use crate::types::{Fingerprint, SessionId, Timestamp};

/// Longest text in a snapshot in bytes.
pub(super) const TEXT_LEN_MAX: usize = 64 << 10;

pub(super) const TAG_KIND: u8 = 1;
pub(super) const TAG_TIME: u8 = 2;
const TAG_FILE_CLOCK: u8 = 3;
const TAG_TREE: u8 = 4;
pub(super) const TAG_HOSTNAME: u8 = 5;
const TAG_USERNAME: u8 = 6;
const TAG_OWNER: u8 = 7;
const TAG_PATH: u8 = 8;
const TAG_TAG: u8 = 9;
const TAG_EXCLUDE: u8 = 10;
const TAG_PARENT: u8 = 11;
const TAG_PROGRAM: u8 = 12;
const TAG_SUMMARY: u8 = 13;
const TAG_HEAD: u8 = 14;
pub(super) const TAG_COLLECTIONS_SEEN: u8 = 15;
pub(super) const TAG_CONTAINER: u8 = 16;
pub(super) const TAG_CONTAINERS: u8 = 18;
const OPTIONAL_TAGS: u8 = 128;
const TAG_MANIFEST: u8 = 130;
const TAG_INDEX: u8 = 131;
const TAG_REWRITTEN: u8 = 132;
pub(super) const TAG_PROCESS: u8 = 133;
const TAG_ORIGINAL: u8 = 134;
const TAG_DURABLE: u8 = 140;
const TAG_POSITION: u8 = 143;
const TAG_INCOMPLETE: u8 = 146;
const REPEATED_TAGS: [u8; 6] = [TAG_PATH, TAG_TAG, TAG_EXCLUDE, TAG_HEAD, TAG_CONTAINER, TAG_CONTAINERS];

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommitKind {
    /// With a snapshot.
    Snapshot,
    /// By a collection that waited for it long enough; nothing it wrote will be referred to.
    Fence,
    /// Without anything to keep.
    Done,
    /// Without a snapshot, after all containers of the session became durable.
    Durable,
}

/// A commit that was seen when a snapshot was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Head {
    /// Its session.
    pub session: SessionId,
    /// BLAKE3-256 of its stored bytes.
    pub(crate) checksum: [u8; 32],
}

/// What a backup counted, as stored with its snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// When the backup ended.
    pub end: Timestamp,
    /// Files that the parent did not have.
    pub files_new: u64,
    /// Files that differ from the parent's.
    pub files_changed: u64,
    /// Files whose references were reused.
    pub files_unmodified: u64,
    /// Directories that the parent did not have.
    pub dirs_new: u64,
    /// Directories that differ from the parent's.
    pub dirs_changed: u64,
    /// Directories that are the same as the parent's.
    pub dirs_unmodified: u64,
    /// Data chunks stored.
    pub data_chunks: u64,
    /// Tree and recipe chunks stored.
    pub metadata_chunks: u64,
    /// Plaintext bytes of the chunks stored.
    pub data_added: u64,
    /// Bytes that the containers of this session take.
    pub data_added_packed: u64,
    /// Files seen.
    pub files_processed: u64,
    /// Bytes of all files seen.
    pub bytes_processed: u64,
}

/// A committed state of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// When the backup began.
    pub time: Timestamp,
    /// The kernel's file clock at that time. A file whose ctime is not older must be read again.
    pub file_clock: Timestamp,
    /// Root of the tree.
    pub tree: Fingerprint,
    /// Host that was backed up.
    pub hostname: String,
    /// User who did it.
    pub username: String,
    /// Their numbers.
    pub uid: u32,
    /// Their group's.
    pub gid: u32,
    /// What was backed up, as bytes of absolute paths.
    pub paths: Vec<Vec<u8>>,
    /// Paths in the tree that these stand at, without those inside another one, if they are not the same. The empty path is the
    /// top.
    pub positions: Vec<Vec<u8>>,
    /// True if the top directory lacks entries that could not be read.
    pub is_incomplete: bool,
    /// Names of the owners of its entries.
    pub owners: OwnerNames,
    /// Labels that the user gave.
    pub tags: Vec<String>,
    /// Patterns that were left out.
    pub excludes: Vec<String>,
    /// Snapshot whose references were reused.
    pub parent: Option<SessionId>,
    /// Snapshot from which this one was made without reading a source: after it was forgotten, with other tags, or without
    /// some paths.
    pub original: Option<SessionId>,
    /// Program and version.
    pub program: String,
    /// How duplicates were found, if not as by default.
    pub index: Option<IndexNote>,
    /// Chunks that were stored again although they were there, if the backup did such a thing.
    pub rewritten: Option<Rewritten>,
    /// The part of a volume's journal that the snapshot contains, if it is one of a volume.
    pub journal: Option<JournalNote>,
    /// What was counted.
    pub summary: Summary,
}

/// A note about the index that found the duplicates of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexNote {
    /// Whether every duplicate was found, as far as the index was whole.
    pub is_exact: bool,
    /// Name of its preset.
    pub preset: String,
}

/// Chunks that a backup stored again, so that a restore reads fewer containers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rewritten {
    /// Their number.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
}

impl Rewritten {
    /// Adds a chunk.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.chunks += 1;
        self.bytes += bytes;
    }
}

/// The body of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CommitBody {
    /// How the session ended.
    pub(crate) kind: CommitKind,
    /// The snapshot, if it ended with one.
    pub(crate) snapshot: Option<Snapshot>,
    /// Heads of the log that were seen.
    pub(crate) heads: Vec<Head>,
    /// BLAKE3-256 of the stored bytes of the snapshot's manifest, if it has one.
    pub(crate) manifest: Option<[u8; 32]>,
}

impl CommitBody {
    /// Returns the end of a session without a snapshot.
    pub(crate) fn without_snapshot(kind: CommitKind) -> Self {
        Self { kind, snapshot: None, heads: Vec::new(), manifest: None }
    }
}

impl Snapshot {
    /// Says which text is too long to be stored, if one is.
    pub(crate) fn validate(&self) -> crate::error::Result<()> {
        self.journal.as_ref().map_or(Ok(()), JournalNote::validate)?;
        let texts = [&self.hostname, &self.username, &self.program].into_iter().chain(&self.tags).chain(&self.excludes);
        let longest = texts.map(String::len).chain(self.paths.iter().map(Vec::len)).max().unwrap_or(0);
        if longest <= TEXT_LEN_MAX {
            return Ok(());
        }
        let reason = format!(
            "a path, tag or pattern of {longest} bytes is longer than the {TEXT_LEN_MAX} that a snapshot can note"
        );
        Err(crate::error::Error::invalid(reason))
    }
}

impl CommitBody {
    /// Returns the encoded form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let kind = match self.kind {
            CommitKind::Snapshot => 1,
            CommitKind::Fence => 2,
            CommitKind::Done | CommitKind::Durable => 3,
        };
        field(&mut out, TAG_KIND, |out| out.push(kind));
        if self.kind == CommitKind::Durable {
            field(&mut out, TAG_DURABLE, |_| {});
        }
        if let Some(snapshot) = &self.snapshot {
            snapshot.encode(&mut out);
        }
        for head in &self.heads {
            field(&mut out, TAG_HEAD, |out| {
                out.extend_from_slice(&head.session.0);
                out.extend_from_slice(&head.checksum);
            });
        }
        if let Some(manifest) = &self.manifest {
            field(&mut out, TAG_MANIFEST, |out| out.extend_from_slice(manifest));
        }
        out
    }
}

impl Snapshot {
    fn encode(&self, out: &mut Vec<u8>) {
        field(out, TAG_TIME, |out| put_timestamp(out, self.time));
        field(out, TAG_FILE_CLOCK, |out| put_timestamp(out, self.file_clock));
        field(out, TAG_TREE, |out| out.extend_from_slice(&self.tree.0));
        field(out, TAG_HOSTNAME, |out| out.extend_from_slice(self.hostname.as_bytes()));
        field(out, TAG_USERNAME, |out| out.extend_from_slice(self.username.as_bytes()));
        field(out, TAG_OWNER, |out| {
            put_varint(out, self.uid.into());
            put_varint(out, self.gid.into());
        });
        for path in &self.paths {
            field(out, TAG_PATH, |out| out.extend_from_slice(path));
        }
        for position in &self.positions {
            field(out, TAG_POSITION, |out| out.extend_from_slice(position));
        }
        if self.is_incomplete {
            field(out, TAG_INCOMPLETE, |_| {});
        }
        self.owners.encode(out);
        for tag in &self.tags {
            field(out, TAG_TAG, |out| out.extend_from_slice(tag.as_bytes()));
        }
        for exclude in &self.excludes {
            field(out, TAG_EXCLUDE, |out| out.extend_from_slice(exclude.as_bytes()));
        }
        if let Some(parent) = self.parent {
            field(out, TAG_PARENT, |out| out.extend_from_slice(&parent.0));
        }
        if let Some(original) = self.original {
            field(out, TAG_ORIGINAL, |out| out.extend_from_slice(&original.0));
        }
        if let Some(IndexNote { is_exact, preset }) = &self.index {
            field(out, TAG_INDEX, |out| {
                out.push(u8::from(*is_exact));
                out.extend_from_slice(preset.as_bytes());
            });
        }
        if let Some(Rewritten { chunks, bytes }) = self.rewritten {
            field(out, TAG_REWRITTEN, |out| {
                put_varint(out, chunks);
                put_varint(out, bytes);
            });
        }
        if let Some(journal) = &self.journal {
            journal.encode(out);
        }
        field(out, TAG_PROGRAM, |out| out.extend_from_slice(self.program.as_bytes()));
        field(out, TAG_SUMMARY, |out| {
            put_timestamp(out, self.summary.end);
            for number in self.summary.numbers() {
                put_varint(out, number);
            }
        });
    }

    /// Returns a snapshot of a tree about which nothing else is noted.
    pub fn new(time: Timestamp, tree: Fingerprint) -> Self {
        Self {
            time,
            file_clock: Timestamp::default(),
            tree,
            hostname: String::new(),
            username: String::new(),
            uid: 0,
            gid: 0,
            paths: Vec::new(),
            positions: Vec::new(),
            is_incomplete: false,
            owners: OwnerNames::default(),
            tags: Vec::new(),
            excludes: Vec::new(),
            parent: None,
            original: None,
            program: String::new(),
            index: None,
            rewritten: None,
            journal: None,
            summary: Summary::default(),
        }
    }

    fn empty() -> Self {
        Self::new(Timestamp::default(), Fingerprint([0; 32]))
    }

    /// Takes a field; false if it is none of a snapshot's.
    fn take(&mut self, tag: u8, value: &mut Reader<'_>) -> Decoded<bool> {
        match tag {
            TAG_TIME => self.time = value.timestamp()?,
            TAG_FILE_CLOCK => self.file_clock = value.timestamp()?,
            TAG_TREE => self.tree = value.fingerprint()?,
            TAG_HOSTNAME => self.hostname = text(value)?,
            TAG_USERNAME => self.username = text(value)?,
            TAG_OWNER => (self.uid, self.gid) = (value.varint32()?, value.varint32()?),
            TAG_PATH => self.paths.push(value.bytes(value.remaining())?.to_vec()),
            TAG_POSITION => self.positions.push(value.bytes(value.remaining())?.to_vec()),
            TAG_INCOMPLETE => self.is_incomplete = true,
            TAG_USER_NAME | TAG_GROUP_NAME => self.owners.take(tag, value)?,
            TAG_TAG => self.tags.push(text(value)?),
            TAG_EXCLUDE => self.excludes.push(text(value)?),
            TAG_PARENT => self.parent = Some(SessionId(value.array()?)),
            TAG_ORIGINAL => self.original = Some(SessionId(value.array()?)),
            TAG_INDEX => self.index = Some(IndexNote { is_exact: value.u8()? == 1, preset: text(value)? }),
            TAG_REWRITTEN => self.rewritten = Some(Rewritten { chunks: value.varint()?, bytes: value.varint()? }),
            TAG_JOURNAL | TAG_MARK => self.journal.get_or_insert_default().take(tag, value)?,
            TAG_PROGRAM => self.program = text(value)?,
            TAG_SUMMARY => self.summary = Summary::decode(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Summary {
    fn numbers(&self) -> [u64; 12] {
        [
            self.files_new,
            self.files_changed,
            self.files_unmodified,
            self.dirs_new,
            self.dirs_changed,
            self.dirs_unmodified,
            self.data_chunks,
            self.metadata_chunks,
            self.data_added,
            self.data_added_packed,
            self.files_processed,
            self.bytes_processed,
        ]
    }

    fn decode(value: &mut Reader<'_>) -> Decoded<Self> {
        Ok(Self {
            end: value.timestamp()?,
            files_new: value.varint()?,
            files_changed: value.varint()?,
            files_unmodified: value.varint()?,
            dirs_new: value.varint()?,
            dirs_changed: value.varint()?,
            dirs_unmodified: value.varint()?,
            data_chunks: value.varint()?,
            metadata_chunks: value.varint()?,
            data_added: value.varint()?,
            data_added_packed: value.varint()?,
            files_processed: value.varint()?,
            bytes_processed: value.varint()?,
        })
    }
}

/// Reads the fields of a body one after the other. Those that stand once must not stand twice.
pub(super) fn fields(body: &[u8], mut take: impl FnMut(u8, &mut Reader<'_>) -> Decoded<bool>) -> Decoded<()> {
    let mut reader = Reader::new(body);
    let mut seen = 0u128;
    while reader.remaining() > 0 {
        let tag = reader.u8()?;
        if tag < OPTIONAL_TAGS && !REPEATED_TAGS.contains(&tag) {
            if seen & 1 << tag != 0 {
                return Err(reader.error("field that stands twice"));
            }
            seen |= 1 << tag;
        }
        let value = reader.string(TEXT_LEN_MAX)?;
        let at = reader.offset() - value.len();
        let at = move |error: DecodeError| DecodeError { offset: at + error.offset, ..error };
        let mut value = Reader::new(value);
        if take(tag, &mut value).map_err(at)? {
            value.finish().map_err(at)?;
        } else if tag < OPTIONAL_TAGS {
            return Err(reader.error("unknown field"));
        }
    }
    Ok(())
}

/// Reads the body of a commit.
pub(crate) fn decode_commit(body: &[u8]) -> Decoded<CommitBody> {
    let mut kind = None;
    let mut snapshot = Snapshot::empty();
    let mut has_tree = false;
    let mut is_durable = false;
    let (mut heads, mut manifest) = (Vec::new(), None);
    fields(body, |tag, value| {
        match tag {
            TAG_KIND => {
                kind = Some(match value.u8()? {
                    1 => CommitKind::Snapshot,
                    2 => CommitKind::Fence,
                    3 => CommitKind::Done,
                    _ => return Err(value.error("unknown kind of commit")),
                });
            }
            TAG_DURABLE => is_durable = true,
            TAG_MANIFEST => manifest = Some(value.array()?),
            TAG_HEAD => heads.push(Head { session: SessionId(value.array()?), checksum: value.array()? }),
            _ => {
                has_tree |= tag == TAG_TREE;
                return snapshot.take(tag, value);
            }
        }
        Ok(true)
    })?;
    let of = |kind, snapshot| Ok(CommitBody { kind, snapshot, heads, manifest });
    match kind {
        Some(CommitKind::Snapshot) if has_tree => of(CommitKind::Snapshot, Some(snapshot)),
        Some(CommitKind::Done) if is_durable => of(CommitKind::Durable, None),
        Some(kind @ (CommitKind::Fence | CommitKind::Done)) => of(kind, None),
        Some(CommitKind::Snapshot | CommitKind::Durable) | None => {
            Err(DecodeError { offset: body.len(), reason: "commit without a tree" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::journal::tests::journal_note;
    use crate::snapshot::owners::OWNER_NAME_LEN_MAX;
    use crate::snapshot::session::{SessionBody, SessionKind};
    use crate::types::Process;

    fn body() -> CommitBody {
        let snapshot = Snapshot {
            time: Timestamp { seconds: -1, nanoseconds: 5 },
            tree: Fingerprint([1; 32]),
            hostname: "h\u{f6}st".into(),
            paths: vec![b"/\xff".to_vec(), b"/b".to_vec()],
            positions: vec![vec![], b"a/\xff".to_vec()],
            is_incomplete: true,
            owners: OwnerNames {
                users: [(0, "root".to_owned()), (u32::MAX, "b".repeat(OWNER_NAME_LEN_MAX))].into(),
                groups: [(7, "g\u{e4}".to_owned())].into(),
            },
            tags: vec!["t".into()],
            excludes: vec!["*.o".into()],
            parent: Some(SessionId([2; 16])),
            original: Some(SessionId([6; 16])),
            index: Some(IndexNote { is_exact: true, preset: "ddfs".into() }),
            rewritten: Some(Rewritten { chunks: 300, bytes: u64::MAX }),
            journal: Some(journal_note()),
            summary: Summary { files_new: 7, bytes_processed: u64::MAX, ..Summary::default() },
            ..Snapshot::empty()
        };
        let heads = vec![Head { session: SessionId([3; 16]), checksum: [4; 32] }];
        CommitBody { kind: CommitKind::Snapshot, snapshot: Some(snapshot), heads, manifest: None }
    }

    #[test]
    fn commits_come_back_and_unknown_optional_fields_are_passed_over() {
        let mut bytes = body().encode();
        assert_eq!(decode_commit(&bytes), Ok(body()));
        bytes.extend_from_slice(&[200, 1, 0]);
        assert_eq!(decode_commit(&bytes), Ok(body()));
        bytes.extend_from_slice(&[100, 1, 0]);
        assert!(decode_commit(&bytes).is_err());
    }

    #[test]
    fn names_of_owners_are_few_and_short_and_stand_once() {
        let commit = |fields: &[u8]| decode_commit(&[&body().encode()[..], fields].concat());
        let named =
            |id: u8, len: usize| [&[TAG_USER_NAME, u8::try_from(len + 1).unwrap(), id][..], &vec![b'n'; len]].concat();
        assert!(commit(&named(1, 126)).is_ok());
        for refused in [named(1, 0), named(0, 4), vec![TAG_GROUP_NAME, 3, 1, b'a', 0], vec![TAG_GROUP_NAME, 2, 1, 255]]
        {
            assert!(commit(&refused).is_err(), "{refused:?}");
        }
        assert!(commit(&[TAG_USER_NAME, 130, 2, 1].into_iter().chain([b'n'; 257]).collect::<Vec<u8>>()).is_err());
        let mut full = body();
        let users = &mut full.snapshot.as_mut().unwrap().owners.users;
        *users = (0..=4096).map(|id| (id, "n".to_owned())).collect();
        assert!(decode_commit(&full.encode()).is_err());
    }

    #[test]
    fn a_field_that_stands_once_cannot_stand_twice() {
        let bytes = body().encode();
        assert!(decode_commit(&[&bytes[..], &[TAG_KIND, 1, 2]].concat()).is_err());
        assert!(decode_commit(&[&bytes[..], &[TAG_TAG, 1, b'u']].concat()).is_ok());
    }

    #[test]
    fn fences_and_sessions_come_back() {
        for kind in [CommitKind::Fence, CommitKind::Done, CommitKind::Durable] {
            let end = CommitBody::without_snapshot(kind);
            assert_eq!(decode_commit(&end.encode()), Ok(end));
        }
        assert!(decode_commit(&[1, 1, 1]).is_err(), "a snapshot without a tree");
        let session = SessionBody {
            kind: SessionKind::Backup,
            collections_seen: 9,
            time: Timestamp::default(),
            process: Some(Process { boot: [9; 16], id: 300 }),
            hostname: "h".into(),
        };
        assert_eq!(SessionBody::decode(&session.encode()), Ok(session));
    }
}
