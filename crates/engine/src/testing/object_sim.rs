//! An object store in memory, which behaves as S3 does, for tests of what is above [`ObjectStore`].
//!
//! It knows names and bytes, no directories, renames or syncs. A request takes a while by a virtual clock. Uploads are in flight
//! together and land in the order of that clock, not in the order of the calls. The server may refuse a request for now, or carry
//! it out and lose the reply; the client repeats both a limited number of times. A client may serve old listings. A seed decides.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::object::bytes::ObjectBytes;
use crate::object::handshake::{ProbeHandle, try_handshake};
use crate::object::names::{ContainerName, ObjectName, Prefix};
use crate::object::store::{
    Abilities, Created, CreationLock, Detail, Handshake, Leftovers, Listed, ObjectStore, PendingPut, RangeRead,
};
use crate::random::SplitMix64;
use crate::types::{SessionId, Timestamp};

mod bucket;
#[cfg(test)]
mod tests;

use bucket::{Bucket, Change, Object};

/// Most times that a client sends one request.
const TRIES_MAX: u32 = 8;
/// Names in a page of a listing.
const PAGE_NAMES: usize = 5;
/// Names in a request that deletes.
const DELETE_NAMES: usize = 3;
/// Ending of the names of probes.
const PROBE: &str = ".probe";
/// Exists while a repository is created.
const CREATION_LOCK: &str = "tmp/init";

/// Fault of a try of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestFault {
    /// The server refuses it for now (503) and does nothing.
    Throttled,
    /// The server carries it out, and the client never gets the reply.
    LostReply,
    /// The process dies before it.
    Die,
    /// The server carries it out, and the process dies.
    DieAfter,
}

/// Lag of a client's listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Lag {
    /// They show all changes.
    #[default]
    None,
    /// A listing of a prefix may repeat an old one so many times, until the client itself changes something under the prefix.
    UntilOwnChange(u32),
    /// A listing of a prefix may repeat an old one so many times, whatever the client does.
    Always(u32),
}

/// A client of a simulated object store. Clients of one store share its objects, clock and faults.
#[derive(Debug)]
pub(crate) struct SimObjectStore {
    bucket: Arc<Mutex<Bucket>>,
    /// Listings that this client may repeat.
    listings: Mutex<BTreeMap<Prefix, OldListing>>,
}

#[derive(Debug)]
struct OldListing {
    objects: Arc<BTreeMap<String, Object>>,
    /// Times that it may still be repeated.
    repetitions: u32,
}

