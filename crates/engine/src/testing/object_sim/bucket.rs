//! The server's side of a simulated object store: objects, uploads in flight, the clock and the faults.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::{Lag, RequestFault, TRIES_MAX, timestamp};
use crate::random::SplitMix64;
use crate::testing::sim::crash_error;
use crate::types::Timestamp;

/// Most uploads in flight; another one waits for the first of them.
const UPLOADS_MAX: usize = 16;
/// Milliseconds that a request takes: from, and below.
const LATENCY: (u64, u64) = (20, 120);
/// Milliseconds until a client repeats a request that was throttled, doubled for each try.
const BACKOFF: u64 = 50;
/// Milliseconds until a client gives up waiting for a reply.
const TIMEOUT: u64 = 5_000;

/// Bytes with the time of their last change.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) bytes: Arc<[u8]>,
    pub(super) changed: Timestamp,
}

/// Conditions of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Make or replace an object.
    Any,
    /// Replace an object that exists.
    Replace,
}

/// An upload in flight.
#[derive(Clone, Debug)]
struct Upload {
    ticket: u32,
    key: String,
    bytes: Arc<[u8]>,
    change: Change,
    /// Tries so far, and the fault of the first tries.
    tries: u32,
    fault: Option<(RequestFault, u32)>,
}

/// Requests so far, and what goes wrong with them.
#[derive(Clone, Default, Debug)]
pub(super) struct Faults {
    pub(super) requests: u64,
    pub(super) planned: BTreeMap<u64, (RequestFault, u32)>,
    pub(super) each: Option<(RequestFault, u32)>,
    /// One try in so many is throttled, and one in so many loses its reply; 0 for none.
    pub(super) disturbed: (u64, u64),
    /// Tries that were disturbed.
    pub(super) struck: u64,
    dead: bool,
}

/// The state of the store.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) faults: Faults,
    pub(super) lag: Lag,
    pub(super) ignores_conditions: bool,
    /// Uploads that landed before an earlier one.
    pub(super) reordered: u64,
    random: SplitMix64,
    /// Milliseconds.
    clock: u64,
    /// By the time of the next arrival.
    uploads: BTreeMap<(u64, u32), Upload>,
    /// Outcomes of uploads for which nobody has waited yet.
    landed: BTreeMap<u32, Result<(), ErrorKind>>,
    next_ticket: u32,
}

impl Bucket {
    pub(super) fn new(random: SplitMix64) -> Self {
        Self {
            objects: BTreeMap::new(),
            faults: Faults::default(),
            lag: Lag::None,
            ignores_conditions: false,
            reordered: 0,
            random,
            clock: 0,
            uploads: BTreeMap::new(),
            landed: BTreeMap::new(),
            next_ticket: 0,
        }
    }

    /// Returns the store as a process finds it that starts after this one has ended.
    pub(super) fn after_restart(&self) -> Self {
        let mut after = self.clone();
        (after.faults, after.landed) = (Faults::default(), BTreeMap::new());
        for upload in std::mem::take(&mut after.uploads).into_values() {
            if after.random.coin() {
                let _outcome = after.take_effect(&upload);
            }
        }
        after
    }

    pub(super) fn store(&mut self, key: &str, bytes: Arc<[u8]>) {
        let changed = timestamp(self.clock);
        self.objects.insert(key.to_owned(), Object { bytes, changed });
    }

    /// Stores an object if none has the name. Returns false if one has.
    pub(super) fn store_if_absent(&mut self, key: &str, bytes: &Arc<[u8]>) -> bool {
        let is_new = self.ignores_conditions || !self.objects.contains_key(key);
        if is_new {
            self.store(key, Arc::clone(bytes));
        }
        is_new
    }

    /// Counts a request; returns the fault of its first tries.
    fn next_request(&mut self) -> io::Result<Option<(RequestFault, u32)>> {
        if self.faults.dead {
            return Err(crash_error());
        }
        self.faults.requests += 1;
        Ok(self.faults.planned.get(&self.faults.requests).copied().or(self.faults.each))
    }

    /// Returns what goes wrong with a try.
    fn fault_of(&mut self, planned: Option<(RequestFault, u32)>, tries: u32) -> Option<RequestFault> {
        let (throttled, lost) = self.faults.disturbed;
        let mut strikes = |one_in: u64| one_in != 0 && self.random.below(one_in) == 0;
        let fault = match planned {
            Some((fault, until)) if tries < until => Some(fault),
            _ if strikes(throttled) => Some(RequestFault::Throttled),
            _ if strikes(lost) => Some(RequestFault::LostReply),
            _ => None,
        };
        self.faults.struck += u64::from(fault.is_some());
        fault
    }

