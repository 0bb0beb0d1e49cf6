//! A group whose records come from another machine: its journal here.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, Host};

use crate::checkpoint::check_record;
use crate::journal::codec::Records;
use crate::journal::{AppendError, Entry, Journal, JournalIdentity, JournalSize, Lsn, Recovered};
use crate::link::frames::last_checksum;
use crate::link::wire::{FINGERPRINT_BYTES, Hello, checksum};
use crate::nbd::transport::Socket;
use crate::stored::GroupSpec;
use crate::volume::{JOURNAL, open_journal};

/// State of a reception for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceptionStatus {
    /// True if a sender is connected.
    pub is_connected: bool,
    /// The last record that is in the journal.
    pub last: Lsn,
    /// The last record that is durable there.
    pub durable: Lsn,
    /// The last record that is in a checkpoint.
    pub checkpoint: Lsn,
    /// Bytes of records that came since the opening.
    pub received_bytes: u64,
}

/// A group that is received. Its journal has the numbers and times of the sender's, sealed with keys of its own.
#[derive(Debug)]
pub struct Reception {
    spec: GroupSpec,
    journal: Journal,
    /// Checksum of the last record; zeros before the first.
    checksum: Mutex<[u8; FINGERPRINT_BYTES]>,
    checkpoint: AtomicU64,
    received_bytes: AtomicU64,
    /// The connection that is served, to be cut by a newer one.
    current: Mutex<Option<Arc<Socket>>>,
    /// Held while a connection is served.
    serving: Mutex<()>,
}

impl Reception {
    /// Creates the files of a reception in an existing, empty directory.
    pub fn create(disk: &dyn Disk, dir: &Path) -> Result<()> {
        Journal::create(disk, &dir.join(JOURNAL))?;
        disk.sync_dir(dir)
    }

    /// Opens a reception. The caller excludes other processes. `checkpoint` is the last record that is in a checkpoint.
    ///
    /// Fails with [`Error::Damaged`] if the journal lacks records that were durable or that the newest checkpoint has.
    pub fn open(
        disk: &Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        (identity, size): (JournalIdentity, JournalSize),
        (spec, checkpoint): (GroupSpec, Lsn),
    ) -> Result<(Self, Recovered)> {
        let (journal, recovered) = open_journal(disk, host, dir, identity, size)?;
        let last = Lsn(recovered.next.0 - 1);
        journal.check_continues(checkpoint)?;
        // Nobody was told that the last frames are durable, and they are continued.
        journal.sync().map_err(|error| Error::invalid(error.to_string()))?;
        journal.release(Lsn(checkpoint.0 + 1));
        let found = if last.0 == 0 { None } else { last_checksum(&mut journal.frames(last), last)? };
        let reception = Self {
            spec,
            journal,
            checksum: Mutex::new(found.unwrap_or_default()),
            checkpoint: AtomicU64::new(checkpoint.0),
            received_bytes: AtomicU64::new(0),
            current: Mutex::new(None),
            serving: Mutex::new(()),
        };
        Ok((reception, recovered))
    }

    /// Returns the group.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Gives records back that are in a checkpoint. The last one of the journal stays.
    pub fn release(&self, before: Lsn) {
        self.checkpoint.store(before.0.saturating_sub(1), Ordering::Release);
        self.journal.release(before);
    }

    /// Returns the last record that is in a checkpoint.
    pub fn checkpoint(&self) -> Lsn {
        Lsn(self.checkpoint.load(Ordering::Acquire))
    }

    /// Returns the state.
    pub fn status(&self) -> ReceptionStatus {
        let status = self.journal.status();
        ReceptionStatus {
            is_connected: self.current().is_some(),
            last: Lsn(status.next.0 - 1),
            durable: Lsn(status.durable.0 - 1),
            checkpoint: self.checkpoint(),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Socket>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection that is served, and waits until it has ended. The result holds others off until it is dropped.
    pub(super) fn take_over(&self, socket: &Arc<Socket>) -> Serving<'_> {
        if let Some(before) = self.current().replace(Arc::clone(socket)) {
            before.cut();
        }
        let held = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        Serving { reception: self, socket: Arc::clone(socket), _held: held }
    }

    /// Returns true if no newer connection has replaced this one.
    pub(super) fn is_current(&self, socket: &Arc<Socket>) -> bool {
        self.current().as_ref().is_some_and(|current| Arc::ptr_eq(current, socket))
    }

    /// Returns the sentence with which a sender is refused whose group or journal is not the one that is received.
    pub(super) fn refusal(&self, hello: &Hello) -> Option<String> {
        let (own, other) = (&self.spec, &hello.group);
        if own.id != other.id || own.name != other.name {
            let sentence =
                format!("this machine receives the group {} here, and not your group {}", own.name, other.name);
            let why = if own.name == other.name { ": it has the same name and another identity" } else { "" };
            return Some(sentence + why);
        }
        if own.volumes != other.volumes {
            return Some(format!(
                "the volumes of group {} have other names or sizes than when it was received first",
                own.name
            ));
        }
        let durable = self.journal.status().durable;
        if hello.next < durable {
            let last = Lsn(durable.0 - 1);
            return Some(format!(
                "your journal ends before record {}, and records up to {last} were received from it: it is an older copy",
                hello.next
            ));
        }
        if durable < hello.first {
            let last = Lsn(durable.0 - 1);
            return Some(format!(
                "your journal begins with record {}, and only records up to {last} were received: those between are lost",
                hello.first
            ));
        }
        None
    }

    /// Returns the last durable record and its checksum, for a new connection.
    pub(super) fn last(&self) -> Result<(Lsn, [u8; FINGERPRINT_BYTES]), AppendError> {
        // What an earlier connection has appended may not be durable yet.
        self.journal.sync()?;
        let checksum = *self.checksum.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((Lsn(self.journal.status().durable.0 - 1), checksum))
    }

    /// Returns why records must not be appended; `None` if they may.
    pub(super) fn refuse_records(&self, first: Lsn, time: u64, records: u32, body: &[u8]) -> Option<String> {
        let Some(all) = Records::of(body, records) else { return Some("records that are not sound".to_owned()) };
        let mut entries = (first.0..).map(Lsn).zip(all).map(|(lsn, record)| Entry { lsn, time, record });
        entries.find_map(|entry| check_record(&entry, &self.spec.volumes).err()).map(|error| error.to_string())
    }

    /// Appends a frame whose records were checked.
    pub(super) fn append(&self, first: Lsn, time: u64, records: u32, body: &[u8]) -> Result<(), AppendError> {
        self.journal.append_frame(first, time, records, body)?;
        self.received_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        let last = Records::of(body, records).and_then(Iterator::last);
        let mut bytes = Vec::new();
        if let Some(record) = last {
            record.encode(&mut bytes);
        }
        let lsn = Lsn(first.0 + u64::from(records) - 1);
        *self.checksum.lock().unwrap_or_else(PoisonError::into_inner) = checksum(lsn, time, &bytes);
        Ok(())
    }
}

/// The right to serve a connection.
#[derive(Debug)]
pub(super) struct Serving<'a> {
    reception: &'a Reception,
    socket: Arc<Socket>,
    _held: MutexGuard<'a, ()>,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut current = self.reception.current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &self.socket)) {
            *current = None;
        }
    }
}