impl SimObjectStore {
    /// Makes an empty store.
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(Bucket::new(SplitMix64::new(seed)))
    }

    fn of(bucket: Bucket) -> Self {
        Self { bucket: Arc::new(Mutex::new(bucket)), listings: Mutex::default() }
    }

    /// Returns another client of the store, which remembers no listing.
    pub(crate) fn another_client(&self) -> Self {
        Self { bucket: Arc::clone(&self.bucket), listings: Mutex::default() }
    }

    /// Returns a client of an independent copy of the store, in a process that lives. Each upload that was in flight has landed or
    /// is lost. No fault is planned, and no request is counted.
    pub(crate) fn fork(&self) -> Self {
        Self::of(self.bucket().after_restart())
    }

    /// Lets about one try in so many be throttled, and one in so many lose its reply; 0 for none.
    pub(crate) fn disturb(&self, throttled: u64, lost: u64) {
        self.bucket().faults.disturbed = (throttled, lost);
    }

    /// Plans a fault for the first tries of a request, counted from 1.
    pub(crate) fn fail_at(&self, request: u64, fault: RequestFault, tries: u32) {
        self.bucket().faults.planned.insert(request, (fault, tries));
    }

    /// Plans a fault for the first tries of each request.
    pub(crate) fn fail_each(&self, fault: RequestFault, tries: u32) {
        self.bucket().faults.each = Some((fault, tries));
    }

    /// Lets the listings of all clients lag.
    pub(crate) fn set_lag(&self, lag: Lag) {
        self.bucket().lag = lag;
    }

    /// Lets a create replace what exists, as a server that ignores the condition does.
    pub(crate) fn ignore_conditions(&self) {
        self.bucket().ignores_conditions = true;
    }

    /// Returns the number of requests so far, without repetitions.
    pub(crate) fn requests(&self) -> u64 {
        self.bucket().faults.requests
    }

    /// Returns the number of uploads that landed before one that was started earlier.
    pub(crate) fn reordered(&self) -> u64 {
        self.bucket().reordered
    }

    /// Returns the number of tries that were disturbed.
    pub(crate) fn disturbances(&self) -> u64 {
        self.bucket().faults.struck
    }

    /// Returns all names.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.bucket().objects.keys().cloned().collect()
    }

    /// Returns all objects by their names, without a request.
    pub(crate) fn contents(&self) -> Vec<(String, Arc<[u8]>)> {
        self.bucket().objects.iter().map(|(key, object)| (key.clone(), Arc::clone(&object.bytes))).collect()
    }

    /// Stores bytes under any name.
    pub(crate) fn plant(&self, key: &str, bytes: &[u8]) {
        self.bucket().store(key, bytes.into());
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        // Each change is whole within one call.
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, operation: &'static str, key: &str, error: io::Error) -> Error {
        Error::io(operation, Path::new(&self.display(key)), error)
    }

    /// Sends a request until a reply arrives. The effect may take place several times.
    fn request<T>(&self, operation: &'static str, key: &str, effect: impl Fn(&mut Bucket) -> T) -> Result<T> {
        let mut bucket = self.bucket();
        bucket.request(effect).map_err(|error| self.error(operation, key, error))
    }

    /// Notes that this client has changed something under a prefix.
    fn changed(&self, prefix: Prefix) {
        if matches!(self.bucket().lag, Lag::UntilOwnChange(_)) {
            self.listings().remove(&prefix);
        }
    }

    fn listings(&self) -> MutexGuard<'_, BTreeMap<Prefix, OldListing>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a name if it is new, or has the bytes already.
    fn create_key(&self, key: &str, bytes: &[u8]) -> Result<Created> {
        let body: Arc<[u8]> = bytes.into();
        if self.request("create", key, |bucket| bucket.store_if_absent(key, &body))? {
            return Ok(Created::New);
        }
        // The name may be this client's: the reply to an earlier try was lost.
        let stored =
            self.request("read", key, |bucket| bucket.objects.get(key).map(|object| Arc::clone(&object.bytes)))?;
        Ok(if stored.is_some_and(|stored| *stored == *bytes) { Created::New } else { Created::Existed })
    }

    fn delete_keys(&self, keys: &[String]) -> Result<()> {
        for keys in keys.chunks(DELETE_NAMES) {
            let first = keys.first().map_or("", String::as_str);
            self.request("delete", first, |bucket| keys.iter().for_each(|key| drop(bucket.objects.remove(key))))?;
        }
        Ok(())
    }

    /// Returns the old listing that this client repeats, if it does; else remembers a new one, if listings lag.
    fn old_listing(&self, prefix: Prefix) -> Option<Arc<BTreeMap<String, Object>>> {
        let (lag, objects) = {
            let bucket = self.bucket();
            (bucket.lag, bucket.objects.clone())
        };
        let (Lag::UntilOwnChange(repetitions) | Lag::Always(repetitions)) = lag else { return None };
        let mut listings = self.listings();
        match listings.get_mut(&prefix) {
            Some(old) if 0 < old.repetitions => {
                old.repetitions -= 1;
                Some(Arc::clone(&old.objects))
            }
            _ => {
                listings.insert(prefix, OldListing { objects: Arc::new(objects), repetitions });
                None
            }
        }
    }

    /// Lists all names under a prefix, a request for each page.
    fn list_keys(&self, prefix: Prefix, page: &mut dyn FnMut(Vec<(String, Object)>) -> Result<()>) -> Result<()> {
        let old = self.old_listing(prefix);
        let directory = prefix.directory();
        let mut last: Option<String> = None;
        loop {
            let listed = self.request("list", directory, |bucket| {
                let objects = old.as_deref().unwrap_or(&bucket.objects);
                let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let keys = objects.range::<String, _>((from, Bound::Unbounded));
                let keys = keys.filter(|(key, _)| is_under(prefix, key)).take(PAGE_NAMES);
                keys.map(|(key, object)| (key.clone(), object.clone())).collect::<Vec<_>>()
            })?;
            let Some((key, _)) = listed.last() else { return Ok(()) };
            last = Some(key.clone());
            page(listed)?;
        }
    }

    fn refresh(&self, session: SessionId, prefix: Prefix) -> Result<()> {
        let key = format!("{prefix}/{session}{PROBE}");
        let body: Arc<[u8]> = [].into();
        self.request("put", &key, |bucket| bucket.store(&key, Arc::clone(&body)))?;
        self.delete_keys(&[key])?;
        self.changed(prefix);
        Ok(())
    }

    fn start_put(&self, session: SessionId, name: ObjectName, bytes: &[u8], change: Change) -> Result<PendingPut> {
        let key = name.to_string();
        let ticket =
            self.bucket().upload(&key, bytes.into(), change).map_err(|error| self.error("put", &key, error))?;
        Ok(PendingPut { name, session, ticket, is_again: change == Change::Replace })
    }

    fn read_one(&self, read: &mut RangeRead) -> Result<u64> {
        let key = read.name.to_string();
        let object = self.request("read", &key, |bucket| bucket.objects.get(&key).cloned())?;
        let Some(Object { bytes, .. }) = object else { return Err(Error::Missing { object: self.display(&key) }) };
        let from = usize::try_from(read.offset).unwrap_or(usize::MAX).min(bytes.len());
        let range = &bytes[from..];
        if range.len() < read.buffer.len() {
            read.buffer.resize(range.len());
        }
        let len = read.buffer.len();
        read.buffer.copy_from_slice(&range[..len]);
        Ok(bytes.len() as u64)
    }
}

