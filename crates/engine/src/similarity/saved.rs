//! The index of similar regions as a host keeps it, next to its index of chunks.
//!
//! A file that is lost, damaged or of another repository costs nothing but time: the samples also stand in the directories of the
//! containers, from which the index is made again.
//!
//! Form, integers little-endian: the bytes `OFSIMR1\0`, the repository (16), the sampling distance (4), and the numbers of sessions,
//! regions and buckets (4 each). Then for each session its id (16), the length (4) and the bytes of a bitmap of the ordinals of
//! the containers that were taken. Then for each region the number of its session (4), the ordinal of its container (4), its number
//! there (2), its depth (1), how many bases it has (1), the length of its plaintext (4), and the numbers of its bases (4 each). Then
//! the buckets, with 16 slots (8 each). Regions are numbered from 0. At the end is the BLAKE3 of all that (32).

use std::collections::HashMap;

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::types::{ContainerId, RepositoryId, SessionId};

use super::index::{AnchorIndex, BUCKET_BYTES, Sampling};
use super::regions::{REGION_BYTES, Regions};

const MAGIC: [u8; 8] = *b"OFSIMR1\0";
/// Most bytes of a bitmap of ordinals: of a session with 16 million containers, 64 TB.
const ORDINALS_BYTES_MAX: u32 = 2 << 20;
/// Most sessions.
const SESSIONS_MAX: u32 = 1 << 20;

/// The index of similar regions of one host.
#[derive(Debug)]
pub struct SimilarRegions {
    /// Regions that have numbers.
    pub regions: Regions,
    /// Sample of their features.
    pub anchors: AnchorIndex,
    /// Containers of these regions, and those known to be of no use.
    pub taken: TakenContainers,
}

/// Containers whose regions were taken. Takes a bit for each.
#[derive(Clone, Debug, Default)]
pub struct TakenContainers(HashMap<SessionId, Bitmap>);

impl TakenContainers {
    /// Returns true if the container was taken.
    pub fn contains(&self, id: ContainerId) -> bool {
        self.0.get(&id.session).is_some_and(|ordinals| ordinals.contains(id.ordinal))
    }

    /// Adds a container. One with an ordinal above the limit is taken again each time.
    pub fn insert(&mut self, id: ContainerId) {
        if id.ordinal / 8 < ORDINALS_BYTES_MAX && self.0.len() < SESSIONS_MAX as usize {
            self.0.entry(id.session).or_default().insert(id.ordinal);
        }
    }

    fn retain(&mut self, exists: impl Fn(ContainerId) -> bool) {
        self.0.retain(|session, ordinals| {
            let end = 8 * u32::try_from(ordinals.as_bytes().len()).unwrap_or(0);
            for ordinal in 0..end {
                if ordinals.contains(ordinal) && !exists(ContainerId { session: *session, ordinal }) {
                    ordinals.remove(ordinal);
                }
            }
            ordinals.count() != 0
        });
    }
}

/// Memory of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimilarRegionsLimits {
    /// Rule of the sample.
    pub sampling: Sampling,
    /// Bytes of the sample, and of the table of regions: a quarter as much as the sample.
    pub bytes: usize,
}

impl SimilarRegions {
    /// Makes an empty index.
    pub fn new(limits: SimilarRegionsLimits) -> Self {
        // A region of 512 KiB has 8 samples in 1.5 slots each, and 24 bytes in the table: 4 to 1.
        let regions = Regions::within(limits.bytes / 5);
        let anchors = AnchorIndex::new(limits.sampling, limits.bytes / 5 * 4);
        Self { regions, anchors, taken: TakenContainers::default() }
    }

    /// Drops the samples of regions in containers for which `exists` returns false.
    pub fn retain(&mut self, exists: impl Fn(ContainerId) -> bool) {
        let mut dead = Bitmap::default();
        let mut last: Option<(ContainerId, bool)> = None;
        for number in self.regions.all() {
            let Some(id) = self.regions.id(number) else { continue };
            let is_there = match last {
                Some((container, is_there)) if container == id.container => is_there,
                _ => exists(id.container),
            };
            last = Some((id.container, is_there));
            if !is_there {
                dead.insert(number.0);
            }
        }
        if dead.count() != 0 {
            self.anchors.retain(|region| !dead.contains(region.0));
        }
        self.taken.retain(exists);
    }