    fn latency(&mut self) -> u64 {
        LATENCY.0 + self.random.below(LATENCY.1 - LATENCY.0)
    }

    /// Carries out a request, with the repetitions of the client.
    pub(super) fn request<T>(&mut self, effect: impl Fn(&mut Self) -> T) -> io::Result<T> {
        let planned = self.next_request()?;
        let mut kind = ErrorKind::TimedOut;
        for tries in 0..TRIES_MAX {
            let latency = self.latency();
            self.advance(latency);
            match self.fault_of(planned, tries) {
                None => return Ok(effect(self)),
                Some(RequestFault::Throttled) => {
                    self.advance(BACKOFF << tries);
                    kind = ErrorKind::ResourceBusy;
                }
                Some(RequestFault::LostReply) => {
                    effect(self);
                    self.advance(TIMEOUT);
                    kind = ErrorKind::TimedOut;
                }
                Some(RequestFault::Die) => return Err(self.die()),
                Some(RequestFault::DieAfter) => {
                    effect(self);
                    return Err(self.die());
                }
            }
        }
        Err(kind.into())
    }

    fn die(&mut self) -> io::Error {
        self.faults.dead = true;
        crash_error()
    }

    /// Starts an upload; returns its number. Waits if too many are in flight.
    pub(super) fn upload(&mut self, key: &str, bytes: Arc<[u8]>, change: Change) -> io::Result<u32> {
        let fault = self.next_request()?;
        if matches!(fault, Some((RequestFault::Die, _))) {
            return Err(self.die());
        }
        while UPLOADS_MAX <= self.uploads.len() {
            self.await_arrival();
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let at = self.clock + self.latency();
        self.uploads.insert((at, ticket), Upload { ticket, key: key.to_owned(), bytes, change, tries: 0, fault });
        if matches!(fault, Some((RequestFault::DieAfter, _))) {
            return Err(self.die());
        }
        Ok(ticket)
    }

    /// Lets time pass, and uploads land meanwhile.
    fn advance(&mut self, milliseconds: u64) {
        let until = self.clock + milliseconds;
        while self.uploads.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            self.await_arrival();
        }
        self.clock = until;
    }

    /// Lets the next try of an upload arrive.
    fn await_arrival(&mut self) {
        let Some(((at, _), mut upload)) = self.uploads.pop_first() else { return };
        self.clock = self.clock.max(at);
        self.reordered += u64::from(self.uploads.values().any(|other| other.ticket < upload.ticket));
        let fault = self.fault_of(upload.fault, upload.tries);
        let (kind, wait) = match fault {
            Some(RequestFault::Throttled) => (ErrorKind::ResourceBusy, BACKOFF << upload.tries),
            Some(RequestFault::LostReply) => {
                let _lost = self.take_effect(&upload);
                (ErrorKind::TimedOut, TIMEOUT)
            }
            None | Some(RequestFault::Die | RequestFault::DieAfter) => {
                let outcome = self.take_effect(&upload);
                self.landed.insert(upload.ticket, outcome);
                return;
            }
        };
        upload.tries += 1;
        if upload.tries == TRIES_MAX {
            self.landed.insert(upload.ticket, Err(kind));
        } else {
            self.uploads.insert((self.clock + wait, upload.ticket), upload);
        }
    }

    fn take_effect(&mut self, upload: &Upload) -> Result<(), ErrorKind> {
        if upload.change == Change::Replace && !self.objects.contains_key(&upload.key) {
            return Err(ErrorKind::NotFound);
        }
        self.store(&upload.key, Arc::clone(&upload.bytes));
        Ok(())
    }

    /// Waits until an upload has ended.
    pub(super) fn land(&mut self, ticket: u32) -> io::Result<()> {
        if self.faults.dead {
            return Err(crash_error());
        }
        loop {
            if let Some(outcome) = self.landed.remove(&ticket) {
                return outcome.map_err(io::Error::from);
            }
            assert!(!self.uploads.is_empty(), "the upload was started, and nobody has waited for it");
            self.await_arrival();
        }
    }

    /// Gives an upload up, which lands all the same if the seed wants it.
    pub(super) fn abort(&mut self, ticket: u32) {
        self.landed.remove(&ticket);
        let at = self.uploads.keys().find(|(_, number)| *number == ticket).copied();
        if let Some(upload) = at.and_then(|at| self.uploads.remove(&at))
            && self.random.coin()
        {
            let _outcome = self.take_effect(&upload);
        }
    }
}