fn is_under(prefix: Prefix, key: &str) -> bool {
    match prefix {
        Prefix::Root => !key.contains('/'),
        prefix => key.strip_prefix(prefix.directory()).is_some_and(|rest| rest.starts_with('/')),
    }
}

fn handshake_probe(prefix: Prefix, session: SessionId) -> String {
    format!("{prefix}/{session}-handshake{PROBE}")
}

/// Deletes the lock of a creation when it is dropped.
#[derive(Debug)]
struct SimCreationLock(SimObjectStore);

impl Drop for SimCreationLock {
    fn drop(&mut self) {
        // A process that died leaves the name: a person has to delete it.
        let _left = self.0.delete_keys(&[CREATION_LOCK.to_owned()]);
    }
}

impl ProbeHandle for SimObjectStore {
    fn create_probe(&self, prefix: Prefix, session: SessionId) -> Result<()> {
        let key = handshake_probe(prefix, session);
        let created = self.create_key(&key, &session.0)?;
        self.changed(prefix);
        assert_eq!(created, Created::New, "the name is the session's");
        Ok(())
    }

    fn remove_probe(&self, prefix: Prefix, session: SessionId) -> Result<()> {
        self.delete_keys(&[handshake_probe(prefix, session)])?;
        self.changed(prefix);
        Ok(())
    }

    fn lists_probe(&self, prefix: Prefix, session: SessionId) -> Result<bool> {
        let (probe, mut is_listed) = (handshake_probe(prefix, session), false);
        self.list_keys(prefix, &mut |page| {
            is_listed |= page.iter().any(|(key, _)| *key == probe);
            Ok(())
        })?;
        Ok(is_listed)
    }
}

impl ObjectStore for SimObjectStore {
    fn create(&self, _: SessionId, name: ObjectName, bytes: &[u8]) -> Result<Created> {
        let created = self.create_key(&name.to_string(), bytes)?;
        self.changed(name.prefix());
        Ok(created)
    }

    fn put(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.start_put(session, name, bytes, Change::Any)
    }

    fn put_again(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.start_put(session, name, bytes, Change::Replace)
    }

    fn confirm(&self, _: &[ObjectName]) -> Result<()> {
        // What is listed is durable.
        Ok(())
    }

    fn barrier(&self, puts: Vec<PendingPut>) -> Result<()> {
        let mut puts = puts.into_iter();
        while let Some(put) = puts.next() {
            let landed = self.bucket().land(put.ticket);
            if let Err(error) = landed {
                self.discard(puts.collect());
                return Err(self.error("put", &put.name.to_string(), error));
            }
            self.changed(put.name.prefix());
        }
        Ok(())
    }

    fn discard(&self, puts: Vec<PendingPut>) {
        // An object that is visible stays: others may refer to it already.
        let mut bucket = self.bucket();
        for put in &puts {
            bucket.abort(put.ticket);
        }
    }

    fn read(&self, reads: &mut [RangeRead]) {
        for read in reads {
            read.outcome = self.read_one(read);
        }
    }

    fn read_exact(&self, name: ObjectName, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut read = RangeRead::new(name, offset, buffer.len());
        self.read_one(&mut read)?;
        if read.buffer.len() < buffer.len() {
            return Err(self.error("read", &name.to_string(), ErrorKind::UnexpectedEof.into()));
        }
        buffer.copy_from_slice(&read.buffer);
        Ok(())
    }

    fn len(&self, name: ObjectName) -> Result<Option<u64>> {
        let key = name.to_string();
        self.request("look up", &key, |bucket| bucket.objects.get(&key).map(|object| object.bytes.len() as u64))
    }