    /// Writes the form, without its checksum.
    pub(crate) fn write(&self, out: &mut SealedWriter, repository: RepositoryId) -> Result<()> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        out.write(&MAGIC)?;
        out.write(&repository.0)?;
        out.write(&self.anchors.sampling().distance().to_le_bytes())?;
        let sessions = self.sessions();
        out.write(&count(sessions.len()))?;
        out.write(&count(self.regions.count()))?;
        out.write(&count(self.anchors.bucket_count()))?;
        for session in &sessions {
            let ordinals = self.taken.0.get(session).map_or(&[][..], Bitmap::as_bytes);
            out.write(&session.0)?;
            out.write(&count(ordinals.len()))?;
            out.write(ordinals)?;
        }
        self.regions.write(&mut |record| out.write(record))?;
        self.anchors.write(self.regions.first(), &mut |bucket| out.write(bucket))
    }

    /// Returns the sessions of regions in the order of their numbers, and then those of other containers that were taken.
    fn sessions(&self) -> Vec<SessionId> {
        let mut sessions = self.regions.sessions().to_vec();
        let mut others: Vec<SessionId> =
            self.taken.0.keys().filter(|session| !self.regions.has_session(**session)).copied().collect();
        others.sort_unstable();
        sessions.extend(others);
        sessions
    }

    /// Reads the form, without its checksum. Fails if it is damaged, of another repository, or of a sample that is not as dense. Takes
    /// no more memory than the limits say: the oldest regions are left out.
    pub(crate) fn read(
        reader: &mut SealedReader,
        object: &str,
        repository: RepositoryId,
        limits: SimilarRegionsLimits,
    ) -> Result<Self> {
        Self::read_fields(reader, repository, limits).map_err(|refused| match refused {
            Refused::Reason(reason) => Error::damaged(object, reason),
            Refused::Error(error) => error,
        })
    }

    fn read_fields(
        reader: &mut SealedReader,
        repository: RepositoryId,
        limits: SimilarRegionsLimits,
    ) -> std::result::Result<Self, Refused> {
        let mut index = Self::new(limits);
        if array::<8>(reader)? != MAGIC || RepositoryId(array(reader)?) != repository {
            return Err(Refused::Reason("is no index of this repository's similar regions"));
        }
        if !Sampling::one_in(number(reader)?).is_as_dense_as(limits.sampling) {
            return Err(Refused::Reason("has too sparse a sample"));
        }
        let (sessions, regions, buckets) = (number(reader)?, number(reader)?, number(reader)?);
        let least = u64::from(sessions) * 20
            + u64::from(regions) * REGION_BYTES as u64
            + u64::from(buckets) * BUCKET_BYTES as u64;
        if SESSIONS_MAX < sessions || reader.left() < least {
            return Err(Refused::Reason("ends early"));
        }
        for _ in 0..sessions {
            let session = SessionId(array(reader)?);
            let len = number(reader)?;
            if ORDINALS_BYTES_MAX < len || reader.left() < u64::from(len) {
                return Err(Refused::Reason("has a session of an impossible number of containers"));
            }
            let mut ordinals = vec![0; len as usize];
            reader.read(&mut ordinals)?;
            index.taken.0.insert(session, Bitmap::from_bytes(ordinals));
            index.regions.add_session(session);
        }
        for _ in 0..regions {
            let record = array(reader)?;
            if !index.regions.read(record, &mut || number(reader))? {
                return Err(Refused::Reason("has a region that cannot be"));
            }
        }
        index.anchors.resize(buckets as usize);
        for bucket in 0..buckets as usize {
            index.anchors.read(bucket, buckets as usize, &array(reader)?, &|region| index.regions.knows(region));
        }
        Ok(index)
    }
}

/// Reason why a file is of no use.
enum Refused {
    Reason(&'static str),
    Error(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn array<const N: usize>(reader: &mut SealedReader) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read(&mut bytes)?;
    Ok(bytes)
}

fn number(reader: &mut SealedReader) -> Result<u32> {
    Ok(u32::from_le_bytes(array(reader)?))
}
