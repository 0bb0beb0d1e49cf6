//! Clusters of files: those whose names tell that they may have the same contents.
//!
//! Versions and copies of a file mostly keep its name, or differ in a date or a number. A sample has all files of a cluster or
//! none, so it sees their duplicates in proportion. A name that very many files share (`index.html`, photos of a camera) makes
//! too large a cluster; its files form smaller ones by more of their path (see [`LEVELS`]).
//!
//! The clusters of each level are counted in a table of fixed size: several clusters may share a bucket.

use std::os::unix::ffi::OsStrExt;

use onefold_engine::source::walk::Item;
use twox_hash::XxHash3_64;

/// Parts of the path that files of a cluster share, from the coarsest to the finest: the name without its digits; the name; the
/// name and one directory; the name and three directories; the whole path. Digits of directories never count, except in the last.
const LEVELS: usize = 5;
/// Buckets of a level.
const BUCKETS: usize = 1 << 15;
/// Memory of the tables.
pub(super) const MEMORY_BYTES: usize = LEVELS * BUCKETS * size_of::<Bucket>();

/// Shortest extent: chunks of 16 KiB on average must fit a few times.
pub(super) const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// Longest one: changes of an image are local, and its parts differ.
pub(super) const EXTENT_BYTES_MAX: u64 = 16 << 20;
/// Longer extents begin at multiples of the longest fixed blocks.
const BLOCK_BYTES: u64 = 1 << 20;
/// Most extents of a file; those of larger files are longer.
pub(super) const EXTENTS_MAX: u64 = 1 << 16;
/// The same extent of all files of a cluster is to be this part of the sample, if extents of the shortest length allow it. Files that change in
/// place need no long ones, and the more there are the less they differ from the whole; insertions move bytes out of short ones.
const UNITS_WANTED: u64 = 320;
const UNITS_WANTED_SHIFTED: u64 = 80;
/// A cluster of up to this many files may be versions of one.
const VERSIONS_MAX: u64 = 64;
/// Such a cluster is too large if its least unit is a larger part of the sample; of two, the second is for clusters of more files.
const SAMPLE_PARTS: [u64; 2] = [8, 32];
/// A bucket with less than this multiple of the mean is not divided further: it has several clusters.
const BUCKET_SHARE: u64 = 8;

/// Files of whole pages are images and databases, which change in place.
pub(super) const PAGE_BYTES: u64 = 4 << 10;

/// Files of a bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bytes: u64,
    files: u64,
    smallest: u64,
    largest: u64,
}

const EMPTY: Bucket = Bucket { bytes: 0, files: 0, smallest: u64::MAX, largest: 0 };

/// Cluster of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cluster {
    /// Hash of what its files share.
    pub(super) key: u64,
    /// Length of the largest file of its bucket.
    pub(super) largest: u64,
    /// Length of the extents that its files are divided into.
    pub(super) extent_bytes: u64,
    /// Whether they may differ by insertions, which move what follows.
    pub(super) has_insertions: bool,
}

/// Counts of all clusters.
#[derive(Debug)]
pub(super) struct Clusters {
    levels: Vec<Vec<Bucket>>,
    /// Bytes that the sample is to have.
    wanted: u64,
    total: u64,
}

impl Clusters {
    /// Starts without files.
    pub(super) fn new(wanted: u64) -> Self {
        Self { levels: vec![vec![EMPTY; BUCKETS]; LEVELS], wanted, total: 0 }
    }

    /// Counts a file.
    pub(super) fn add(&mut self, item: &Item) {
        let size = item.metadata.size;
        self.total = self.total.saturating_add(size);
        for (level, buckets) in self.levels.iter_mut().enumerate() {
            if let Some(bucket) = buckets.get_mut(slot(key(level, item))) {
                bucket.bytes = bucket.bytes.saturating_add(size);
                bucket.files += 1;
                bucket.smallest = bucket.smallest.min(size);
                bucket.largest = bucket.largest.max(size);
            }
        }
    }

    /// Returns the cluster of a file, after all were counted.
    pub(super) fn of(&self, item: &Item) -> Cluster {
        let mut found = (0, EMPTY);
        for (level, buckets) in self.levels.iter().enumerate() {
            let key = key(level, item);
            found = (key, buckets.get(slot(key)).copied().unwrap_or(EMPTY));
            // Files of one name, if they are few, are taken to be versions however large they are.
            if !self.is_too_large(found.1) || level != 0 && found.1.files <= VERSIONS_MAX {
                break;
            }
        }
        let (key, bucket) = found;
        let has_insertions = bucket.smallest < bucket.largest && (bucket.smallest | bucket.largest) % PAGE_BYTES != 0;
        let units = if has_insertions { UNITS_WANTED_SHIFTED } else { UNITS_WANTED };
        Cluster { key, largest: bucket.largest, extent_bytes: self.extent_bytes(bucket, units), has_insertions }
    }

    fn is_too_large(&self, bucket: Bucket) -> bool {
        let unit = bucket.bytes.min(bucket.files.saturating_mul(EXTENT_BYTES_MIN));
        let [few, many] = SAMPLE_PARTS;
        let parts = if bucket.files <= VERSIONS_MAX { few } else { many };
        (self.wanted / parts).max(BUCKET_SHARE * (self.total / BUCKETS as u64)) < unit
    }

    fn extent_bytes(&self, bucket: Bucket, units: u64) -> u64 {
        // As many versions as if all were as large as the largest.
        let versions = bucket.bytes / bucket.largest.max(1);
        let len = (self.wanted / units / versions.max(1)).clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX);
        let len = len.max(bucket.largest / EXTENTS_MAX);
        let multiple = if len < BLOCK_BYTES { EXTENT_BYTES_MIN } else { BLOCK_BYTES };
        len / multiple * multiple
    }
}

fn slot(key: u64) -> usize {
    usize::try_from(key % BUCKETS as u64).expect("a slot of the table")
}

fn key(level: usize, item: &Item) -> u64 {
    let name = item.name.as_bytes();
    // Flags of a mail, as Maildir has them, are no part of its name.
    let name = name.windows(3).position(|bytes| bytes == b":2,").and_then(|end| name.get(..end)).unwrap_or(name);
    let directories = match level {
        0 => return XxHash3_64::oneshot(&without_digits(name)),
        1 => 0,
        2 => 1,
        3 => 3,
        _ => return XxHash3_64::oneshot(item.path.as_os_str().as_bytes()),
    };
    let mut joined = name.to_vec();
    for directory in item.path.components().rev().skip(1).take(directories) {
        joined.push(b'/');
        joined.extend(without_digits(directory.as_os_str().as_bytes()));
    }
    XxHash3_64::oneshot(&joined)
}

fn without_digits(name: &[u8]) -> Vec<u8> {
    name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect()
}
