//! The body of a session's start.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{DecodeError, Decoded, put_timestamp, put_varint};
use crate::snapshot::format::{
    TAG_COLLECTIONS_SEEN, TAG_HOSTNAME, TAG_KIND, TAG_PROCESS, TAG_TIME, field, fields, text,
};
use crate::types::{Process, Timestamp};

/// What a session does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionKind {
    /// Makes a snapshot.
    Backup,
    /// Reads, and must not lose what it reads meanwhile.
    Restore,
    /// Collects garbage.
    Collection,
}

/// The body of a session's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionBody {
    /// What it does.
    pub(crate) kind: SessionKind,
    /// Number of the newest collection it saw.
    pub(crate) collections_seen: u32,
    /// When it began.
    pub(crate) time: Timestamp,
    /// On which host.
    pub(crate) hostname: String,
    /// The process, if its host can tell.
    pub(crate) process: Option<Process>,
}

impl SessionBody {
    /// Returns the encoded form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let kind = match self.kind {
            SessionKind::Backup => 1,
            SessionKind::Restore => 2,
            SessionKind::Collection => 3,
        };
        field(&mut out, TAG_KIND, |out| out.push(kind));
        field(&mut out, TAG_COLLECTIONS_SEEN, |out| put_varint(out, self.collections_seen.into()));
        field(&mut out, TAG_TIME, |out| put_timestamp(out, self.time));
        field(&mut out, TAG_HOSTNAME, |out| out.extend_from_slice(self.hostname.as_bytes()));
        if let Some(Process { boot, id }) = self.process {
            field(&mut out, TAG_PROCESS, |out| {
                out.extend_from_slice(&boot);
                put_varint(out, id.into());
            });
        }
        out
    }

    /// Reads the encoded form.
    pub(crate) fn decode(body: &[u8]) -> Decoded<Self> {
        let mut kind = None;
        let mut session = Self {
            kind: SessionKind::Backup,
            collections_seen: 0,
            time: Timestamp::default(),
            hostname: String::new(),
            process: None,
        };
        fields(body, |tag, value| {
            match tag {
                TAG_KIND => {
                    kind = Some(match value.u8()? {
                        1 => SessionKind::Backup,
                        2 => SessionKind::Restore,
                        3 => SessionKind::Collection,
                        _ => return Err(value.error("unknown kind of session")),
                    });
                }
                TAG_COLLECTIONS_SEEN => session.collections_seen = value.varint32()?,
                TAG_TIME => session.time = value.timestamp()?,
                TAG_HOSTNAME => session.hostname = text(value)?,
                TAG_PROCESS => session.process = Some(Process { boot: value.array()?, id: value.varint32()? }),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        match kind {
            Some(kind) => Ok(Self { kind, ..session }),
            None => Err(DecodeError { offset: body.len(), reason: "session without a kind" }),
        }
    }
}