    fn list(&self, prefix: Prefix, detail: Detail, page: &mut dyn FnMut(Vec<Listed>) -> Result<()>) -> Result<()> {
        self.list_keys(prefix, &mut |keys| {
            let listed = keys.into_iter().filter(|(key, _)| !key.ends_with(PROBE)).map(|(key, object)| {
                let name = ObjectName::parse(&key).filter(|name| name.prefix() == prefix).ok_or(key);
                match detail {
                    Detail::Names => Listed { name, len: 0, changed: None },
                    Detail::Lengths => Listed { name, len: object.bytes.len() as u64, changed: Some(object.changed) },
                }
            });
            page(listed.collect())
        })
    }

    fn delete(&self, names: &[ObjectName]) -> Result<()> {
        let keys: Vec<String> = names.iter().map(ToString::to_string).collect();
        self.delete_keys(&keys)?;
        for name in names {
            self.changed(name.prefix());
        }
        Ok(())
    }

    fn quarantine(&self, names: &[ContainerName]) -> Result<()> {
        for name in names {
            // The server copies an object; there is no rename.
            let (from, to) = (name.to_string(), ObjectName::Quarantined(*name).to_string());
            self.request("copy", &from, |bucket| {
                if let Some(bytes) = bucket.objects.get(&from).map(|object| Arc::clone(&object.bytes)) {
                    bucket.store(&to, bytes);
                }
            })?;
            self.delete_keys(&[from])?;
        }
        self.changed(Prefix::Containers);
        Ok(())
    }

    fn quarantine_object(&self, _: SessionId, name: ObjectName, replacement: Option<&[u8]>) -> Result<()> {
        let key = name.to_string();
        self.request("copy", &key, |bucket| {
            let bytes = bucket.objects.get(&key).map_or(Arc::default(), |object| Arc::clone(&object.bytes));
            bucket.store(&format!("{key}.0.bad"), bytes);
        })?;
        let put = |bytes: &[u8]| self.request("put", &key, |bucket| bucket.store(&key, bytes.into()));
        replacement.map_or_else(|| self.delete_keys(std::slice::from_ref(&key)), put)
    }
    fn refresh_collections(&self, session: SessionId) -> Result<()> {
        self.refresh(session, Prefix::Collections)
    }

    fn refresh_sessions(&self, session: SessionId) -> Result<()> {
        self.refresh(session, Prefix::Sessions)
    }

    fn refresh_containers(&self, session: SessionId) -> Result<()> {
        self.refresh(session, Prefix::Containers)
    }

    fn try_handshake(&self, session: SessionId) -> Result<Handshake> {
        try_handshake(self, &self.another_client(), session)
    }

    fn abilities(&self) -> Abilities {
        Abilities { listed_is_durable: true }
    }

    fn leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers> {
        let (mut found, mut removed) = (Leftovers::default(), Vec::new());
        for prefix in [Prefix::Sessions, Prefix::Collections, Prefix::Containers] {
            self.list_keys(prefix, &mut |page| {
                for (key, object) in page.into_iter().filter(|(key, _)| key.ends_with(PROBE)) {
                    let session = key.rsplit('/').next().and_then(|name| name.get(..32)).and_then(SessionId::parse);
                    if removes(session) {
                        found.removed += 1;
                        found.removed_bytes += object.bytes.len() as u64;
                        removed.push(key);
                    } else {
                        found.kept += 1;
                    }
                }
                Ok(())
            })?;
        }
        self.delete_keys(&removed)?;
        Ok(found)
    }

    fn begin_creation(&self, session: SessionId) -> Result<CreationLock> {
        if self.create_key(CREATION_LOCK, &session.0)? == Created::Existed {
            return Err(Error::CreationBusy { root: self.display("") });
        }
        let lock = SimCreationLock(self.another_client());
        let key = format!("tmp/{session}{PROBE}");
        let tried = [self.create_key(&key, b"probe"), self.create_key(&key, b"again")];
        self.delete_keys(&[key])?;
        let [first, second] = tried;
        match (first?, second?) {
            (Created::New, Created::Existed) => Ok(Box::new(lock)),
            _ => Err(Error::UnfitFileSystem { root: self.display(""), reason: "it creates a name twice" }),
        }
    }

    fn end_creation(&self, lock: CreationLock) {
        drop(lock);
    }

    fn complete(&self) -> Result<Vec<&'static str>> {
        Ok(Vec::new())
    }

    fn display(&self, key: &str) -> String {
        format!("object-store:{key}")
    }
}

/// Returns a time of the virtual clock.
fn timestamp(milliseconds: u64) -> Timestamp {
    let seconds = i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: u32::try_from(milliseconds % 1000).unwrap_or(0) * 1_000_000 }
}
